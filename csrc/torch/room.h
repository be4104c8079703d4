// room.h: carries out what the core plans: bytes leave, bytes come home.
//
// No lock is held while bytes are copied or an allocator is called. Who has to
// wait for others waits on waiting.cpp's condition, with a deadline. Planning and
// carrying out stand inside one Transfer (transfer.h).
#pragma once
#include "../core/core.h"
#include "storage.h"

namespace managed {

// Who asks. Who brings operands home waits for others with empty hands, and not here. For an allocator that holds its
// lock nobody waits either, since those who would give bytes back wait for that lock; and no other device's allocator
// is called, whose lock another thread may hold while it waits for this one.
enum class Caller { Free, BringsHome, LockedAllocator };

// Frees up to `bytes` on the device: kept copies first, then storages. False: no storage can leave, now or soon. If the
// reason is a device that failed, it throws that device's error, unless the caller is an allocator that holds its lock.
bool make_room(int device, int64_t bytes, Caller caller = Caller::Free);

// Bytes of the block that this thread is requesting for a storage that comes home or goes to a peer; 0 while it
// requests none.
int64_t requested_by_this_thread();

// Nothing may use more than this many bytes of the device from now on; what is there beyond them leaves as far as it
// can.
void set_budget(int device, int64_t bytes);

// Carries out one RESTORE; the error of the allocator when the device has no room for it.
void restore(const mgd_action& action);

// Copies `bytes` of b's bytes, from `offset` on, from where they are to `target` on the device `to` (an id of the
// machine); *from, if asked, is where that was. The caller holds the storage. False: they are on their way in other
// hands.
bool copy_from_where_it_is(StorageHandle& b, std::size_t offset, std::size_t bytes, int to, void* target,
                           int* from = nullptr);

extern std::atomic<bool> overwrite_freed; // for tests: bytes that left leave nothing behind on simulated devices

// For tests: everything that nobody uses leaves its device, or one in `odds` by chance. Returns how many left.
int64_t spill_some(uint32_t odds, uint64_t* seed);

} // namespace managed
