// room.h: makes room on a device.
//
// An allocator calls make_room() when a device is full: it drops kept copies, asks other allocators for what they keep,
// then evicts storages, waits for other threads, and last runs Python's collector. core/evict.c chooses the victims,
// executor.h moves them, hold.h keeps what an operator uses, and out_of_memory.h has the text of the error.
#pragma once
#include "core/core.h"
#include "core/window.h"
#include "torch/tensor/storage.h"

namespace managed {

// The caller of make_room(). BringsHome: hold.cpp, which waits for other threads itself, after releasing its operands.
// LockedAllocator: an allocator that holds its lock. make_room() does not wait for other threads then, since these may
// need that lock to free bytes; and it calls no other device's allocator, whose lock another thread may hold while it
// waits for this one.
// GivesBack: makes room for another library, so no library is asked for room.
enum class Caller { Free, BringsHome, LockedAllocator, GivesBack };

// One piece that a request needs: its bytes, and the blocks of the device's allocator (core/window.h). No blocks: any
// free bytes will do.
struct Hole {
  int64_t bytes = 0;
  c10::ArrayRef<mgd_window_block> blocks;
};

// Tries to make `bytes` bytes free on the device, by the first of these that helps. True: something was freed,
// perhaps not enough, so the caller tries its allocator again and may call again. False: no storage can leave, now or
// soon. If the reason is a device that failed, throws that device's error, unless the caller is LockedAllocator.
// `own_uses`: how often this thread itself uses storages of the device (Hold::uses_of_this_thread): it must not wait
// for these uses to end.
// `hole`: the storages that leave are those of the cheapest window, if there is one.
bool make_room(int device, int64_t bytes, int64_t own_uses, Caller caller = Caller::Free, const Hole& hole = {});

// Why the last make_room() of this thread failed, if that was less than a second ago and the host was the reason:
// storages of `device` could leave, and their bytes had no place there.
struct HostShortage {
  int device = -1; // -1: there was another reason, or none
  bool is_refused = false; // the limit was not reached: the system refused the memory
  int64_t time = 0;
};
HostShortage take_host_shortage(); // returns it only once

} // namespace managed
