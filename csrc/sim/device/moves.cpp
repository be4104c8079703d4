// moves.cpp: see moves.h.
#include "sim/device/moves.h"

#include <memory>
#include <utility>
#include <vector>

#include "sim/operators.h"
#include "sim/storage.h"
#include "sim/device/timeline.h"

namespace managed::sim {
namespace {

template <class F>
void each_stream_in_use(int device, F f) {
  for (std::uint64_t left = streams_in_use(device); left; left &= left - 1) f(__builtin_ctzll(left));
}

class Move final : public Copy {
 public:
  // `from`, `out`: the device whose bytes it reads, and the stream there, or the host.
  Move(int device, int stream, int from = kHost, int out = 0) : from_(from), out_(out) { record(device, stream, &end_); }
  ~Move() override { forget(&end_); }

  // The stream that brought the bytes may have more to bring, for which users of this block do not wait.
  void order(const c10::DataPtr &block) override {
    const int device = block.device().index();
    each_stream_in_use(device, [&](int stream) {
      stream_wait(device, stream, end_);
      note_use(block, stream);
    });
    hand_over(block, current_stream(device));
    if (!written(block)) note_written(block, current_stream(device));
  }

  void wait() override { host_wait(moment_time(&end_)); }

  bool has_ended() override { return true; }  // as far as real memory goes

  // The stream that holds the block until the copy has read it, if nothing else does.
  int reader_of(int device) const { return device == from_ ? out_ : current_stream(device); }

  mgd_moment end_{};

 private:
  const int from_, out_;
};

const Move &move_of(const Copy &copy) { return static_cast<const Move &>(copy); }

class Streams final : public Point {
 public:
  explicit Streams(int device) {
    each_stream_in_use(device, [&](int stream) { ends_.push_back(std::make_unique<Move>(device, stream)); });
  }
  void lead(int device, int stream) const {
    for (const auto &end : ends_) stream_wait(device, stream, end->end_);
  }

 private:
  std::vector<std::unique_ptr<Move>> ends_;
};

// Orders the stream after the point, or after everything that was started on the source before.
void wait_for_source(int from, int stream, const PointPtr &point = nullptr) {
  if (point) static_cast<const Streams &>(*point).lead(from, stream);
  else Streams(from).lead(from, stream);
}

}  // namespace

CopyPtr begin_copy(int to, void *target, int from, const void *source, std::size_t bytes, Urgency urgency, c10::ArrayRef<CopyPtr> after,
                   const PointPtr &point) {
  copy_bytes(to, target, from, source, bytes);
  if (from == kHost && to == kHost) return nullptr;
  const int in = copy_stream(Way::In, urgency), out = from == to ? in : copy_stream(Way::Out, urgency);
  if (from != kHost) wait_for_source(from, out, point);
  for (const CopyPtr &copy : after)
    if (copy) stream_wait(from != kHost ? from : to, from != kHost ? out : in, move_of(*copy).end_);
  charge_copy_on(from, from == kHost ? 0 : out, to, to == kHost ? 0 : in, static_cast<std::int64_t>(bytes), "room");
  return std::make_shared<Move>(to != kHost ? to : from, to != kHost ? in : out, from, out);
}

PointPtr point(int device) { return std::make_shared<Streams>(device); }

CopyPtr copy_operand(const c10::DataPtr &target, const c10::DataPtr &source, std::size_t offset, std::size_t bytes, Urgency urgency,
                     const CopyPtr &after) {
  const int to = target.device().index(), from = source.device().is_cpu() ? kHost : source.device().index();
  copy_bytes(to, target.get(), from, static_cast<const char *>(source.get()) + offset, bytes);
  const int in = copy_stream(Way::In, urgency, from), out = copy_stream(Way::Out, urgency, to);
  if (from != kHost) {
    if (const mgd_moment *end = written(source)) stream_wait(from, out, *end);
    else wait_for_source(from, out);
    if (after) stream_wait(from, out, move_of(*after).end_);
  }
  charge_copy_on(from, from == kHost ? 0 : out, to, in, static_cast<std::int64_t>(bytes), "operand");
  note_written(target, in);
  return std::make_shared<Move>(to, in);
}

c10::DataPtr allocate_for_copy(int device, std::size_t bytes, int from, Urgency urgency, bool if_room) {
  if (if_room) {
    if (bytes > memory_of(device).room) return {};  // an error would look at all storages for its text
  }
  const TakenBy taker(copy_stream(Way::In, urgency, from));
  return allocator_of(device)->allocate(bytes);
}

void free_after(c10::DataPtr &block, const CopyPtr &copy, bool last, std::size_t) {
  if (copy) {
    const int device = block.device().index();
    hand_over(block, last ? move_of(*copy).reader_of(device) : current_stream(device), last);
    stay_until(block, {copy, &move_of(*copy).end_});
  }
  block.clear();
}

}  // namespace managed::sim
