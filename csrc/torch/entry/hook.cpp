// hook.cpp: the chokepoint. Every operator call that meets a managed tensor,
// from Python, C++, TorchScript or the autograd engine, passes here.
//
// On the path where nothing has to move it compares devices, lets the operator
// run below the key, and marks what comes out; it takes no lock and calls no
// Python. Which device, what to copy and what stays is decided elsewhere
// (align.cpp, rules.cpp, core/place.c).
#include "torch/entry/hook.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <atomic>
#include <exception>
#include <optional>
#include <vector>

#include "torch/tensor/adopt.h"
#include "torch/align/align.h"
#include "torch/entry/aligned_call.h"
#include "torch/entry/operands.h"
#include "torch/api.h"
#include "torch/align/requested_copies.h"
#include "torch/devices/devices.h"
#include "torch/align/exposure.h"
#include "torch/devices/graphs.h"
#include "torch/residency/guard.h"
#include "torch/residency/hold.h"
#include "torch/residency/out_of_memory.h"
#include "torch/align/random.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/state.h"
#include "torch/threads/threads.h"
#include "torch/threads/errors.h"
#include "torch/devices/waiting.h"

namespace managed {
namespace {

struct Counters {
  std::atomic<int64_t> misaligned{0}; // calls whose operands stood apart
  std::atomic<int64_t> aligned{0};    // of these, calls for which something was copied
  std::atomic<int64_t> grouped{0};    // list operators split by device
  std::atomic<int64_t> on_host{0};    // calls that ran on the host because their device had no room
};
Counters counters;
std::atomic<int64_t> hits_before{0}; // of replicas, at the last reset

thread_local bool frozen = false;

// What a call writes. The kernel takes the operands from the stack, so they are kept here for after the call.
class Writes {
 public:
  explicit Writes(const BoxedOperands& operands) {
    if (C10_LIKELY(operands.facts.written == 0)) return;
    const bool have_copies = C10_UNLIKELY(sources_alive.load(std::memory_order_relaxed) != 0);
    operands.each_argument([&](const c10::IValue& v, const TensorArg& a) {
      if (a.is_written() && have_copies) written_.push_back(v);
      if ((a.flags & kWritten) && a.shape != ArgShape::One) lists_.push_back(v); // it is no result
    });
  }
  // Invalidates the copies of what was written, also if the call failed half way.
  ~Writes() {
    for (const c10::IValue& v : written_) each_tensor(v, invalidate_copies);
  }
  Writes(const Writes&) = delete;
  Writes& operator=(const Writes&) = delete;

  void mark_lists() const {
    for (const c10::IValue& list : lists_) each_tensor(list, mark_written);
  }

