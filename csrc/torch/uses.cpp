// uses.cpp: see uses.h.
#include "uses.h"

#include <Python.h>
#include <torch/csrc/utils/object_ptr.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "forks.h"
#include "guard.h"

namespace managed {

std::atomic<bool> noting_uses{false};

namespace {

struct Use {
  uint64_t storage; // numbered in the order in which they are met
  int64_t bytes;
  uint64_t tick;
  UseKind kind;
};

std::mutex& notes_mutex();

struct Notes {
  std::mutex mutex; // a leaf
  std::vector<Use> uses;
  std::unordered_map<const void*, uint64_t> numbers; // of living blocks; an address may be used again
  uint64_t met = 0;
};
Notes& notes() {
  static auto* n = [] {
    survive_fork<notes_mutex>();
    return new Notes;
  }();
  return *n;
}
std::mutex& notes_mutex() { return notes().mutex; }

} // namespace

void note_use_slow(const void* block, int64_t bytes, uint64_t tick, UseKind kind) {
  Notes& n = notes();
  std::lock_guard<std::mutex> lock(n.mutex);
  const auto [entry, is_new] = n.numbers.try_emplace(block, n.met);
  n.met += is_new;
  n.uses.push_back({entry->second, bytes, tick, kind});
  if (kind == UseKind::Dropped) n.numbers.erase(entry);
}

} // namespace managed

using namespace managed;

void mgd_torch_begin_uses(void) {
  Notes& n = notes();
  std::lock_guard<std::mutex> lock(n.mutex);
  n.uses.clear();
  n.numbers.clear();
  n.met = 0;
  noting_uses = true;
}

PyObject* mgd_torch_end_uses(void) {
  noting_uses = false;
  std::vector<Use> uses;
  {
    std::lock_guard<std::mutex> lock(notes().mutex);
    uses.swap(notes().uses);
  }
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(uses.size())));
  for (std::size_t i = 0; list && i < uses.size(); i++) {
    const Use& u = uses[i];
    PyObject* item =
        Py_BuildValue("(KLKi)", static_cast<unsigned long long>(u.storage), static_cast<long long>(u.bytes),
                      static_cast<unsigned long long>(u.tick), static_cast<int>(u.kind));
    if (!item) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list.release();
}
