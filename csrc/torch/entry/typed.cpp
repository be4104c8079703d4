// typed.cpp: unboxed kernels for the operators that run most.
//
// Boxing a call costs 110 to 150 ns, more than all the hook has to do when
// operands stand together. These kernels do the same as chokepoint() with the
// arguments in registers; anything out of the ordinary boxes itself into it.
#include <ATen/core/boxing/impl/boxing.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>

#include "torch/devices/devices.h"
#include "torch/devices/graphs.h"
#include "torch/residency/hold.h"
#include "torch/entry/hook.h"
#include "torch/entry/operands.h"
#include "torch/residency/out_of_memory.h"
#include "torch/entry/register.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/state.h"
#include "torch/threads/threads.h"
#include "torch/entry/typed_ops.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc takes the end of an empty optional<Generator> for a read

namespace managed {
namespace {

// The tensors of one argument.
struct Tensors {
  const at::Tensor* first;
  uint32_t n;
  uint32_t argument; // position in the schema
  const at::Tensor* begin() const { return first; }
  const at::Tensor* end() const { return first + n; }
};

template <class T>
using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
template <class A>
constexpr bool kHasTensors = std::is_same_v<A, at::Tensor> || std::is_same_v<A, std::optional<at::Tensor>> ||
    std::is_same_v<A, at::TensorList> || std::is_same_v<A, at::ITensorListRef>;

template <class A>
inline Tensors tensors_of(const A& a, uint32_t argument) {
  if constexpr (std::is_same_v<A, at::Tensor>) {
    return {&a, 1, argument};
  } else if constexpr (std::is_same_v<A, std::optional<at::Tensor>>) {
    return {a ? &*a : nullptr, a.has_value(), argument};
  } else if constexpr (std::is_same_v<A, at::ITensorListRef>) {
    const at::TensorList list = a.isUnboxed() ? a.toUnboxed() : at::TensorList();
    return {list.data(), static_cast<uint32_t>(list.size()), argument};
  } else {
    return {a.data(), static_cast<uint32_t>(a.size()), argument};
  }
}

// Whether an argument needs chokepoint(): a random generator that the caller chose takes part in the choice of the
// device, a list may have come here in a box, and a copy to a device that the program names is counted.
template <class Op, class A>
inline bool is_special(const A& a) {
  if constexpr (std::is_same_v<Op, at::_ops::_to_copy> && std::is_same_v<A, std::optional<at::Device>>)
    return a.has_value();
  else if constexpr (std::is_same_v<A, std::optional<at::Generator>>) return a.has_value();
  else if constexpr (std::is_same_v<A, at::ITensorListRef>) return !a.isUnboxed();
  else return false;
}

// Whether all tensors seen so far are on one device, and whether they are on the host.
struct SameDevice {
  const c10::TensorImpl* first = nullptr;
  bool ok = true, host = true;
  void see(const at::Tensor& t) {
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    if (impl == c10::UndefinedTensorImpl::singleton()) return;
    const c10::Device device = impl->device();
    host &= device.is_cpu();
    if (!first) first = impl;
    else ok &= device == first->device();
  }
};

// All that a typed kernel does beside the call itself. Long functions are not inlined into the kernels: between two
// large kernels they leave the caches, and code that all operators share is back sooner than a copy for each operator.
class Call {
 public:
  Call(const CallFacts& f, const Tensors* arguments, std::size_t n) : arguments_{f, arguments, n}, hold_(&turn_) {}
  __attribute__((noinline)) ~Call() {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool is_late() const { return visit_.is_late(); }

  // Whether the operands stand together, and are not too many for one call.
  __attribute__((noinline)) bool is_ordinary() {
    const CallFacts& f = arguments_.facts;
    const bool may_leave = handles_enabled.load(std::memory_order_relaxed);
    if (C10_UNLIKELY(may_leave && recording_graphs.load(std::memory_order_relaxed)))
      return false; // what is recorded is exposed
    if (C10_UNLIKELY(may_leave && host_allowed.load(std::memory_order_relaxed) && any_may_end_on_host())) return false;
    SameDevice all;
    for (const Tensors& a : arguments_)
      for (const at::Tensor& t : a) all.see(t);
    is_host_ = all.host || !may_leave; // nothing leaves the host, so its storages need not be held
    if (C10_UNLIKELY(!all.ok && !(f.scalars_stay && differ_in_numbers_only()))) return false;
    return !is_large(arguments_); // the boxed call repeats this test with the same result
  }

  // Whether the call draws on another accelerator than the first, which has the stream of random numbers. The steps of
  // a composite draw by themselves.
  bool draws_elsewhere() const {
    return arguments_.facts.route != Route::Whole && arguments_.all->first->device().index() > 0;
  }

  // Holds what the kernel will read, and excludes the key if nothing inside needs it.
  __attribute__((noinline)) void begin(c10::DispatchKeySet ks) {
    const CallFacts& f = arguments_.facts;
    arguments_.noting = f.written != 0;
    each_written(arguments_, renew_history);
    if (!is_host_ && holds_operands(f)) hold_operands(hold_, arguments_);
    if (C10_LIKELY(!meets_hook_inside(f, ks, is_host_))) no_key_.emplace(kKey);
  }

  void mark_lists() {
    for (const Tensors& a : arguments_)
      if (arguments_.facts.written_lists >> a.argument & 1) std::for_each(a.begin(), a.end(), mark_written);
  }

 private:
  // Invalidates in the end the copies of what was written, also if the operator failed half way.
  struct Arguments {
    const CallFacts& facts;
    const Tensors* const all;
    const std::size_t n;
    bool noting = false;
    ~Arguments() {
      if (C10_LIKELY(!noting || sources_alive.load(std::memory_order_relaxed) == 0)) return;
      each_written(*this, invalidate_copies);
    }
    template <class F>
    void each(const F& f) const {
      for (const Tensors& a : *this)
        for (const at::Tensor& t : a) f(t, is_written(a));
    }
    std::size_t rows() const {
      std::size_t most = 0;
      for (const Tensors& a : *this) most = std::max(most, std::size_t{a.n});
      return most;
    }
    bool is_written(const Tensors& a) const { return facts.written >> a.argument & 1; }
    const Tensors* begin() const { return all; }
    const Tensors* end() const { return all + n; }
  };

  // Whether all operands but CPU numbers are on one device. A CPU number that is written counts, too.
  bool differ_in_numbers_only() const {
    SameDevice strays;
    for (const Tensors& a : arguments_)
      for (const at::Tensor& t : a)
        if (arguments_.is_written(a) || !t.device().is_cpu() || t.dim() != 0 || has_wrapped_tangent(t)) strays.see(t);
    return strays.ok;
  }

  bool any_may_end_on_host() const {
    for (const Tensors& a : arguments_)
      if (std::any_of(a.begin(), a.end(), may_end_on_host)) return true;
    return false;
  }

  const OperatorSection visit_; // first: nothing moves by itself after it
  Arguments arguments_;
  Turn turn_; // held until the results can be evicted, too
  Hold hold_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_key_;
  bool is_host_ = false;
};

template <class R>
inline void mark_results(const R& r, const CallFacts& f) {
  if constexpr (std::is_same_v<R, at::Tensor>) {
    mark_result(r, f);
  } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
    for (const at::Tensor& t : r) mark_result(t, f);
  } else if constexpr (!std::is_arithmetic_v<R>) {
    std::apply([&f](const auto&... x) { (mark_results(x, f), ...); }, r);
  }
}

template <class Op, class Signature = typename Op::schema>
struct Typed;

// Operators of the list that draw, but take no generator, are named here.
template <class Op, class... A>
constexpr bool kDraws =
    std::is_same_v<Op, at::_ops::native_dropout> || std::is_same_v<Op, at::_ops::scaled_dot_product_attention> ||
    (std::is_same_v<A, std::optional<at::Generator>> || ...);

template <class Op, class R, class... A>
struct Typed<Op, R(A...)> {
  static inline CallFacts facts;
  static inline const c10::OperatorHandle* handle = nullptr;

