// blocks.h: large blocks that a device gave back, kept for its next request of that size.
//
// The system clears the pages of each large block that it hands out, which takes
// longer than to copy the bytes; a real device's allocator keeps its blocks, too.
// What is kept is nobody's: it does not count as used, and used and
// kept bytes together are never more than were in use at once.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace managed::sim {

// A block of that many bytes on the host, kept or new.
c10::DataPtr take_block(int device, std::size_t bytes);

// Keeps a block whose bytes still count as used, or leaves it alone: then it is the caller's to free.
void keep_block(int device, std::size_t bytes, c10::DataPtr &block) noexcept;

// Frees all that is kept.
void forget_blocks();

// A child of fork() finds the lock free. Named after the devices' own, which are taken under it.
void blocks_survive_fork();

}  // namespace managed::sim
