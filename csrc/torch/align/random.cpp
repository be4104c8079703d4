// random.cpp: see random.h. Owns which accelerators have the stream on loan, and whose turn it is to replay.
#include "torch/align/random.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/csrc/Device.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/threads/forks.h"
#include "torch/devices/graphs.h"
#include "torch/residency/guard.h"
#include "torch/facts/key.h"

namespace managed {

// The states of all generators that a replay may set.
class States {
 public:
  States() {
    for (int id = MGD_HOST; id < device_count(); id++) {
      at::Generator g = at::globalContext().defaultGenerator(device_of(id));
      std::lock_guard<std::mutex> lock(g.mutex());
      all_.emplace_back(g, g.get_state());
    }
  }
  void set() {
    for (auto& [g, state] : all_) {
      std::lock_guard<std::mutex> lock(g.mutex());
      g.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> all_;
};

struct Replay {
  States before; // what comes back when it has ended, or steps aside
  std::optional<States> own;
  bool had_own_numbers = false; // the thread, before
  bool has_own_numbers = false; // and in the replay
};

namespace {

using State = c10::intrusive_ptr<c10::GeneratorImpl>;

struct GeneratorLoan {
  int operators = 0; // operators that draw on the device now, in any thread
  State own;         // what the device's generator gets back after the last
};

std::mutex& loans_mutex() {
  static auto* mutex = [] {
    survive_fork<loans_mutex>();
    return new std::mutex;
  }();
  return *mutex;
}
std::array<GeneratorLoan, MGD_MAX_DEVICES>& loans() {
  static auto* all = new std::array<GeneratorLoan, MGD_MAX_DEVICES>; // by id
  return *all;
}
const MadeAtStart loans_at_start([] { loans_mutex(), loans(); });

const at::Generator& generator_of(c10::Device d) { return at::globalContext().defaultGenerator(d); }

// Returns a generator that shares the state of `g`; it is not a copy.
State state_of(const at::Generator& g) {
  std::lock_guard<std::mutex> lock(g.unsafeGetGeneratorImpl()->mutex_);
  return g.unsafeGetGeneratorImpl()->graphsafe_get_state();
}

void set_state(const at::Generator& g, const State& state) {
  std::lock_guard<std::mutex> lock(g.unsafeGetGeneratorImpl()->mutex_);
  g.unsafeGetGeneratorImpl()->graphsafe_set_state(state);
}

thread_local bool has_own_numbers = false; // this thread draws from the devices' own generators

// Lends the stream to the device and returns its id. 0: nothing is lent, on the host and while a graph is recorded: the
// graph goes on with the state which its device's generator has registered for it.
int lend(c10::Device d) {
  const int id = id_of(d);
  if (id <= 0 || has_own_numbers || recording_graphs.load(std::memory_order_relaxed)) return 0;
  std::lock_guard<std::mutex> lock(loans_mutex());
  GeneratorLoan& loan = loans()[id];
  if (loan.operators == 0) {
    const at::Generator& g = generator_of(d);
    loan.own = state_of(g);
    set_state(g, state_of(generator_of(c10::Device(d.type(), 0))));
  }
  loan.operators++;
  return id;
}

void give_back(int id) {
  std::lock_guard<std::mutex> lock(loans_mutex());
  GeneratorLoan& loan = loans()[id];
  if (--loan.operators > 0) return;
  set_state(generator_of(device_of(id)), loan.own);
  loan.own.reset();
}

// Lets the device's generator begin anew with a seed, until give_back().
void lend_seeded(int id, uint64_t seed) {
  const at::Generator& g = generator_of(device_of(id));
  at::Generator fresh;
  {
    std::lock_guard<std::mutex> lock(g.unsafeGetGeneratorImpl()->mutex_);
    fresh = g.clone();
  }
  fresh.set_current_seed(seed);
  std::lock_guard<std::mutex> lock(loans_mutex());
  GeneratorLoan& loan = loans()[id];
  if (loan.operators == 0) loan.own = state_of(g);
  set_state(g, state_of(fresh));
  loan.operators++;
}

c10::Device with_index(c10::Device d) {
  return d.is_cpu() || d.has_index() ? d : c10::impl::getDeviceGuardImpl(d.type())->getDevice();
}

// The device that the call draws on, or the CPU if the stream is not concerned. An operator that takes a device makes
// its result there.
c10::Device draws_on(const OpFacts& f, const torch::jit::Stack& stack) {
  const c10::IValue* const arguments = stack.data() + stack.size() - f.arguments;
  if (f.generator >= 0 && !arguments[f.generator].isNone()) return c10::kCPU;
  for (int i = 0; i < f.arguments && !f.tensors.empty(); i++)
    if (arguments[i].isDevice()) return with_index(arguments[i].toDevice());
  for (const TensorArg& a : f.tensors)
    if (const c10::IValue& v = arguments[a.index]; v.isTensor() && v.toTensor().defined() && !v.toTensor().is_cpu())
      return v.toTensor().device();
  return c10::kCPU;
}

const c10::Device& device_in(PyObject* o) {
  TORCH_CHECK_TYPE(THPDevice_Check(o), "managed: expected a torch.device");
  return reinterpret_cast<THPDevice*>(o)->device;
}

// Which thread may replay; not the turn of admission.h. A leaf mutex, and nothing is called while it is held.
struct Turns {
  std::mutex mutex;
  std::condition_variable free;
  bool taken = false;
};
thread_local std::unique_ptr<Replay> replay; // of this thread, while it is its turn

Turns& turns();

// A child of fork() has only the thread that forked.
void turns_in_child() {
  turns().taken = replay != nullptr;
  forget_waiters(turns().free);
  turns().mutex.unlock();
}

Turns& turns() {
  static auto* all = [] {
    pthread_atfork([] { turns().mutex.lock(); }, [] { turns().mutex.unlock(); }, turns_in_child);
    return new Turns;
  }();
  return *all;
}
const MadeAtStart turns_at_start([] { turns(); });

void take_turn() { // called with the GIL, which other threads need to end their turns
  const NoGil no_gil;
  std::unique_lock<std::mutex> lock(turns().mutex);
  turns().free.wait(lock, [] { return !turns().taken; });
  turns().taken = true;
}

void end_turn() {
  {
    std::lock_guard<std::mutex> lock(turns().mutex);
    turns().taken = false;
  }
  turns().free.notify_one();
}

} // namespace

OneStream::OneStream(const OpFacts& f, const torch::jit::Stack& stack)
    : OneStream(f.draws_random ? draws_on(f, stack) : c10::Device(c10::kCPU)) {}

OneStream::OneStream(c10::Device d) : borrower_(d.index() > 0 && !d.is_cpu() ? lend(d) : 0) {}

OneStream::~OneStream() {
  if (C10_UNLIKELY(borrower_)) give_back(borrower_);
}

bool is_replaying() { return replay != nullptr; }

StepAside::StepAside() {
  if (!replay) return;
  replay->own.emplace();
  replay->before.set();
  has_own_numbers = replay->had_own_numbers;
  replay_ = std::move(replay);
  end_turn();
}

void StepAside::come_back() {
  if (!replay_) return;
  take_turn();
  replay = std::move(replay_);
  has_own_numbers = replay->has_own_numbers;
  replay->own->set();
}

StepAside::~StepAside() {
  try {
    come_back();
  } catch (const std::exception&) { // the error of the pass is on its way, and says more
  }
}

} // namespace managed

using namespace managed;

int mgd_torch_seed_of_stream(PyObject* device, uint64_t* seed) {
  return guarded([&] {
    const at::Generator& g = generator_of(c10::Device(device_in(device).type(), 0));
    std::lock_guard<std::mutex> lock(g.unsafeGetGeneratorImpl()->mutex_);
    const at::Tensor state = g.get_state();
    *seed = 0xcbf29ce484222325u; // FNV-1a (draft-eastlake-fnv)
    const auto* bytes = static_cast<const unsigned char*>(state.const_data_ptr());
    for (std::size_t i = 0; i < state.nbytes(); i++) *seed = (*seed ^ bytes[i]) * 0x100000001b3u;
    return 0;
  });
}

int mgd_torch_begin_own_numbers(PyObject* device, uint64_t seed) {
  return guarded([&] {
    const int id = id_of(device_in(device));
    TORCH_CHECK_VALUE(id > 0 && device_in(device).index() > 0 && !has_own_numbers,
                      "managed: no other numbers can be drawn on ", device_in(device), " in this thread");
    lend_seeded(id, seed);
    has_own_numbers = true;
    return 0;
  });
}

int mgd_torch_end_own_numbers(PyObject* device) {
  return guarded([&] {
    TORCH_CHECK_VALUE(has_own_numbers, "managed: this thread draws no numbers of its own");
    has_own_numbers = false;
    give_back(id_of(device_in(device)));
    return 0;
  });
}

int mgd_torch_has_own_numbers(void) { return has_own_numbers; }

// The key is excluded, too: what the function makes of plain tensors was plain in its first run, and was drawn from the
// device's own generator.
int mgd_torch_begin_replay(int own) {
  return guarded([own] {
    if (replay || !c10::impl::tls_is_dispatch_key_included(kKey)) return 0;
    take_turn();
    try {
      replay = std::make_unique<Replay>();
    } catch (...) {
      end_turn();
      throw;
    }
    c10::impl::tls_set_dispatch_key_included(kKey, false);
    replay->had_own_numbers = std::exchange(has_own_numbers, own);
    replay->has_own_numbers = own;
    return 1;
  });
}

void mgd_torch_end_replay(void) {
  has_own_numbers = replay->had_own_numbers;
  replay.reset();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
  end_turn();
}
