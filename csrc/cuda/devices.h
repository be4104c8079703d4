// devices.h: CUDA's devices by number, and torch's native allocator for them.
#pragma once
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>

namespace managed {

constexpr int kMostDevices = 64; // the hook takes no more

inline c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// Returns the bytes of the device. Makes no context. Throws c10::Error.
std::size_t capacity(int device);

// Returns torch's own caching allocator, also behind the front; null if another one is in use, or caching is off.
c10::cuda::CUDACachingAllocator::CUDAAllocator* native();
// set_front() puts an allocator that forwards to it (front.h) in its place, once for good; has_front() tells whether
// one is there.
void set_front(c10::cuda::CUDACachingAllocator::CUDAAllocator* made);
bool has_front();

} // namespace managed
