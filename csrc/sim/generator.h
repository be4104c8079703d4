// generator.h: random generators of the simulated devices.
//
// Each wraps a CPU generator: equal seeds give the CPU's numbers.
#pragma once
#include <ATen/core/Generator.h>

namespace managed::sim {

// -1 means the current device.
const at::Generator &default_generator(int device);
at::Generator new_generator(int device);
// CPU kernels demand a generator whose device is the CPU: the one inside.
at::Generator cpu_generator(const at::Generator &g);

}  // namespace managed::sim
