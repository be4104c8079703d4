// times.h: the time that operators take on a device, measured by events in their streams.
//
// A moment is an event in the current stream. It begins a pause, in which an operator's bytes are restored and which
// lasts until begin_work(). If the stream waits for room later, that is a pause too, with an event at both ends. The
// time between pauses is that of operators. Nothing is recorded before the first moment, nor between stop_moments() or
// await_moments() and the next moment.
#pragma once
#include <cstdint>

namespace managed {

// Records the next moment of the device in its current stream and returns its number; -1 if a graph is being recorded
// or the device has failed. Never throws.
std::int64_t moment(int device);
// Ends the pause that the last moment of this thread has begun. Never throws.
void begin_work(int device);
// Stops as stop_moments() does, and returns when the device has passed the last event. Never throws.
void await_moments(int device);
// No pause is recorded from now on until the next moment.
void stop_moments(int device) noexcept;
// Returns the ns that operators took between two moments; -1 if one is not over yet, or is too old. Never throws.
std::int64_t worked_between(int device, std::int64_t from, std::int64_t to);

// While it lives, what is put into the current stream of the device is no operator's work. Nested pauses count once.
// Costs nothing while no moments are recorded.
class Pause {
 public:
  explicit Pause(int device);
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  const int device_; // -1: it records nothing
};

} // namespace managed
