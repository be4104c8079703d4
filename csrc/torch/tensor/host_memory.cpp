// host_memory.cpp: see host_memory.h.
#include "torch/tensor/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/devices/cuda_bridge.h"
#include "torch/devices/devices.h"
#include "torch/threads/forks.h"
#include "torch/tensor/record.h"
#include "torch/devices/waiting.h"

namespace managed {

struct HostMemory {
  c10::DataPtr data;
  std::size_t size; // of the block
  std::size_t bytes; // that were asked for; 0: they are not counted as in use
  bool is_locked, is_pooled;
  CopyPtr last;
  std::shared_ptr<const MappedFile> file; // null: the memory lies in none
};

namespace {

std::mutex& pool_mutex();

// When to ask the driver for page-locked memory again. A request for less than everything that was refused is always
// worth a call; any other lets 0, 1, 3, 7 and up to kMostRest such requests pass, or waits until locked memory was
// given back.
class Refusals {
 public:
  bool forbid(std::size_t size) { return size >= least_ && rest_ > 0 && rest_-- > 0; }
  void add(std::size_t size) {
    least_ = std::min(least_, size);
    rest_ = std::exchange(next_rest_, std::min(2 * next_rest_ + 1, kMostRest));
  }
  void end_by(std::size_t size) { // so much was locked
    if (size >= least_) *this = {};
  }
  void look_again() { rest_ = 0; }

 private:
  static constexpr int kMostRest = 63;
  std::size_t least_ = SIZE_MAX;
  int rest_ = 0, next_rest_ = 0;
};

using Blocks = std::map<std::size_t, std::vector<HostMemory*>>; // by size

// Invariants: kept is the sum over both kinds of free blocks, as far as shrink_locked() allows. peak is the most that
// was used at once. locked_bytes and pageable_bytes are of storages, without what blocks are larger.
struct Pool {
  std::mutex mutex; // a leaf
  Blocks free_locked, free_pageable;
  std::size_t used = 0, kept = 0, peak = 0;
  Refusals refusals;
  std::atomic<std::size_t> locked_bytes{0}, pageable_bytes{0};
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

std::atomic<std::size_t>& bytes_in_use(const HostMemory* m) {
  return m->is_locked ? pool().locked_bytes : pool().pageable_bytes;
}

HostMemory* count_in(HostMemory* m, std::size_t bytes) {
  m->bytes = bytes;
  bytes_in_use(m) += bytes;
  return m;
}

void warn_of_pageable() {
  static std::atomic_flag was_said;
  if (was_said.test_and_set()) return;
  warn_later(
      "managed: the driver refused to page-lock memory of the host. What leaves a GPU goes to pageable memory "
      "instead: such copies are several times slower, and the program waits for them. Raise the limit of locked "
      "memory (ulimit -l, or that of the container), free memory of the host, or let less leave.");
}

const CudaBridge* cuda_if_any() { return static_cast<const CudaBridge*>(backend_of(c10::kCUDA)); }

// Null: there is no such block. Does not look at `kept`.
HostMemory* pop_block(Blocks& free, Blocks::iterator entry) {
  if (entry == free.end()) return nullptr;
  HostMemory* m = entry->second.back();
  entry->second.pop_back();
  if (entry->second.empty()) free.erase(entry);
  return m;
}

HostMemory* take_locked(Pool& p, Blocks& free, std::size_t size) {
  HostMemory* m = pop_block(free, free.find(size));
  if (m) p.kept -= size;
  return m;
}

// Releases what is kept, pageable memory first, then the largest, until kept and used bytes are at most the peak and an
// eighth of it, or, if that is more than the core's `limit`, the larger of limit and peak. Stops at memory that a copy
// still reads or writes, unless nothing is spilled any more. Sizes take turns in a step: without the eighth, blocks
// would be given back and locked again in every step.
void shrink_locked(Pool& p, std::size_t limit, std::vector<HostMemory*>& dying) {
  const std::size_t most = std::max(p.peak, std::min(p.peak + p.peak / 8, limit));
  while (p.kept && p.kept + p.used > most) {
    Blocks& free = p.free_pageable.empty() ? p.free_locked : p.free_pageable;
    const auto largest = std::prev(free.end());
    HostMemory* m = largest->second.back();
    if (p.used && m->last && !m->last->has_ended()) return;
    pop_block(free, largest);
    p.kept -= m->size;
    dying.push_back(m);
  }
}

// Releases free page-locked blocks, the largest first, if they make up `size` bytes: the driver may then lock so much
// in one piece.
bool release_idle_locked(Pool& p, std::size_t size, std::vector<HostMemory*>& dying) {
  std::vector<HostMemory*> idle;
  std::size_t sum = 0;
  for (auto entry = p.free_locked.rbegin(); entry != p.free_locked.rend() && sum < size; ++entry)
    for (HostMemory* m : entry->second)
      if (sum < size && (!m->last || m->last->has_ended())) {
        sum += m->size;
        idle.push_back(m);
      }
  if (sum < size) return false;
  for (HostMemory* m : idle) {
    auto entry = p.free_locked.find(m->size);
    entry->second.erase(std::find(entry->second.begin(), entry->second.end(), m));
    if (entry->second.empty()) p.free_locked.erase(entry);
    p.kept -= m->size;
    dying.push_back(m);
  }
  return true;
}

// If a copy failed, the next call to the device reports why.
void destroy(std::vector<HostMemory*>& dying) {
  bool unlocks = false;
  for (HostMemory* m : dying) {
    try {
      if (m->last && !m->last->has_ended()) wait_for(m->last);
    } catch (const std::exception&) {
    }
    unlocks |= m->is_locked;
    delete m;
  }
  dying.clear();
  if (!unlocks) return;
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().refusals.look_again();
}

// Empty: the driver refuses.
c10::DataPtr ask_driver(const CudaBridge* cuda, std::size_t bytes) {
  void* memory = nullptr;
  try {
    memory = cuda->lock_pages(bytes);
  } catch (const std::bad_alloc&) {}
  std::lock_guard<std::mutex> lock(pool().mutex);
  if (!memory) {
    pool().refusals.add(bytes);
    return {};
  }
  pool().refusals.end_by(bytes);
  return {memory, memory, cuda->unlock_pages, c10::Device(c10::kCPU)};
}

// Empty: the driver refuses, or has refused as much lately. Torch's own pool is not asked: it takes the next power of
// two and returns nothing to the system.
c10::DataPtr lock_if_allowed(const CudaBridge* cuda, std::size_t bytes) {
  Pool& p = pool();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    if (p.refusals.forbid(bytes)) return {};
  }
  c10::DataPtr memory = ask_driver(cuda, bytes);
  if (memory) return memory;
  std::vector<HostMemory*> dying;
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    if (!release_idle_locked(p, bytes, dying)) return {};
  }
  destroy(dying);
  return ask_driver(cuda, bytes);
}

// The core's lock must not be taken under the pool's.
std::size_t host_limit() {
  int64_t used = 0, limit = 0, peak = 0;
  mgd_host_usage(machine(), &used, &limit, &peak);
  return static_cast<std::size_t>(limit);
}

// Puts a block into the pool that serves no storage. `was_used`: until now one did.
void keep(HostMemory* m, bool was_used) {
  Pool& p = pool();
  std::vector<HostMemory*> dying;
  const std::size_t limit = host_limit();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    (m->is_locked ? p.free_locked : p.free_pageable)[m->size].push_back(m);
    p.kept += m->size;
    if (was_used) p.used -= m->size;
    if (p.used == 0) p.peak = 0; // nothing is spilled any more
    shrink_locked(p, limit, dying);
  }
  destroy(dying);
}