  static constexpr std::size_t kArguments = (std::size_t{kHasTensors<Plain<A>>} + ... + 0);

  // Lists only arguments with tensors, so that the remaining ones cost nothing.
  static std::array<Tensors, kArguments> tensors(const Plain<A>&... a) {
    std::array<Tensors, kArguments> all;
    std::size_t n = 0;
    uint32_t argument = 0;
    auto add = [&](const auto& x) {
      if constexpr (kHasTensors<Plain<decltype(x)>>) all[n++] = tensors_of(x, argument);
      argument++;
    };
    (add(a), ...);
    return all;
  }

  template <auto kernel>
  static R box(c10::DispatchKeySet ks, A... a) {
    return c10::impl::BoxedKernelWrapper<R(A...)>::call(c10::BoxedKernel::makeFromFunction<kernel>(), *handle, ks,
                                                        std::forward<A>(a)...);
  }

  static R call(c10::DispatchKeySet ks, A... a) {
    const auto arguments = tensors(a...);
    Call it(facts, arguments.data(), arguments.size());
    if (C10_UNLIKELY(it.is_late())) return box<&from_top>(ks, std::forward<A>(a)...);
    if (C10_UNLIKELY((is_special<Op, Plain<A>>(a) || ...) || !it.is_ordinary() ||
                     (kDraws<Op, Plain<A>...> && it.draws_elsewhere())))
      return box<&boxed>(ks, std::forward<A>(a)...);
    try { // the text names what the operator holds
      it.begin(ks & kBelow);
      if constexpr (std::is_void_v<R>) { // a list operator: what it writes are its arguments
        Op::redispatch(ks & kBelow, std::forward<A>(a)...);
        it.mark_lists();
      } else {
        R r = Op::redispatch(ks & kBelow, std::forward<A>(a)...);
        mark_results<Plain<R>>(r, facts);
        return r;
      }
    } catch (const c10::OutOfMemoryError& e) {
      rethrow_out_of_memory(e, facts_of(*handle).name);
    }
  }
};

std::unordered_set<std::string>& typed_names() {
  static auto* names = new std::unordered_set<std::string>;
  return *names;
}

template <class Op>
void add(torch::Library& library) {
  const auto op = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
  if (!op) return; // not an operator of this torch: the boxed fallback serves whatever replaces it
  Typed<Op>::handle = new c10::OperatorHandle(*op);
  const OpFacts& facts = facts_of(*op);
  const std::string& name = facts.name;
  Typed<Op>::facts = facts;
  typed_names().insert(name);
  library.impl(name.c_str() + 6, TORCH_FN((Typed<Op>::call)));
}

template <class... Op>
void add_all(torch::Library& library, OpList<Op...>) {
  (add<Op>(library), ...);
}

} // namespace

bool is_typed(const std::string& name) { return typed_names().count(name) != 0; }

void register_typed() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  add_all(*library, TypedOps{});
}

} // namespace managed
