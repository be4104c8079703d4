// on_mode.h: whether this thread is in managed.on(), for files below on.cpp, which changes it.
#pragma once
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/facts/key.h"
#include "torch/on.h"

namespace managed {

// The mode that this thread has set. Threads of autograd's engine set none; torch hands the key kNames on to them.
inline constinit thread_local int on_mode_here = MGD_OFF;

// Returns MGD_OFF, MGD_ON or MGD_ON_DISPERSING.
inline int on_mode() {
  if (on_mode_here != MGD_OFF) return on_mode_here;
  return c10::impl::tls_is_dispatch_key_included(kNames) ? MGD_ON_DISPERSING : MGD_OFF;
}

} // namespace managed
