// copy_streams.cpp: see copy_streams.h.
#include "cuda/copy_streams.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

namespace managed {
namespace {

constexpr std::size_t kWays = 2;
using CopyStreams = std::array<std::array<cudaStream_t, kUrgencies>, kWays>;

// The streams and events that a device has for copies. The mutex is a leaf: nothing of CUDA's that may wait is called
// in it.
struct Copies {
  std::mutex mutex;
  CopyStreams streams{};
  std::array<cudaStream_t, kMostDevices> operands{}; // by target device, so that one does not wait for another
  std::atomic<uint64_t> writes{0}; // the other devices to which bytes were copied from here, a bit each
  std::vector<cudaEvent_t> events; // unused ones
};
Copies& copies_of(int device) {
  static auto* all = new std::array<Copies, kMostDevices>; // never destroyed: tensors may outlive static destructors
  return (*all)[device];
}

// Makes the stream at its first use. The device is the current one.
cudaStream_t made(Copies& d, cudaStream_t& stream) {
  std::lock_guard<std::mutex> lock(d.mutex);
  if (!stream) C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  return stream;
}

} // namespace

cudaStream_t copy_stream(int device, Way way, Urgency urgency) {
  Copies& d = copies_of(device);
  return made(d, d.streams[static_cast<std::size_t>(way)][static_cast<std::size_t>(urgency)]);
}

cudaStream_t operand_stream(int from, int to) {
  Copies& d = copies_of(from);
  return made(d, d.operands[to]);
}

void note_write(int from, int to) { copies_of(from).writes |= uint64_t{1} << to; }

PooledEvent::PooledEvent(int device) : device_(device) {
  Copies& d = copies_of(device);
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    if (!d.events.empty()) {
      event_ = d.events.back();
      d.events.pop_back();
      return;
    }
  }
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}

PooledEvent::~PooledEvent() {
  std::lock_guard<std::mutex> lock(copies_of(device_).mutex);
  copies_of(device_).events.push_back(event_);
}

void PooledEvent::record(cudaStream_t stream) const { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
void PooledEvent::lead(cudaStream_t stream) const { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

void order_streams(int device, cudaStream_t first, cudaStream_t second) {
  const PooledEvent event(device);
  event.record(first);
  event.lead(second);
}

// Orders the stream after the copies of this device, and after those of other devices that have copied to it.
void follow_copies(int device, cudaStream_t stream) {
  for (int other = 0; other < kMostDevices; other++) {
    Copies& d = copies_of(other);
    const bool all = other == device;
    if (!all && !(d.writes >> device & 1)) continue;
    CopyStreams streams;
    std::array<cudaStream_t, kMostDevices> operands;
    {
      std::lock_guard<std::mutex> lock(d.mutex);
      streams = d.streams;
      operands = d.operands;
    }
    const c10::cuda::CUDAGuard guard(index_of(other));
    for (std::size_t way = 0; way < kWays; way++)
      for (const cudaStream_t copies : streams[way])
        if (copies && (all || way == static_cast<std::size_t>(Way::Out))) order_streams(other, copies, stream);
    for (int to = 0; to < kMostDevices; to++)
      if (operands[to] && (all || to == device)) order_streams(other, operands[to], stream);
  }
}

} // namespace managed
