// unknown.cpp: see unknown.h.
#include "sim/kernels/unknown.h"

#include <Python.h>

#include <ATen/ops/isfinite_native.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sim/kernels/alias.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

using at::Tensor;
using c10::IValue;

constexpr int kPatience = 1000;  // truth values that one place may ask for

std::atomic<bool> is_error{false};

std::string line_of(PyFrameObject *frame) {
  PyCodeObject *code = PyFrame_GetCode(frame);
  const char *file = PyUnicode_AsUTF8(code->co_filename);
  std::string line = std::string(file ? file : "?") + ":" + std::to_string(PyFrame_GetLineNumber(frame));
  Py_DECREF(code);
  return line;
}

// "file:line" of the Python code that this thread runs, the innermost first, at most so many.
std::vector<std::string> places(std::size_t most) {
  std::vector<std::string> lines;
  if (!Py_IsInitialized()) return lines;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame && lines.size() < most) {
    lines.push_back(line_of(frame));
    Py_SETREF(frame, PyFrame_GetBack(frame));
  }
  Py_XDECREF(frame);
  PyGILState_Release(state);
  return lines;
}

// Whether Python code runs that writes files from bytes which it has asked for. managed/_simulated/no_values.py reports
// torch.save.
bool is_saving() {
  const auto lines = places(8);
  return std::any_of(lines.begin(), lines.end(), [](const std::string &line) { return line.find("/safetensors/") != std::string::npos; });
}

void count_truth(const Tensor &t) {
  struct Sites {
    std::mutex mutex;
    std::map<std::string, int> asked;
  };
  static auto *const sites = new Sites;
  const auto lines = places(1);
  const std::string line = lines.empty() ? "C++" : lines[0];
  int times = 0;
  {
    std::lock_guard<std::mutex> held(sites->mutex);
    times = ++sites->asked[line];
    if (times >= kPatience) sites->asked.erase(line);  // a program that catches the error may ask again
  }
  TORCH_CHECK(times < kPatience, "managed: ", line, " asked ", times, " times whether a value on ", t.device(),
              " is true, and devices without values (values=False) do not know it: a loop that waits for it never ends. Give it another end, "
              "such as a number of steps, or simulate with values.");
}

void tell(const std::string &device, const char *what, const char *instead) {
  const std::string asked = c10::str("managed: the program asks for ", what, " on ", device, ", which devices without values (values=False) do not know");
  TORCH_CHECK(!is_error.load(), asked, ". unknown=\"zero\" lets it go on with 0; simulate with values where they matter.");
  // Without a place in C++, which torch would report, the warning names the line of Python, once.
  c10::warn(c10::Warning(c10::UserWarning(), {nullptr, nullptr, 0}, c10::str(asked, ": it hears ", instead, "."), /*verbatim=*/false));
}

}  // namespace

void set_unknown_is_error(bool yes) { is_error = yes; }

IValue unknown_number(const Tensor &t) {
  const at::ScalarType type = t.scalar_type();
  if (known_of(t.storage()) == Known::truth) return true;
  tell(t.device().str(), type == at::kBool ? "a truth value" : "a number", type == at::kBool ? "False" : "0");
  if (type == at::kBool) {
    count_truth(t);
    return false;
  }
  if (at::isComplexType(type)) return c10::complex<double>(0, 0);
  if (at::isFloatingType(type)) return 0.0;
  return int64_t{0};
}

IValue unknown_equality(const Tensor &a, const Tensor &b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.is_alias_of(b) && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype() && !a.is_floating_point() && !a.is_complex())
    return true;
  tell(a.device().str(), "whether two tensors are equal", "False");
  return false;
}

void unknown_copy(int device) {
  TORCH_CHECK(!is_saving(), "managed: what devices without values (values=False) hold cannot be saved. Save from a run with values.");
  tell(device < 0 ? "a simulated device" : device_at(device).str(), "the values of a tensor", "zeros");
}

void unknown_form(const std::string &name) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "managed: the shape of what ", name,
                              " gives depends on values, and devices without values (values=False) do not know them. Use a form whose shape does not "
                              "(torch.where, masks, output_size=, size=), or simulate with values.");
}

namespace {

// Torch's composite; its result counts as true for unknown values.
Tensor isfinite(const Tensor &x) {
  Tensor r = at::native::isfinite(x);
  if (r.has_storage() && on_device(r) && known_of(r.storage()) == Known::nothing) set_known(r.storage(), Known::truth);
  return r;
}

}  // namespace

void register_unknown(torch::Library &m) { m.impl("isfinite", &isfinite); }

}  // namespace managed::sim
