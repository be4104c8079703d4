// side_copies.h: copies of operands on streams of their own, beside what runs on either device.
//
// Torch copies on the current streams of both devices. Each then does nothing else until both have done all that was
// issued before and the copy has ended. Here only who needs the bytes comes after the copy: on the device that they go
// to, and on theirs whoever writes them next or gets their memory.
#pragma once
#include "torch/tensor/storage.h"

namespace managed {

// A copy of t on `to`, a device. t is one dense piece of numbers, and no recorder must see the copy. `now`: all that is
// issued on `to` from now on waits for the copy. Not `now`: only what uses it does, if it gets a handle. Undefined: no
// stream could come after it, and a copy of torch's serves.
at::Tensor copy_beside(const at::Tensor& t, c10::Device to, bool now);

// The newest copy that reads the bytes of a storage, or null; it may have ended. The caller has let others have the
// bytes: a copy that begins later finds that out.
CopyPtr last_read(StorageHandle& h);

} // namespace managed
