// kernels.h: reports kernels that the host computes to the preloaded runtime.
//
// csrc/virtual_gpu/torch/launch.cpp looks the runtime up; without one nothing is reported. Simulated devices do not use
// this.
#pragma once
#include <c10/core/DeviceGuard.h>

#include <cstddef>

namespace managed::sim {

// A kernel of the calling thread on the current stream of a device. The constructor returns when all that the stream
// waits for is done; the destructor ends the kernel. Nothing may be allocated on a device in between.
class Kernel {
 public:
  Kernel(int device, const char *name);
  ~Kernel();
  Kernel(const Kernel &) = delete;
  Kernel &operator=(const Kernel &) = delete;
  void touches(const void *address, std::size_t bytes, bool written);

 private:
  c10::DeviceGuard there_; // CUDA launches only on streams of the current device
};

// Makes the host wait for the current stream of the device, as CUDA's own code does to read a result.
void wait_for_stream(int device);

}  // namespace managed::sim
