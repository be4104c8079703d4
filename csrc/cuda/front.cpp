// front.cpp: see front.h.
//
// How it learns of a shortage: torch runs a callback under its lock when its cache has nothing for a request, before it
// has changed anything. For a request that came through here the callback only compares, and throws Shortage when the
// request does not fit. That unwinds torch's call and with it torch's lock; then room is made here and torch is asked
// again.
#include "cuda/front.h"

#include <Python.h>

#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cuda/arena.h"
#include "cuda/devices.h"
#include "cuda/leaving.h"
#include "cuda/room.h"
#include "cuda/streams.h"
#include "cuda/times.h"
#include "torch/threads/gil.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Allocator = allocator::CUDAAllocator;

struct Shortage {}; // no std::exception, so that no handler between the callback and the front takes it for one

class Request;
constinit thread_local Request* under_way __attribute__((tls_model("initial-exec"))) =
    nullptr; // torch is being asked for it
constinit thread_local bool only_if_room __attribute__((tls_model("initial-exec"))) =
    false; // a request that finds no room fails at once

template <class T>
class Set {
 public:
  Set(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Set() { variable_ = before_; }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

 private:
  T& variable_;
  const T before_;
};

const CudaBridge* front_hook = nullptr; // written before the front is in its place

// How many pools of the program's own serve some requests of a device now, graphs' among them. Which requests is not
// known, and torch gives nothing back to the driver meanwhile, so requests are left to the callback.
std::array<std::atomic<int>, kMostDevices> pools_in_use{};
bool uses_pool(int device) {
  return device >= kMostDevices || pools_in_use[device].load(std::memory_order_relaxed) > 0;
}
void count_pool(int device, int change) {
  if (device < kMostDevices) pools_in_use[device] += change;
}

// Notes the stream that a block belongs to, the one that is named or the current one: a copy may have had the block, or
// has to order that stream later.
template <class... Stream>
void note_stream(Stream... stream) {
  c10::DeviceIndex device = 0;
  if (c10::cuda::GetDevice(&device) == cudaSuccess && device >= 0 && device < kMostDevices)
    know_stream(device, stream...);
}

// One request, until it is served or nothing can be done for it.
class Request {
 public:
  // `may_lie_in_arena`: it is for the current stream, which orders what it does after the earlier users of a range.
  explicit Request(std::size_t bytes, bool may_lie_in_arena = true)
      : bytes_(bytes), may_lie_in_arena_(may_lie_in_arena), asks_arena_(may_lie_in_arena) {}

