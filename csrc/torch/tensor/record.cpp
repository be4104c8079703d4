// record.cpp: owns how events get into the trace, and the warnings that arise
// there and wait until they can be issued.
//
// It runs inside operators, in any thread, with or without the GIL: it calls no
// Python and raises nothing. The call site is read by a function that the binding
// sets, since only the binding knows frames.
#include "torch/tensor/record.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_function.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <sstream>
#include <string>
#include <typeinfo>

#include "torch/api.h"
#include "torch/facts/compat.h"
#include "torch/devices/devices.h"
#include "torch/tensor/exposure_table.h"
#include "torch/threads/forks.h"

namespace managed {
namespace {

std::atomic<uint32_t (*)()> frames_site{nullptr};
std::atomic<void (*)()> wake_interpreter{nullptr};

struct Warning {
  std::string text;
  uint32_t site;
  bool is_of_copies;
};
// There is at most one warning of copies for each call site. Never destroyed: the engine's threads may outlive static
// destructors.
struct PendingWarnings {
  std::mutex mutex; // a leaf: nothing is called while it is held
  std::deque<Warning> list;
};
std::mutex& pending_mutex();
PendingWarnings& pending() {
  static auto* w = [] {
    survive_fork<pending_mutex>();
    return new PendingWarnings;
  }();
  return *w;
}
std::mutex& pending_mutex() { return pending().mutex; }
const MadeAtStart pending_at_start([] { pending(); });

// The name() of a function of the program takes the GIL, and an allocator's lock may be held here, for which the GIL's
// owner waits. So the name is that of the function's type, which lives while the function runs. Such a node is
// recognised by the name of its C++ type, because torch exports nothing else of it.
std::string name_of(const torch::autograd::Node& node) {
  if (std::strcmp(typeid(node).name(), "N5torch8autograd6PyNodeE") != 0) return node.name();
  const PyObject* function = object_of_function(static_cast<const torch::autograd::PyNode&>(node));
  return function ? Py_TYPE(function)->tp_name : "a function";
}

// The engine's own threads run no Python, so the site is the name of the node that runs.
uint32_t backward_site() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return 0;
  const std::string name = "backward of " + name_of(*node);
  const mgd_site site{"", name.c_str(), 0};
  uint32_t id = 0;
  mgd_site_intern(machine(), &site, &id);
  return id;
}

// Says which tensor, how often, since when, where, why, and what to change. A program without optimizer and without
// backward pass has no steps, so its text mentions none.
std::string describe(const at::Tensor& t, const mgd_event& e, const mgd_repeat& r) {
  const auto home = t.device(), there = device_of(e.to);
  const std::string told =
      c10::str("managed: a tensor (torch.", c10::getDtypeNames(t.scalar_type()).first, ", shape ", t.sizes(), ") on ",
               home, " was copied to ", there, " ", r.count, " times since ",
               r.stepped ? "the last optimizer step or backward pass" : "the program began", ", ", readable(r.bytes),
               " in all, here for ", e.operator_name ? e.operator_name : "an operator", ". ");
  const std::string cure = is_held_plainly(t)
      ? c10::str(
            "It is a plain tensor, or the program holds a plain tensor of the same bytes; a copy of it serves one "
            "operator call, because writes to it can go unseen. Move it once, with x = x.to(\"",
            there,
            "\"), or wrap it: after x = x.as_subclass(managed.ManagedTensor), or "
            "ManagedModule.from_module(module), and with no reference to the plain tensor left, one copy serves "
            "until x is written.")
      : c10::str("A tensor that is written between two uses is copied for each. Move it once, with x = x.to(\"", there,
                 "\") or module.cuda(...), write it there, or keep what uses it on ", home, ".");
  return told + cure + " managed.explain(x) shows each copy; managed.COPY_WARNING = 0 turns this warning off.";
}

// Says how fast what waits on the host grows, where the oldest of it was made, and what to change.
std::string describe(const mgd_growth_found& found, enum mgd_growth_end end) {
  static constexpr const char* ends[] = {"call of a module", "backward pass", "step of an optimizer"};
  int64_t used = 0, limit = 0, peak = 0;
  mgd_host_usage(machine(), &used, &limit, &peak);
  mgd_site site{"", "", 0};
  mgd_site_get(machine(), found.site, &site);
  return c10::str("managed: the bytes that wait on the host have grown in ", MGD_GROWTH_STEPS,
                  " steps in a row, each a ", ends[end], ": by ", readable(found.bytes_a_step), " a step, to ",
                  readable(found.waiting), " of at most ", readable(limit),
                  ". The program keeps tensors of each step, or their graphs. The oldest of them were made here",
                  site.file[0] ? c10::str(" (", site.file, ":", site.line, ")") : "",
                  ". A sum of losses keeps the graph of each: add loss.item() or loss.detach(). Evaluate inside of "
                  "torch.no_grad(), and take results to the CPU that a list collects. If it is meant, nothing is wrong "
                  "until the host is full; this is said once.");
}

void put_aside(Warning w) {
  {
    std::lock_guard<std::mutex> lock(pending().mutex);
    pending().list.push_back(std::move(w));
  }
  if (auto* wake = wake_interpreter.load(std::memory_order_acquire)) wake();
}

std::atomic<bool> counts_calls{false}; // watch_calls() was called
std::atomic<bool> profiling{false}; // events name their copy on the simulated clock

} // namespace

