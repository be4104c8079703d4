// times.cpp: see times.h.
#include "cuda/times.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/streams.h"

namespace managed {
namespace {

constexpr std::int64_t kMost = 1 << 16; // events of a device that are remembered

struct Noted {
  cudaEvent_t event = nullptr;
  bool pauses = false; // until the next one no operator works
};

struct Times {
  std::mutex mutex; // a leaf: nothing that waits is called in it
  std::vector<Noted> ring;
  std::int64_t count = 0; // the last one has the number count - 1, and its place is that modulo kMost
  std::atomic<bool> noting{false};
};
Times& times_of(int device) {
  static auto* all = new std::array<Times, kMostDevices>; // never destroyed: threads may outlive static destructors
  return (*all)[device];
}

Noted& place_of(Times& d, std::int64_t number) { return d.ring[static_cast<std::size_t>(number % kMost)]; }

// Records a new event in the current stream and returns its number, or -1.
std::int64_t note(int device, bool pauses) try {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
  if (is_recording(stream)) return -1;
  Times& d = times_of(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  if (d.count < kMost && d.ring.size() <= static_cast<std::size_t>(d.count)) {
    const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
    cudaEvent_t made = nullptr;
    C10_CUDA_CHECK(cudaEventCreate(&made));
    d.ring.push_back({made});
  }
  Noted& next = place_of(d, d.count);
  C10_CUDA_CHECK(cudaEventRecord(next.event, stream));
  next.pauses = pauses;
  return d.count++;
} catch (const std::exception&) {
  return -1;
}

thread_local bool pauses_of_this_thread = false;

} // namespace

std::int64_t moment(int device) {
  times_of(device).noting.store(true, std::memory_order_relaxed);
  pauses_of_this_thread = true;
  return note(device, true);
}

void begin_work(int device) {
  pauses_of_this_thread = false;
  note(device, false);
}

void stop_moments(int device) noexcept { times_of(device).noting.store(false, std::memory_order_relaxed); }

void await_moments(int device) {
  stop_moments(device);
  Times& d = times_of(device);
  cudaEvent_t last = nullptr;
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    if (d.count) last = place_of(d, d.count - 1).event;
  }
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  if (last && cudaEventSynchronize(last) != cudaSuccess) (void)cudaGetLastError(); // the next call reports it again
}

std::int64_t worked_between(int device, std::int64_t from, std::int64_t to) {
  Times& d = times_of(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  if (from < d.count - kMost || to >= d.count || from > to) return -1;
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  double ms = 0;
  for (std::int64_t i = from; i < to; i++) {
    if (place_of(d, i).pauses) continue;
    float took = 0;
    if (cudaEventElapsedTime(&took, place_of(d, i).event, place_of(d, i + 1).event) != cudaSuccess) {
      (void)cudaGetLastError(); // torch takes a left over error for its own
      return -1;
    }
    ms += took > 0 ? static_cast<double>(took) : 0; // streams are not in one order
  }
  return static_cast<std::int64_t>(ms * 1e6);
}

// Nested pauses count once.
Pause::Pause(int device)
    : device_(times_of(device).noting.load(std::memory_order_relaxed) && !pauses_of_this_thread ? device : -1) {
  if (device_ < 0) return;
  pauses_of_this_thread = true;
  note(device_, true);
}
Pause::~Pause() {
  if (device_ >= 0) begin_work(device_);
}

} // namespace managed
