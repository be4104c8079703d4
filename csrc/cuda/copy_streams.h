// copy_streams.h: the streams that copies run on, and events.
//
// Each device has streams of its own for copies, one a direction and urgency, and one for the operands that go to each
// other device. None is a stream of torch's, and streams.h does not count them.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/devices.h"
#include "torch/devices/cuda_bridge.h"

namespace managed {

enum class Way { In, Out };

// The stream for copies of that direction; made at its first use. The device is the current one. Throws c10::Error.
cudaStream_t copy_stream(int device, Way way, Urgency urgency);
// The same for operands from one device to the other; `from` is the current one.
cudaStream_t operand_stream(int from, int to);

// Bytes are about to be copied from one device to the other: streams of `to` follow the copies of `from` from now on.
void note_write(int from, int to);
// What the stream does from now on comes after all copies that have begun on the device or to it.
void follow_copies(int device, cudaStream_t stream);

// An event of the device, for as long as the object lives. To record one that streams still wait for is allowed: they
// wait for what it stood for when they were told.
class PooledEvent {
 public:
  explicit PooledEvent(int device); // throws c10::Error
  ~PooledEvent();
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  void record(cudaStream_t stream) const;
  void lead(cudaStream_t stream) const; // what it does from now on comes after the event
  cudaEvent_t get() const { return event_; }

 private:
  const int device_;
  cudaEvent_t event_ = nullptr;
};

// What `first` holds now comes before what `second` gets from now on. The current device is that of `first`.
void order_streams(int device, cudaStream_t first, cudaStream_t second);

} // namespace managed
