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

// Why a plan is carried out. Room: evictions make room that is needed now. Operator: the operands of an operator come
// home. Ahead: a schedule (core/step.h) copies bytes to the host, evicts them, or prefetches them without evicting
// anything; its copies are less urgent.
enum class Purpose { Room, Operator, Ahead };

struct Outcome {
  int64_t left = 0;           // storages that left
  int64_t forgotten = 0;      // copies on the host that were freed
  bool host_refused = false;  // the system had no memory for bytes that were to leave for the host
  std::exception_ptr failure; // the last device's error
};

using RoomMaker = void (*)(const mgd_action& action);

// Carries out a plan of the core, one action after the other, and ends each, done or not (executor.cpp has the table).
// Work that this thread starts from now on finds what was restored for an operator at home. If an action of an operator
// fails, throws its error and gives up the rest; the bytes stay where they were. If an action of another plan fails, it
// is given up and the rest is carried out: the caller makes other room, or the operator that needs the bytes fails.
// `make_room` carries out MAKE_ROOM, which only mgd_restore_begin() plans.
Outcome carry_out(c10::ArrayRef<mgd_action> plan, Purpose purpose, RoomMaker make_room = nullptr);

// Size in bytes of the block that this thread is requesting for a storage that comes home or goes to a peer; 0 if it is
// requesting none. makes_no_room(): no storage may be evicted for that block.
int64_t requested_by_this_thread();
const mgd_handle* returned_by_this_thread(); // the storage that comes home; null: there is none
bool makes_no_room();

// Copies `bytes` of h's bytes, from `offset` on, from where they are to `target` on the device `to` (an id of the
// machine); *from, unless null, gets the place they were read from. The caller holds the storage. `block`: the target's
// block on a device; work started there later comes after the copy. If it is null, or the bytes are at home, this
// thread waits for the copy. False: another thread is moving the bytes.
bool copy_from_where_it_is(StorageHandle& h, std::size_t offset, std::size_t bytes, int to, void* target,
                           const c10::DataPtr* block = nullptr, int* from = nullptr);

extern std::atomic<bool> overwrite_freed; // for tests: simulated devices overwrite bytes that have left

} // namespace managed
