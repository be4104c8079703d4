// attach.h: creates the machine and adds CUDA's devices and simulated ones to it.
//
// Accelerators are looked up when one is first needed (discover(), devices.h), so importing the package initialises no
// driver.
#pragma once

namespace managed {

// Creates the machine, with the host alone, when the package is imported; mgd_torch_init() calls it before anything
// else. Later calls do nothing. Throws c10::Error.
void create_machine();

} // namespace managed
