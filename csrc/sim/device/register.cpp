// register.cpp: see register.h. Owns which operator goes where.
//
// Nothing here runs when the shared object is loaded: registration is a
// function, so that it can be refused first.
#include "sim/device/register.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "sim/kernels/fallback.h"
#include "sim/operators.h"
#include "sim/storage.h"

namespace managed::sim {
namespace {

using c10::DispatchKey;
using torch::CppFunction;

torch::Library &library(const char *ns, DispatchKey key) {
  static auto *const kept = new std::vector<std::unique_ptr<torch::Library>>;  // leaked: a backend lasts as long as the process
  kept->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__, __LINE__));
  return *kept->back();
}

// Everything that has a CPU kernel goes there directly; else torch would prefer
// a generic decomposition with other rounding, other strides.
void register_operator(const c10::OperatorHandle &op, torch::Library &dense, torch::Library &coo, torch::Library &compressed) {
  const OperatorFacts facts = facts_of(op);
  const char *name = facts.name.c_str() + sizeof("aten::") - 1;
  auto kernel = [&] { return CppFunction::makeFromBoxedFunctor(std::make_unique<OperatorKernel>(facts)); };
  if (facts.name != "aten::copy_") {
    if (op.hasKernelForDispatchKey(DispatchKey::SparseCPU)) coo.impl(name, kernel());
    if (op.hasKernelForDispatchKey(DispatchKey::SparseCsrCPU)) compressed.impl(name, kernel());
  }
  if (written_by_hand(facts.name)) return;
  if (facts.has_cpu_kernel || facts.whole) dense.impl(name, kernel());
}

void register_kernels() {
  auto &dense = library("aten", DispatchKey::PrivateUse1);
  auto &coo = library("aten", DispatchKey::SparsePrivateUse1);
  auto &compressed = library("aten", DispatchKey::SparseCsrPrivateUse1);
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (op) register_operator(*op, dense, coo, compressed);
  }
  register_memory(dense);
  register_copies(dense);
  register_sparse_copies(coo);
  register_sparse_copies(compressed);
}

void register_composites() {
  for (DispatchKey key : {DispatchKey::PrivateUse1, DispatchKey::AutogradPrivateUse1}) {
    auto &m = library("aten", key);
    register_rnn(m);
    register_dropout(m);
    register_attention(m);
    if (!holds_values()) register_unknown(m);
  }
  register_native_dropout(library("aten", DispatchKey::PrivateUse1));
  register_sync_batch_norm(library("aten", DispatchKey::PrivateUse1));
  register_group_norm(library("aten", DispatchKey::AutogradPrivateUse1));
}

void register_fallbacks() {
  for (DispatchKey key : {DispatchKey::PrivateUse1, DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1})
    library("_", key).fallback(CppFunction::makeFromBoxedFunction<&unknown_operator>());
  register_nested(library("_", DispatchKey::NestedTensorPrivateUse1), library("aten", DispatchKey::NestedTensorPrivateUse1));
  library("_", DispatchKey::AutocastPrivateUse1).fallback(CppFunction::makeFallthrough());
  // copy_ falls through these keys and _copy_from does not: the clone of a conjugate view would recurse for ever.
  for (DispatchKey key : {DispatchKey::Conjugate, DispatchKey::Negative}) library("aten", key).impl("_copy_from", CppFunction::makeFallthrough());
}

}  // namespace

bool written_by_hand(const std::string &name) {
  static const std::unordered_set<std::string> names = {"aten::empty.memory_format", "aten::empty_strided", "aten::set_", "aten::set_.source_Storage",
                                                        "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::record_stream",
                                                        "aten::_lazy_clone", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::dropout",
                                                        "aten::dropout_", "aten::native_dropout",
                                                        // torch's generic versions ask the hooks (pinned memory) or copy_ (_to_copy), which is right here.
                                                        "aten::_pin_memory", "aten::is_pinned", "aten::_to_copy"};
  return names.count(name) > 0;
}

void check_unclaimed() {
  const bool taken = c10::impl::device_guard_impl_registry[static_cast<size_t>(kDevice)].load() || at::isPrivateUse1HooksRegistered() ||
      c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(DispatchKey::PrivateUse1);
  TORCH_CHECK(!taken, "another library has registered the PrivateUse1 backend (as \"", c10::get_privateuse1_backend(),
              "\"); torch allows one a process, so simulated devices cannot be had beside it");
}

void register_backend() {
  register_fallbacks();
  register_kernels();
  register_composites();
  register_autocast(library("aten", DispatchKey::AutocastPrivateUse1));
  static auto *const own = new torch::Library(torch::Library::DEF, "managed_sim", std::nullopt, __FILE__,
                                              __LINE__); // leaked, as those above
  register_group(*own);
  register_timer();
  c10::SetAllocator(kDevice, device_allocator());
  register_hooks();
  register_guard();
}

}  // namespace managed::sim
