// replica.h: keeps copies of tensors on other devices for the next use.
//
// A replica serves until its source is written or dies, or until its room is needed: dropping one costs nothing. The
// core decides (core/replica.c); this file keeps the tensors. No lock is held while a copy is made or a tensor dies.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "torch/facts/compat.h"

namespace managed {

struct Source; // a storage with replicas; the states of its tensors keep it alive

// Keeps an autograd node alive from outside its graph. Torch clears a node's edges once its only reference is an edge,
// even while another thread locks a weak pointer to it. So each use of the node in a graph also holds a NodeHold, and
// the directory keeps a weak pointer to the NodeHold.
using NodeHold = std::shared_ptr<NodePtr>;

// One use of a copy.
struct Replica {
  at::Tensor values;  // a tensor object of its own over the copy's bytes; undefined: there is no copy
  NodeHold trip_home; // the autograd node that earlier uses share, if it still lives
  int32_t slot = -1;  // the slot that keeps the copy; -1: it is not kept
};

// Whether copies of t may be kept: its bytes must be torch's own.
bool may_keep(const at::Tensor& t);

Replica find_replica(const at::Tensor& t, c10::Device to);
// Whether find_replica() would find one; the order in which copies are dropped stays.
bool has_replica(const at::Tensor& t, c10::Device to);

// The state of a tensor's bytes at some time.
struct SourceMark {
  uint64_t source = 0; // 0: the bytes may change unseen
  uint64_t writes = 0, era = 0;
  uint32_t version = 0;
};
// `through`: the view by which t is read, or undefined.
SourceMark mark_source(const at::Tensor& t, const at::Tensor& through);
// Whether t has the storage and the values that the tensor had of which the mark is.
bool is_current(const SourceMark& mark, const at::Tensor& t);

// Remembers the state of t before it is copied, so that a write meanwhile is noticed.
class SourceSnapshot {
 public:
  SourceSnapshot(const at::Tensor& t, const at::Tensor& through) : t_(t), mark_(mark_source(t, through)) {}
  Replica keep(c10::Device to, const at::Tensor& copy); // keeps the copy if it may be kept; returns it in any case

 private:
  const at::Tensor& t_;
  const SourceMark mark_;
};

// Keeps the node with the replica while a graph holds it.
void keep_trip_home(const Replica& replica, const NodeHold& node);

// How many storages have had a replica looked up and are still referred to by the state of a tensor. 0: there is no
// replica that a write could make stale.
extern std::atomic<int64_t> sources_alive;

// Marks the replicas of a storage, or of t, as stale, because it was written. Destructors call these functions: they
// allocate nothing, and take no lock if there are no replicas.
void invalidate_storage_copies(c10::StorageImpl* storage) noexcept;
void invalidate_copies_slow(const at::Tensor& t) noexcept;
inline void invalidate_copies(const at::Tensor& t) noexcept {
  if (C10_UNLIKELY(sources_alive.load(std::memory_order_relaxed) != 0)) invalidate_copies_slow(t);
}

// Drops the replica whose bytes a result shares, if there is one: the result belongs to the program.
void give_up_replica_of(const at::Tensor& result);

// Drops replicas on a device (an id of the machine); false if there were none. If not `all`, a few that were used last
// stay. `only_there`: doomed replicas on other devices die later, because their allocators must not be called now.
bool drop_replicas(int device, int64_t bytes, bool all, bool only_there = false);

// Called when a thread leaves managed.on(): replicas of plain tensors made there serve no more, since writes may go
// unseen from now on.
void end_plain_era();

// Frees the replicas that a smaller budget has doomed.
void reap_replicas();

int64_t replica_hits();

} // namespace managed
