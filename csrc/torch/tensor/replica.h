// replica.h: copies of tensors on other devices that are kept for the next use.
//
// A copy serves until its source is written or dies, or until somebody needs the
// room: it costs nothing to drop one. The core decides (core/replica.c); this
// file keeps the tensors. No lock is held while a copy is made or a tensor dies.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "torch/facts/compat.h"

namespace managed {

struct Source; // a storage with copies; kept alive by the states of its tensors

// Keeps an autograd node alive from outside its graph. Torch clears a node's edges once its only reference is an edge,
// even while somebody locks a weak pointer to it. So each use of the node in a graph also holds a NodeHold, and others
// keep a weak pointer to the NodeHold.
using NodeHold = std::shared_ptr<NodePtr>;

// One use of a copy.
struct Replica {
  at::Tensor values;  // a tensor object of its own over the copy's bytes; undefined: there is no copy
  NodeHold trip_home; // the autograd node of an earlier use, if it still lives
  int32_t slot = -1;  // where the copy is kept; -1: it is not
};

// Whether copies of t may be kept: its bytes must be torch's own.
bool may_keep(const at::Tensor& t);

Replica find_replica(const at::Tensor& t, c10::Device to);

// Made before t is copied, so that a write meanwhile is noticed.
class SourceSnapshot {
 public:
  // `through`: the view by which t is read, or undefined.
  SourceSnapshot(const at::Tensor& t, const at::Tensor& through);
  Replica keep(c10::Device to, const at::Tensor& copy); // the copy, kept if it may be

 private:
  const at::Tensor& t_;
  uint64_t source_ = 0, writes_ = 0, era_ = 0;
  uint32_t version_ = 0;
};

// The node goes with the copy for as long as some graph holds it.
void keep_trip_home(const Replica& replica, const NodeHold& node);

// Storages for which a kept copy has been looked for and that the state of a tensor still refers to. 0: no write has a
// copy to make stale.
extern std::atomic<int64_t> sources_alive;

// Tells that t was written: its copies are stale. Destructors call it: it allocates nothing, and locks nothing where t
// has no copies.
void invalidate_storage_copies(c10::StorageImpl* storage) noexcept;
void invalidate_copies_slow(const at::Tensor& t) noexcept;
inline void invalidate_copies(const at::Tensor& t) noexcept {
  if (C10_UNLIKELY(sources_alive.load(std::memory_order_relaxed) != 0)) invalidate_copies_slow(t);
}

// A result that shares a copy's bytes belongs to the program: the copy is no longer kept.
void give_up_replica_of(const at::Tensor& result);

// Drops copies on a device (an id of the machine); false when there was none. Not `all`: a few, used last, stay.
// `only_there`: those doomed on others die later, because their allocators must not be called now.
bool drop_replicas(int device, int64_t bytes, bool all, bool only_there = false);

// A thread leaves managed.on(): copies of plain tensors that were kept there serve no more, since writes may go unseen
// from now on.
void end_plain_era();


// Frees what a smaller budget has doomed.
void reap_replicas();

int64_t replica_hits();

} // namespace managed
