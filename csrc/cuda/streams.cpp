// streams.cpp: see streams.h.
#include "streams.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <mutex>

namespace managed {
namespace {

constexpr int kStreams = 192; // torch has 32 a priority and device, and the default one

// Invariant: ids[0, count) are the streams that were used, each once, and stay.
struct Streams {
  std::array<std::atomic<c10::StreamId>, kStreams> ids;
  std::atomic<int> count{0};
  std::atomic<bool> foreign{false}; // one that is not torch's, or more than fit
};
Streams g_streams[kMostDevices];

std::mutex& adding() {
  static auto* mutex = new std::mutex; // a leaf; never destroyed, tensors may outlive static destructors
  return *mutex;
}

// The default stream, and those that torch hands out: CUDAStream.cpp keeps the kind of an id in its low bits, and
// the id of a stream from elsewhere is its address, which is even.
bool is_own(c10::StreamId id) { return id == 0 || (id & 1) != 0; }

bool knows(const Streams& s, c10::StreamId id) {
  const int n = s.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++)
    if (s.ids[i].load(std::memory_order_relaxed) == id) return true;
  return false;
}

void add(Streams& s, c10::StreamId id) {
  std::lock_guard<std::mutex> lock(adding());
  if (knows(s, id)) return;
  const int n = s.count.load(std::memory_order_relaxed);
  if (n == kStreams || !is_own(id)) {
    s.foreign = true;
    return;
  }
  s.ids[n].store(id, std::memory_order_relaxed);
  s.count.store(n + 1, std::memory_order_release);
}

c10::cuda::CUDAStream stream_of(int device, c10::StreamId id) {
  return c10::cuda::CUDAStream(
      c10::cuda::CUDAStream::UNCHECKED,
      c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)), id));
}

} // namespace

void use_stream(int device) {
  thread_local int last_device = -1;
  thread_local c10::StreamId last = 0;
  const c10::StreamId id = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).id();
  if (C10_LIKELY(device == last_device && id == last)) return;
  Streams& s = g_streams[device];
  if (!knows(s, id)) add(s, id);
  last_device = device;
  last = id;
}

bool only_own_streams(int device) { return !g_streams[device].foreign; }

void wait_for_streams(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const Streams& s = g_streams[device];
  if (s.foreign) {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    return;
  }
  const int n = s.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++) C10_CUDA_CHECK(cudaStreamSynchronize(stream_of(device, s.ids[i].load(std::memory_order_relaxed)).stream()));
}

// Only one stream: the block comes back to it, in its order.
void retire_block(const c10::DataPtr& block) {
  const int device = block.device().index();
  const Streams& s = g_streams[device];
  const int n = s.count.load(std::memory_order_acquire);
  if (C10_LIKELY(n < 2 && !s.foreign)) return;
  try {
    if (s.foreign) return wait_for_streams(device);
    for (int i = 0; i < n; i++)
      c10::cuda::CUDACachingAllocator::recordStream(block, stream_of(device, s.ids[i].load(std::memory_order_relaxed)));
  } catch (const std::exception&) {
    // The process ends and its driver is gone, or an earlier kernel has failed and every call reports that.
  }
}

bool is_capturing(int device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream(), &status);
  if (error != cudaSuccess) (void)cudaGetLastError(); // the allocator takes a left over error for its own
  return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

void refuse_capture(int device) {
  TORCH_CHECK(!is_capturing(device), "managed: a CUDA graph is being recorded on cuda:", device,
              ", and bytes cannot leave the device or come back while it is. Use the tensors once before the recording, so "
              "that they are on the device, and leave room for what it allocates");
}

} // namespace managed
