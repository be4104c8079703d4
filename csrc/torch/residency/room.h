// room.h: makes room on a device.
//
// make_room() is what an allocator calls when a device is full: it drops kept copies, then lets storages leave, waits
// for other threads, and last runs Python's collector. Which storages leave is decided in core/evict.c and carried out
// by executor.h; what one operator holds and brings home is in hold.h, the text of the error in out_of_memory.h.
#pragma once
#include "core/core.h"
#include "torch/tensor/storage.h"

namespace managed {

// Who asks. BringsHome: hold.cpp, which waits for other threads itself, after it has let go of its operands.
// LockedAllocator: an allocator that holds its lock. Nobody waits for other threads then, since these may need that
// lock to free bytes; and no other device's allocator is called, whose lock another thread may hold while it waits for
// this.
enum class Caller { Free, BringsHome, LockedAllocator };

// Tries to make `bytes` bytes free on the device: drops kept copies, else lets storages leave. True: something came
// free, perhaps not enough, so the caller asks its allocator again and may call again. False: no storage can leave, now
// or soon. If the reason is a device that failed, it throws that device's error, unless the caller is an allocator that
// holds its lock. `own_uses`: how often this thread itself uses storages of the device
// (Hold::uses_of_this_thread): it must not wait for these uses to end.
bool make_room(int device, int64_t bytes, int64_t own_uses, Caller caller = Caller::Free);

// For tests: everything that nobody uses leaves its device, or one in `odds` by chance. Returns how many left.
int64_t spill_some(uint32_t odds, uint64_t* seed);

} // namespace managed
