// host_memory.cpp: see host_memory.h.
#include "torch/tensor/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "torch/devices/cuda_bridge.h"
#include "torch/devices/devices.h"
#include "torch/threads/forks.h"
#include "torch/tensor/record.h"
#include "torch/devices/waiting.h"

namespace managed {

struct HostMemory {
  c10::DataPtr data;
  std::size_t size;
  bool is_pooled;
  CopyPtr last;
  std::shared_ptr<const MappedFile> file; // null: the memory lies in none
};

namespace {

std::mutex& pool_mutex();

// Invariants: kept is the sum over free; kept + used <= peak, the most that was ever used at once, unless copies are
// under way.
struct Pool {
  std::mutex mutex; // a leaf
  std::map<std::size_t, std::vector<HostMemory*>> free;
  std::size_t used = 0, kept = 0, peak = 0;
};
Pool& pool() {
  static auto* p = [] {
    survive_fork<pool_mutex>();
    return new Pool; // never destroyed: tensors may outlive static destructors
  }();
  return *p;
}
std::mutex& pool_mutex() { return pool().mutex; }
const MadeAtStart pool_at_start([] { pool(); });

// Eight sizes for each power of two, so that at most an eighth is wasted.
std::size_t class_of(std::size_t bytes) {
  if (bytes <= 4096) return 4096;
  const std::size_t step = std::max<std::size_t>(4096, (std::size_t{1} << c10::llvm::Log2_64(bytes)) / 8);
  return (bytes + step - 1) / step * step;
}

std::atomic<std::size_t> pageable{0};

c10::DataPtr allocate_pageable(std::size_t bytes) {
  static std::atomic_flag was_said;
  if (!was_said.test_and_set())
    warn_later(
        "managed: the driver refused to page-lock memory of the host. What leaves a GPU goes to pageable memory "
        "instead: such copies are several times slower, and the program waits for them. Raise the limit of locked "
        "memory (ulimit -l, or that of the container), free memory of the host, or let less leave.");
  pageable += bytes;
  return c10::GetCPUAllocator()->allocate(bytes);
}

// Allocates page-locked memory if there is CUDA, but not from torch's pool, which takes the next power of two and
// returns nothing to the system. The simulator copies with the CPU and needs none.
c10::DataPtr fresh(std::size_t bytes) {
  const auto* cuda = static_cast<const CudaBridge*>(backend_of(c10::kCUDA));
  if (!cuda) return c10::GetCPUAllocator()->allocate(bytes);
  try {
    void* memory = cuda->lock_pages(bytes);
    return {memory, memory, cuda->unlock_pages, c10::Device(c10::kCPU)};
  } catch (const std::bad_alloc&) { return allocate_pageable(bytes); }
}

// Releases what is kept beyond the peak, the largest first; but nothing that a copy still reads or writes, unless
// nothing is spilled any more.
void shrink_locked(Pool& p, std::vector<HostMemory*>& dying) {
  while (p.kept && p.kept + p.used > p.peak) {
    auto largest = std::prev(p.free.end());
    HostMemory* m = largest->second.back();
    if (p.used && m->last && !m->last->has_ended()) return;
    largest->second.pop_back();
    if (largest->second.empty()) p.free.erase(largest);
    p.kept -= m->size;
    dying.push_back(m);
  }
}

// If a copy failed, the next call to the device reports why.
void destroy(std::vector<HostMemory*>& dying) {
  for (HostMemory* m : dying) {
    try {
      if (m->last && !m->last->has_ended()) wait_for(m->last);
    } catch (const std::exception&) {
    }
    delete m;
  }
}

} // namespace

HostMemory* allocate_host(std::size_t bytes, c10::DeviceType leaves) {
  const Bridge* backend = backend_of(leaves);
  if (backend && backend->allocate_host)
    return new HostMemory{backend->allocate_host(bytes), bytes, false, nullptr, nullptr};
  const std::size_t size = class_of(bytes);
  Pool& p = pool();
  std::vector<HostMemory*> dying;
  HostMemory* found = nullptr;
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    const auto entry = p.free.find(size);
    if (entry != p.free.end()) {
      found = entry->second.back();
      entry->second.pop_back();
      if (entry->second.empty()) p.free.erase(entry);
      p.kept -= size;
    }
    p.used += size;
    p.peak = std::max(p.peak, p.used);
    shrink_locked(p, dying);
  }
  destroy(dying);
  if (found) return found;
  try {
    return new HostMemory{fresh(size), size, true, nullptr, nullptr};
  } catch (...) {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.used -= size;
    throw;
  }
}

HostMemory* host_memory_in(FilePart part) {
  c10::DataPtr data(const_cast<void*>(part.data), c10::Device(c10::kCPU));
  return new HostMemory{std::move(data), 0, false, nullptr, std::move(part.file)};
}

bool is_in_file(const HostMemory* memory) { return memory->file != nullptr; }
bool is_good(const HostMemory* memory) { return !memory->file || memory->file->is_unchanged(); }

void* data_of(HostMemory* memory) {
  TORCH_CHECK(
      is_good(memory), "managed: the file ", memory->file->path(),
      " was written or truncated while it held the only copy of bytes that had left a device for want of room, "
      "and these are lost. Write a new file and rename it, or set managed.KEEP_MAPS = False before tensors of a "
      "mapped file are moved to a device");
  return memory->data.mutable_get();
}
CopyPtr& last_copy(HostMemory* memory) { return memory->last; }

void free_host(void* memory) {
  if (!memory) return;
  auto* m = static_cast<HostMemory*>(memory);
  if (!m->is_pooled) return delete m;
  Pool& p = pool();
  std::vector<HostMemory*> dying;
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.free[m->size].push_back(m);
    p.used -= m->size;
    p.kept += m->size;
    if (p.used == 0) p.peak = 0; // nothing is spilled any more
    shrink_locked(p, dying);
  }
  destroy(dying);
}

std::size_t pageable_host() { return pageable; }

std::size_t kept_host() {
  std::lock_guard<std::mutex> lock(pool().mutex);
  return pool().kept;
}

} // namespace managed