  // What torch's cache has nothing for is served by an arena if it has room beside what is planned next, then by torch
  // from the driver, then from any room of the arena.
  template <class Ask>
  c10::DataPtr serve(const Ask& ask) {
    for (;;) {
      try {
        const Set now(under_way, this);
        return ask();
      } catch (const Shortage&) {
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device_));
        const bool first = std::exchange(asks_arena_, false);
        if (c10::DataPtr range = take_gap(first); range.get()) return range;
        if (!first) see_to_shortage();
      } catch (const c10::OutOfMemoryError&) {
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device_));
        if (c10::DataPtr range = take_gap(false); range.get()) return range;
        if (hopeless_ || !see_to_refusal()) throw;
      }
    }
  }

  // Called in the callback; false when the request is left to the hook's estimate.
  bool compare(int device) const {
    if (fits_ || hopeless_) return true;
    if (uses_pool(device)) return false;
    if (asks_arena_ && has_arena(device)) throw Shortage{};
    const std::size_t needed = needed_for(device, bytes_);
    if (certain_room(device) < needed || (made_room_ && room_in_driver(device) < needed)) throw Shortage{};
    return true;
  }

 private:
  bool make_room(std::size_t bytes, bool is_in_pieces = false) {
    const WithoutGil no_gil;
    const Pause pause(device_);
    std::vector<mgd_window_block> blocks;
    if (is_in_pieces) blocks = blocks_for(device_, c10::cuda::getCurrentCUDAStream());
    made_room_ = front_hook->make_hole(device_, bytes, bytes_, blocks);
    if (made_room_) has_waited_ = false; // evicted blocks may wait for streams in their turn
    return made_room_;
  }

  // Whether there are enough free bytes, but in pieces; true once for a request.
  bool is_in_pieces(std::size_t needed) {
    if (bytes_ <= kSmall || !may_lie_in_arena_ || was_in_pieces_ || has_arena(device_)) return false;
    was_in_pieces_ = room_soon(device_) >= needed;
    return was_in_pieces_;
  }

  // What is fetched ahead of need has a place of its own, or none. The gap is in the way of nothing that is planned
  // next, as far as there is one: what misses its place for it would need a gap in its turn.
  c10::DataPtr take_gap(bool beside_places) {
    constexpr int kPlaces = 256, kNext = 8;
    if (only_if_room || !may_lie_in_arena_ || !has_arena(device_) || uses_pool(device_)) return {};
    std::array<mgd_step_place, kPlaces> places;
    int n = front_hook->places(device_, 0, places.data(), kPlaces);
    if (beside_places && (bytes_ <= kSmall || n == 0)) return {}; // it may stay for long
    for (;; n /= 2) {
      c10::DataPtr range = managed::take_gap(device_, bytes_, {places.data(), static_cast<std::size_t>(n)});
      if (range.get() || n <= (beside_places ? kNext : 0)) return range;
    }
  }

  void see_to_shortage() {
    const std::size_t needed = needed_for(device_, bytes_);
    if (give_back_blocks(device_, needed)) return;
    if (c10::DataPtr whole = take_arena(device_); whole.get()) return; // nothing was in it: it is torch's again
    const std::size_t there = room_of_torch(device_);
    fits_ = there >= needed; // the callback may not look as closely
    if (fits_) return give_cache_back(needed);
    if (wait_for_pending(needed)) return;
    if (only_if_room) throw Shortage{}; // torch would empty its cache, wait for the device and write a text
    const std::size_t idle = idle_in_arena(device_); // in pieces that are too small
    hopeless_ = needed > allowed(device_) ||
        !make_room(idle + needed, is_in_pieces(needed)); // torch may still find memory, and has the text of the error
  }

  // Evicted blocks lie in torch's cache, in segments that are too small. Torch would first ask the driver in vain, and
  // report that.
  void give_cache_back(std::size_t needed) {
    if (!made_room_ || room_in_driver(device_) >= needed) return;
    const WithoutGil no_gil;
    native()->emptyCache();
  }

  // Torch would wait as well, with its lock held.
  bool wait_for_pending(std::size_t needed) {
    if (has_waited_ || !has_pending(device_) || room_soon(device_) < needed) return false;
    const WithoutGil no_gil;
    front_hook->waited();
    wait_for_streams(device_);
    return has_waited_ = true;
  }

  // There was room by all figures, but in fragments: so this makes room for the whole request in addition.
  bool see_to_refusal() {
    fits_ = false;
    if (give_back_blocks(device_, kAll)) return true;
    if (uses_pool(device_) || is_capturing(device_)) return false;
    const std::size_t needed = needed_for(device_, bytes_);
    return needed <= allowed(device_) && make_room(room(device_) + needed);
  }

  const std::size_t bytes_;
  const bool may_lie_in_arena_;
  c10::DeviceIndex device_ = 0;
  bool fits_ = false, hopeless_ = false, has_waited_ = false, made_room_ = false, was_in_pieces_ = false;
  bool asks_arena_; // it has not been asked yet
};

// Functions that some supported version of torch lacks are not marked as overriding. If torch has them they do
// override, since the base is a parameter; if not, they are never called and not compiled.
template <class Base>
class FrontOf : public Base {
 public:
  explicit FrontOf(Base* native) : native_(native) {}

  // ---- requests
  c10::DataPtr allocate(std::size_t n) override {
    note_stream();
    return serve(n, [&] { return native_->allocate(n); });
  }
  void* raw_alloc(std::size_t n) override { return raw_alloc_with_stream(n, c10::cuda::getCurrentCUDAStream()); }
  void* raw_alloc_with_stream(std::size_t n, cudaStream_t stream) override {
    const auto ask = [&] {
      void* block = native_->raw_alloc_with_stream(n, stream);
      return c10::DataPtr(block, block, native_->raw_deleter(), c10::Device(c10::kCUDA));
    };
    const bool is_current = stream == c10::cuda::getCurrentCUDAStream().stream();
    c10::DataPtr p = is_current ? serve(n, ask) : Request(n, false).serve(ask);
    note_stream(stream);
    return p.release_context(); // raw_delete() takes it
  }

