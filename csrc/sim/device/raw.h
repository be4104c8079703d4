// raw.h: memory of a simulated device that is no tensor's.
//
// Owns the addresses that were given out. raw_alloc() is what cudaMalloc() is to other libraries; caching_alloc() asks
// the allocator of tensors, so tensors leave for it. Where devices have values the bytes can be read and written at the
// address, on the host.
#pragma once
#include <cstddef>

namespace managed::sim {

// Null: the device has no room for that many bytes, or they are 0. No tensor leaves, and no budget bounds them.
void *raw_alloc(int device, std::size_t bytes);
void raw_free(void *address);

// Null for 0 bytes, as torch.cuda.caching_allocator_alloc(). The bytes belong to that stream, and count as a tensor's.
// Throws c10::OutOfMemoryError.
void *caching_alloc(int device, std::size_t bytes, int stream);
void caching_delete(void *address);

// Installs handlers for fork(), so that a child finds the lock free.
void raw_survives_fork();

} // namespace managed::sim
