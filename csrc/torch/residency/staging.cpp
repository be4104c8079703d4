// staging.cpp: see staging.h.
#include "torch/residency/staging.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/tensor/host_memory.h"
#include "torch/threads/forks.h"

namespace managed {

struct Staged::Buffer {
  c10::DataPtr memory;
  std::size_t size;
  CopyPtr last; // the copy that reads it
  bool taken;
};

namespace {

constexpr std::size_t kSmallest = std::size_t{1} << 20;
constexpr std::size_t kAll = std::size_t{128} << 20;    // bytes of all buffers, which stay until the process ends

std::mutex& staging_mutex();

} // namespace

struct Stage {
  using Buffer = Staged::Buffer;
  std::mutex mutex; // a leaf
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::size_t size = 0;

  static Stage& all() {
    static auto* stage = [] {
      survive_fork<staging_mutex>();
      return new Stage; // never destroyed: the driver may be gone then
    }();
    return *stage;
  }

  // Returns the smallest free buffer that is large enough, or null.
  Buffer* find(std::size_t bytes) {
    Buffer* found = nullptr;
    for (const auto& b : buffers)
      if (!b->taken && b->size >= bytes && (!found || b->size < found->size) && (!b->last || b->last->has_ended()))
        found = b.get();
    return found;
  }

  Buffer* take(std::size_t bytes) {
    std::size_t wanted = kSmallest;
    while (wanted < bytes) wanted *= 2;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (Buffer* found = find(bytes)) {
        found->taken = true;
        return found;
      }
      if (wanted > kLargestStaged || size + wanted > kAll) return nullptr;
      size += wanted;
    }
    auto made = std::make_unique<Buffer>(Buffer{lock_pages(wanted), wanted, nullptr, true});
    std::lock_guard<std::mutex> lock(mutex);
    if (!made->memory) {
      size -= wanted;
      return nullptr;
    }
    return buffers.emplace_back(std::move(made)).get();
  }
};

namespace {
std::mutex& staging_mutex() { return Stage::all().mutex; }
const MadeAtStart staging_at_start([] { staging_mutex(); });
} // namespace

Staged::Staged(const void* bytes, std::size_t size) : buffer_(Stage::all().take(size)) {
  if (buffer_) std::memcpy(buffer_->memory.mutable_get(), bytes, size);
}

Staged::~Staged() {
  if (!buffer_) return;
  std::lock_guard<std::mutex> lock(staging_mutex());
  buffer_->taken = false;
}

const void* Staged::get() const { return buffer_ ? buffer_->memory.get() : nullptr; }

// Only the Staged that has taken the buffer writes `last`.
void Staged::read_by(const CopyPtr& copy) { buffer_->last = copy; }

} // namespace managed
