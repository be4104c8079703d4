// times.h: what operators take on a device, by events in their streams.
//
// A moment is an event in the current stream. With it a pause begins, in which an operator's bytes come home: until
// begin_work(). Later its stream may wait for room: that is a pause too, with an event at both ends. What is between
// pauses is the time of operators. Nothing is noted before a moment is asked for, nor between stop_moments() or
// await_moments() and the next moment.
#pragma once
#include <cstdint>

namespace managed {

// The next moment of the device, in its current stream; -1 where it cannot be told: a graph is being recorded, or the
// device has failed. Never throws.
std::int64_t moment(int device);
// The pause that the last moment of this thread has begun is over. Never throws.
void begin_work(int device);
// Returns when the last of them has come. Never throws.
void await_moments(int device);
// Pauses are not noted until the next moment.
void stop_moments(int device) noexcept;
// ns that operators took between two moments; -1 where one has not come yet, or is too long ago. Never throws.
std::int64_t worked_between(int device, std::int64_t from, std::int64_t to);

// While it lives, what is put into the current stream of the device is no operator's work. Costs nothing where nobody
// asks for moments.
class Pause {
 public:
  explicit Pause(int device);
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  const int device_; // -1: it notes nothing
};

} // namespace managed
