// pressure.cpp: see pressure.h.
#include "cuda/pressure.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>

#include "cuda/arena.h"
#include "cuda/devices.h"
#include "cuda/front.h"
#include "cuda/leaving.h"
#include "cuda/room.h"
#include "cuda/streams.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using TraceEvent = allocator::TraceEntry;

std::atomic<const CudaBridge*> hook{nullptr};
bool tracking = false; // written by the one thread that calls start()

// The allocator runs this at every request that its cache cannot serve, before it asks the driver for more: not only
// when the device is full.
class MakeRoom final : public c10::FreeMemoryCallback {
 public:
  // No exception may leave, since the allocator is in the middle of a request, except a Shortage, which the front
  // catches.
  bool Execute() override try {
    const CudaBridge* h = hook.load(std::memory_order_acquire);
    c10::DeviceIndex device = 0;
    if (!h || !h->make_some_room || c10::cuda::GetDevice(&device) != cudaSuccess || device >= kMostDevices)
      return false;
    if (is_capturing(device))
      return false; // memory of a graph comes from a pool of its own, and the driver refuses to wait
    if (is_seen_to_by_front(device)) return false;
    if (allocator::isHistoryEnabled())
      return false; // a free would take the GIL for its stack trace, under the allocator's lock
    return give_back_blocks(device, kAll) || make_some_room(*h, device);
  } catch (const std::exception&) {
    return false;
  }
};

void on_event(const TraceEvent& entry) {
  if (entry.device_ < 0 || entry.device_ >= kMostDevices) return;
  // FREE_COMPLETED: a block is back in the cache. SEGMENT_FREE, SEGMENT_UNMAP: the cache gave
  // memory back to the driver, which other libraries may be waiting for.
  if (entry.action_ != TraceEvent::FREE_COMPLETED && entry.action_ != TraceEvent::SEGMENT_FREE &&
      entry.action_ != TraceEvent::SEGMENT_UNMAP)
    return;
  const CudaBridge* h = hook.load(std::memory_order_acquire);
  if (h && h->freed) h->freed(entry.device_, entry.size_);
}

} // namespace
} // namespace managed

namespace c10 { // the registry's macros name its own namespace's types
REGISTER_FREE_MEMORY_CALLBACK(managed_make_room, managed::MakeRoom)
}

namespace managed {

void set_hook(const CudaBridge* bridge) {
  hook.store(bridge, std::memory_order_release);
  report_ranges(bridge->freed);
}

void start() {
  auto* a = allocator::get();
  // cudaMallocAsync has no trackers and says so by throwing; waiters then end at their deadline.
  if (tracking || !a || !a->initialized() || a->name() != "native") return;
  a->attachAllocatorTraceTracker(on_event);
  tracking = true;
  install_front(hook.load(std::memory_order_acquire));
}

} // namespace managed
