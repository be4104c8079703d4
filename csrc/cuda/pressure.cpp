// pressure.cpp: see pressure.h.

#include "pressure.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::atomic<const Bridge*> hook{nullptr};
bool tracking = false; // written under the GIL

// The allocator runs this at every request that its cache cannot serve, before
// it asks the driver for more: not only when the device is full. It is up to
// make_room to find out whether there is a shortage.
class MakeRoom final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    const Bridge* h = hook.load(std::memory_order_acquire);
    c10::DeviceIndex device = 0;
    if (!h || !h->make_room || c10::cuda::GetDevice(&device) != cudaSuccess) return false;
    return h->make_room(device, 0);
  }
};

void on_event(const allocator::TraceEntry& entry) {
  // FREE_COMPLETED: a block is back in the cache. SEGMENT_FREE: the cache gave
  // memory back to the driver, which other libraries may be waiting for.
  if (entry.action_ != allocator::TraceEntry::FREE_COMPLETED && entry.action_ != allocator::TraceEntry::SEGMENT_FREE)
    return;
  const Bridge* h = hook.load(std::memory_order_acquire);
  if (h && h->freed) h->freed(entry.device_, entry.size_);
}

} // namespace
} // namespace managed

namespace c10 { // the registry's macros name its own namespace's types
REGISTER_FREE_MEMORY_CALLBACK(managed_make_room, managed::MakeRoom)
}

namespace managed {

void set_hook(const Bridge* bridge) { hook.store(bridge, std::memory_order_release); }

bool track_freed() {
  if (tracking) return true;
  auto* a = allocator::allocator.load();
  // cudaMallocAsync has no trackers and says so by throwing; waiters then end at their deadline.
  if (!a || !a->initialized() || a->name() != "native") return false;
  a->attachAllocatorTraceTracker(on_event);
  tracking = true;
  return true;
}

} // namespace managed
