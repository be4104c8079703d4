// executor.h: carries out what the core plans: bytes leave, come home, or get a copy on the host.
//
// Nobody waits here: a copy begins, and what must come after it is told so (Copy, bridge.h). Who decides: core/evict.c
// and core/restore.c. Who asks for room, and waits for other threads: room.h. What an operator holds: hold.h.
//
// A plan is made and carried out inside one Transfer (transfer.h). No lock is held while an allocator is called.
#pragma once
#include <exception>

#include "core/core.h"
#include "torch/tensor/storage.h"

namespace managed {

// Carries out SPILL, DROP and FORGET. Returns how many storages left: fewer than were planned when a copy could not
// begin; the device's error is in *failure then. *forgotten: how many copies on the host were freed.
int64_t carry_out(const mgd_action* actions, std::size_t n, std::exception_ptr* failure, int64_t* forgotten = nullptr,
                  Urgency urgency = Urgency::Now);

// Carries out one RESTORE or JOIN of an operator: what this thread starts from now on finds the bytes. Throws the
// allocator's error when the device has no room; the bytes stay where they were then.
void carry_home(const mgd_action& action);
// Ends one that is not carried out.
void give_up(const mgd_action& action);

// Carries out what a plan does ahead of need (core/step.h): bytes get a copy on the host, leave, or begin to come home,
// for which nobody leaves. What cannot be done is left for whoever needs it, who is told.
void carry_out_planned(const mgd_action* actions, std::size_t n);

// Bytes of the block that this thread is requesting for a storage that comes home or goes to a peer; 0 while it
// requests none. makes_no_room(): for that block no storage leaves.
int64_t requested_by_this_thread();
bool makes_no_room();

// Copies `bytes` of h's bytes, from `offset` on, from where they are to `target` on the device `to` (an id of the
// machine); *from, if asked, is where that was. The caller holds the storage. `block`: of the target, on a device; what
// this thread starts there comes after the copy. Without it this thread waits. False: they are on their way in other
// hands.
bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target,
                           const c10::DataPtr* block = nullptr, int* from = nullptr);

extern std::atomic<bool> overwrite_freed; // for tests: bytes that left leave nothing behind on simulated devices

} // namespace managed
