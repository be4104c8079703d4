// memory.cpp: see memory.h.
#include "cuda/memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>

#include "cuda/arena.h"
#include "cuda/copies.h"
#include "cuda/devices.h"
#include "cuda/front.h"
#include "cuda/leaving.h"
#include "cuda/links.h"
#include "cuda/moves.h"
#include "cuda/pressure.h"
#include "cuda/room.h"
#include "cuda/streams.h"
#include "cuda/times.h"
#include "torch/threads/gil.h"

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Memory from CUDA's IPC, from_blob or another allocator has another deleter.
bool owns(const c10::DataPtr& p) {
  auto* a = native();
  return a && p.get() && p.get() == p.get_context() && (p.get_deleter() == a->raw_deleter() || is_range(p)) &&
      only_own_streams(p.device().index());
}

bool is_shared(const c10::DataPtr&) { return false; }

// The peak memory bandwidth, which limits most operators; in kHz times bits.
double speed(int device) {
  int clock = 0, width = 0;
  const bool known = cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess;
  if (!known) (void)cudaGetLastError();
  return known ? static_cast<double>(clock) * width : 0;
}

// The allocator knows a part of the device's memory, not a number of bytes.
void limit(int device, std::size_t bytes) {
  auto* a = native();
  if (!a) return;
  const c10::cuda::CUDAGuard guard(index_of(device)); // some versions leave another device current
  a->setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(capacity(device))),
                       index_of(device));
  // Torch serves requests from its cache whatever the limit is, so nothing in the cache must lie beyond it.
  give_back_blocks(device, kAll);
  if (static_cast<std::size_t>(a->getDeviceStats(index_of(device)).reserved_bytes[0].current) > bytes) a->emptyCache();
}

// Expandable segments join what is free. Blocks of a pool of the program's own are not told apart.
bool may_have_arena(int device) {
  static const char* asked = std::getenv("MANAGED_ARENA");
  static const bool may = !asked || std::string_view(asked) != "0";
  return may && has_front() && cuts_into_pieces(device);
}

// Everything that torch keeps goes back to the driver, which joins what is free.
std::size_t arena_room(int device) {
  const c10::cuda::CUDAGuard guard(index_of(device));
  give_back_blocks(device, kAll);
  take_arena(device).clear();
  constexpr std::size_t kPart = 64; // what cannot leave is in the way of places
  if (const std::size_t bytes = size_of_arena(device))
    return bytes - idle_in_arena(device) <= bytes / kPart ? bytes : 0;
  const WithoutGil no_gil;
  native()->emptyCache();
  return room_in_driver(device) / kPage * kPage;
}

bool open_arena(int device, std::size_t bytes) try {
  if (size_of_arena(device) >= bytes) return true;
  const c10::cuda::CUDAGuard guard(index_of(device));
  c10::DataPtr block = allocate_if_room(bytes);
  return block.get() && set_arena(device, block, bytes);
} catch (const std::exception&) { // the driver has less in one piece
  return false;
}

void close_arena(int device) {
  const c10::cuda::CUDAGuard guard(index_of(device));
  if (c10::DataPtr block = take_arena(device); block.get()) {
    block.clear();
    const WithoutGil no_gil;
    native()->emptyCache();
  }
}

// Whether an error of the driver is that of an earlier kernel: the current device has failed then, and each call
// returns that error. A call that may only look tells it from a refusal.
bool is_sticky(cudaError_t error) {
  std::size_t free = 0, total = 0;
  const bool again = error != cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == error;
  (void)cudaGetLastError();
  return again;
}

// Locking pages makes a context on the current device if it has none, so one that has a context is made current. A
// recording on another thread is not disturbed.
void* lock_pages(std::size_t bytes) {
  const c10::cuda::OptionalCUDAGuard guard(c10::cuda::getDeviceIndexWithPrimaryContext());
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (error == cudaSuccess) return memory;
  if (is_sticky(error)) C10_CUDA_CHECK(error);
  throw std::bad_alloc();
}

// At the end of the process, and in a child of fork(), the driver is gone.
void unlock_pages(void* memory) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
  if (exchanged) (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

} // namespace

void fill_backend(CudaBridge* bridge) {
  bridge->link = &link;
  bridge->owns = &owns;
  bridge->is_shared = &is_shared;
  bridge->limit = &limit;
  bridge->begin_copy = &begin_copy;
  bridge->copy_operand = &copy_operand;
  bridge->records = &is_capturing;
  bridge->point = &point;
  bridge->allocate_for_copy = &allocate_for_copy;
  bridge->free_after = &give_up_block;
  bridge->start = &start;
  bridge->capacity = &capacity;
  bridge->room = &room;
  bridge->room_soon = &room_soon;
  bridge->usage = &allocator_usage;
  bridge->speed = &speed;
  bridge->use = &use_stream;
  bridge->retire = &retire_block;
  bridge->worked = &moment;
  bridge->begin_work = &begin_work;
  bridge->worked_between = &worked_between;
  bridge->await_moments = &await_moments;
  bridge->stop_moments = &stop_moments;
  bridge->may_have_arena = &may_have_arena;
  bridge->arena_room = &arena_room;
  bridge->room_for_small = &room_for_small;
  bridge->has_arena = &has_arena;
  bridge->open_arena = &open_arena;
  bridge->close_arena = &close_arena;
  bridge->lock_pages = &lock_pages;
  bridge->unlock_pages = &unlock_pages;
}

} // namespace managed
