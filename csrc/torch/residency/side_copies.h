// side_copies.h: copies operands on separate streams, in parallel with other work on both devices.
//
// Torch copies on the current streams of both devices. Each stream then does nothing else until both have done all that
// was issued before and the copy has ended. Here only work that needs the bytes comes after the copy: their uses on the
// target device, and on the source device their next write and the next use of their memory.
#pragma once
#include "torch/tensor/storage.h"

namespace managed {

// The work on the target that waits for a copy.
enum class Waiting {
  All, // all that is issued from now on
  Uses, // uses of the copy, if it gets a handle; in a backward pass it gets none (hook.h, mark_result)
  HookedUses // the same in a backward pass too: nothing reads the copy's pointer outside of operators
};

// Returns a copy of t on `to`. t must be one dense piece of numbers, and no recorder may need to see the copy. If the
// storage of t has no handle, all streams of its device come after the copy.
// Undefined: no such copy can be made, and the caller lets torch copy.
at::Tensor copy_beside(const at::Tensor& t, c10::Device to, Waiting waiting);

// Returns the newest copy that reads the bytes of a storage, or null; it may have ended. Call it after marking the
// bytes as lent or pinned: a copy that begins later checks that.
CopyPtr last_read(StorageHandle& h);

} // namespace managed