 private:
  c10::SmallVector<c10::IValue, 2> written_, lists_;
};

// Nothing leaves the host, so its storages need not be held.
bool on_host(const BoxedOperands& operands) {
  bool all = true;
  operands.each([&](const at::Tensor& t, bool) { all &= !t.defined() || t.is_cpu(); });
  return all;
}

// A collective may use the pointers of its operands when it has returned, and how long is unknown, unless the backend
// keeps the bytes in place meanwhile.
void expose_to_collective(const at::Tensor& t) {
  const Bridge* backend = t.defined() ? backend_of(t.device().type()) : nullptr;
  if (!backend || !backend->collective_wrote) expose(t);
}

// The device of the first operand on an accelerator. An operator that is not torch's own launches on the current
// device, and managed has chosen where its operands are.
std::optional<c10::Device> to_be_current(const BoxedOperands& operands) {
  std::optional<c10::Device> device;
  operands.each([&](const at::Tensor& t, bool) {
    if (!device && t.defined() && id_of(t.device()) > MGD_HOST) device = t.device();
  });
  return device;
}

void run_kernel(Turn& turn, const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack,
                const OpFacts& f) {
  const BoxedOperands operands(f, stack);
  const bool host = !handles_enabled.load(std::memory_order_relaxed) || on_host(operands);
  Hold hold(&turn);
  try { // the text names what the operator holds
    if (!host && holds_operands(f)) hold_operands(hold, operands);
    const c10::OptionalDeviceGuard current(C10_UNLIKELY(f.is_foreign) ? to_be_current(operands) : std::nullopt);
    if (meets_hook_inside(f, ks, host)) return op.redispatchBoxed(ks, &stack);
    c10::impl::ExcludeDispatchKeyGuard no_key(kKey);
    op.redispatchBoxed(ks, &stack);
  } catch (const c10::OutOfMemoryError& e) {
    rethrow_out_of_memory(e, f.name);
  }
}

void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f) {
  const BoxedOperands operands(f, stack);
  const Writes writes(operands);
  each_written(operands, renew_history);
  // A recorded graph writes its operands and results whenever it is replayed, and no operator reports it.
  void (*hand_out)(const at::Tensor&) = nullptr;
  if (C10_UNLIKELY(f.outlives_call)) hand_out = &expose_to_collective;
  if (C10_UNLIKELY(recording_graphs.load(std::memory_order_relaxed))) hand_out = &expose;
  if (C10_UNLIKELY(hand_out)) operands.each([&](const at::Tensor& t, bool) { hand_out(t); });
  std::optional<RequestedCopy> copy;
  if (C10_UNLIKELY(f.copies_between_devices)) copy.emplace(f, stack);
  // The turn is held until the results can be evicted, too.
  Turn turn(C10_UNLIKELY(f.copies_between_devices) && room_is_short() ? target_of_copy(f, stack) : MGD_HOST);
  run_kernel(turn, op, ks, stack, f);
  if (C10_UNLIKELY(copy.has_value())) copy->done(stack);
  for (std::size_t i = stack.size() - f.returns; i < stack.size(); i++) {
    each_tensor(stack[i], [&](const at::Tensor& t) { mark_result(t, f); });
    if (C10_UNLIKELY(hand_out)) each_tensor(stack[i], hand_out);
  }
  writes.mark_lists();
}

// TorchScript differentiates what it has optimised by formulas of its own, in which no gradient crosses to another
// device. Its first runs are as written, so this turns the optimisation off in time; the switch belongs to the thread.
void run_scripts_as_written() {
  if (c10::GradMode::is_enabled() && torch::jit::getGraphExecutorOptimize() &&
      C10_UNLIKELY(!torch::jit::currentCallstack().empty()))
    torch::jit::setGraphExecutorOptimize(false);
}

// Aligns and calls again from the top; false when nothing moved and the call may simply go on. An operator that writes
// and returns an operand has written the copy of it then: finish() copies the values back, and on the stack the
// original takes the copy's place.
bool realign(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpFacts& f) try {
  counters.misaligned.fetch_add(1, std::memory_order_relaxed);
  run_scripts_as_written();
  if (f.alignment == Alignment::Rows) {
    counters.grouped.fetch_add(1, std::memory_order_relaxed);
    call_rows(op, f, stack);
    return true;
  }
  const std::size_t base = stack.size() - f.arguments;
  std::vector<c10::IValue> originals;
  for (const int16_t argument : f.returned) originals.push_back(argument < 0 ? c10::IValue() : stack[base + argument]);
  WriteBacks write_backs;
  if (!align(f, stack, base, write_backs)) return false;
  counters.aligned.fetch_add(1, std::memory_order_relaxed);
  call_aligned(op, f, stack);
  // A result may be an operand itself, and so one of the kept copies. It is the program's from now on, and is no longer
  // kept. A leaf's schema says which operand it returns (f.returned), so leaves need no look.
  if (f.route != Route::Leaf)
    for (std::size_t r = 0; r < f.returns; r++) each_tensor(stack[stack.size() - f.returns + r], give_up_replica_of);
  if (write_backs.empty()) return true;
  finish(write_backs);
  for (std::size_t r = 0; r < f.returns; r++)
    if (f.returned[r] >= 0) stack[stack.size() - f.returns + r] = originals[r];
  return true;
} catch (const c10::OutOfMemoryError& e) { // of a copy, or of what is written back
  rethrow_out_of_memory(e, f.name);
}

// Lets nothing move: the call fails with torch's own error, or succeeds if the kernel takes operands from several
// devices.
void run_frozen(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f) {
  const bool apart = !together(f, stack, stack.size() - f.arguments);
  try {
    run_below(op, ks, stack, f);
  } catch (c10::Error& e) {
    if (apart)
      e.add_context(
          c10::str("managed: the operands of ", f.name,
                   " are on different devices, and managed.frozen() lets nothing move by itself. Leave it, or "
                   "bring them together with .to(device) first."));
    throw;
  }
}

// Where an operator of which an operand lets the result be on the host can run.
struct Places {
  bool allowed = false, there = false, stays = false; // stays: such an operand is on the host already
};

// Whether a leaf that can copy to another device makes its result on the operand's, as a cast does.
bool stays_on_device(const OpFacts& f, const torch::jit::Stack& stack) {
  return f.written == 0 && f.arguments > kDeviceOfToCopy &&
      stack[stack.size() - f.arguments + kDeviceOfToCopy].isNone();
}

// Only operators that can run again elsewhere: they write nothing, draw nothing, and make new tensors.
Places places_of(const OpFacts& f, const torch::jit::Stack& stack) {
  Places p;
  const bool goes_along = f.copies_between_devices ? stays_on_device(f, stack) : f.alignment == Alignment::Align;
  const bool repeatable =
      f.route == Route::Leaf && goes_along && f.written == 0 && f.results_are_new && f.returns > 0 && !f.draws_random;
  if (!repeatable || frozen || mgd_torch_in_backward() || recording_graphs.load(std::memory_order_relaxed)) return p;
  BoxedOperands(f, stack).each([&](const at::Tensor& t, bool) {
    if (!t.defined()) return;
    const bool allows = may_end_on_host(t);
    p.allowed |= allows;
    p.there |= !t.is_cpu();
    p.stays |= allows && t.is_cpu() && t.dim() > 0;
  });
  return p;
}

void align_and_run(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f) {
  if (f.alignment != Alignment::Never && !just_aligned(f) &&
      C10_UNLIKELY(!together(f, stack, stack.size() - f.arguments) || is_large(BoxedOperands(f, stack)))) {
    if (C10_UNLIKELY(frozen)) return run_frozen(op, ks & kBelow, stack, f);
    if (realign(op, stack, f)) return;
  }
  run_below(op, ks & kBelow, stack, f);
}

// Runs the call on the host if its device has no room for it, or if such an operand is there: bringing that back each
// time would be for nothing. The results may be on the host, too.
void run_or_end_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack,
                        const OpFacts& f, const Places& places) {
  const std::size_t base = stack.size() - f.arguments;
  bool on_host = places.stays && places.there;
  std::exception_ptr shortage;
  const std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  if (!on_host) {
    try {
      align_and_run(op, ks, stack, f);
    } catch (const std::exception& e) {
      if (!places.there || !is_out_of_memory(e)) throw;
      on_host = true;
      shortage = std::current_exception();
    }
  }
  if (on_host) {
    stack.resize(base);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    try {
      bring_to_host(f, stack, base);
      call_aligned(op, f, stack);
    } catch (const std::exception&) { // the host has no room either, or no kernel
      if (shortage) std::rethrow_exception(shortage);
      throw;
    }
    counters.on_host.fetch_add(1, std::memory_order_relaxed);
  }
  for (std::size_t i = stack.size() - f.returns; i < stack.size(); i++)
    each_tensor(stack[i], [](const at::Tensor& t) {
      if (t.defined() && has_key(t.unsafeGetTensorImpl())) make_state(t).advice |= MGD_ADVICE_HOST;
    });
}

} // namespace

