// facts.cpp: computes OpFacts from schemas. Never looks at a tensor.
#include "torch/facts/facts.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "torch/threads/forks.h"

namespace managed {
namespace {

// An operator is composite when its only kernel calls other operators, or when a kernel for CUDA stands above autograd
// in place of that one, as on virtual GPUs: it calls operators, too. An alias key kernel "Autograd" does not count:
// CompositeImplicit wins over it.
bool is_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::AutogradCUDA)) return true;
  for (auto key : {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::CompositeExplicitAutograd,
                   DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::AutogradCPU})
    if (op.hasKernelForDispatchKey(key)) return false;
  return true;
}

const c10::Type& without_optional(const c10::Type& t) {
  const auto* optional = t.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : t;
}

bool tensor_shape(const c10::Type& declared, ArgShape* shape) {
  auto is_tensor = [](const c10::Type& t) { return t.kind() == c10::TypeKind::TensorType; };
  const c10::Type& type = without_optional(declared);
  if (is_tensor(type)) {
    *shape = ArgShape::One;
    return true;
  }
  const auto* list = type.castRaw<c10::ListType>();
  if (!list) return false;
  const c10::Type &element = *list->getElementType(), &inner = without_optional(element);
  if (inner.kind() == c10::TypeKind::ListType) {
    ArgShape of_element;
    *shape = ArgShape::Lists;
    return tensor_shape(inner, &of_element);
  }
  *shape = is_tensor(element) ? ArgShape::List : ArgShape::OptionalList;
  return is_tensor(inner);
}

void read_arguments(OpFacts& f, const c10::FunctionSchema& schema, std::string_view base, bool aten) {
  for (std::size_t i = 0; i < schema.arguments().size(); i++) {
    const c10::Argument& a = schema.arguments()[i];
    const c10::Type& type = without_optional(*a.type());
    if (type.kind() == c10::TypeKind::GeneratorType) f.generator = static_cast<int>(i);
    if (type.kind() == c10::TypeKind::BoolType &&
        (a.name() == "training" || a.name() == "train" || a.name() == "use_input_stats"))
      f.training = static_cast<int>(i);
    ArgShape shape;
    if (!tensor_shape(*a.type(), &shape)) continue;
    uint8_t flags = aten ? arg_rule_of(base, a.name()) : 0;
    if (a.alias_info()) flags |= a.alias_info()->isWrite() ? kWritten : kAliased;
    f.names.push_back(a.name());
    f.tensors.push_back({static_cast<uint16_t>(i), shape, flags, f.names.back().c_str()});
    f.has_host_only |= (flags & kHostOnly) != 0;
    const uint64_t bit = uint64_t{1} << i;
    if (f.tensors.back().is_written()) f.written |= bit;
    if ((flags & kWritten) && shape != ArgShape::One) f.written_lists |= bit;
  }
}

void read_returns(OpFacts& f, const c10::FunctionSchema& schema) {
  for (const c10::Argument& r : schema.returns()) {
    int16_t argument = -1;
    if (r.alias_info() && r.alias_info()->isWrite())
      for (const TensorArg& t : f.tensors)
        if ((t.flags & kWritten) && *schema.arguments()[t.index].alias_info() == *r.alias_info())
          argument = static_cast<int16_t>(t.index);
    f.returned.push_back(argument);
  }
}

bool returns_views(const c10::FunctionSchema& schema, std::string_view base) {
  const auto& all = schema.returns();
  return !all.empty() && !reads_view(base) &&
      std::all_of(all.begin(), all.end(), [](const c10::Argument& r) { return r.alias_info() != nullptr; });
}

// Autocast casts only operands that are on its kind of device, so they must be
// there before it looks. It lies below the hook; its lists are the same on all devices.
bool autocast_casts(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
}

// Bodies with out= compare its device with the operands', or compute elsewhere and write it in the end.
bool fills_out(const c10::FunctionSchema& schema, const OpFacts& f) {
  const auto& all = schema.arguments();
  auto is_out = [&](const TensorArg& t) { return (t.flags & kWritten) && all[t.index].kwarg_only(); };
  return std::any_of(f.tensors.begin(), f.tensors.end(), is_out) &&
      !std::all_of(f.tensors.begin(), f.tensors.end(), is_out);
}

