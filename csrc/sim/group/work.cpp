// work.cpp: see work.h.
#include "sim/group/work.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>

#include "sim/device/timeline.h"
#include "sim/storage.h"

namespace managed::sim {
namespace {

// Returns when the device has come to the collective; it comes after the thread.
std::int64_t time_now(int device) {
  mgd_moment now{};
  record(device, current_stream(device), &now);
  const std::int64_t ns = moment_time(&now);
  forget(&now);
  return ns;
}

// Processes do not know each other's wiring. A rank's link is taken to be like that from its device to the next, or to
// the host if the process has one device.
std::int64_t time_of(int from, const Traffic &traffic) {
  std::int64_t latency = 0;
  double bandwidth = 0;  // 0: no limit
  link_between(from, device_count() > 1 ? (from + 1) % device_count() : kHost, &latency, &bandwidth);
  return latency * traffic.messages + (bandwidth > 0 ? static_cast<std::int64_t>(traffic.bytes / bandwidth) : 0);
}

at::Tensor two_numbers(std::int64_t first, std::int64_t second) {
  at::Tensor t = at::detail::empty_cpu({2}, at::kLong);
  t.mutable_data_ptr<std::int64_t>()[0] = first;
  t.mutable_data_ptr<std::int64_t>()[1] = second;
  return t;
}

// NCCL's mean of integers is rounded towards zero, too.
void divide(const at::Tensor &twin, int divisor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool whole = c10::isIntegralType(twin.scalar_type(), true);
  twin.div_(divisor, whole ? std::optional<std::string_view>("trunc") : std::nullopt);
}

std::unordered_set<const c10::StorageImpl *> storages_of(const Operands &operands) {
  std::unordered_set<const c10::StorageImpl *> storages;
  for (const auto &operand : operands.all) storages.insert(operand->twin.storage().unsafeGetStorageImpl());
  return storages;
}

Tensors written(const Operands &operands) {
  Tensors tensors;
  for (const auto &operand : operands.all)
    if (operand->written) tensors.push_back(operand->sim);
  return tensors;
}

}  // namespace

SimWork::SimWork(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic)
    : Work(-1, type),
      line_(std::move(line)),
      device_(operands.device),
      is_barrier_(operands.is_barrier),
      results_(written(operands)),
      operands_(std::move(operands)),
      storages_(storages_of(operands_)),
      ready_(time_now(device_)),
      duration_(time_of(device_, traffic)),
      times_(two_numbers(ready_, duration_)) {}

std::int64_t SimWork::start() const { return std::max(ready_, times_.const_data_ptr<std::int64_t>()[0]); }
std::int64_t SimWork::duration() const { return std::max(duration_, times_.const_data_ptr<std::int64_t>()[1]); }

void SimWork::synchronize() {
  if (is_barrier_) host_wait(end_);
  else stream_wait(device_, current_stream(device_), {end_, nullptr});
}

// Only what was taken when the work began is looked at, since other threads may exchange the pointers of storages.
void SimWork::end_uses() const {
  if (is_barrier_) return;
  const int stream = line_->stream[device_];
  stream_wait(device_, stream, {end_, nullptr});
  const EndsAt exactly(end_);
  std::unordered_set<const c10::TensorImpl *> divided;
  for (const auto &operand : operands_.all) {
    if (!operand->written) continue;
    if (operands_.divisor != 1 && divided.insert(operand->sim.unsafeGetTensorImpl()).second)
      divide(operand->twin, operands_.divisor);
    note_twin_written(operand->twin.storage(), stream);
    note_collective(operand->sim.storage().unsafeGetStorageImpl());
  }
}

void SimWork::await_gloo() {
  std::unique_lock<std::mutex> lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
}

void SimWork::end(std::int64_t at, std::exception_ptr error) noexcept {
  end_ = at;
  try {
    if (error) std::rethrow_exception(error);
    end_uses();
    for (const auto &operand : operands_.all) *operand = {};
  } catch (...) { error = std::current_exception(); }
  operands_.all.clear();
  finish(error);
}

Collective::Collective(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic)
    : SimWork(type, std::move(line), std::move(operands), traffic),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                       std::vector<c10::Device>{device_at(device_)})),
      place_(bare_storage(device_, 0)) {
  // It runs before the callbacks of the program's, which record streams as they are.
  future_->addCallback([](c10::ivalue::Future &) { EndsAt::no_more(); }, false);
}

