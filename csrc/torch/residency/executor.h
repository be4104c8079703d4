// executor.h: carries out the core's plans: evicts bytes, restores them, or makes a copy on the host.
//
// Copies are asynchronous: later work is ordered after them (Copy, bridge.h). core/evict.c and core/restore.c make the
// plans, room.h makes room and waits for other threads, hold.h keeps what an operator holds.
//
// A plan is made and carried out inside one Transfer (transfer.h). No lock is held while an allocator is called.
#pragma once
#include <exception>

#include "core/core.h"
#include "torch/tensor/storage.h"

namespace managed {

// Carries out SPILL, DROP and FORGET. Returns how many storages left: fewer than were planned if a copy could not
// begin; *failure is the device's error then, if there was one. *forgotten: how many copies on the host were freed.
int64_t carry_out(const mgd_action* actions, std::size_t n, std::exception_ptr* failure, int64_t* forgotten = nullptr,
                  Urgency urgency = Urgency::Now);

// Carries out one RESTORE or JOIN of an operator: work that this thread starts from now on finds the bytes at home.
// Throws the allocator's error if the device has no room; the bytes stay where they were then.
void carry_home(const mgd_action& action);
// Ends a RESTORE or JOIN that is not carried out.
void give_up(const mgd_action& action);

// Carries out what a plan does ahead of need (core/step.h): copies bytes to the host, evicts them, or prefetches them
// without evicting anything. An action that fails is skipped: the operator that needs it does it, or fails, later.
void carry_out_planned(const mgd_action* actions, std::size_t n);

// Size in bytes of the block that this thread is requesting for a storage that comes home or goes to a peer; 0 if it is
// requesting none. makes_no_room(): no storage may be evicted for that block.
int64_t requested_by_this_thread();
bool makes_no_room();

// Copies `bytes` of h's bytes, from `offset` on, from where they are to `target` on the device `to` (an id of the
// machine); *from, unless null, gets the place they were read from. The caller holds the storage. `block`: the target's
// block on a device; work started there later comes after the copy. If it is null, or the bytes are at home, this
// thread waits for the copy. False: another thread is moving the bytes.
bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target,
                           const c10::DataPtr* block = nullptr, int* from = nullptr);

extern std::atomic<bool> overwrite_freed; // for tests: simulated devices overwrite bytes that have left

} // namespace managed
