// staging.h: page-locked memory by which bytes of ordinary memory go to a CUDA device.
//
// CUDA copies from memory that is not page-locked only while the caller waits, behind all that the stream has to do. So
// the bytes are put into page-locked memory first. The caller then has no reason to wait, and may write the original.
#pragma once
#include <cstddef>

#include "torch/devices/bridge.h"

namespace managed {

// A buffer with a copy of the bytes. It serves others when the copy that reads it has ended.
class Staged {
 public:
  // Empty where there is no buffer: the bytes are many, or the buffers are all in use, or no more pages may be locked.
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