void Collective::follow(const WorkPtr &values, const WorkPtr &times) {
  const auto self = c10::intrusive_ptr<Collective>::unsafe_reclaim_from_nonowning(this);
  {
    const std::lock_guard<std::mutex> lock(line_->mutex);
    line_->begun.push_back(self);
  }
  // This runs on a thread of gloo's, after all that the values consist of has been begun. So waiting for them here
  // waits for gloo's other thread at most. Some of the values are copied only then, to tensors of inference mode, too.
  times->getFuture()->addCallback(
      [self, values](c10::ivalue::Future &f) {
        try {
          if (f.hasError()) std::rethrow_exception(f.exception_ptr());
          const at::AutoDispatchBelowADInplaceOrView below;
          values->wait();
          self->arrived(nullptr);
        } catch (...) { self->arrived(std::current_exception()); }
      },
      false);
}

// All works that end now have ended when the first callback of the program's runs.
void Collective::arrived(std::exception_ptr failure) noexcept {
  std::vector<std::pair<c10::intrusive_ptr<Collective>, std::int64_t>> ended;
  {
    const std::lock_guard<std::mutex> lock(line_->mutex);
    has_arrived_ = true;
    failure_ = std::move(failure);
    auto &begun = line_->begun;
    for (; !begun.empty() && begun.front()->has_arrived_; begun.pop_front()) {
      const auto &next = begun.front();
      std::int64_t &end = line_->end[next->is_barrier_ ? kMaxDevices : next->device_];
      if (!next->failure_) end = std::max(end, next->start()) + next->duration();
      ended.emplace_back(next, end);
    }
  }
  for (const auto &[work, at] : ended) work->end(at, work->failure_);
  for (const auto &[work, at] : ended) work->complete_future();
}

// The thread that ends works may still run callbacks of an earlier one. Waiting for these could wait for this thread.
bool Collective::wait(std::chrono::milliseconds timeout) {
  const bool ended = SimWork::wait(timeout);
  complete_future();
  while (!future_->completed()) std::this_thread::yield(); // the other thread completes it before any callback
  return ended;
}

// The future records the current stream of the device, and looks at no storage of the program's, whose bytes may have
// left.
void Collective::complete_future() noexcept {
  if (is_told_.exchange(true)) return;
  try {
    if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
    const EndsAt exactly(end_);
    future_->markCompleted(results_, std::vector{place_.getWeakStorageImpl()});
  } catch (...) { future_->setErrorIfNeeded(std::current_exception()); }
}

Message::Message(c10d::OpType type, std::shared_ptr<Line> line, Operands operands, const Traffic &traffic)
    : SimWork(type, std::move(line), std::move(operands), traffic) {
  const Operand &operand = *operands_.all.front();
  const auto bytes = static_cast<int64_t>(operand.twin.nbytes());
  packed_ = at::detail::empty_cpu({bytes + static_cast<int64_t>(times().nbytes())}, at::kByte);
  if (operand.written) return;
  const at::Tensor values = operand.twin.contiguous();
  auto *to = packed_.mutable_data_ptr<std::uint8_t>();
  if (bytes) std::memcpy(to, values.const_data_ptr(), static_cast<std::size_t>(bytes));
  std::memcpy(to + bytes, times().const_data_ptr(), times().nbytes());
}

void Message::unpack() {
  const Operand &operand = *operands_.all.front();
  if (!operand.written) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  auto *from = packed_.mutable_data_ptr<std::uint8_t>();
  operand.twin.copy_(at::from_blob(from, operand.twin.sizes(), operand.twin.options()));
  std::memcpy(times().mutable_data_ptr(), from + operand.twin.nbytes(), times().nbytes());
}

bool Message::wait(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard<std::mutex> lock(waiting_);
    if (!isCompleted()) try {
        host_->wait(timeout);
        unpack();
        end(start() + duration(), nullptr);
      } catch (...) { end(0, std::current_exception()); }
  }
  return Work::wait(); // throws the error, or makes the current stream wait
}

}  // namespace managed::sim
