// state.h: the state of a managed tensor beside the key.
//
// The state lives in the TensorImpl's BackendMeta, so it dies with the tensor. Shallow copies (detach, .data) share it,
// which is right: they have the same bytes. It is created when the program names the tensor (wrapping, pinning, moving)
// or when the tensor first crosses to another device.
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
struct Chain; // view_chains.h

struct TensorState : c10::BackendMeta {
  std::atomic<bool> pinned{false};
  std::atomic<bool> placed{false}; // the program put it on its accelerator: it does not move by itself
  std::atomic<bool> in_module{false}; // a parameter or buffer of a managed module
  std::atomic<uint8_t> advice{0}; // enum mgd_advice, for its storages and those that it gets by moving
  uint64_t object = 0;            // the id under which the trace knows it
  std::shared_ptr<Source> source; // its storage's copies on other devices; guarded by replica.cpp's mutex
  mgd_traffic traffic{}; // of a leaf; guarded by traffic_mutex() (trips.h)
  std::atomic<int> trips{0};      // trips home in living graphs
  std::atomic<int> waiting{0}; // of `trips`, those whose gradient has not come since their last use
  std::vector<std::weak_ptr<Chain>> chains; // of views of a leaf in living graphs; guarded by view_chains.cpp's mutex
};

TensorState* state_of(const at::Tensor& t); // null if it has none
TensorState& make_state(const at::Tensor& t);
void set_history_of_bytes(const at::Tensor& t, uint64_t object); // evictions and restores count in its history

// A view is pinned when its base is: they are the same bytes and share one state.
bool is_pinned(const at::Tensor& t);

// Does the same for `placed`. Operators run where a placed parameter or buffer is.
bool is_placed(const at::Tensor& t);
bool is_parameter(const at::Tensor& t);
// Whether the program lets results that are made of t be on the host: of all tensors of t's device, or of t
// (MGD_ADVICE_HOST); a view has its base's advice.
bool may_end_on_host(const at::Tensor& t);
bool let_end_on_host(int device, bool all); // says so of all tensors of a device; returns what was said before
extern std::atomic<bool> host_allowed; // whether the program has said so of any tensor or device
void place(const at::Tensor& t, bool placed); // a tensor on the host is never placed

// Throws c10::TypeError if t cannot be managed, so that wrapping fails and not a later operator.
void check_wrappable(const at::Tensor& t);

// Makes the tensor managed, unless it is a wrapper or a meta tensor, which has no bytes of its own.
inline void mark(const at::Tensor& t) {
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  const c10::DispatchKeySet ks = impl->key_set();
  if (C10_LIKELY(ks.has(kKey)) || !t.defined()) return;
  if (C10_UNLIKELY(ks.has_any(kWrappers) || impl->is_meta())) return;
  add_key(impl);
}

// Called before t is written; makes torch renew the node of a view. Wrapping makes a view of a plain tensor, and if the
// base was written through another view, torch takes the view for a leaf until its grad_fn is read.
void renew_history_slow(const at::Tensor& t);
inline void renew_history(const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->autograd_meta() != nullptr && c10::GradMode::is_enabled()) renew_history_slow(t);
}

} // namespace managed
