// copy_streams.h: the streams that copies run on, and events.
//
// Each device has streams of its own for copies: one for each direction and urgency, and one for the operands that go
// to each other device. None is a stream of torch's, and streams.h does not count them.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/devices.h"
#include "torch/devices/cuda_bridge.h"

namespace managed {

enum class Way { In, Out };

// Returns the stream for copies of that direction, made at its first use. The device must be current. Throws
// c10::Error.
cudaStream_t copy_stream(int device, Way way, Urgency urgency);
// Likewise returns the stream for operands from one device to the other. `from` must be current.
cudaStream_t operand_stream(int from, int to);

// Must be called before bytes are copied from one device to the other. From then on follow_copies() for
// `to` covers the copies of `from` to it as well.
void note_write(int from, int to);
// Orders what the stream does from now on after all copies that have begun on the device or to it.
void follow_copies(int device, cudaStream_t stream);

// Owns an event of the device for as long as it lives. The event may be recorded again while streams still wait for it:
// they wait for what it stood for when the wait was issued.
class PooledEvent {
 public:
  explicit PooledEvent(int device); // throws c10::Error
  ~PooledEvent();
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  void record(cudaStream_t stream) const;
  void lead(cudaStream_t stream) const; // the stream's next work comes after the event
  cudaEvent_t get() const { return event_; }

 private:
  const int device_;
  cudaEvent_t event_ = nullptr;
};

// Orders what `second` gets from now on after what `first` holds now. `device` is that of `first` and must be current.
void order_streams(int device, cudaStream_t first, cudaStream_t second);

} // namespace managed
