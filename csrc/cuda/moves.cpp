// moves.cpp: see moves.h.
#include "cuda/moves.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "cuda/front.h"
#include "cuda/leaving.h"
#include "cuda/streams.h"
#include "cuda/times.h"

namespace managed {
namespace {


enum Way { kIn, kOut, kWays };
using CopyStreams = std::array<std::array<cudaStream_t, kUrgencies>, kWays>;

// What a device has for copies. The mutex is a leaf: nothing of CUDA's that may wait is called in it.
struct Copies {
  std::mutex mutex;
  CopyStreams streams{};
  std::array<cudaStream_t, kMostDevices> operands{}; // by the device that they go to: one does not wait for another
  std::atomic<uint64_t> writes{0}; // the other devices to which bytes were copied from here, a bit each
  std::vector<cudaEvent_t> events; // that nobody uses
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

cudaStream_t copy_stream(int device, Way way, Urgency urgency) {
  Copies& d = copies_of(device);
  return made(d, d.streams[way][static_cast<std::size_t>(urgency)]);
}

cudaStream_t operand_stream(int from, int to) {
  Copies& d = copies_of(from);
  return made(d, d.operands[to]);
}

// An event of the device, for as long as the object lives. To record one that streams still wait for is allowed: they
// wait for what it stood for when they were told.
class PooledEvent {
 public:
  explicit PooledEvent(int device) : device_(device) {
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
  ~PooledEvent() {
    std::lock_guard<std::mutex> lock(copies_of(device_).mutex);
    copies_of(device_).events.push_back(event_);
  }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  void record(cudaStream_t stream) const { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void lead(cudaStream_t stream) const { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }
  cudaEvent_t get() const { return event_; }

 private:
  const int device_;
  cudaEvent_t event_ = nullptr;
};

// What `first` holds now comes before what `second` gets from now on. The current device is that of `first`.
void order_streams(int device, cudaStream_t first, cudaStream_t second) {
  const PooledEvent event(device);
  event.record(first);
  event.lead(second);
}

class Move final : public Copy {
 public:
  explicit Move(int device) : event_(device) {}

  void order(const c10::DataPtr& block) override { lead_streams(block.device().index()); }
  void wait() override {
    const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
    C10_CUDA_CHECK(cudaEventSynchronize(event_.get()));
  }
  void lead_streams(int device) {
    if (has_ended()) return;
    const Pause pause(device);
    const c10::cuda::CUDAGuard guard(index_of(device));
    each_stream(device, [&](cudaStream_t stream) {
      is_recording(stream) ? wait() : event_.lead(stream); // a graph waits for nothing outside
    });
  }
  bool has_ended() override {
    const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
    const cudaError_t error = cudaEventQuery(event_.get());
    if (error != cudaSuccess) (void)cudaGetLastError(); // the allocator takes a left over error for its own
    return error == cudaSuccess;
  }
  void begun(cudaStream_t stream) const { event_.record(stream); }
  void lead(cudaStream_t stream) const { event_.lead(stream); }

 private:
  const PooledEvent event_;
};

// An event on each stream that operators have used.
class Streams final : public Point {
 public:
  void add(int device, cudaStream_t stream) { ends_.emplace_back(device).record(stream); }
  void lead(cudaStream_t stream) const {
    for (const PooledEvent& end : ends_) end.lead(stream);
  }

 private:
  std::deque<PooledEvent> ends_; // which never move
};

Move& move_of(const CopyPtr& copy) { return static_cast<Move&>(*copy); }

// Whether the driver copies from one device to the other directly; else it goes through the host. The first question
// makes it possible, as torch does before a copy of its own.
bool reaches(int from, int to) {
  enum : char { kUnknown, kNo, kYes };
  static std::array<std::array<std::atomic<char>, kMostDevices>, kMostDevices> known{};
  std::atomic<char>& answer = known[from][to];
  if (answer.load(std::memory_order_acquire) == kUnknown) {
    const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess) (void)cudaGetLastError();
    try {
      if (can) c10::cuda::CUDACachingAllocator::get()->enablePeerAccess(index_of(from), index_of(to));
    } catch (const std::exception&) { // a device has a limited number of peers
      (void)cudaGetLastError();
      can = 0;
    }
    answer.store(can ? kYes : kNo, std::memory_order_release);
  }
  return answer.load(std::memory_order_relaxed) == kYes;
}

void enqueue(int to, void* target, int from, const void* source, std::size_t bytes, cudaStream_t stream) {
  if (from >= 0 && to >= 0)
    C10_CUDA_CHECK(c10::cuda::CUDACachingAllocator::get()->memcpyAsync(target, to, source, from, bytes, stream,
                                                                       reaches(from, to)));
  else
    C10_CUDA_CHECK(
        cudaMemcpyAsync(target, source, bytes, from < 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
}

// The streams of the source wrote the bytes. What streams that are not torch's have started nobody can order, so this
// thread waits for it.
void follow_source(int from, cudaStream_t copies) {
  if (!only_own_streams(from)) return wait_for_streams(from);
  const c10::cuda::CUDAGuard guard(index_of(from));
  each_stream(from, [&](cudaStream_t stream) {
    TORCH_CHECK(!is_recording(stream), "managed: a CUDA graph is being recorded on a stream of cuda:", from,
                ", and bytes cannot leave the device while it is");
    order_streams(from, stream, copies);
  });
}

// What the memory of the target was used for before: work on the current stream, for which it was allocated, or a copy
// whose block it was until now (leaving.h).
class Before {
 public:
  explicit Before(const void* target) { takes_ = comes_after(target, &copy_, &users_); }

  void lead(int to, cudaStream_t copies) const {
    if (takes_) {
      move_of(copy_).lead(copies);
      if (users_) static_cast<Streams&>(*users_).lead(copies);
      return;
    }
    const c10::cuda::CUDAGuard guard(index_of(to));
    order_streams(to, c10::cuda::getCurrentCUDAStream(index_of(to)).stream(), copies);
  }
  // Nothing comes into the block, which goes back to torch: what its streams do with it comes after that copy.
  void give_up(int to) const {
    if (takes_) move_of(copy_).lead_streams(to);
  }

 private:
  bool takes_;
  CopyPtr copy_;
  PointPtr users_;
};

// `follow`: lets the stream that copies come after what wrote the source.
template <class Follow>
CopyPtr begin(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
              c10::ArrayRef<CopyPtr> after, const Follow& follow) {
  const Before before(target);
  try {
    const int device = from < 0 ? to : from;
    refuse_capture(device);
    if (from >= 0 && to >= 0) refuse_capture(to);
    const c10::cuda::CUDAGuard guard(index_of(device));
    const cudaStream_t stream = urgency == Urgency::Operand ? operand_stream(from, to)
                                                            : copy_stream(device, from < 0 ? kIn : kOut, urgency);
    auto copy = std::make_shared<Move>(device);
    if (from >= 0) follow(stream);
    if (to >= 0) before.lead(to, stream);
    if (to >= 0 && from >= 0) copies_of(from).writes |= uint64_t{1} << to;
    for (const CopyPtr& earlier : after)
      if (earlier) move_of(earlier).lead(stream);
    enqueue(to, target, from, source, bytes, stream);
    copy->begun(stream);
    return copy;
  } catch (...) {
    before.give_up(to);
    throw;
  }
}

} // namespace

CopyPtr begin_copy(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after, const PointPtr& point) {
  return begin(to, target, from, source, bytes, urgency, after, [&](cudaStream_t stream) {
    point ? static_cast<Streams&>(*point).lead(stream) : follow_source(from, stream);
  });
}

// The program has brought the current stream behind what wrote the source, as a copy of torch's expects as well. Which
// bytes managed has moved here, all streams come after.
CopyPtr copy_operand(const c10::DataPtr& target, const c10::DataPtr& source, std::size_t offset, std::size_t bytes,
                     Urgency urgency, const CopyPtr& after) {
  const int to = target.device().index(), from = source.device().index();
  const void* first = static_cast<const char*>(source.get()) + offset;
  return begin(to, target.get(), from, first, bytes, urgency, after, [from](cudaStream_t stream) {
    order_streams(from, c10::cuda::getCurrentCUDAStream(index_of(from)).stream(), stream);
  });
}

// What is recorded into a graph is no point in a stream's work.
PointPtr point(int device) {
  std::atomic_thread_fence(std::memory_order_seq_cst); // streams.cpp: add()
  if (!only_own_streams(device)) return nullptr;
  const c10::cuda::CUDAGuard guard(index_of(device));
  auto made = std::make_shared<Streams>();
  bool whole = true;
  each_stream(device, [&](cudaStream_t stream) {
    whole = whole && !is_recording(stream);
    if (whole) made->add(device, stream);
  });
  return whole ? made : nullptr;
}

c10::DataPtr allocate_for_copy(int device, std::size_t bytes, Urgency, bool if_room) {
  const c10::cuda::CUDAGuard guard(index_of(device));
  if (c10::DataPtr block = take_block_for_copy(device, bytes); block.get()) return block;
  return if_room ? allocate_if_room(bytes) : c10::GetAllocator(c10::kCUDA)->allocate(bytes);
}

// Those of this device, and those of others that have copied to it.
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
    for (int way = 0; way < kWays; way++)
      for (const cudaStream_t copies : streams[way])
        if (copies && (all || way == kOut)) order_streams(other, copies, stream);
    for (int to = 0; to < kMostDevices; to++)
      if (operands[to] && (all || to == device)) order_streams(other, operands[to], stream);
  }
}

} // namespace managed
