// leaving.h: blocks that were given up while a copy still reads or writes them.
//
// Torch's allocator hands a freed block to its stream at once, so one that goes back early makes every stream wait for
// the copy. Here it waits instead, until the copy has ended or somebody needs the room. What a copy will bring takes a
// block of its size from here: then only that copy waits, and no stream of the program's.
#pragma once
#include <cstddef>
#include <cstdint>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// The block of so many bytes, 0 if that is not known, goes back behind the copy. `last`: nothing uses it after that.
// Never throws.
void give_up_block(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes);

constexpr std::size_t kAll = SIZE_MAX;

// Gives blocks back to torch, until they have so many bytes together: first those whose copies have ended, then the
// oldest, for which streams wait. False: there were none. Holds no lock while it does. Never throws.
bool give_back_blocks(int device, std::size_t bytes);

// The bytes of all that are kept.
std::size_t bytes_given_up(int device);

// A block of just that size for what a copy of this thread is about to bring, or an empty one.
c10::DataPtr take_block_for_copy(int device, std::size_t bytes);

// What a copy into that block, the one that this thread took last, has to come after; asked for once. False: it is
// another block.
bool comes_after(const void* block, CopyPtr* copy, PointPtr* users);

} // namespace managed
