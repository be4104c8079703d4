// align.cpp: together(): checks whether the operands of a call are where its kernel wants them. align(): asks the core
// for a device and puts copies there in the place of operands that are elsewhere. finish(): copies what was written
// into a copy back into the original.
//
// The rules are the table of rules.cpp and the order of preference in csrc/core/placement/place.c; none is written down
// here. values.cpp makes and traces the copies, trips.cpp lets autograd record them.
#include "torch/align/align.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <optional>
#include <sstream>

#include "torch/api.h"
#include "torch/align/view_chains.h"
#include "torch/align/crossing.h"
#include "torch/devices/devices.h"
#include "torch/threads/errors.h"
#include "torch/align/move.h"
#include "torch/align/random.h"
#include "torch/tensor/record.h"
#include "torch/tensor/state.h"
#include "torch/tensor/storage.h"
#include "torch/align/trips.h"

namespace managed {
namespace {

// From this many bytes on, a fresh look at free memory (some 10 us on CUDA) is cheap beside the copy.
constexpr int64_t kWorthAsking = int64_t{1} << 20;

const at::Tensor* tensor_in(const c10::IValue& v) {
  if (!v.isTensor()) return nullptr;
  const at::Tensor& t = v.toTensor();
  return t.defined() ? &t : nullptr;
}

Operands gather(const OpFacts& f, const torch::jit::Stack& stack, std::size_t base) {
  Operands out;
  for (const TensorArg& a : f.tensors) {
    const c10::IValue& v = stack[base + a.index];
    if (const at::Tensor* t = tensor_in(v)) {
      out.push_back({*t, &a, -1});
    } else if (a.shape != ArgShape::One && v.isList()) {
      int position = 0;
      for (const c10::IValue& e : v.toListRef()) {
        if (const at::Tensor* element = tensor_in(e)) out.push_back({*element, &a, position});
        position++;
      }
    }
  }
  return out;
}

// Whether an operand may vote for the device. Beside floating-point operands other types do not (flags_of).
bool may_vote(const Operand& o) { return !o.is(kMetadata | kHostOnly | kHiddenWrite) && !o.is_number(); }
bool is_floating(const Operand& o) { return o.tensor.is_floating_point() || o.tensor.is_complex(); }

unsigned flags_of(const Operand& o, bool floats_vote, bool follows) {
  unsigned flags = 0;
  if (!o.is(kMetadata | kHostOnly) && is_pinned(o.tensor)) flags |= MGD_OP_PINNED;
  if (o.is(kWritten | kAliased) && !follows) flags |= MGD_OP_WRITTEN;
  if (may_vote(o) && (!floats_vote || is_floating(o))) flags |= MGD_OP_VOTES;
  if ((flags & MGD_OP_VOTES) && is_placed(o.tensor) && is_parameter(o.tensor)) flags |= MGD_OP_PLACED;
  return flags;
}

// Only results have an age: a parameter is as good as any other, however late it got its handle.
uint64_t age_of(const at::Tensor& t) { return is_parameter(t) ? 0 : newest_handle_of(t); }

// The written operand x of a pointwise call in place that may move to where the other operands are, or null. Then
// `x += branch` goes on where `x = x + branch` would have made its result. It must be a result (no parameter, nothing
// that the program placed) on an accelerator, beside operands on accelerators, and not in grad mode: the history of x
// would have to move with it.
const Operand* follower(const OpFacts& f, const Operands& operands) {
  const bool in_place =
      f.scalars_stay && f.route == Route::Leaf && f.written == 1 && f.returned.size() == 1 && f.returned[0] == 0;
  if (!in_place || c10::GradMode::is_enabled() || operands.front().arg->index != 0) return nullptr;
  const Operand& x = operands.front();
  const bool is_result =
      !x.tensor.is_cpu() && age_of(x.tensor) > 0 && !x.tensor.requires_grad() && !is_placed(x.tensor);
  return is_result &&
          std::all_of(operands.begin(), operands.end(),
                      [](const Operand& o) { return o.is_number() || !o.tensor.is_cpu(); })
      ? &x
      : nullptr;
}

// The devices among which there is a choice; none where at most one accelerator takes part.
mgd_mask accelerators_of(const Operands& operands) {
  mgd_mask found = 0;
  for (const Operand& o : operands)
    if (const int id = id_of(o.tensor.device()); id > MGD_HOST) found |= mgd_mask{1} << id;
  return found & (found - 1) ? found : 0;
}

// Those of the devices where a copy of t is kept.
mgd_mask kept_on(const at::Tensor& t, int home, mgd_mask devices) {
  mgd_mask kept = 0;
  for (mgd_mask left = devices & ~(mgd_mask{1} << home); left; left &= left - 1) {
    const int id = __builtin_ctzll(left);
    if (has_crossed(t, device_of(id))) kept |= mgd_mask{1} << id;
  }
  return kept;
}

std::string describe_pin(const Operands& operands, int device) {
  std::ostringstream s;
  for (const Operand& o : operands)
    if (is_pinned(o.tensor) && id_of(o.tensor.device()) == device) {
      s << "'" << o.arg->name << "'";
      if (o.position >= 0) s << "[" << o.position << "]";
      s << " (" << o.tensor.dtype() << " " << o.tensor.sizes() << ") to " << o.tensor.device();
      break;
    }
  return s.str();
}

[[noreturn]] void pin_conflict(const OpFacts& f, const Operands& operands, int first, int second) {
  throw_pin_conflict(c10::str("managed: operands of ", f.name,
                              " are pinned to different devices: ", describe_pin(operands, first), " and ",
                              describe_pin(operands, second), ". unpin() one of them first."));
}

// The device that the kernel wants this operand on when the call runs on `device`; nothing if it may stay.
std::optional<c10::Device> wanted(const OpFacts& f, const Operand& o, c10::Device device) {
  const c10::Device here = o.tensor.device(), want = o.is(kHostOnly) ? c10::Device(c10::kCPU) : device;
  if (o.is(kMetadata) || here == want) return std::nullopt;
  if (o.is(kHostAllowed) && here.is_cpu()) return std::nullopt;
  if (f.scalars_stay && !o.is(kWritten | kHiddenWrite) && o.is_number()) return std::nullopt;
  return want;
}

// A tensor that is given twice stays one tensor: kernels may test identity.
struct CopiedOperand {
  const c10::TensorImpl* original;
  c10::Device device;
  at::Tensor tensor;
};
using Copies = c10::SmallVector<CopiedOperand, 4>;

const CopiedOperand* find(const Copies& copies, const at::Tensor& t, c10::Device device) {
  for (const CopiedOperand& c : copies)
    if (c.original == t.unsafeGetTensorImpl() && c.device == device) return &c;
  return nullptr;
}

CopiedOperand align_operand(const OpFacts& f, const Operand& o, c10::Device want, enum mgd_reason reason,
                            bool hidden_writes,
                   const Copies& copies, WriteBacks& write_backs) {
  const bool hidden = hidden_writes && o.is(kHiddenWrite), written = hidden || o.is(kWritten);
  TORCH_CHECK_NOT_IMPLEMENTED(!(o.tensor.is_nested() && o.tensor.layout() == at::kStrided), "managed: ", f.name,
                              " needs on ", want, " a nested tensor that is on ", o.tensor.device(),
                              ", and nested tensors do not cross to another device. Bring its parts together first, or "
                              "use a padded tensor and a mask "
                              "(nn.TransformerEncoder: enable_nested_tensor=False).");
  if (const CopiedOperand* same = find(copies, o.tensor, want)) {
    if (written)
      write_backs.push_back({o.tensor, same->tensor, hidden}); // read first and written later: out= names an input
    return *same;
  }
  const Cause cause{f.name.c_str(), MGD_EV_COPY, o.is(kHostOnly) ? MGD_WHY_REQUIRED : reason};
  // A running statistic that is written elsewhere in each step may move there.
  if (hidden && settle(o.tensor, want, cause)) return {o.tensor.unsafeGetTensorImpl(), want, o.tensor};
  at::Tensor copy = written ? cross_written(o.tensor, want, hidden, cause)
      : o.is(kAliased)      ? cross_alone(o.tensor, want, cause)
                            : cross(o.tensor, want, cause);
  if (written) write_backs.push_back({o.tensor, copy, hidden});
  return {o.tensor.unsafeGetTensorImpl(), want, std::move(copy)};
}

// Replaces one element of a list argument. Lists are shared values, so the first replacement copies the list.
void replace(c10::IValue& v, const Operand& o, at::Tensor t, bool first) {
  if (o.position < 0) {
    v = std::move(t);
  } else if (o.arg->shape == ArgShape::List) {
    if (first) v = v.toTensorList().copy();
    v.toTensorList().set(o.position, std::move(t));
  } else {
    if (first) v = v.toOptionalTensorList().copy();
    v.toOptionalTensorList().set(o.position, std::move(t));
  }
}

bool generator_agrees(const c10::IValue& v, c10::Device d) {
  return !v.isGenerator() || !v.toGenerator().defined() || v.toGenerator().device() == d;
}

// The id of the device of the gradient that a node of torch's own was given, or -1. In the forward pass all operands of
// its operator were there, so one that is elsewhere has been moved by the program since, and the engine refuses a
// result on its device. A function that a checkpoint runs again is no such node: it chooses as in the forward pass.
int device_of_gradient() {
  if (!mgd_torch_in_backward() || is_replaying()) return -1;
  const auto node = torch::autograd::get_current_node();
  return node && is_torchs_own(*node) && node->num_inputs() ? id_of(node->input_metadata(0).device()) : -1;
}

} // namespace

bool together(const OpFacts& f, const torch::jit::Stack& stack, std::size_t base) {
  bool have = false;
  c10::Device common(c10::kCPU);
  auto agrees = [&](const c10::IValue& v, uint8_t flags) {
    const c10::TensorImpl* t = v.unsafeToTensorImpl();
    if (t == c10::UndefinedTensorImpl::singleton()) return true;
    const c10::Device d = t->device();
    if (f.scalars_stay && d.is_cpu() && !(flags & kWritten) && t->dim() == 0 && !has_wrapped_tangent(v.toTensor()))
      return true;
    if (have) return d == common;
    have = true;
    common = d;
    return true;
  };
  for (const TensorArg& a : f.tensors) {
    const c10::IValue& v = stack[base + a.index];
    if (v.isTensor()) {
      if (!agrees(v, a.flags)) return false;
    } else if (a.shape != ArgShape::One && v.isList()) {
      for (const c10::IValue& e : v.toListRef())
        if (e.isTensor() && !agrees(e, a.flags)) return false;
    }
  }
  if (f.generator >= 0 && have && !generator_agrees(stack[base + f.generator], common)) return false;
  return !f.has_host_only || common.is_cpu();
}

std::optional<Choice> choose(const OpFacts& f, const Operands& operands, const c10::IValue& generator,
                             const Operand* follows) {
  bool floats = false;
  for (const Operand& o : operands) floats |= may_vote(o) && is_floating(o);
  c10::SmallVector<mgd_operand, 8> core;
  int64_t total = 0;
  const mgd_mask accelerators = accelerators_of(operands);
  for (const Operand& o : operands) {
    const int id = id_of(o.tensor.device());
    if (id < 0) return std::nullopt;
    const unsigned flags = flags_of(o, floats, &o == follows);
    core.push_back({id, flags, bytes_of(o.tensor), age_of(o.tensor), kept_on(o.tensor, id, accelerators)});
    total += core.back().bytes;
  }
  if (total >= kWorthAsking) observe();
  if (generator.isGenerator() && generator.toGenerator().defined()) {
    const int id = id_of(generator.toGenerator().device());
    if (id < 0) return std::nullopt;
    core.push_back({id, MGD_OP_GENERATOR, 0, 0, 0});
  }
  if (const int id = device_of_gradient(); id >= 0) core.push_back({id, MGD_OP_GRADIENT, 0, 0, 0});
  int device = 0, other = 0;
  enum mgd_reason why = MGD_WHY_NONE;
  const int code = mgd_place_operands(machine(), core.data(), core.size(), &device, &other, &why);
  if (code == MGD_E_PIN_CONFLICT) pin_conflict(f, operands, device, other);
  if (code != MGD_OK) return std::nullopt;
  return Choice{device_of(device), why};
}

// Gathers the operands; chooses a device, to which a written result may first move itself (follower); then replaces
// each operand on the stack that has to be elsewhere.
bool align(const OpFacts& f, torch::jit::Stack& stack, std::size_t base, WriteBacks& write_backs) {
  const Operands operands = gather(f, stack, base);
  if (operands.empty()) return false;
  const c10::IValue generator = f.generator < 0 ? c10::IValue() : stack[base + f.generator];
  const Operand* x = follower(f, operands);
  auto choice = choose(f, operands, generator, x);
  if (x && choice && choice->device != x->tensor.device() &&
      !follow(x->tensor, choice->device, {f.name.c_str(), MGD_EV_MOVE, choice->reason}))
    choice = choose(f, operands, generator);
  if (!choice) return false;
  const bool hidden_writes = f.training < 0 || !stack[base + f.training].isBool() || stack[base + f.training].toBool();
  Copies copies;
  const TensorArg* copied_list = nullptr;
  for (const Operand& o : operands)
    if (const auto want = wanted(f, o, choice->device)) {
      const CopiedOperand& copy =
          copies.emplace_back(align_operand(f, o, *want, choice->reason, hidden_writes, copies, write_backs));
      replace(stack[base + o.arg->index], o, copy.tensor, copied_list != o.arg);
      copied_list = o.arg;
    }
  return !copies.empty();
}

void bring_to_host(const OpFacts& f, torch::jit::Stack& stack, std::size_t base) {
  Copies copies;
  WriteBacks none;
  const TensorArg* copied_list = nullptr;
  for (const Operand& o : gather(f, stack, base)) {
    if (o.tensor.is_cpu()) continue;
    const CopiedOperand& copy =
        copies.emplace_back(align_operand(f, o, c10::kCPU, MGD_WHY_ON_HOST, false, copies, none));
    replace(stack[base + o.arg->index], o, copy.tensor, copied_list != o.arg);
    copied_list = o.arg;
  }
}

// Returns a copy without history for a write that autograd does not see (running statistics), and for any write without
// grad mode; for other writes, a copy that autograd connects to t.
at::Tensor cross_written(const at::Tensor& t, c10::Device to, bool hidden, const Cause& cause) {
  return hidden || !c10::GradMode::is_enabled() ? cross_values(t, to, cause) : cross_alone(t, to, cause);
}

namespace {

// Gives an out= of another size the size and strides that the kernel gave its copy.
void resize_like(const at::Tensor& original, const at::Tensor& copy) {
  original.resize_(copy.sizes());
  if (copy.layout() == c10::kStrided && copy.is_non_overlapping_and_dense() && original.strides() != copy.strides())
    original.as_strided_(copy.sizes(), copy.strides());
}

} // namespace

void finish(WriteBacks& write_backs) {
  const Recorded recorded;
  for (WriteBack& w : write_backs) {
    mgd_event e{};
    e.time = now();
    TensorState* s = state_of(w.original);
    e.object = s ? s->object : 0;
    c10::AutoGradMode mode(!w.hidden && c10::GradMode::is_enabled());
    // Torch refuses to write an inference tensor, which has no version counter. A hidden write goes below that check.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (w.hidden && w.original.is_inference()) below.emplace();
    if (w.original.sizes() != w.copy.sizes()) resize_like(w.original, w.copy);
    w.original.copy_(w.copy);
    if (w.hidden) count_returned_values(w.original);
    e.duration = now() - e.time;
    e.bytes = bytes_of(w.copy);
    e.kind = MGD_EV_WRITE_BACK;
    e.reason = MGD_WHY_WRITE_BACK;
    e.from = static_cast<int16_t>(id_of(w.copy.device()));
    e.to = static_cast<int16_t>(id_of(w.original.device()));
    record(e);
  }
}

} // namespace managed
