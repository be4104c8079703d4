// state.h: what a tensor carries beside the key.
//
// The state lives in the TensorImpl's BackendMeta, so it dies with the tensor
// and is shared by its shallow copies (detach, .data), which is right: they
// are the same bytes. It is created where the program names the tensor (wrapping,
// pinning, moving) and when a tensor first crosses to another device.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.h"
#include "torch/facts/key.h"

namespace managed {

struct Source; // replica.cpp
struct Chain;  // view_chains.h

struct TensorState : c10::BackendMeta {
  std::atomic<bool> pinned{false};
  std::atomic<bool> placed{false}; // the program put it on its accelerator: it does not move by itself
  std::atomic<bool> in_module{false}; // a parameter or buffer of a managed module
  std::atomic<uint8_t> advice{0}; // enum mgd_advice, for the storages that it has and those that it gets by moving
  uint64_t object = 0;            // the id under which the trace knows it
  std::shared_ptr<Source> source; // its storage's copies on other devices; guarded by replica.cpp's mutex
  mgd_traffic traffic{};          // of a leaf; guarded by traffic_mutex() (trips.h)
  std::atomic<int> trips{0};      // trips home in living graphs
  std::atomic<int> waiting{0};    // of these, those whose gradient has not come since their last use
  std::vector<std::weak_ptr<Chain>> chains; // of views of a leaf in living graphs; guarded by view_chains.cpp's mutex
};

TensorState* state_of(const at::Tensor& t); // null when it has none
TensorState& make_state(const at::Tensor& t);
void set_history_of_bytes(const at::Tensor& t, uint64_t object); // whose history it is when they leave and come home

// A view is pinned when its base is: they are the same bytes and share one state.
bool is_pinned(const at::Tensor& t);

// The same for what was placed. What is also a parameter or a buffer draws operators to it.
bool is_placed(const at::Tensor& t);
bool is_parameter(const at::Tensor& t);
void place(const at::Tensor& t, bool placed); // nothing is placed on the host

// Throws for what cannot be managed, where the program wraps it and not later inside an operator.
void check_wrappable(const at::Tensor& t);

// Makes the tensor managed. Wrappers and meta tensors hold no bytes of their own and are left alone.
inline void mark(const at::Tensor& t) {
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  const c10::DispatchKeySet ks = impl->key_set();
  if (C10_LIKELY(ks.has(kKey)) || !t.defined()) return;
  if (C10_UNLIKELY(ks.has_any(kWrappers) || impl->is_meta())) return;
  add_key(impl);
}

// Before t is written. Wrapping makes a view of a plain tensor, and torch takes a view whose base was written through
// another view for a leaf until its node is asked for.
void renew_history_slow(const at::Tensor& t);
inline void renew_history(const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->autograd_meta() != nullptr && c10::GradMode::is_enabled()) renew_history_slow(t);
}

} // namespace managed
