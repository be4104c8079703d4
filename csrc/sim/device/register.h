// register.h: making the simulator known to torch, once a process.
#pragma once

namespace managed::sim {

// Throws, with nothing registered, when PrivateUse1 belongs to somebody else.
void check_unclaimed();
// Devices must have been created. Cannot be undone.
void register_backend();

void register_guard();  // guard.cpp
void register_hooks();  // hooks.cpp

}  // namespace managed::sim
