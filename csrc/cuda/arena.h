// arena.h: one block of torch's that managed divides itself, so that the storages of a learned step leave the free
// bytes of a device in one piece (core/planner/plan_layout.h).
//
// A range that is freed is free at once, for all streams: what its next user has to come after is kept, and that user
// is ordered then. A plan says where most ranges lie. The rest of the arena serves requests for which torch's cache has
// no memory.
#pragma once
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>

#include "torch/devices/cuda_bridge.h"

namespace managed {

// Makes an arena of the block, which torch gave to the device's current stream. False: there is one already, and the
// block is not taken.
bool set_arena(int device, c10::DataPtr& block, std::size_t bytes);
// Takes the arena's block out, if nothing is in it; else the result is empty.
c10::DataPtr take_arena(int device);

bool has_arena(int device);
std::size_t size_of_arena(int device); // 0: there is none
std::size_t idle_in_arena(int device); // bytes of it that are free

// Take a range for the current stream; the result is empty if it is not free, or if the stream is recorded into a
// graph. The device must be current. What the stream does next comes after the earlier users; if the range is
// `for_copy`, only the copy comes after them (lead_after_arena()). May throw c10::Error, and has taken nothing then.
c10::DataPtr take_range(int device, std::int64_t offset, std::size_t bytes, bool for_copy);
// Likewise, at the highest offset that is free and meets none of the places.
c10::DataPtr take_gap(int device, std::size_t bytes, c10::ArrayRef<mgd_step_place> places);

// Orders the stream after the earlier users of the range, if this thread has just taken it for a copy. False: it has
// not, or has asked before, or the users are unknown.
bool lead_after_arena(const void* range, cudaStream_t stream);

// Returns the block that the address lies in, or null.
const void* arena_at(const void* address);
bool is_range(const c10::DataPtr& p);

// Frees a range. Its next user comes after the copy, if that is not null, and, unless it was the `last` user, after all
// work of the device's streams. Throws nothing.
void free_range(c10::DataPtr& range, const CopyPtr& copy, bool last);
void free_range(void* range); // after the work of its stream, and of those that were recorded
void record_on_range(const c10::DataPtr& range, c10::cuda::CUDAStream stream);
// Ranges that are freed are reported to `freed` (bridge.h).
void report_ranges(void (*freed)(int device, std::size_t bytes));

} // namespace managed
