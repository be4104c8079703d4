// kernels.h: how the preloaded runtime is told of kernels that the host computes.
//
// csrc/virtual_gpu/torch/launch.cpp finds the runtime. Without it nothing is told. Simulated devices have no use for
// it.
#pragma once
#include <c10/core/DeviceGuard.h>

#include <cstddef>

namespace managed::sim {

// A kernel of the calling thread on the current stream of a device: it begins when all that the stream waits for is
// done, and has ended when the object dies. Nothing may be allocated on a device meanwhile.
class Kernel {
 public:
  Kernel(int device, const char *name);
  ~Kernel();
  Kernel(const Kernel &) = delete;
  Kernel &operator=(const Kernel &) = delete;
  void touches(const void *address, std::size_t bytes, bool written);

 private:
  c10::DeviceGuard there_; // CUDA launches on streams of the current device alone
};

// The host waits for the current stream of the device, as CUDA's own code does to read an answer.
void wait_for_stream(int device);

}  // namespace managed::sim
