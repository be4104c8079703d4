// compat.h: handles the differences between torch versions; no other file does.
//
// Differences are probed from the headers' types, not guessed from version
// numbers, so that a nightly or a patched build works as well.
#pragma once
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <Python.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace managed {

// Autograd nodes are std::shared_ptr before torch 2.13, intrusive_ptr since.
using NodePtr = std::decay_t<decltype(torch::autograd::Edge::function)>;

constexpr bool kSharedNodes = std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>;

template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (kSharedNodes)
    // Argument-dependent lookup finds deleteNode in versions that have it; it frees deep graphs without recursion.
    return NodePtr(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

// torch.func.grad wraps a tensor in an at::functorch::TensorWrapper. Its header includes one that torch does not ship;
// the wrapped tensor is its first member.
inline bool is_grad_wrapper(const at::Tensor& t) { return t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper); }
inline const at::Tensor& wrapped_by(const at::Tensor& t) {
  return *reinterpret_cast<const at::Tensor*>(t.unsafeGetTensorImpl() + 1);
}

// The Python object of a torch::autograd::PyNode.
template <class Node>
PyObject* object_of_function(const Node& node) {
  if constexpr (requires { node.pyobj(); }) return node.pyobj();
  else return node.obj;
}

// Whether the storage allocates its bytes when they are first written; torch 2.11 has no such storages.
template <class Storage>
bool has_materializer(const Storage& s) {
  if constexpr (requires { s.has_materializer(); }) return s.has_materializer();
  else return false;
}

// Whether the tensor's dimensions have names; torch 2.13 has no names.
template <class Tensor>
bool has_names(const Tensor& t) {
  if constexpr (requires { t.has_names(); }) return t.has_names();
  else return false;
}

} // namespace managed