thread_local int Recorded::depth_ = 0;

std::string readable(int64_t bytes) {
  static constexpr const char* units[] = {" KiB", " MiB", " GiB", " TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); unit++) value /= 1024;
  std::ostringstream s;
  s.precision(value >= 100 ? 4 : 3);
  s << value << units[unit];
  return s.str();
}

uint32_t call_site() {
  auto* read = frames_site.load(std::memory_order_acquire);
  const uint32_t id = read ? read() : 0;
  return id ? id : backward_site();
}

void record(mgd_event& e, const at::Tensor* copied) noexcept {
  try {
    if (e.site == 0) e.site = call_site();
    if (C10_UNLIKELY(profiling.load(std::memory_order_relaxed))) e.transfer = last_simulated_copy();
    mgd_trace_add(machine(), &e);
    mgd_repeat repeat{};
    if (copied && mgd_repeat_add(machine(), &e, &repeat) == MGD_OK && repeat.due)
      put_aside({describe(*copied, e, repeat), e.site, true});
  } catch (const std::exception&) { // no memory for a name or a text: the call goes on without it
  }
}

void end_step(enum mgd_growth_end end) noexcept try {
  mgd_growth_found found{};
  if (mgd_growth_end_step(machine(), end, &found))
    put_aside({describe(found, end), found.site ? found.site : call_site(), false});
} catch (const std::exception&) { // no memory for the text
}

void watch_calls() {
  static std::atomic<bool> asked{false};
  if (C10_LIKELY(asked.load(std::memory_order_relaxed)) || asked.exchange(true)) return;
  counts_calls = true;
  if (auto* wake = wake_interpreter.load(std::memory_order_acquire)) wake();
}

void warn_later(const char* text) { put_aside({text, call_site(), false}); }

} // namespace managed

using namespace managed;

int mgd_torch_profile(int on) {
  profiling = on != 0;
  return mgd_trace_keep(machine(), on != 0);
}

void mgd_torch_set_call_site(uint32_t (*read)(void)) { frames_site.store(read, std::memory_order_release); }

void mgd_torch_set_wake(void (*wake)(void)) { wake_interpreter.store(wake, std::memory_order_release); }

int mgd_torch_counts_calls(void) { return counts_calls.load(std::memory_order_relaxed); }

void mgd_torch_end_step(enum mgd_growth_end end) { end_step(end); }

PyObject* mgd_torch_take_warning(uint32_t* site, int* is_of_copies) {
  Warning w;
  {
    std::lock_guard<std::mutex> lock(pending().mutex);
    auto& list = pending().list;
    if (list.empty()) return nullptr;
    w = std::move(list.front());
    list.pop_front();
  }
  *site = w.site;
  *is_of_copies = w.is_of_copies;
  return PyUnicode_FromStringAndSize(w.text.data(), static_cast<Py_ssize_t>(w.text.size()));
}
