// requested_copies.cpp: see requested_copies.h. What managed copies by itself is recorded where it is decided; never
// here.
#include "torch/align/requested_copies.h"

#include "torch/devices/devices.h"
#include "torch/facts/key.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

bool is_managed(const c10::IValue& v) { return v.isTensor() && has_key(v.toTensor().unsafeGetTensorImpl()); }

// The device that the bytes go to; the index may still be missing.
c10::Device target_of(const OpFacts& f, const c10::IValue* arguments) {
  if (f.written) return arguments[0].toTensor().device(); // copy_
  if (f.arguments <= kDeviceOfToCopy) return c10::kCPU;   // item
  const c10::IValue& named = arguments[kDeviceOfToCopy];
  return named.isDevice() ? named.toDevice() : arguments[0].toTensor().device();
}

} // namespace

int target_of_copy(const OpFacts& f, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = &stack[stack.size() - f.arguments];
  return arguments[0].toTensor().defined() ? id_of(target_of(f, arguments)) : MGD_HOST;
}

RequestedCopy::RequestedCopy(const OpFacts& f, const torch::jit::Stack& stack) : facts_(f) {
  const c10::IValue* arguments = &stack[stack.size() - f.arguments];
  const c10::IValue& source = arguments[f.tensors.back().index];
  const bool counts = source.toTensor().defined() && arguments[0].toTensor().defined() &&
      (is_managed(source) || is_managed(arguments[0]));
  if (!counts || Recorded::is_on() || source.toTensor().device() == target_of(f, arguments)) return;
  source_ = source.toTensor();
  began_ = now();
  recorded_.emplace();
}

void RequestedCopy::done(const torch::jit::Stack& stack) noexcept try {
  if (!source_.defined()) return;
  mgd_event e{};
  e.from = static_cast<int16_t>(id_of(source_.device()));
  e.to = static_cast<int16_t>(stack.back().isTensor() ? id_of(stack.back().toTensor().device()) : MGD_HOST);
  if (e.from < 0 || e.to < 0 || e.from == e.to) return;
  e.object = has_key(source_.unsafeGetTensorImpl()) ? make_state(source_).object : 0;
  e.time = began_;
  e.duration = now() - began_;
  e.bytes = bytes_of(source_);
  e.operator_name = facts_.name.c_str();
  e.kind = MGD_EV_COPY;
  e.reason = MGD_WHY_REQUESTED;
  record(e);
} catch (const std::exception&) { // no memory for a state: the copy has been made all the same
}

} // namespace managed