  // ---- pools of the program's own
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    native_->beginAllocateToPool(device, id, std::move(filter));
    note_pool(device);
    count_pool(device, 1);
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) override {
    native_->endAllocateToPool(device, id);
    if (uses_pool(device)) count_pool(device, -1); // it may have begun before the front was installed
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id, std::shared_ptr<Base> of) override {
    native_->createOrIncrefPool(device, id, std::move(of));
    note_pool(device);
  }

  // ---- the rest is torch's
  bool is_simple_data_ptr(const c10::DataPtr& p) const override { return native_->is_simple_data_ptr(p); }
  c10::DeleterFnPtr raw_deleter() const override { return native_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t n) const override { native_->copy_data(to, from, n); }
  void raw_delete(void* p) override { arena_at(p) ? free_range(p) : native_->raw_delete(p); }
  void init(int devices) override { native_->init(devices); }
  bool initialized() override { return native_->initialized(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return native_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    native_->setMemoryFraction(fraction, device);
  }
  std::vector<allocator::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return native_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { native_->enable(value); }
  bool isEnabled() const override { return native_->isEnabled(); }
  void emptyCache(c10::MempoolId_t id) override {
    for (int device = 0; device < kMostDevices; device++) {
      give_back_blocks(device, kAll);
      take_arena(device).clear();
    }
    native_->emptyCache(id);
  }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { native_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* p, std::size_t* size) override { return native_->getBaseAllocation(block_at(p), size); }
  void recordStream(const c10::DataPtr& p, c10::cuda::CUDAStream stream) override {
    is_range(p) ? record_on_range(p, stream) : native_->recordStream(p, stream);
  }
  void recordStream(const c10::DataPtr& p, c10::Stream stream) override {
    recordStream(p, c10::cuda::CUDAStream(stream));
  }
  // Blocks that were given up, and the free bytes of an arena, count as free.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    constexpr std::size_t kAggregate = 0, kLargePool = 2;
    give_back_blocks(device, kAll);
    auto stats = native_->getDeviceStats(device);
    const auto idle = static_cast<int64_t>(idle_in_arena(device));
    for (auto* sums : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes})
      for (const std::size_t pool : {kAggregate, kLargePool}) (*sums)[pool].current -= idle;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { native_->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override {
    give_back_blocks(device, kAll);
    native_->resetPeakStats(device);
  }
  allocator::SnapshotInfo snapshot(c10::MempoolId_t id) { return native_->snapshot(id); }
  allocator::SnapshotInfo snapshot(c10::MempoolId_t id, bool traces) { return native_->snapshot(id, traces); }
  void markCaptureBegin(c10::DeviceIndex device) { native_->markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) { native_->markCaptureEnd(device); }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t id) override { native_->releasePool(device, id); }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) override {
    return native_->getPoolUseCount(device, id);
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use) { native_->setUseOnOOM(device, id, use); }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id) { native_->setUseOnOOM(device, id); }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) { native_->setNoSplit(device, id); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                const std::unordered_set<void*>& live) override {
    return native_->checkPoolLiveAllocations(device, id, live);
  }
  allocator::ShareableHandle shareIpcHandle(void* p) override {
    void* block = block_at(p);
    auto handle = native_->shareIpcHandle(block);
    handle.offset += static_cast<char*>(p) - static_cast<char*>(block);
    return handle;
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return native_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return native_->isHistoryEnabled(); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) { return native_->getContextForPointer(p); }
  void recordHistory(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder, std::size_t entries,
                     c10::CachingDeviceAllocator::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) {
    native_->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) override {
    native_->recordAnnotation(what);
  }
  void pushCompileContext(std::string& what) override { native_->pushCompileContext(what); }
  void popCompileContext() override { native_->popCompileContext(); }
  bool supportsUserMetadata() { return native_->supportsUserMetadata(); }
  void setUserMetadata(const std::string& text) { native_->setUserMetadata(text); }
  std::string getUserMetadata() { return native_->getUserMetadata(); }
  void annotateMemory(const void* p, const std::string& text) { native_->annotateMemory(p, text); }
  void attachOutOfMemoryObserver(allocator::OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachOomRejectionObserver(std::function<void(int64_t, std::size_t, std::size_t, std::size_t)> observer) {
    native_->attachOomRejectionObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override {
    native_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) override { native_->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t n,
                          cudaStream_t stream, bool peers) override {
    return native_->memcpyAsync(to, to_device, from, from_device, n, stream, peers);
  }
  std::shared_ptr<allocator::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t id) override {
    return native_->getCheckpointState(device, id);
  }
  allocator::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                    std::shared_ptr<allocator::AllocatorState> state) override {
    return native_->setCheckpointPoolState(device, std::move(state));
  }
  c10::DataPtr allocateWithAddress(std::size_t n, void* address) { return native_->allocateWithAddress(n, address); }
  std::string name() override { return native_->name(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return native_->getMemoryInfo(device);
  }

  // The first function of the front's own: what stands before it in the table is torch's.
  virtual void end_of_torch() {}

 private:
  // Serves a request for the current stream: from its place in the arena, if it has one that is free, or by `ask`.
  template <class Ask>
  c10::DataPtr serve(std::size_t n, const Ask& ask) {
    c10::DeviceIndex device = 0;
    if (n <= MGD_PLACE_LEAST || only_if_room || c10::cuda::GetDevice(&device) != cudaSuccess)
      return Request(n).serve(ask);
    c10::DataPtr p = take_place(device, n, false);
    if (!p.get()) p = Request(n).serve(ask);
    front_hook->requested(device, p.get(), n);
    return p;
  }

  // Torch knows its own blocks alone.
  static void* block_at(void* p) {
    const void* arena = arena_at(p);
    return arena ? const_cast<void*>(arena) : p;
  }

  Base* const native_;
};

