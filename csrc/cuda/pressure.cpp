// pressure.cpp: see pressure.h.

#include "pressure.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <atomic>

#include "streams.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Event = allocator::TraceEntry;

std::atomic<const Bridge*> hook{nullptr};
bool tracking = false;                                   // written by the one thread that starts
std::array<std::atomic<std::size_t>, kMostDevices> refused{}; // bytes of the request that ended in an error, until one as large is served

// The allocator runs this at every request that its cache cannot serve, before
// it asks the driver for more: not only when the device is full. It is up to
// make_room to find out whether there is a shortage.
class MakeRoom final : public c10::FreeMemoryCallback {
 public:
  // Nothing may leave through here: the allocator is in the middle of a request.
  bool Execute() override try {
    const Bridge* h = hook.load(std::memory_order_acquire);
    c10::DeviceIndex device = 0;
    if (!h || !h->make_room || c10::cuda::GetDevice(&device) != cudaSuccess || device >= kMostDevices) return false;
    if (allocator::isHistoryEnabled()) return false; // a free would take the GIL for its stack trace, under the allocator's lock
    if (is_capturing(device)) return false; // memory of a graph comes from a pool of its own, and the driver refuses to wait
    return h->make_room(device, refused[device].load(std::memory_order_relaxed));
  } catch (const std::exception&) {
    return false;
  }
};

void note_request(const Event& e) {
  auto& last = refused[e.device_];
  if (e.action_ == Event::OOM) last.store(e.size_, std::memory_order_relaxed);
  else if (C10_UNLIKELY(last.load(std::memory_order_relaxed) != 0) && e.size_ >= last.load(std::memory_order_relaxed)) last.store(0, std::memory_order_relaxed);
}

void on_event(const Event& entry) {
  if (entry.device_ < 0 || entry.device_ >= kMostDevices) return;
  if (entry.action_ == Event::ALLOC || entry.action_ == Event::OOM) return note_request(entry);
  // FREE_COMPLETED: a block is back in the cache. SEGMENT_FREE, SEGMENT_UNMAP: the cache gave
  // memory back to the driver, which other libraries may be waiting for.
  if (entry.action_ != Event::FREE_COMPLETED && entry.action_ != Event::SEGMENT_FREE && entry.action_ != Event::SEGMENT_UNMAP) return;
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

void track_freed() {
  auto* a = allocator::get();
  // cudaMallocAsync has no trackers and says so by throwing; waiters then end at their deadline.
  if (tracking || !a || !a->initialized() || a->name() != "native") return;
  a->attachAllocatorTraceTracker(on_event);
  tracking = true;
}

} // namespace managed
