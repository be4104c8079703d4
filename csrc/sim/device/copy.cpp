// copy.cpp: copies between the host and simulated devices, and among them.
//
// The bytes are the host's in any case; the clock is told which link they took.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <string>

#include "sim/kernels/alias.h"
#include "sim/device/faults.h"
#include "sim/operators.h"
#include "sim/device/timeline.h"
#include "sim/kernels/unknown.h"

namespace managed::sim {
namespace {

using at::Tensor;

int place_of(const Tensor &t) { return on_device(t) ? t.device().index() : kHost; }

int64_t bytes_of(const Tensor &t) {
  if (!is_sparse(t)) return static_cast<int64_t>(t.nbytes());
  if (t.layout() == at::kSparse) return static_cast<int64_t>(t._indices().nbytes() + t._values().nbytes());
  return static_cast<int64_t>(t.values().nbytes());  // of the compressed formats, within the model's error
}

void note_stream(const Tensor &t) {
  if (has_side_streams() && on_device(t) && t.has_storage()) note_use(t.storage().unsafeGetStorageImpl(), current_stream(t.device().index()));
}

// Nothing has been written when it fails.
void check_fault(int from, int to, int64_t bytes) {
  if (C10_LIKELY(!fails_now(Fault::Copy))) return;
  auto name = [](int place) { return place == kHost ? std::string("cpu") : "sim:" + std::to_string(place); };
  TORCH_CHECK(false, "a copy of ", bytes, " bytes from ", name(from), " to ", name(to),
              " failed, because managed.debug.torture(fail_copy=...) asked for it");
}

void copy_values(const Tensor &source, const Tensor &target) {
  Aliases aliases(on_device(target) ? target.device().index() : source.device().index());
  const Tensor a = aliases.to_cpu(source), b = aliases.to_cpu(target);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    b.copy_(a, false);
  }
  if (is_sparse(target) || !holds_values()) aliases.write_back(target, b);
  else if (on_device(target)) note_write(target.storage().unsafeGetStorageImpl());
}

// Without values: all of the target becomes known, or what it was told becomes unknown.
void copy_known(const Tensor &source, const Tensor &target) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_sparse(source) && !is_sparse(target), "simulated devices without values (values=False) hold strided tensors only");
  (void)source.expand(target.sizes());  // throws as a copy would
  const Known known = !on_device(source) ? Known::values : source._is_zerotensor() ? Known::nothing : known_of(source.storage());
  if (!on_device(target)) {
    if (known == Known::values) return copy_values(source, target);
    if (known != Known::truth) unknown_copy(source.device().index());
    at::AutoDispatchBelowADInplaceOrView below;
    target.fill_(known == Known::truth ? 1 : 0);
  } else if (known == Known::values && (is_covered(target) || known_of(target.storage()) == Known::values)) {
    copy_values(source, target);
  } else {
    note_write(target.storage().unsafeGetStorageImpl());
    set_known(target.storage(), known == Known::truth && target.nbytes() == target.storage().nbytes() ? known : Known::nothing);
  }
}

Tensor copy_from(const Tensor &source, const Tensor &target, bool non_blocking) {
  c10::impl::ExcludeDispatchKeyGuard unmanaged(kKey);
  const int from = place_of(source), to = place_of(target);
  check_fault(from, to, bytes_of(source));
  holds_values() ? copy_values(source, target) : copy_known(source, target);
  note_stream(source);
  note_stream(target);
  const int64_t bytes = std::max(bytes_of(source), bytes_of(target));
  charge_copy(from, to, bytes, (from == kHost || to == kHost) && !non_blocking, "aten::copy_");
  if (on_device(target) && target.has_storage()) note_written(target.storage().data_ptr(), current_stream(to));
  return target;
}

Tensor &copy_(Tensor &self, const Tensor &source, bool non_blocking) {
  if (!self.is_same(source)) copy_from(source, self, non_blocking);
  return self;
}

Tensor copy_from_and_resize(const Tensor &source, const Tensor &target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

}  // namespace

namespace {

// The type of the bytes is unknown, so bytes from elsewhere count as floating-point numbers.
void copy_known_bytes(void *target, int from, const void *source, std::size_t bytes) {
  const bool to_host = !is_address_only(target);
  const Known known = is_address_only(source) ? known_at(source) : to_host || may_know(bytes, true) ? Known::values : Known::nothing;
  if (known == Known::nothing && to_host) unknown_copy(from);
  if (known == Known::values) std::memcpy(target, source, bytes);
  else if (to_host) std::memset(target, known == Known::truth ? 1 : 0, bytes);
  set_known_at(target, bytes, known);
}

}  // namespace

void copy_bytes(int to, void *target, int from, const void *source, std::size_t bytes) {
  check_fault(from, to, static_cast<int64_t>(bytes));
  holds_values() ? static_cast<void>(std::memcpy(target, source, bytes)) : copy_known_bytes(target, from, source, bytes);
}

void register_copies(torch::Library &m) {
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

void register_sparse_copies(torch::Library &m) { m.impl("copy_", &copy_); }

}  // namespace managed::sim
