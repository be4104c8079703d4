// side_copies.h: copies operands on separate streams, in parallel with other work on both devices.
//
// Torch copies on the current streams of both devices. Each stream then does nothing else until both have done all that
// was issued before and the copy has ended. Here only work that needs the bytes comes after the copy: their uses on the
// target device, and on the source device their next write and the next use of their memory.
#pragma once
#include "torch/tensor/storage.h"

namespace managed {

// Returns a copy of t on `to`. t must be one dense piece of numbers, and no recorder may need to see the copy. If the
// storage of t has no handle, all streams of its device come after the copy. `now`: all work issued on `to` from now on
// waits for the copy. Not `now`: only uses of the copy wait, if it gets a handle.
// Undefined: no such copy can be made, and the caller lets torch copy.
at::Tensor copy_beside(const at::Tensor& t, c10::Device to, bool now);

// Returns the newest copy that reads the bytes of a storage, or null; it may have ended. Call it after marking the
// bytes as lent or pinned: a copy that begins later checks that.
CopyPtr last_read(StorageHandle& h);

} // namespace managed
