// forms.cpp: see forms.h.
#include "sim/kernels/forms.h"

#include <c10/core/DefaultDtype.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "sim/kernels/alias.h"

namespace managed::sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr std::size_t kMost = 1 << 16;  // answers; programs whose shapes never repeat begin anew

struct Table {
  std::mutex mutex;
  std::unordered_map<std::string, std::vector<Form>> answers;
};

Table &table() {
  static auto *const t = [] {
    auto *made = new Table;
    pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); }, [] { table().mutex.unlock(); });
    return made;
  }();
  return *t;
}

template <class T>
bool put(std::string &key, char kind, T x) {
  key += kind;
  key.append(reinterpret_cast<const char *>(&x), sizeof x);
  return true;
}

bool put_tensor(std::string &key, const Tensor &t) {
  if (!t.defined()) return put(key, 'u', '0');
  // A number on the host gives no form. A mask there does, and what it says is not compared.
  if (!t.is_meta() && (t.dim() || !t.device().is_cpu())) return false;
  const auto *impl = t.unsafeGetTensorImpl();
  const int marks = impl->is_wrapped_number() | t.is_conj() << 1 | t.is_neg() << 2 | t._is_zerotensor() << 3 | t.is_meta() << 4;
  put(key, 't', marks);
  put(key, 'd', t.scalar_type());
  put(key, 'n', t.dim());
  for (int64_t d = 0; d < t.dim(); d++) put(key, 's', t.size(d)), put(key, 'r', t.stride(d));
  return true;
}

// False when an argument has no form that could be remembered.
bool put_value(std::string &key, const IValue &v) {
  if (v.isTensor()) return put_tensor(key, v.toTensor());
  if (v.isNone()) return put(key, '-', '0');
  if (v.isInt()) return put(key, 'i', v.toInt());
  if (v.isBool()) return put(key, 'b', v.toBool());
  if (v.isDouble()) return put(key, 'f', v.toDouble());
  if (v.isDevice()) return put(key, 'D', v.toDevice().type());
  if (v.isString()) return put(key, '"', v.toStringRef().size()), key += v.toStringRef(), true;
  if (!v.isList()) return false;
  const auto list = v.toListRef();
  put(key, 'l', list.size());
  return std::all_of(list.begin(), list.end(), [&](const IValue &x) { return put_value(key, x); });
}

struct Shapes {
  std::vector<c10::StorageImpl *> storages;  // whose bytes no result may share

  // False if the tensor has more to it than sizes and strides.
  bool describe(const Tensor &t, std::vector<std::optional<Form::Strided>> &into) {
    if (!t.defined()) return into.emplace_back(), true;
    if (!t.is_meta() || t.layout() != at::kStrided || t.is_conj() || t.is_neg() || t._is_zerotensor()) return false;
    auto *storage = t.storage().unsafeGetStorageImpl();
    if (std::find(storages.begin(), storages.end(), storage) != storages.end()) return false;
    storages.push_back(storage);
    into.push_back(Form::Strided{t.sizes().vec(), t.strides().vec(), t.storage_offset(), storage->nbytes(), t.dtype()});
    return true;
  }

  bool describe(const IValue &v, Form &form) {
    if (v.isTensor()) {
      form.kind = Form::Kind::tensor;
      return describe(v.toTensor(), form.tensors);
    }
    if (v.isTensorList()) {
      form.kind = Form::Kind::list;
      const auto list = v.toListRef();
      return std::all_of(list.begin(), list.end(), [&](const IValue &x) { return describe(x.toTensor(), form.tensors); });
    }
    form.other = v;
    return v.isInt() || v.isBool() || v.isDouble() || v.isNone();
  }
};

Tensor make(const std::optional<Form::Strided> &f) {
  if (!f) return {};
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), f->bytes, c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                                       c10::GetAllocator(c10::kMeta), true);
  auto r = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::Meta), f->dtype);
  r->set_sizes_and_strides(f->sizes, f->strides, f->offset);
  return Tensor(std::move(r));
}

IValue make(const Form &form) {
  if (form.kind == Form::Kind::written) return {};
  if (form.kind == Form::Kind::other) return form.other;
  if (form.kind == Form::Kind::tensor) return make(form.tensors[0]);
  c10::List<Tensor> list;
  for (const auto &t : form.tensors) list.push_back(make(t));
  return list;
}

}  // namespace

Question::Question(const OperatorFacts &facts, c10::ArrayRef<IValue> arguments) : facts_(facts), count_(arguments.size()) {
  if (facts.view) return;  // results share bytes
  const void *identity = &facts;
  key_.reserve(256);
  put(key_, 'o', identity);
  put(key_, 'T', c10::get_default_dtype_as_scalartype());
  for (const IValue &v : arguments) {
    if (put_value(key_, v)) continue;
    key_.clear();
    return;
  }
}

bool Question::recall(Stack *stack) const {
  if (key_.empty()) return false;
  std::vector<Form> found;
  {
    Table &t = table();
    std::lock_guard<std::mutex> held(t.mutex);
    const auto at = t.answers.find(key_);
    if (at == t.answers.end()) return false;
    found = at->second;
  }
  torch::jit::drop(*stack, count_);
  for (const Form &form : found) stack->push_back(make(form));
  return true;
}

void Question::remember(const Stack &stack, c10::ArrayRef<IValue> arguments) {
  if (key_.empty() || Question(facts_, arguments).key_ != key_) return;
  Shapes shapes;
  for (const IValue &v : arguments) for_each_tensor(v, [&](const Tensor &t) { shapes.storages.push_back(t.storage().unsafeGetStorageImpl()); });
  const std::size_t n = facts_.returned.size(), first = stack.size() - n;
  std::vector<Form> forms(n);
  for (std::size_t r = 0; r < n; r++) {
    if (facts_.returned[r] >= 0) forms[r].kind = Form::Kind::written;
    else if (!shapes.describe(stack[first + r], forms[r])) return;
  }
  Table &t = table();
  std::lock_guard<std::mutex> held(t.mutex);
  if (t.answers.size() >= kMost) t.answers.clear();
  t.answers.insert_or_assign(std::move(key_), std::move(forms));
}

}  // namespace managed::sim
