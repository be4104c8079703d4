// register.h: registers the simulator with torch, once a process.
#pragma once

namespace managed::sim {

// Throws c10::Error if another library has registered PrivateUse1.
void check_unclaimed();
// Registers the backend. Devices must have been created. This cannot be undone.
void register_backend();

void register_guard();  // guard.cpp
void register_hooks();  // hooks.cpp

}  // namespace managed::sim