// An operator has written what a managed tensor gave it into the plain tensor t. So t becomes managed, and its base
// too: in `out[0] = y` the view dies at once. Other plain tensors over the storage stay plain and may write unseen, so
// no copy of its bytes is kept. In a backward pass only t is marked, because operators come to the hook there without a
// managed operand.
void mark_written_slow(const at::Tensor& t) {
  mark(t);
  if (mgd_torch_in_backward() || t.layout() != at::kStrided || !t.has_storage()) return;
  const bool is_view = t.is_view();
  if (t.storage().use_count() > (is_view ? 2 : 1)) lend_in_place(t);
  if (is_view) mark(at::Tensor(t._base()));
}

void mark_result(const at::Tensor& t, const CallFacts& f) {
  if (C10_UNLIKELY(!t.defined())) return;
  if (C10_LIKELY(f.written == 0)) mark(t);
  else mark_written(t);
  const bool is_view = f.reads_shape_only && !f.results_are_new;
  if (is_view && C10_UNLIKELY(t.unsafeGetTensorImpl()->autograd_meta() != nullptr)) mark_tangent(t);
  if (C10_LIKELY(!is_view && (f.alignment != Alignment::Never || !mgd_torch_in_backward())))
    give_handle(t, f.results_are_new);
}

bool is_frozen() { return frozen; }

bool align_call(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpFacts& f) {
  const OperatorSection visit;
  return !just_aligned(f) && !together(f, stack, stack.size() - f.arguments) && !frozen && realign(op, stack, f);
}

void chokepoint(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack& stack, const OpFacts& f) {
  const OperatorSection visit;
  if (C10_UNLIKELY(visit.is_late())) return from_top(op, ks, &stack);
  // Autocast casts on the operands' device, and then calls the operator again, which comes here without its key. On the
  // host it would cast other operators.
  if (C10_UNLIKELY(host_allowed.load(std::memory_order_relaxed)) && !ks.has_any(c10::autocast_dispatch_keyset))
    if (const Places places = places_of(f, stack); places.allowed) return run_or_end_on_host(op, ks, stack, f, places);
  align_and_run(op, ks, stack, f);
}

void from_top(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) { op.callBoxed(stack); }

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
  const OpFacts& f = facts_of(op);
  const OneStream stream(f, *stack);
  chokepoint(op, ks, *stack, f);
}

} // namespace managed

using namespace managed;

int mgd_torch_set_frozen(int value) {
  const bool old = frozen;
  frozen = value != 0;
  return old;
}

PyObject* mgd_torch_counters(void) {
  return Py_BuildValue(
      "{s:L,s:L,s:L,s:L,s:L,s:L}", "misaligned_calls", static_cast<long long>(counters.misaligned), "aligned_calls",
      static_cast<long long>(counters.aligned), "grouped_calls", static_cast<long long>(counters.grouped),
      "calls_on_host", static_cast<long long>(counters.on_host), "replica_hits",
      static_cast<long long>(replica_hits() - hits_before), "host_waits", static_cast<long long>(host_waits(false)));
}

int mgd_torch_reset_counters(void) {
  counters.misaligned = counters.aligned = counters.grouped = counters.on_host = 0;
  hits_before = replica_hits();
  host_waits(true);
  return 0;
}
