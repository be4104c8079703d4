// key.h: names the dispatch key that makes a tensor managed; no other file does.
//
// DeferredInit is declared and unused in torch 2.11 to 2.15: it lies above
// Autocast, Autograd and Tracer and below functorch's front mode. If upstream
// ever uses it, only this header changes.
#pragma once
#include <c10/core/TensorImpl.h>

namespace managed {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Lies above functorch's front mode. functorch.cpp includes it in threads that run torch.func.grad and the like; no
// tensor has it.
constexpr c10::DispatchKey kAboveFunctorch = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// managed.on() includes it in threads in which operators may name a device that managed picks (on.cpp); no tensor has
// it.
constexpr c10::DispatchKey kNames = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Wrapper subclasses and functorch's wrappers, which hold no bytes of their own.
constexpr c10::DispatchKeySet kWrappers({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});

// TensorImpl's key set is protected; a pointer to member taken through a derived struct reaches it legally.
struct KeySetAccess : c10::TensorImpl {
  using c10::TensorImpl::key_set_;
};
inline c10::DispatchKeySet& key_set_of(c10::TensorImpl* t) {
  constexpr c10::DispatchKeySet c10::TensorImpl::*member = &KeySetAccess::key_set_;
  return t->*member;
}

inline bool has_key(const c10::TensorImpl* t) { return t->key_set().has(kKey); }
inline void add_key(c10::TensorImpl* t) {
  auto& ks = key_set_of(t);
  ks = ks.add(kKey);
}
inline void remove_key(c10::TensorImpl* t) {
  auto& ks = key_set_of(t);
  ks = ks.remove(kKey);
}

} // namespace managed
