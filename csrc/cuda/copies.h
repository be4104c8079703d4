// copies.h: a copy that has begun, and a point in the work of a device: the CUDA side of bridge.h's Copy and Point.
//
// Both are events. A thread waits for one only in Copy::wait(), and in order() for a stream that records a graph.
#pragma once
#include <deque>

#include "cuda/copy_streams.h"

namespace managed {

class Move final : public Copy {
 public:
  explicit Move(int device) : event_(device) {}

  void order(const c10::DataPtr& block) override;
  void wait() override;
  bool has_ended() override;
  void lead_streams(int device); // all streams that operators have used there come after the copy
  void begun(cudaStream_t stream) const;
  void lead(cudaStream_t stream) const;

 private:
  const PooledEvent event_;
};
inline Move& move_of(const CopyPtr& copy) { return static_cast<Move&>(*copy); }

// Holds an event on each stream that operators have used.
class Streams final : public Point {
 public:
  void add(int device, cudaStream_t stream);
  void lead(cudaStream_t stream) const;

 private:
  std::deque<PooledEvent> ends_; // a deque, because events never move
};

// Returns a point after all that was issued on the streams of the device; null if a stream is not torch's, or is
// recorded into a graph. Throws c10::Error.
PointPtr point(int device);

} // namespace managed
