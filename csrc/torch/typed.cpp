// typed.cpp: unboxed kernels for the operators that run most.
//
// Boxing a call costs 110 to 150 ns, more than all the hook has to do when
// operands stand together. These kernels do the same as chokepoint() with the
// arguments in registers; anything out of the ordinary boxes itself into it.
#include <ATen/core/boxing/impl/boxing.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>

#include "align.h"
#include "devices.h"
#include "hold.h"
#include "hook.h"
#include "out_of_memory.h"
#include "replica.h"
#include "state.h"
#include "threads.h"
#include "torture.h"
#include "typed_ops.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc takes the end of an empty optional<Generator> for a read

namespace managed {
namespace {

template <class T>
using Plain = std::remove_cv_t<std::remove_reference_t<T>>;

// Calls f with each tensor that an argument holds.
template <class A, class F>
inline void each_tensor(const A& a, F&& f) {
  if constexpr (std::is_same_v<A, at::Tensor>) {
    f(a);
  } else if constexpr (std::is_same_v<A, std::optional<at::Tensor>>) {
    if (a) f(*a);
  } else if constexpr (std::is_same_v<A, at::TensorList> || std::is_same_v<A, at::ITensorListRef>) {
    for (const at::Tensor& t : a) f(t);
  }
}

// A random generator that the caller chose takes part in the choice of the device.
template <class A>
inline bool names_generator(const A& a) {
  if constexpr (std::is_same_v<A, std::optional<at::Generator>>) return a.has_value();
  else return false;
}

// Do all tensors seen so far stand on one device, and is it the host?
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

template <class R>
inline void mark_result(const R& r, const OpFacts& f) {
  if constexpr (std::is_same_v<R, at::Tensor>) {
    mark(r);
    adopt_result(r, f);
  } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
    for (const at::Tensor& t : r) mark_result(t, f);
  } else if constexpr (!std::is_arithmetic_v<R>) {
    std::apply([&f](const auto&... x) { (mark_result(x, f), ...); }, r);
  }
}

template <class F>
struct AtEnd {
  F f;
  ~AtEnd() { f(); }
};
template <class F>
AtEnd(F) -> AtEnd<F>;

template <class Op, class Signature = typename Op::schema>
struct Typed;

template <class Op, class R, class... A>
struct Typed<Op, R(A...)> {
  static inline const c10::OperatorHandle* handle = nullptr;
  static inline const OpFacts* facts = nullptr;

  // A CPU number beside an accelerator tensor is not a stray, unless it is written.
  template <class X>
  static void see_unless_number(SameDevice& s, const Plain<X>& a) {
    each_tensor(a, [&](const at::Tensor& t) {
      if (std::is_same_v<X, at::Tensor&> || !t.device().is_cpu() || t.dim() != 0) s.see(t);
    });
  }

  static bool together(SameDevice& all, const Plain<A>&... a) {
    if ((names_generator(a) || ...)) return false;
    (each_tensor(a, [&](const at::Tensor& t) { all.see(t); }), ...);
    if (C10_LIKELY(all.ok) || facts->mixing == Mixing::Never) return true;
    if (!facts->scalars_stay) return false;
    SameDevice strays;
    (see_unless_number<A>(strays, a), ...);
    return strays.ok;
  }

  // As chokepoint() asks it: boxed, it looks again and finds the same.
  static bool is_large(const Plain<A>&... a) {
    if (C10_LIKELY(facts->mixing != Mixing::Rows) || !may_adopt.load(std::memory_order_relaxed)) return false;
    Load load;
    auto add = [&](const auto& x) {
      std::size_t n = 0;
      each_tensor(x, [&](const at::Tensor& t) {
        n++;
        load.see(t);
      });
      load.rows = std::max(load.rows, n);
    };
    (add(a), ...);
    return load.wants_pieces();
  }

  // Each tensor of the arguments whose bits are set.
  static void each_of(uint64_t arguments, void (*f)(const at::Tensor&), const Plain<A>&... a) {
    ((arguments & 1 ? each_tensor(a, f) : void(), arguments >>= 1), ...);
  }

  static void hold_operands(Hold& hold, const Plain<A>&... a) {
    uint64_t written = facts->written;
    auto add = [&](const auto& x) {
      const bool writes = written & 1;
      written >>= 1;
      each_tensor(x, [&](const at::Tensor& t) {
        if (!facts->looks_only || !t.has_storage()) hold.add(t, writes);
      });
    };
    torture_now();
    (add(a), ...);
    hold.bring_home();
  }

  static R run(Turn& turn, bool host, c10::DispatchKeySet ks, A... a) {
    Hold hold(&turn);
    try { // the text names what the operator holds
      if (C10_UNLIKELY(!host && holds_operands(*facts))) hold_operands(hold, a...);
      if (C10_UNLIKELY(meets_hook_inside(*facts, ks, host))) return Op::redispatch(ks, std::forward<A>(a)...);
      c10::impl::ExcludeDispatchKeyGuard no_key(kKey);
      return Op::redispatch(ks, std::forward<A>(a)...);
    } catch (const c10::OutOfMemoryError& e) {
      explain_out_of_memory(e, facts->name);
    }
  }

  template <auto kernel>
  static R box(c10::DispatchKeySet ks, A... a) {
    return c10::impl::BoxedKernelWrapper<R(A...)>::call(c10::BoxedKernel::makeFromFunction<kernel>(), *handle, ks, std::forward<A>(a)...);
  }

  static R call(c10::DispatchKeySet ks, A... a) {
    const Visit visit; // first: nothing moves by itself after it
    if (C10_UNLIKELY(visit.is_late())) return box<&from_top>(ks, std::forward<A>(a)...);
    SameDevice all;
    if (C10_UNLIKELY(!together(all, a...) || is_large(a...))) return box<&boxed>(ks, std::forward<A>(a)...);
    const AtEnd note{[&] { // also when it fails half way
      if (C10_UNLIKELY(facts->written && sources_alive.load(std::memory_order_relaxed))) each_of(facts->written, note_written, a...);
    }};
    // Nothing leaves the host, so its storages need not be held.
    const bool host = all.host || !may_adopt.load(std::memory_order_relaxed);
    Turn turn; // until what is made can leave, too
    if constexpr (std::is_void_v<R>) { // a list operator: what it writes are its arguments
      run(turn, host, ks & kBelow, a...);
      each_of(facts->written_lists, mark, a...);
    } else {
      R r = run(turn, host, ks & kBelow, a...);
      mark_result<Plain<R>>(r, *facts);
      return r;
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
  Typed<Op>::facts = &facts_of(*op);
  const std::string& name = Typed<Op>::facts->name;
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
