// blocks.h: large blocks that a device gave back, kept for its next request of that size.
//
// The system clears the pages of each large block that it hands out, which takes
// longer than to copy the bytes; a real device's allocator keeps its blocks, too.
// Kept blocks do not count as used, and used and kept bytes together never exceed
// the most that was in use at once.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace managed::sim {

// Returns a block of that many bytes on the host, kept or new.
c10::DataPtr take_block(int device, std::size_t bytes);

// Keeps a block whose bytes still count as used, or does not change it: then the caller frees it.
void keep_block(int device, std::size_t bytes, c10::DataPtr &block) noexcept;

// Frees all that is kept.
void forget_blocks();

// Installs handlers for fork(), so that a child finds the lock free. To be called after devices_survive_fork(), since
// the devices' locks are taken under this one.
void blocks_survive_fork();

}  // namespace managed::sim
