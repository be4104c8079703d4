// memory.cpp: see memory.h.
#include "memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "pressure.h"
#include "streams.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// Torch's own caching allocator: the others have no callback that asks for room.
allocator::CUDAAllocator* native() {
  static const bool caches = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr;
  static allocator::CUDAAllocator* const found = [] {
    auto* a = allocator::get();
    return caches && a && a->name() == "native" ? a : nullptr;
  }();
  return found == allocator::get() ? found : nullptr;
}

// What came over CUDA's IPC, from_blob or another allocator has another deleter.
bool owns(const c10::DataPtr& p) {
  auto* a = native();
  return a && p.get() && p.get() == p.get_context() && p.get_deleter() == a->raw_deleter() && only_own_streams(p.device().index());
}

bool is_shared(const c10::DataPtr&) { return false; }

// Slow to ask for, and the same for ever.
std::size_t capacity(int device) {
  static std::array<std::atomic<std::size_t>, kMostDevices> known{};
  std::size_t bytes = known[device].load(std::memory_order_relaxed);
  if (bytes) return bytes;
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  known[device].store(bytes = properties.totalGlobalMem, std::memory_order_relaxed);
  return bytes;
}

// The peak of memory bandwidth, for which most operators wait; in kHz times bits.
double speed(int device) {
  int clock = 0, width = 0;
  const bool known = cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess;
  if (!known) (void)cudaGetLastError();
  return known ? static_cast<double>(clock) * width : 0;
}

std::size_t above_zero(int64_t bytes) { return static_cast<std::size_t>(std::max<int64_t>(0, bytes)); }

// What is free in the driver, and the free segments that the allocator gives back before it fails. Pieces of
// segments that are in use otherwise serve only requests that fit into them, so they do not count.
std::size_t room(int device) {
  auto* a = allocator::get();
  if (!a || !a->initialized() || !c10::cuda::hasPrimaryContext(index_of(device))) return 0;
  const std::size_t free = a->getMemoryInfo(index_of(device)).first;
  if (a != native()) return free;
  const auto stats = a->getDeviceStats(index_of(device));
  const int64_t kept = stats.allocated_bytes[0].current + stats.inactive_split_bytes[0].current;
  const double fraction = a->getMemoryFraction(index_of(device));
  const int64_t in_driver = static_cast<int64_t>(free) + stats.reserved_bytes[0].current - kept;
  const auto allowed = static_cast<int64_t>(fraction * static_cast<double>(capacity(device)));
  return above_zero(std::min(in_driver, allowed - kept));
}

// The allocator knows a part of the device's memory, not a number of bytes.
void limit(int device, std::size_t bytes) {
  auto* a = native();
  if (!a) return;
  const c10::cuda::CUDAGuard guard(index_of(device)); // some versions leave another device current
  a->setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(capacity(device))), index_of(device));
}

int attribute(cudaDeviceP2PAttr what, int from, int to) {
  int value = 0;
  if (cudaDeviceGetP2PAttribute(&value, what, from, to) != cudaSuccess) (void)cudaGetLastError();
  return value;
}

// The runtime does not tell how fast a link is, so these are those of common ones, in bytes/ns in one direction. PCI Express:
// 31.5 for generation 4 with 16 lanes (PCI-SIG, 16 GT/s a lane with 128b/130b). NVLink: 300 (NVIDIA A100 data sheet, 2021: 600
// GB/s in both directions together); devices do atomic operations on each other's memory only over it. What cannot reach
// the other device goes through the host, over two links. Starting a copy takes about 10 us.
void link(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns) {
  constexpr double kPcie = 31.5, kNvlink = 300.0;
  constexpr std::int64_t kStart = 10'000;
  const bool host = from < 0 || to < 0;
  const bool direct = host || attribute(cudaDevP2PAttrAccessSupported, from, to);
  const bool nvlink = !host && attribute(cudaDevP2PAttrNativeAtomicSupported, from, to);
  *latency_ns = direct ? kStart : 2 * kStart;
  *bytes_per_ns = nvlink ? kNvlink : direct ? kPcie : kPcie / 2;
}

void enqueue(int to, void* target, int from, const void* source, std::size_t bytes, cudaStream_t stream) {
  if (from >= 0 && to >= 0) // without access to each other's memory; where torch has made it possible, it is used all the same
    C10_CUDA_CHECK(allocator::get()->memcpyAsync(target, to, source, from, bytes, stream, false));
  else
    C10_CUDA_CHECK(cudaMemcpyAsync(target, source, bytes, from < 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
}

// The streams of the source wrote the bytes. The target is fresh: what used its memory before did so on the current
// stream of its device, for which it was allocated, so the copy goes there.
void copy(int to, void* target, int from, const void* source, std::size_t bytes) {
  const int device = to < 0 ? from : to;
  refuse_capture(device);
  if (from >= 0) {
    if (from != device) refuse_capture(from);
    wait_for_streams(from);
  }
  const c10::cuda::CUDAGuard guard(index_of(device));
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(index_of(device));
  enqueue(to, target, from, source, bytes, stream.stream());
  C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
}

} // namespace

void fill_backend(Bridge* bridge) {
  bridge->link = &link;
  bridge->owns = &owns;
  bridge->is_shared = &is_shared;
  bridge->limit = &limit;
  bridge->copy = &copy;
  bridge->start = &track_freed;
  bridge->capacity = &capacity;
  bridge->room = &room;
  bridge->speed = &speed;
  bridge->use = &use_stream;
  bridge->retire = &retire_block;
}

} // namespace managed
