// generator.h: random generators of the simulated devices.
//
// Each wraps a CPU generator: equal seeds give the CPU's numbers.
#pragma once
#include <ATen/core/Generator.h>

#include <memory>

namespace managed::sim {

// -1 means the current device.
const at::Generator &default_generator(int device);
at::Generator new_generator(int device);
// Returns the CPU generator inside, since CPU kernels take no other. What is drawn from it counts for `g` at the latest
// when the lease ends.
at::Generator cpu_generator(const at::Generator &g, std::shared_ptr<void> &lease);

}  // namespace managed::sim
