// launch.cpp: see launch.h. Simulated devices charge their clock when a kernel has ended.
#include "sim/launch.h"

#include "sim/storage.h"
#include "sim/device/timeline.h"

namespace managed::sim {

void Launch::writes(const at::Tensor &t) {
  if (device_count() > 1 && t.defined() && t.has_storage()) written_.push_back(t.storage().unsafeGetStorageImpl());
}

constexpr int64_t kAnswer = 8; // bytes of a scalar or a count on its way to the host

Launch::Launch(const OperatorFacts &facts, c10::ArrayRef<c10::IValue> arguments) : facts_(facts) {
  if (facts.flops != Flops::none) arithmetic_ = count_flops(facts.flops, arguments);
}

Launch::~Launch() = default;

void Launch::operand(const at::Tensor &t, bool written) {
  if (!facts_.free) bytes_ += (written && facts_.updates ? 2 : 1) * touched_bytes(t);
  if (written) writes(t);
  if (C10_UNLIKELY(has_side_streams()) && t.has_storage()) note_use(t.storage().unsafeGetStorageImpl(), current_stream(t.device().index()));
}

void Launch::begin(int device) { device_ = device; }
void Launch::ran() {}

void Launch::result(const at::Tensor &t, bool first) {
  if (first && t.defined()) {
    outputs_ = static_cast<double>(t.numel());
    if (facts_.flops == Flops::none) arithmetic_ = elementwise(t);
  }
  if (!facts_.free) bytes_ += touched_bytes(t);
  writes(t);
}

void Launch::end() {
  if (facts_.free) return;
  const double flops = arithmetic_.fixed + arithmetic_.per_output * outputs_;
  const char *name = log_name(facts_.name);
  charge(device_, {arithmetic_.kind, arithmetic_.precision, flops, bytes_, name});
  for (c10::StorageImpl *s : written_) note_written(s->_mutable_data_ptr_no_checks(), current_stream(device_));
  if (facts_.waits) charge_copy(device_, kHost, kAnswer, true, name);
}

}  // namespace managed::sim
