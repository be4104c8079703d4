// work.h: what a program waits for when it has called a collective of torch.distributed on a simulated device.
//
// Gloo moves the values in real time, on threads of its own. On the clock a collective begins when all ranks have come
// to it, and lasts as long as the slowest rank's link takes. As on CUDA, wait() makes the current stream wait for its
// end, and the thread goes on.
//
// A work keeps the twins of its operands until it has ended, so the hook does not move their bytes. Gloo keeps those of
// a work that failed as long as it has the tensors that it was given.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/device.h"

namespace managed::sim {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Keeps a tensor of the device and its twin. The tensor that gloo gets shares it.
struct Operand {
  at::Tensor sim, twin;
  bool written;
};

struct Operands {
  int device; // where they are
  bool is_barrier = false; // there are none, and the host waits
  std::vector<std::shared_ptr<Operand>> all;
  int divisor = 1; // of what is written, at the end
};

// Says what passes the port of the busiest rank: bytes, in so many messages one after the other.
struct Traffic {
  double bytes;
  int messages;
};

class Collective;

// Keeps the collectives of one group in order. Each ends on the clock after the one before.
struct Line {
  std::mutex mutex; // no other is taken inside
  std::deque<c10::intrusive_ptr<Collective>> begun; // the oldest first
  std::array<std::int64_t, kMaxDevices + 1> end{}; // of the last one on each device, and of barriers
  std::array<int, kMaxDevices> stream{}; // of each device, which uses the operands; 0 before the first collective
};

class SimWork : public c10d::Work {
 public:
  SimWork(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic);

  // When this rank is ready and for how long its link is taken: two numbers of ns on the host. They travel with the
  // values, and those of the other ranks replace them.
  const at::Tensor &times() const { return times_; }
  Tensors result() override { return results_; }
  void synchronize() override;
  // Waits in real time, until gloo uses the operands no more. uses(): whether a storage is among them.
  void await_gloo();
  bool uses(const at::Tensor &twin) const { return storages_.count(twin.storage().unsafeGetStorageImpl()) != 0; }

 protected:
  std::int64_t start() const;
  std::int64_t duration() const;
  // Ends the work, at that virtual time or with that error, and wakes the threads that wait. Throws nothing.
  void end(std::int64_t at, std::exception_ptr error) noexcept;

  const std::shared_ptr<Line> line_;
  const int device_;
  const bool is_barrier_;
  const Tensors results_;
  std::int64_t end_ = 0;
  Operands operands_;

 private:
  void end_uses() const;

  const std::unordered_set<const c10::StorageImpl *> storages_; // of the twins
  const std::int64_t ready_, duration_;
  at::Tensor times_;
};

// Consists of two works of gloo's: the values, and then the largest times() of all ranks. Some of gloo's works have no
// future (reduce_scatter), and the times have one.
class Collective final : public SimWork {
 public:
  Collective(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic);
  void follow(const WorkPtr &values, const WorkPtr &times);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  // When wait() has returned, or isCompleted() true, the future has its value: DistributedDataParallel.join() reads it.
  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override { return SimWork::isCompleted() && future_->completed(); }

 private:
  void arrived(std::exception_ptr failure) noexcept;
  void complete_future() noexcept;

  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::Storage place_; // tells the future its device
  std::atomic<bool> is_told_{false}; // a thread completes the future, or has completed it
  bool has_arrived_ = false; // the line's mutex guards this and the next
  std::exception_ptr failure_;
};

// A message to or from one rank. The sender's times() travel behind the values, in a buffer of the message's own. Gloo
// tells of its end only the thread that waits for it, so it has no future.
class Message final : public SimWork {
 public:
  Message(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic);
  const at::Tensor &packed() const { return packed_; }
  void follow(WorkPtr host) { host_ = std::move(host); }

  bool wait(std::chrono::milliseconds timeout) override;
  int sourceRank() const override { return host_->sourceRank(); }

 private:
  void unpack();

  at::Tensor packed_;
  std::mutex waiting_; // of threads that wait for gloo
  WorkPtr host_;
};

} // namespace managed::sim
