// devices.cpp: see devices.h.
#include "cuda/devices.h"

#include <c10/cuda/CUDAException.h>

#include <array>
#include <atomic>
#include <cstdlib>

namespace managed {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Allocator = allocator::CUDAAllocator;

std::atomic<Allocator*> front{nullptr};

// Torch's allocator as it was found; the front is not made yet, or stands before it.
Allocator* found_native() {
  static const bool caches = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr;
  static Allocator* const found = [] {
    auto* a = allocator::get();
    return caches && a && a->name() == "native" ? a : nullptr;
  }();
  return found;
}

} // namespace

// The result is kept: the question is slow, and its answer never changes.
std::size_t capacity(int device) {
  static std::array<std::atomic<std::size_t>, kMostDevices> known{};
  std::size_t bytes = known[device].load(std::memory_order_relaxed);
  if (bytes) return bytes;
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  known[device].store(bytes = properties.totalGlobalMem, std::memory_order_relaxed);
  return bytes;
}

Allocator* native() {
  Allocator* there = allocator::get();
  Allocator* found = found_native();
  return there == found || there == front.load(std::memory_order_acquire) ? found : nullptr;
}

bool has_front() { return front.load() != nullptr; }

void set_front(Allocator* made) {
  front.store(made, std::memory_order_release);
  allocator::allocator.store(made);
}

} // namespace managed
