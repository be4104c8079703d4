// on_mode.h: whether this thread is in managed.on(), for files below on.cpp, which changes it.
#pragma once
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/facts/key.h"
#include "torch/on.h"

namespace managed {

// What this thread has asked for. Threads of autograd's engine have it from the key kNames, which torch hands on to
// them.
inline constinit thread_local int on_mode_here = MGD_OFF;

// MGD_OFF, MGD_ON or MGD_ON_DISPERSING.
inline int on_mode() {
  if (on_mode_here != MGD_OFF) return on_mode_here;
  return c10::impl::tls_is_dispatch_key_included(kNames) ? MGD_ON_DISPERSING : MGD_OFF;
}

} // namespace managed
