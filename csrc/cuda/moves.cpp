// moves.cpp: see moves.h.
#include "cuda/moves.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>

#include "cuda/arena.h"
#include "cuda/copies.h"
#include "cuda/front.h"
#include "cuda/leaving.h"
#include "cuda/room.h"
#include "cuda/streams.h"

namespace managed {
namespace {

// Whether the driver copies from one device to the other directly; else it goes through the host. The first call
// enables the access, as torch does before a copy of its own.
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

// Orders the copy after the streams of the source, which wrote the bytes. Work on streams that are not torch's cannot
// be ordered, so this thread waits for it.
void follow_source(int from, cudaStream_t copies) {
  if (!only_own_streams(from)) return wait_for_streams(from);
  const c10::cuda::CUDAGuard guard(index_of(from));
  each_stream(from, [&](cudaStream_t stream) {
    TORCH_CHECK(!is_recording(stream), "managed: a CUDA graph is being recorded on a stream of cuda:", from,
                ", and bytes cannot leave the device while it is");
    order_streams(from, stream, copies);
  });
}

// The earlier use of the target's memory: work on the current stream, for which it was allocated, or a copy whose block
// it was until now (leaving.h), or what used the range of the arena.
class Before {
 public:
  explicit Before(const void* target) : target_(target) { takes_ = comes_after(target, &copy_, &users_); }

  void lead(int to, cudaStream_t copies) {
    copies_ = copies;
    leads_ = lead_after_arena(target_, copies);
    if (leads_) return;
    if (takes_) {
      if (copy_) move_of(copy_).lead(copies);
      if (users_) static_cast<Streams&>(*users_).lead(copies);
      return;
    }
    const c10::cuda::CUDAGuard guard(index_of(to));
    order_streams(to, c10::cuda::getCurrentCUDAStream(index_of(to)).stream(), copies);
  }
  // Called when no copy into the block begins. The block goes back to torch, so torch's streams are ordered after the
  // earlier copy. The next user of a range comes after its earlier users by way of its stream.
  void give_up(int to) const {
    if (takes_ && copy_) move_of(copy_).lead_streams(to);
    if (to < 0) return;
    const c10::cuda::CUDAGuard guard(index_of(to));
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index_of(to)).stream();
    if (leads_) order_streams(to, copies_, stream);
    else lead_after_arena(target_, stream);
  }

 private:
  const void* const target_;
  cudaStream_t copies_ = nullptr;
  bool takes_, leads_ = false;
  CopyPtr copy_;
  PointPtr users_;
};

// `follow` orders the stream of the copy after what wrote the source.
template <class Follow>
CopyPtr begin(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
              c10::ArrayRef<CopyPtr> after, const Follow& follow) {
  Before before(target);
  try {
    const int device = from < 0 ? to : from;
    refuse_capture(device);
    if (from >= 0 && to >= 0) refuse_capture(to);
    const c10::cuda::CUDAGuard guard(index_of(device));
    const cudaStream_t stream = urgency == Urgency::Operand
        ? operand_stream(from, to)
        : copy_stream(device, from < 0 ? Way::In : Way::Out, urgency);
    auto copy = std::make_shared<Move>(device);
    if (from >= 0) follow(stream);
    if (to >= 0) before.lead(to, stream);
    if (to >= 0 && from >= 0) note_write(from, to);
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

// Sets a block aside for the next operand of that size, if the device is busy, so that a copy into a new block would
// wait, and has room. Never throws.
void prepare_next(int device, std::size_t bytes) try {
  constexpr std::size_t kPart = 64; // of the device: the largest block, and the room that must be left
  const std::size_t part = capacity(device) / kPart;
  const c10::cuda::CUDAGuard guard(index_of(device));
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  const cudaError_t done = cudaStreamQuery(c10::cuda::getCurrentCUDAStream(index_of(device)).stream());
  if (done != cudaSuccess) (void)cudaGetLastError(); // the allocator takes a left over error for its own
  if (done != cudaErrorNotReady || bytes > part || has_block_for_copy(device, bytes)) return;
  if (!has_front() || certain_room(device) < bytes + part) return;
  c10::DataPtr block = allocate_if_room(bytes);
  PointPtr users = block.get() ? point(device) : nullptr;
  if (users) set_block_aside(std::move(block), std::move(users), bytes);
} catch (const std::exception&) {
  // The next copy gets a new block.
}

} // namespace

CopyPtr begin_copy(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                   c10::ArrayRef<CopyPtr> after, const PointPtr& point) {
  return begin(to, target, from, source, bytes, urgency, after, [&](cudaStream_t stream) {
    point ? static_cast<Streams&>(*point).lead(stream) : follow_source(from, stream);
  });
}

// The program has ordered the current stream after what wrote the source, as a copy of torch's expects as well. If
// managed has moved the bytes here, all streams are ordered after that.
CopyPtr copy_operand(const c10::DataPtr& target, const c10::DataPtr& source, std::size_t offset, std::size_t bytes,
                     Urgency urgency, const CopyPtr& after) {
  const int to = target.device().index(), from = source.device().index();
  const void* first = static_cast<const char*>(source.get()) + offset;
  CopyPtr copy = begin(to, target.get(), from, first, bytes, urgency, after, [from](cudaStream_t stream) {
    order_streams(from, c10::cuda::getCurrentCUDAStream(index_of(from)).stream(), stream);
  });
  prepare_next(to, bytes);
  return copy;
}

c10::DataPtr allocate_for_copy(int device, std::size_t bytes, int /*from*/, Urgency, bool if_room) {
  const c10::cuda::CUDAGuard guard(index_of(device));
  if (c10::DataPtr range = take_place(device, bytes, true); range.get()) return range;
  if (c10::DataPtr block = take_block_for_copy(device, bytes); block.get()) return block;
  return if_room ? allocate_if_room(bytes) : c10::GetAllocator(c10::kCUDA)->allocate(bytes);
}

} // namespace managed