// Page-locked if there is CUDA and its driver does not refuse; the simulator copies with the CPU and needs no such
// memory. `pageable`: a free block of that size, or null, which is used or kept. Throws std::bad_alloc, or the error of
// a device that has failed.
HostMemory* fresh(std::size_t size, HostMemory* pageable) {
  const CudaBridge* cuda = cuda_if_any();
  c10::DataPtr data;
  try {
    if (cuda) data = lock_if_allowed(cuda, size);
  } catch (...) {
    if (pageable) keep(pageable, false);
    throw;
  }
  if (data) {
    if (pageable) keep(pageable, false);
    return new HostMemory{std::move(data), size, 0, true, true, nullptr, nullptr};
  }
  if (pageable) return pageable;
  if (cuda) warn_of_pageable();
  return new HostMemory{c10::GetCPUAllocator()->allocate(size), size, 0, false, true, nullptr, nullptr};
}

} // namespace

HostMemory* allocate_host(std::size_t bytes, c10::DeviceType leaves) {
  const Bridge* backend = backend_of(leaves);
  if (backend && backend->allocate_host)
    return count_in(new HostMemory{backend->allocate_host(bytes), bytes, 0, false, false, nullptr, nullptr}, bytes);
  const std::size_t size = class_of(bytes);
  Pool& p = pool();
  std::vector<HostMemory*> dying;
  HostMemory *found = nullptr, *pageable = nullptr;
  const std::size_t limit = host_limit();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    found = take_locked(p, p.free_locked, size);
    if (!found) pageable = take_locked(p, p.free_pageable, size);
    p.used += size;
    p.peak = std::max(p.peak, p.used);
    shrink_locked(p, limit, dying);
  }
  destroy(dying);
  try {
    return count_in(found ? found : fresh(size, pageable), bytes);
  } catch (...) {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.used -= size;
    throw;
  }
}

HostMemory* host_memory_in(FilePart part) {
  c10::DataPtr data(const_cast<void*>(part.data), c10::Device(c10::kCPU));
  return new HostMemory{std::move(data), 0, 0, false, false, nullptr, std::move(part.file)};
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
  bytes_in_use(m) -= std::exchange(m->bytes, 0);
  if (m->is_pooled) keep(m, true);
  else delete m;
}

c10::DataPtr lock_pages(std::size_t bytes) {
  try {
    return lock_if_allowed(cuda_if_any(), bytes);
  } catch (const std::exception&) { return {}; } // a device has failed: the copy itself reports it
}

mgd_host_bytes host_bytes() {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  const auto number = [](std::size_t n) { return static_cast<int64_t>(n); };
  return {number(p.locked_bytes), number(p.pageable_bytes), number(p.kept)};
}

} // namespace managed