using Front = FrontOf<Allocator>;

} // namespace

c10::DataPtr take_place(int device, std::size_t bytes, bool for_copy) {
  constexpr int kPlaces = 8;
  if (bytes <= MGD_PLACE_LEAST || !has_arena(device) || uses_pool(device)) return {};
  std::array<mgd_step_place, kPlaces> places;
  const int n = front_hook->places(device, bytes, places.data(), kPlaces);
  c10::DataPtr range;
  for (int i = 0; i < n && !range.get(); i++) range = take_range(device, places[i].offset, bytes, for_copy);
  return range;
}

c10::DataPtr allocate_if_room(std::size_t bytes) {
  const Set now(only_if_room, true);
  try {
    return c10::GetAllocator(c10::kCUDA)->allocate(bytes);
  } catch (const Shortage&) { return {}; }
}

void install_front(const CudaBridge* bridge) {
  Allocator* a = native();
  if (!a || has_front()) return;
  const auto [functions, forgotten] = forgotten_functions(false);
  if (!forgotten.empty()) {
    TORCH_WARN("managed: torch's CUDA allocator has ", forgotten.size(),
               " functions that this managed does not know, so it makes room only when "
               "the allocator's cache is empty, by guess. Use a managed that was made for this torch.");
    return;
  }
  note_pools();
  front_hook = bridge;
  auto* made = new Front(a); // never destroyed: tensors may outlive static destructors
  set_front(made);
  // Torch registers its own with a priority of 1; a lower one would be ignored silently.
  c10::SetAllocator(c10::kCUDA, made, std::numeric_limits<uint8_t>::max());
  TORCH_INTERNAL_ASSERT(c10::GetAllocator(c10::kCUDA) == made);
}

bool is_seen_to_by_front(int device) { return under_way && under_way->compare(device); }

// A table of the class alone. Its first function that is defined elsewhere than in the class makes the compiler write
// the table.
struct Bare : Allocator {
  ~Bare() override;
};
Bare::~Bare() = default;

namespace {

extern "C" void* const bare_table[] __asm__("_ZTVN7managed4BareE");

// The place of end_of_torch() in the table, which the ABI of C++ keeps in a pointer to a virtual member function.
std::size_t functions_of_torch() {
  auto member = &Front::end_of_torch;
  std::ptrdiff_t place = 0;
  std::memcpy(&place, &member, sizeof place);
  return static_cast<std::size_t>(place - 1) / sizeof(void*);
}

} // namespace

std::pair<std::size_t, std::vector<std::size_t>> forgotten_functions(bool of_a_class_without_any) {
  constexpr std::size_t kAbove = 2; // a table begins with the offset to the object's top and its type
  const Front sample(nullptr);
  void* const* of_front = nullptr;
  std::memcpy(&of_front, static_cast<const void*>(&sample), sizeof of_front);
  void* const* of_class = bare_table + kAbove;
  std::vector<std::size_t> same;
  const std::size_t n = functions_of_torch();
  for (std::size_t i = 0; i < n; i++)
    if ((of_a_class_without_any ? of_class : of_front)[i] == of_class[i]) same.push_back(i);
  return {n, same};
}

} // namespace managed
