// room.h: makes room on a device, and moves the bytes of storages as the core plans it.
//
// make_room() is what an allocator calls when a device is full: it drops kept copies, then lets storages leave, waits
// for other threads, and last runs Python's collector. restore() brings one storage home. Which storages leave is
// decided in core/evict.c, what one operator holds and brings home in hold.h, the text of the error in out_of_memory.h.
//
// No lock is held while bytes are copied or an allocator is called. A plan is made and carried out inside one Transfer
// (transfer.h).
#pragma once
#include "../core/core.h"
#include "storage.h"

namespace managed {

// Who asks. BringsHome: hold.cpp, which waits for other threads itself, after it has let go of its operands.
// LockedAllocator: an allocator that holds its lock. Nobody waits for other threads then, since these may need that
// lock to free bytes; and no other device's allocator is called, whose lock another thread may hold while it waits for
// this.
enum class Caller { Free, BringsHome, LockedAllocator };

// Tries to make `bytes` bytes free on the device: drops kept copies, else lets storages leave. True: something came
// free, perhaps not enough, so the caller asks its allocator again and may call again. False: no storage can leave, now
// or soon. If the reason is a device that failed, it throws that device's error, unless the caller is an allocator that
// holds its lock.
bool make_room(int device, int64_t bytes, Caller caller = Caller::Free);

// Bytes of the block that this thread is requesting for a storage that comes home or goes to a peer; 0 while it
// requests none.
int64_t requested_by_this_thread();

// Nothing may use more than this many bytes of the device from now on; what is there beyond them leaves as far as it
// can.
void set_budget(int device, int64_t bytes);

// Carries out one RESTORE; the error of the allocator when the device has no room for it.
void restore(const mgd_action& action);

// Copies `bytes` of h's bytes, from `offset` on, from where they are to `target` on the device `to` (an id of the
// machine); *from, if asked, is where that was. The caller holds the storage. False: they are on their way in other
// hands.
bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target,
                           int* from = nullptr);

extern std::atomic<bool> overwrite_freed; // for tests: bytes that left leave nothing behind on simulated devices

// For tests: everything that nobody uses leaves its device, or one in `odds` by chance. Returns how many left.
int64_t spill_some(uint32_t odds, uint64_t* seed);

} // namespace managed
