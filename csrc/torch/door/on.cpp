// on.cpp: threads in which everything that is made is managed (managed.on).
//
// Two keys are included in such a thread. With kKey every operator comes to the hook, whatever its operands are, and
// its results are managed; autograd's engine hands both keys on to its threads. kNames stands above all other keys and
// has kernels only for the operators to which a program names a device. There "cuda" becomes a simulated device if
// there is no other, and a kind of device without an index becomes the device that the manager picks. Operators without
// such an argument skip kNames, at no cost. What is drawn for a device that the manager picked comes from the one
// stream, so that it does not depend on the device.
#include "torch/on.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <vector>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/residency/guard.h"
#include "torch/entry/hook.h"
#include "torch/tensor/on_mode.h"
#include "torch/align/random.h"
#include "torch/tensor/replica.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

const c10::DispatchKeySet kBelowNames(c10::DispatchKeySet::FULL_AFTER, kNames);

thread_local bool hook_before, names_before; // whether the keys were included when the thread came in
std::atomic<bool> cuda_is_simulated{false};
PyObject* pick = nullptr; // written once, with the GIL

// Positions of the arguments that tell where a new tensor goes and how large it is; -1 if the operator has none.
struct Arguments {
  std::vector<std::size_t> devices, tensors;
  int generator = -1, size = -1, dtype = -1;
  std::size_t count = 0;

  explicit Arguments(const c10::FunctionSchema& schema) : count(schema.arguments().size()) {
    for (std::size_t i = 0; i < count; i++) {
      const c10::Argument& a = schema.arguments()[i];
      const c10::TypePtr& type = a.real_type()->kind() == c10::TypeKind::OptionalType
          ? a.real_type()->castRaw<c10::OptionalType>()->getElementType()
          : a.real_type();
      if (type->kind() == c10::TypeKind::DeviceObjType) devices.push_back(i);
      else if (type->kind() == c10::TypeKind::TensorType) tensors.push_back(i);
      else if (type->kind() == c10::TypeKind::GeneratorType) generator = static_cast<int>(i);
      else if (a.name() == "size") size = static_cast<int>(i);
      else if (a.name() == "dtype") dtype = static_cast<int>(i);
    }
  }
};

bool is_accelerator(c10::Device d) { return d.is_cuda() || d.is_privateuseone(); }

// Bytes of what will be made, as far as the arguments tell.
int64_t bytes_asked(const Arguments& a, const torch::jit::Stack& stack, std::size_t base) {
  if (a.size >= 0 && stack[base + a.size].isIntList()) {
    const c10::IValue& dtype = a.dtype < 0 ? c10::IValue() : stack[base + a.dtype];
    int64_t bytes = dtype.isInt() ? static_cast<int64_t>(c10::elementSize(dtype.toScalarType())) : 4;
    for (const int64_t n : stack[base + a.size].toIntVector())
      if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) return 0; // torch reports what is wrong
    return bytes;
  }
  for (const std::size_t i : a.tensors)
    if (stack[base + i].isTensor() && stack[base + i].toTensor().defined()) return bytes_of(stack[base + i].toTensor());
  return 0;
}

c10::Device ask_manager(int64_t bytes) {
  const pybind11::gil_scoped_acquire gil;
  THPObjectPtr found(PyObject_CallFunction(pick, "L", static_cast<long long>(bytes)));
  if (found && THPDevice_Check(found.get())) return reinterpret_cast<THPDevice*>(found.get())->device;
  if (found) PyErr_SetString(PyExc_TypeError, "managed: a device was to be picked");
  python_error error;
  error.persist();
  throw error;
}

// The device of the operands or of the generator, if they are on an accelerator; otherwise the manager picks one.
c10::Device without_index(const Arguments& a, const torch::jit::Stack& stack, std::size_t base) {
  for (const std::size_t i : a.tensors)
    if (stack[base + i].isTensor() && stack[base + i].toTensor().defined() &&
        is_accelerator(stack[base + i].toTensor().device()))
      return stack[base + i].toTensor().device();
  if (a.generator >= 0 && stack[base + a.generator].isGenerator()) {
    const at::Generator g = stack[base + a.generator].toGenerator();
    if (g.defined() && is_accelerator(g.device())) return g.device();
  }
  return ask_manager(bytes_asked(a, stack, base));
}

c10::Device meant(c10::Device d, const Arguments& a, const torch::jit::Stack& stack, std::size_t base) {
  if (!d.has_index()) return without_index(a, stack, base);
  return cuda_is_simulated.load(std::memory_order_relaxed) ? c10::Device(c10::kPrivateUse1, d.index()) : d;
}

struct NamesDevice final : c10::OperatorKernel {
  explicit NamesDevice(const c10::OperatorHandle& op)
      : arguments(op.schema()), draws(arguments.generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet ks, torch::jit::Stack* stack) {
    const std::size_t base = stack->size() - arguments.count;
    std::optional<OneStream> stream;
    for (const std::size_t i : arguments.devices) {
      c10::IValue& v = (*stack)[base + i];
      if (!v.isDevice() || !v.toDevice().is_cuda()) continue;
      const bool picked = !v.toDevice().has_index();
      v = meant(v.toDevice(), arguments, *stack, base);
      if (picked && draws && (arguments.generator < 0 || (*stack)[base + arguments.generator].isNone()))
        stream.emplace(v.toDevice());
    }
    const c10::impl::ExcludeDispatchKeyGuard named(kNames); // inner calls have their device already
    op.redispatchBoxed(ks & kBelowNames, stack);
  }
  const Arguments arguments;
  const bool draws;
};

void register_names() {
  static auto* library = new torch::Library(torch::Library::IMPL, "_", kNames, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFallthrough());
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || Arguments(op->schema()).devices.empty()) continue;
    kept->push_back(dispatcher.registerImpl(
        name, kNames, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<NamesDevice>(*op)),
        std::nullopt, nullptr, "managed"));
  }
}

} // namespace
} // namespace managed

using namespace managed;

int mgd_torch_on(void) { return on_mode(); }

int mgd_torch_set_on(int to, PyObject* picker) {
  return guarded([&] {
    if (!pick && to != MGD_OFF) {
      register_names();
      pick = Py_NewRef(picker);
    }
    const int old = on_mode_here;
    if (old == MGD_OFF) {
      hook_before = c10::impl::tls_is_dispatch_key_included(kKey);
      names_before = c10::impl::tls_is_dispatch_key_included(kNames);
    }
    on_mode_here = to;
    if (to == MGD_OFF) end_plain_era();
    c10::impl::tls_set_dispatch_key_included(kKey, to != MGD_OFF || hook_before);
    c10::impl::tls_set_dispatch_key_included(kNames, to != MGD_OFF || names_before);
    return old;
  });
}

// Torch asks Python to start CUDA when a program first names it, and remembers that it did.
int mgd_torch_cuda_is_simulated(int yes) {
  return guarded([&] {
    const bool old = cuda_is_simulated.exchange(yes != 0);
    if (old != (yes != 0)) torch::utils::set_requires_device_init(at::kCUDA, yes == 0);
    return static_cast<int>(old);
  });
}

int mgd_torch_can_be_managed(PyObject* o) {
  const at::Tensor& t = THPVariable_Unpack(o);
  return !t.is_quantized() && !t.is_nested() && !t.is_meta() && !t.unsafeGetTensorImpl()->is_python_dispatch();
}
