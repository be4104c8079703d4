// staging.h: page-locked buffers through which bytes of ordinary memory are copied to a CUDA device.
//
// CUDA copies from memory that is not page-locked synchronously: the caller waits for all work in the stream. So the
// bytes are first copied into page-locked memory. The caller then need not wait, and may write the original at once.
#pragma once
#include <cstddef>

#include "torch/devices/bridge.h"

namespace managed {

constexpr std::size_t kLargestStaged = std::size_t{32} << 20; // bytes of one copy; for more, the wait matters little

// A buffer with a copy of the bytes. It is reused after the copy that reads it has ended.
class Staged {
 public:
  // Is empty, and get() null, if there is no buffer: the bytes are too many, all buffers are in use, or no more pages
  // can be locked.
  Staged(const void* bytes, std::size_t size);
  ~Staged();
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  const void* get() const;
  void read_by(const CopyPtr& copy);

 private:
  struct Buffer;
  friend struct Stage;
  Buffer* buffer_ = nullptr;
};

} // namespace managed
