// streams.cpp: see streams.h.
#include "cuda/streams.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/copy_streams.h"

namespace managed {
namespace {

constexpr int kStreams = 192; // torch has 32 a priority and device, and the default one

// Invariant: ids[0, count) are the streams that were used, each once, and stay.
struct UsedStreams {
  std::array<std::atomic<c10::StreamId>, kStreams> ids;
  std::atomic<int> count{0};
  std::atomic<bool> foreign{false};        // operators ran on further ones: not torch's, or more than fit
  std::atomic<bool> foreign_blocks{false}; // blocks belong to such streams
};
UsedStreams g_streams[kMostDevices];

// Stands for what operators have started on a stream that is not torch's.
struct Mark {
  c10::StreamId id;
  cudaEvent_t event; // after the last operator there; it outlives the stream
};
struct Foreign {
  std::mutex mutex; // a leaf: no thread waits for a device under it
  std::vector<Mark> marks;
  std::optional<c10::cuda::CUDAStream>
      gate; // a private stream, so no graph is recorded on it; for blocks that are given up it waits for the marks
};
Foreign& foreign_on(int device) {
  static auto* all = new std::array<Foreign, kMostDevices>; // never destroyed: tensors may outlive static destructors
  return (*all)[device];
}

std::mutex& adding() {
  static auto* mutex = new std::mutex; // a leaf
  return *mutex;
}

// The default stream, and those that torch hands out: CUDAStream.cpp keeps the kind of an id in its low bits, and
// the id of a stream from elsewhere is its address, which is even.
bool is_own(c10::StreamId id) { return id == 0 || (id & 1) != 0; }

bool knows(const UsedStreams& s, c10::StreamId id) {
  const int n = s.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++)
    if (s.ids[i].load(std::memory_order_relaxed) == id) return true;
  return false;
}

// Recorded work waits for nothing, since what a graph uses stays for good.
void come_after_copies(int device, cudaStream_t stream) try {
  if (!is_recording(stream)) follow_copies(device, stream);
} catch (const std::exception&) {
  // An earlier kernel has failed, and every call reports that.
}

// False: there are more than fit. A stream is ordered after the copies that began before it was known; later copies
// order it themselves.
bool add(int device, const c10::cuda::CUDAStream& stream) {
  UsedStreams& s = g_streams[device];
  {
    std::lock_guard<std::mutex> lock(adding());
    if (knows(s, stream.id())) return true;
    const int n = s.count.load(std::memory_order_relaxed);
    if (n == kStreams) return false;
    s.ids[n].store(stream.id(), std::memory_order_relaxed);
    s.count.store(n + 1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst); // copies.cpp: point()
  }
  come_after_copies(device, stream.stream());
  return true;
}

c10::cuda::CUDAStream stream_of(int device, c10::StreamId id) {
  return c10::cuda::CUDAStream(
      c10::cuda::CUDAStream::UNCHECKED,
      c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)), id));
}

// Returns the mark of the stream, or reuses that of a stream which has nothing left to do, or makes a new one.
const Mark& mark_of(Foreign& f, c10::StreamId id) {
  for (const Mark& m : f.marks)
    if (m.id == id) return m;
  const c10::cuda::CUDAStreamCaptureModeGuard asks(
      cudaStreamCaptureModeRelaxed); // the events are outside of every graph, so a recording allows that
  for (Mark& m : f.marks) {
    if (cudaEventQuery(m.event) != cudaSuccess) continue;
    m.id = id;
    return m;
  }
  (void)cudaGetLastError(); // some are not ready
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return f.marks.emplace_back(Mark{id, event});
}

// The stream may be a new one at the address of one that is gone, so it waits for what the mark stood for; on the same
// stream that is no wait. Recorded work waits for nothing, since what a graph uses stays for good.
void mark_foreign(int device, const c10::cuda::CUDAStream& stream) try {
  come_after_copies(device, stream.stream()); // copies do not know the stream
  Foreign& f = foreign_on(device);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::lock_guard<std::mutex> lock(f.mutex);
  if (!f.gate) {
    cudaStream_t made = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, 0));
    f.gate = c10::cuda::getStreamFromExternal(made, static_cast<c10::DeviceIndex>(device));
  }
  g_streams[device].foreign = true;
  if (is_recording(stream.stream())) return;
  const Mark& m = mark_of(f, stream.id());
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream.stream(), m.event, 0));
  C10_CUDA_CHECK(cudaEventRecord(m.event, stream.stream()));
} catch (const std::exception&) {
  // An earlier kernel has failed, and every call reports that.
}

