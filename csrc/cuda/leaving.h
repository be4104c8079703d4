// leaving.h: blocks that were given up while a copy still reads or writes them, and blocks for copies to come.
//
// Torch's allocator hands a freed block to its stream at once, so a block that goes back early makes every stream wait
// for the copy. Here the block waits instead, until the copy has ended or its room is needed. A copy to the device
// takes a block of its size from here: then only that copy waits, and no stream of the program's.
//
// A copy into a new block waits for all work that its stream was given before. So a block is set aside for the next
// operand of the same size, if one has just come: the next copy then waits only for the work before this one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// Frees the block of so many bytes (0: unknown) after the copy. `last`: nothing uses the block after the copy. Never
// throws.
void give_up_block(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes);

constexpr std::size_t kAll = SIZE_MAX;

// Gives blocks back to torch, until they have so many bytes together: first those whose copies have ended, then the
// oldest, whose copies streams then wait for. False: there were none. Holds no lock meanwhile. Never throws.
bool give_back_blocks(int device, std::size_t bytes);

// Returns the bytes of all blocks that are kept, those that are set aside included.
std::size_t bytes_given_up(int device);

// Sets a block aside for a copy to come, which has to come after `users` alone. Gives an older one back if there are
// many. Throws std::bad_alloc.
void set_block_aside(c10::DataPtr block, PointPtr users, std::size_t bytes);
// Whether a copy of just that size finds a block here.
bool has_block_for_copy(int device, std::size_t bytes);

// Takes a block of just that size as the target of this thread's next copy; empty if there is none.
c10::DataPtr take_block_for_copy(int device, std::size_t bytes);

// Finds what a copy into the block has to come after; both may be null. False: this thread did not take the block last,
// or has asked for it before.
bool comes_after(const void* block, CopyPtr* copy, PointPtr* users);

} // namespace managed