Route route_of(const c10::OperatorHandle& op, const OpFacts& f, std::string_view base, std::string_view ns) {
  if (ns == "prims") return Route::Leaf;
  if (ns != "aten") return Route::Open;
  if (reads_raw_memory(f.name)) return Route::Leaf;
  if (calls_composites(f.name)) return Route::Open;
  if (!is_composite(op)) return Route::Leaf;
  if (aligned_whole(base) || f.has_host_only || fills_out(op.schema(), f)) return Route::AlignOnly;
  return autocast_casts(op) ? Route::Whole : Route::Fallthrough;
}

std::unique_ptr<OpFacts> compute(const c10::OperatorHandle& op) {
  auto f = std::make_unique<OpFacts>();
  const c10::FunctionSchema& schema = op.schema();
  std::string_view full = schema.name();
  const auto colon = full.find("::");
  const std::string_view ns = full.substr(0, colon), base = full.substr(colon + 2);
  const bool aten = ns == "aten";
  f->name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  f->c_name = f->name.c_str();
  f->arguments = static_cast<uint16_t>(schema.arguments().size());
  f->returns = static_cast<uint16_t>(schema.returns().size());
  read_arguments(*f, schema, base, aten);
  read_returns(*f, schema);
  const OpRule rule = aten ? rule_of(base) : OpRule{};
  f->is_foreign = !aten && ns != "prims";
  f->outlives_call = ns == "c10d" || ns == "_c10d_functional"; // and their schemas are silent about what they write
  f->alignment = f->outlives_call ? Alignment::Never : rule.alignment;
  f->copies_between_devices = aten && carries_bytes(base);
  // Kernels of prims are Python, and accept a number that was written in Python only where it is.
  f->scalars_stay = ns == "prims" || rule.scalars_stay_always || (op.hasTag(at::Tag::pointwise) && !scalars_move(base));
  f->route = route_of(op, *f, base, ns);
  f->results_are_new = f->route == Route::Leaf && aten && !aliases_unsaid(base);
  for (const c10::Argument& r : schema.returns()) f->results_are_new &= !r.alias_info();
  // Torch tags the operators that its own attention calls, but a device may have one kernel for the whole.
  const bool random =
      f->generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded) || base == "scaled_dot_product_attention";
  f->draws_random = random && (f->route == Route::Leaf || f->route == Route::Open);
  f->reads_shape_only =
      f->route == Route::Leaf && aten && !f->written && (reads_shapes(base) || returns_views(schema, base));
  return f;
}

// A handle's address is reused when a library is unloaded, so an entry is valid only while it describes the schema at
// that address.
bool describes(const OpFacts& f, const c10::OperatorHandle& op) {
  const c10::OperatorName& n = op.operator_name();
  return f.arguments == op.schema().arguments().size() && f.returns == op.schema().returns().size() &&
      f.name.compare(0, n.name.size(), n.name) == 0 &&
      (n.overload_name.empty()
           ? f.name.size() == n.name.size()
           : f.name.compare(std::min(f.name.size(), n.name.size() + 1), std::string::npos, n.overload_name) == 0);
}

} // namespace

namespace {

std::mutex& facts_mutex() {
  static auto* mutex = [] {
    survive_fork<facts_mutex>();
    return new std::mutex;
  }();
  return *mutex;
}
const MadeAtStart facts_at_start([] { facts_mutex(); });

} // namespace

const OpFacts& facts_of(const c10::OperatorHandle& op) {
  static auto* table =
      new std::unordered_map<const void*, const OpFacts*>; // entries are never freed: kernels point to them
  static thread_local const void* last_key = nullptr;
  static thread_local const OpFacts* last = nullptr;
  const void* key = &op.operator_name();
  if (key == last_key && describes(*last, op)) return *last;
  std::lock_guard<std::mutex> lock(facts_mutex());
  const OpFacts*& entry = (*table)[key];
  if (!entry || !describes(*entry, op)) entry = compute(op).release();
  last_key = key;
  last = entry;
  return *entry;
}

} // namespace managed
