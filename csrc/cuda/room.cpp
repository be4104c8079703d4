// room.cpp: see room.h.
//
// Before it fails, the allocator gives unused memory back to the driver: whole segments, and whole pages of expandable
// ones. Everything else that is cached serves only requests that fit into it, so it is not counted. Neither are blocks
// that wait for streams, nor what belongs to a pool of the program's own.
#include "cuda/room.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "cuda/arena.h"
#include "cuda/devices.h"
#include "cuda/leaving.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Allocator = allocator::CUDAAllocator;
using Stats = c10::CachingDeviceAllocator::DeviceStats;

constinit thread_local bool in_callback __attribute__((tls_model("initial-exec"))) = false;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr c10::MempoolId_t kDefaultPool{0, 0};

std::array<std::atomic<bool>, kMostDevices> has_pools{};


std::size_t large_segment() { return c10::CachingAllocator::AcceleratorAllocatorConfig::large_segment_size(); }

bool has_expandable(Allocator* a, int device) { return !a->getExpandableSegmentSizes(index_of(device)).empty(); }

// A block is in use, or a free piece of a segment that is in use otherwise, or a whole free segment. Figures of
// expandable segments have no pieces, and none tells whose pool a segment is.
int64_t idle_by_stats(const Stats& s) {
  return s.reserved_bytes[0].current - s.active_bytes[0].current - s.inactive_split_bytes[0].current;
}

int64_t idle_pages(const allocator::SegmentInfo& s) {
  const std::size_t page = s.is_large ? large_segment() : kPage;
  std::size_t at = 0, idle = 0;
  for (const auto& block : s.blocks) {
    const std::size_t first = (at + page - 1) / page, end = (at += block.size) / page;
    if (!block.active && end > first) idle += (end - first) * page;
  }
  return static_cast<int64_t>(idle);
}

int64_t idle_in(Allocator* a, const allocator::SegmentInfo& s) {
  if (s.owner_private_pool_id != kDefaultPool && a->getPoolUseCount(s.device, s.owner_private_pool_id) > 0) return 0;
  if (s.is_expandable) return idle_pages(s);
  return s.blocks.size() == 1 && !s.blocks[0].active ? static_cast<int64_t>(s.total_size) : 0;
}

template <class A>
auto snapshot_of(A* a) {
  if constexpr (requires { a->snapshot(kDefaultPool, false); }) return a->snapshot(kDefaultPool, false);
  else return a->snapshot(kDefaultPool);
}

// Looks at every block, one device's lock after the other.
int64_t idle_by_snapshot(Allocator* a, int device) {
  int64_t idle = 0;
  for (const auto& s : snapshot_of(a).segments)
    if (s.device == device) idle += idle_in(a, s);
  return idle;
}

// Bytes of freed blocks that kernels on other streams may still use.
int64_t pending_of(const Stats& s) {
  return std::max<int64_t>(0, s.active_bytes[0].current - s.allocated_bytes[0].current);
}

std::size_t room_with(Allocator* a, int device, const Stats& stats, int64_t idle) {
  const auto free = static_cast<int64_t>(a->getMemoryInfo(index_of(device)).first);
  const int64_t kept = stats.reserved_bytes[0].current - idle;
  return static_cast<std::size_t>(
      std::max<int64_t>(0, std::min(free + idle, static_cast<int64_t>(allowed(device)) - kept)));
}

bool figures_tell(Allocator* a, int device) {
  return !has_pools[device].load(std::memory_order_relaxed) && !has_expandable(a, device);
}

} // namespace

std::size_t certain_room(int device) {
  Allocator* a = native();
  const Stats stats = a->getDeviceStats(index_of(device));
  return room_with(a, device, stats, figures_tell(a, device) ? idle_by_stats(stats) : 0);
}

std::size_t room_in_driver(int device) {
  Allocator* a = native();
  return room_with(a, device, a->getDeviceStats(index_of(device)), 0);
}

std::size_t allowed(int device) {
  return static_cast<std::size_t>(
      std::llround(native()->getMemoryFraction(index_of(device)) * static_cast<double>(capacity(device))));
}

