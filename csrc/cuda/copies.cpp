// copies.cpp: see copies.h.
#include "cuda/copies.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <atomic>

#include "cuda/streams.h"
#include "cuda/times.h"

namespace managed {

void Move::order(const c10::DataPtr& block) { lead_streams(block.device().index()); }

void Move::wait() {
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  C10_CUDA_CHECK(cudaEventSynchronize(event_.get()));
}

void Move::lead_streams(int device) {
  if (has_ended()) return;
  const Pause pause(device);
  const c10::cuda::CUDAGuard guard(index_of(device));
  each_stream(device, [&](cudaStream_t stream) {
    is_recording(stream) ? wait() : event_.lead(stream); // a graph waits for nothing outside
  });
}

bool Move::has_ended() {
  const c10::cuda::CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
  const cudaError_t error = cudaEventQuery(event_.get());
  if (error != cudaSuccess) (void)cudaGetLastError(); // the allocator takes a left over error for its own
  return error == cudaSuccess;
}

void Move::begun(cudaStream_t stream) const { event_.record(stream); }
void Move::lead(cudaStream_t stream) const { event_.lead(stream); }

void Streams::add(int device, cudaStream_t stream) { ends_.emplace_back(device).record(stream); }
void Streams::lead(cudaStream_t stream) const {
  for (const PooledEvent& end : ends_) end.lead(stream);
}

// Returns null if a stream is recorded into a graph: recorded work is no point in the work of a stream.
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

} // namespace managed
