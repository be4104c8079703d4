// devices.h: CUDA's devices by number, and what torch's native allocator is asked about them.
#pragma once
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>

namespace managed {

constexpr int kMostDevices = 64; // as many as the hook takes in

inline c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// Bytes of the device. No context is made where there is none.
std::size_t capacity(int device);

// Torch's own caching allocator, also behind the front; null where another one serves, or nothing is cached.
c10::cuda::CUDACachingAllocator::CUDAAllocator* native();
// Puts an allocator in its place that forwards to it (front.h), once for good; and whether one is there.
void set_front(c10::cuda::CUDACachingAllocator::CUDAAllocator* made);
bool has_front();

} // namespace managed