// Returns a stream that waits for all that was started on streams that are not torch's.
c10::cuda::CUDAStream gate_of(int device) {
  Foreign& f = foreign_on(device);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::lock_guard<std::mutex> lock(f.mutex);
  for (const Mark& m : f.marks) C10_CUDA_CHECK(cudaStreamWaitEvent(f.gate->stream(), m.event, 0));
  return *f.gate;
}

// Waits without the lock, because deleters take it. Events stay, and an event that is recorded anew covers what it
// stood for before as well.
void wait_for_foreign(int device) {
  std::vector<Mark> marks;
  {
    Foreign& f = foreign_on(device);
    std::lock_guard<std::mutex> lock(f.mutex);
    marks = f.marks;
  }
  for (const Mark& m : marks) C10_CUDA_CHECK(cudaEventSynchronize(m.event));
}

} // namespace

bool is_torchs(const c10::cuda::CUDAStream& stream) { return is_own(stream.id()); }

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess) (void)cudaGetLastError(); // the allocator takes a left over error for its own
  return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

void each_stream(int device, const std::function<void(cudaStream_t)>& f) {
  const UsedStreams& s = g_streams[device];
  const int n = s.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++) f(stream_of(device, s.ids[i].load(std::memory_order_relaxed)).stream());
  if (C10_LIKELY(!s.foreign && !s.foreign_blocks)) return;
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  if (!knows(s, current.id())) f(current.stream());
}

bool use_stream(int device) {
  thread_local int last_device = -1;
  thread_local c10::StreamId last = 0;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  const c10::StreamId id = stream.id();
  if (C10_LIKELY(device == last_device && id == last)) return false;
  UsedStreams& s = g_streams[device];
  if (C10_UNLIKELY(!is_own(id) || (!knows(s, id) && !add(device, stream)))) {
    mark_foreign(device, stream);
    return true;
  }
  last_device = device;
  last = id;
  return false;
}

void know_stream(int device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  UsedStreams& s = g_streams[device];
  if (C10_LIKELY(is_own(stream.id()) && knows(s, stream.id()))) return;
  if (is_own(stream.id()) && add(device, stream)) return;
  s.foreign_blocks = true;
  come_after_copies(device, stream.stream()); // a copy may have had the block
}

void know_stream(int device, cudaStream_t stream) {
  if (stream == c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream()) know_stream(device);
  else come_after_copies(device, stream); // the handle alone does not tell whose it is
}

bool only_own_streams(int device) { return !g_streams[device].foreign; }

void wait_for_streams(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const UsedStreams& s = g_streams[device];
  if (s.foreign) wait_for_foreign(device);
  const int n = s.count.load(std::memory_order_acquire);
  for (int i = 0; i < n; i++)
    C10_CUDA_CHECK(cudaStreamSynchronize(stream_of(device, s.ids[i].load(std::memory_order_relaxed)).stream()));
}

// If only one stream is in use, nothing is recorded: the block comes back to it, in its order.
void retire_block(const c10::DataPtr& block) {
  const int device = block.device().index();
  const UsedStreams& s = g_streams[device];
  const int n = s.count.load(std::memory_order_acquire);
  if (C10_LIKELY(n < 2 && !s.foreign && !s.foreign_blocks)) return;
  try {
    if (s.foreign) c10::cuda::CUDACachingAllocator::recordStream(block, gate_of(device));
    for (int i = 0; i < n; i++)
      c10::cuda::CUDACachingAllocator::recordStream(block, stream_of(device, s.ids[i].load(std::memory_order_relaxed)));
  } catch (const std::exception&) {
    // The process ends and its driver is gone, or an earlier kernel has failed and every call reports that.
  }
}

bool is_capturing(int device) {
  return is_recording(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream());
}

void refuse_capture(int device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error =
      cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream(), &status);
  if (error == cudaErrorStreamCaptureImplicit) (void)cudaGetLastError(); // another stream of the program is recorded
  else C10_CUDA_CHECK(error); // a device that has failed
  TORCH_CHECK(
      error == cudaSuccess && status == cudaStreamCaptureStatusNone,
      "managed: a CUDA graph is being recorded on cuda:", device,
      ", and bytes cannot leave the device or come back while it is. Use the tensors once before the recording, so "
      "that they are on the device, and leave room for what it allocates");
}

} // namespace managed