namespace {

// Null: there is no allocator, or no context on the device.
Allocator* allocator_of(int device) {
  Allocator* any = allocator::get();
  return any && any->initialized() && c10::cuda::hasPrimaryContext(index_of(device)) ? any : nullptr;
}

// `more`: idle bytes that torch does not know of.
std::size_t exact_room(Allocator* a, int device, const Stats& stats, std::size_t more = 0) {
  const int64_t idle = figures_tell(a, device) ? idle_by_stats(stats) : idle_by_snapshot(a, device);
  return room_with(a, device, stats, idle + static_cast<int64_t>(more));
}

std::size_t room_beside(int device, std::size_t idle_elsewhere) {
  Allocator* any = allocator_of(device);
  if (!any) return 0;
  Allocator* a = native();
  if (!a) return any->getMemoryInfo(index_of(device)).first;
  give_back_blocks(device, kAll); // they are room, and only torch knows how much
  if (in_callback) return certain_room(device);
  return exact_room(a, device, a->getDeviceStats(index_of(device)), idle_elsewhere);
}

} // namespace

std::size_t room(int device) { return room_beside(device, idle_in_arena(device)); }
std::size_t room_of_torch(int device) { return room_beside(device, 0); }

void allocator_usage(int device, int64_t* allocated, int64_t* reserved) {
  Allocator* any = allocator_of(device);
  *allocated = *reserved = 0;
  if (!any) return;
  const Stats stats = (native() ? native() : any)->getDeviceStats(index_of(device));
  const int64_t requested = stats.requested_bytes[0].current; // 0: the allocator does not report them
  *allocated = requested ? requested : stats.allocated_bytes[0].current;
  *allocated -= static_cast<int64_t>(bytes_given_up(device) + idle_in_arena(device));
  *allocated = std::max<int64_t>(0, *allocated);
  *reserved = stats.reserved_bytes[0].current;
}

std::size_t room_soon(int device) {
  Allocator* a = allocator_of(device) ? native() : nullptr;
  if (!a || in_callback) return room(device);
  const Stats stats = a->getDeviceStats(index_of(device));
  return exact_room(a, device, stats) + static_cast<std::size_t>(stats.inactive_split_bytes[0].current) +
      static_cast<std::size_t>(pending_of(stats)) + bytes_given_up(device) + idle_in_arena(device);
}

std::size_t room_for_small(int device) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index_of(device));
  std::size_t free = 0;
  for (const auto& s : snapshot_of(native()).segments)
    if (s.device == device && s.stream == stream && !s.is_large && s.owner_private_pool_id == kDefaultPool)
      free += s.total_size - s.active_size;
  return free;
}

std::vector<mgd_window_block> blocks_for(int device, cudaStream_t stream) {
  std::vector<mgd_window_block> blocks;
  if (has_expandable(native(), device)) return blocks;
  for (const auto& s : snapshot_of(native()).segments) { // in the order of their addresses
    if (s.device != device || s.stream != stream || !s.is_large || s.owner_private_pool_id != kDefaultPool) continue;
    auto* at = reinterpret_cast<const char*>(s.address);
    for (const auto& b : s.blocks) {
      blocks.push_back({at, static_cast<int64_t>(b.size), !b.active, at == reinterpret_cast<const char*>(s.address)});
      at += b.size;
    }
  }
  return blocks;
}

bool make_some_room(const CudaBridge& hook, int device) {
  struct InCallback {
    const bool before = std::exchange(in_callback, true);
    ~InCallback() { in_callback = before; }
  };
  const InCallback now;
  return hook.make_some_room(device);
}

bool cuts_into_pieces(int device) { return figures_tell(native(), device); }

bool has_pending(int device) { return pending_of(native()->getDeviceStats(index_of(device))) > 0; }

// Follows torch's get_allocation_size(). An expandable segment may have a part of the last page already.
std::size_t needed_for(int device, std::size_t bytes) {
  if (has_expandable(native(), device)) return bytes;
  if (bytes <= kSmall) return kPage;
  if (bytes < 10 * kMiB) return large_segment();
  return (bytes + kPage - 1) / kPage * kPage;
}

void note_pool(int device) {
  if (device < kMostDevices) has_pools[device].store(true, std::memory_order_relaxed);
}

void note_pools() {
  for (const auto& s : snapshot_of(native()).segments)
    if (s.owner_private_pool_id != kDefaultPool) note_pool(s.device);
}

} // namespace managed
