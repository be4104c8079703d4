// timeline.cpp: see timeline.h.
#include "sim/device/timeline.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>
#include <utility>

#include "clock/clock_testing.h"
#include "core/core.h"
#include "sim/device/engine.h"

namespace managed::sim {
namespace {

mgd_clock *g_clock = nullptr;  // made once, before the first operator; leaked
int g_devices = 0;
mgd_speed g_speed{};
Wiring g_wiring{};
bool g_repeatable = false;
std::atomic<bool> g_side_streams{false}, g_logging{false};
thread_local int t_copier = 0;  // the issuer of this thread's last copy
thread_local bool t_python = true;  // what this thread issues is Python's, as the clock was told
std::array<std::atomic<int>, kMaxDevices> g_streams_given{};
std::array<std::atomic<std::uint64_t>, kMaxDevices> g_streams_used{};
// The last streams of a device are those of copies; before them are two for the operands from and to each device.
constexpr int kCopyStreams = MGD_MAX_STREAMS - 2 * kUrgencies;
int first_of_copies() { return kCopyStreams - 2 * g_devices; }
static_assert(kCopyStreams > 2 * kMaxDevices + 1, "programs have streams of their own");
thread_local std::uint32_t t_passed = 0;  // the devices to which this thread's backward pass has issued
thread_local int t_taker = -1;
thread_local std::int64_t t_duration = -1;
thread_local std::int64_t t_ends_at = -1;
thread_local std::array<int, kMaxDevices> t_stream{};

// The clock knows as many threads at once as it has streams. The last ones are those of the engine, one for each
// device; of the remaining threads, those beyond that number share the last place.
constexpr int kThreads = MGD_MAX_STREAMS - kMaxDevices;

std::mutex &threads_mutex() {
  static auto *mutex = new std::mutex;  // threads may end after static destructors have run
  return *mutex;
}
std::array<bool, kThreads> g_thread_taken{};

class ThreadPlace {
 public:
  ThreadPlace() {
    const std::lock_guard<std::mutex> lock(threads_mutex());
    while (number < kThreads - 1 && g_thread_taken[number]) number++;
    g_thread_taken[number] = true;
    if (number < kThreads - 1) mgd_clock_begin_thread(g_clock, number);
  }
  ~ThreadPlace() {
    const std::lock_guard<std::mutex> lock(threads_mutex());
    g_thread_taken[number] = false;
  }
  ThreadPlace(const ThreadPlace &) = delete;
  ThreadPlace &operator=(const ThreadPlace &) = delete;

  int number = 0;
};

int this_thread() {
  thread_local const ThreadPlace place;
  return place.number;
}

void check(int code) { TORCH_CHECK(code == MGD_OK, "the virtual clock failed: ", mgd_text_error(code)); }

void wait_for_thread(int thread, int other) { check(mgd_clock_host_wait(g_clock, thread, stream_time(kHost, other))); }

// The calling thread. If its backward pass was charged to the engine's threads, it goes on when these have issued it.
int caller_of_pass() {
  const int caller = this_thread();
  if (C10_UNLIKELY(t_passed) && !in_backward())
    for (std::uint32_t left = std::exchange(t_passed, 0); left; left &= left - 1)
      wait_for_thread(caller, kThreads + __builtin_ctz(left));
  return caller;
}

// The thread of the engine for that device, in a pass of the calling thread. It begins when the pass does.
int thread_of_pass(int device) {
  const std::uint32_t bit = std::uint32_t{1} << device;
  if (!(t_passed & bit)) {
    wait_for_thread(kThreads + device, this_thread());
    t_passed |= bit;
  }
  return kThreads + device;
}

// The thread that issues to the device: in a repeatable backward pass, the one that the engine has for the device. What
// the engine issues needs no lock of the interpreter, so if passes are not repeatable, the clock is told when that
// changes.
int issuer(int device) {
  if (g_repeatable) return device != kHost && in_backward() ? thread_of_pass(device) : caller_of_pass();
  const int caller = this_thread();
  if (C10_UNLIKELY(in_backward() == t_python)) {
    t_python = !t_python;
    check(mgd_clock_lock_use(g_clock, caller, t_python));
  }
  return caller;
}

// The lanes of a card, and the uplink of a switch, in each direction.
int lane_in(int device) { return device; }
int lane_out(int device) { return kMaxDevices + device; }
int uplink_in(int device) { return 2 * kMaxDevices + device / g_wiring.devices_per_switch; }
int uplink_out(int device) { return 3 * kMaxDevices + device / g_wiring.devices_per_switch; }
// The bus that all copies share. Its number is that of the last possible uplink, which exists only if each device has a
// switch of its own, and is not used then.
constexpr int kTrunk = 4 * kMaxDevices - 1;
static_assert(kTrunk < MGD_MAX_BUSES);

void join(mgd_clock *clock, int from, int to, int bus, double bytes_per_ns) {
  check(mgd_clock_wiring_set_bus(clock, bus, bytes_per_ns));
  check(mgd_clock_wiring_join_bus(clock, from, to, bus));
}

void join(mgd_clock *clock, int from, int to, int bus) { join(clock, from, to, bus, g_wiring.host.bytes_per_ns); }

void connect(mgd_clock *clock, int from, int to, mgd_link link) {
  check(mgd_clock_wiring_set_link(clock, from, to, link));
  if (g_wiring.all_bytes_per_ns > 0) join(clock, from, to, kTrunk, g_wiring.all_bytes_per_ns);
}

void connect_host(mgd_clock *clock, int device) {
  connect(clock, kHost, device, g_wiring.host), connect(clock, device, kHost, g_wiring.host);
  if (g_wiring.peers_over_host) join(clock, kHost, device, lane_in(device)), join(clock, device, kHost, lane_out(device));
  if (g_wiring.devices_per_switch > 1) join(clock, kHost, device, uplink_in(device)), join(clock, device, kHost, uplink_out(device));
}

// A card has one port for all its peers, of the bandwidth of one link: several copies out of it, or into it, share
// that.
void connect_peers(mgd_clock *clock, int from, int to) {
  connect(clock, from, to, g_wiring.peer);
  if (!g_wiring.peers_over_host) {
    const double port = g_devices > 2 ? g_wiring.peer.bytes_per_ns : 0;  // with one peer the link alone says it
    if (port > 0) join(clock, from, to, lane_out(from), port), join(clock, from, to, lane_in(to), port);
    return;
  }
  join(clock, from, to, lane_out(from)), join(clock, from, to, lane_in(to));
  if (g_wiring.devices_per_switch == 1 || uplink_in(from) == uplink_in(to)) return;
  join(clock, from, to, uplink_out(from)), join(clock, from, to, uplink_in(to));
}

mgd_clock *new_clock() {
  mgd_clock *clock;
  check(mgd_clock_create(g_devices, &clock));
  for (int i = 0; i < g_devices; i++) {
    check(mgd_clock_wiring_set_speed(clock, i, g_speed));
    connect_host(clock, i);
    for (int j = 0; j < g_devices; j++)
      if (i != j) connect_peers(clock, i, j);
  }
  return clock;
}

void (*g_take_bytes)();  // of the child

void stop_clock() { mgd_clock_before_fork(g_clock); }
void go_on() { mgd_clock_after_fork(g_clock); }

// Another thread may have held the lock of the threads at fork(). No thread of the child has a log.
void restart() noexcept {
  go_on();
  g_logging = false;
  try {
    new (&threads_mutex()) std::mutex;
    g_clock = new_clock();
    g_take_bytes();
  } catch (...) {  // out of memory: the old one will do in most cases
  }
}

}  // namespace

void timeline_create(int devices, const mgd_speed &speed, const Wiring &wiring, bool repeatable) {
  g_devices = devices;
  g_speed = speed;
  if (repeatable) g_speed.python_ns = 0;  // the order at the interpreter's lock would be the real machine's
  g_wiring = wiring;
  g_repeatable = repeatable;
  g_clock = new_clock();
}

void timeline_survives_fork(void (*take_bytes)()) {
  g_take_bytes = take_bytes;
  pthread_atfork(&stop_clock, &go_on, &restart);
}

int current_stream(int device) noexcept { return t_stream[device]; }

int exchange_stream(int device, int stream) noexcept {
  const int before = t_stream[device];
  t_stream[device] = stream;
  if (stream && !has_side_streams()) g_side_streams.store(true, std::memory_order_relaxed);
  const std::uint64_t bit = std::uint64_t{1} << stream;
  if (stream && !(streams_in_use(device) & bit)) g_streams_used[device].fetch_or(bit, std::memory_order_relaxed);
  return before;
}

std::uint64_t streams_in_use(int device) noexcept { return 1 | g_streams_used[device].load(std::memory_order_relaxed); }

int copy_stream(Way way, Urgency urgency, int other) noexcept {
  if (urgency == Urgency::Operand && other != kHost) return first_of_copies() + 2 * other + (way == Way::Out ? 1 : 0);
  return kCopyStreams + (way == Way::Out ? kUrgencies : 0) + static_cast<int>(urgency);
}

TakenBy::TakenBy(int stream) noexcept : before_(std::exchange(t_taker, stream)) {}
TakenBy::~TakenBy() { t_taker = before_; }

int taking_stream(int device) noexcept { return t_taker >= 0 ? t_taker : t_stream[device]; }

// Round robin over the streams beside the default one, as CUDA's pool does.
int new_stream(int device) noexcept {
  return 1 + g_streams_given[device].fetch_add(1, std::memory_order_relaxed) % (first_of_copies() - 1);
}

bool has_side_streams() noexcept { return g_side_streams.load(std::memory_order_relaxed); }

std::int64_t exchange_duration(std::int64_t ns) noexcept { return std::exchange(t_duration, ns); }

void charge(int device, const mgd_work &work) {
  const double beyond = std::max(0.0, static_cast<double>(t_duration - g_speed.launch_ns)) * g_speed.bytes_per_ns;
  const mgd_work told{MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0, beyond, work.name};
  check(mgd_clock_run(g_clock, issuer(device), device, t_stream[device], t_duration < 0 ? &work : &told));
}

const char *log_name(const std::string &name) {
  if (C10_LIKELY(!g_logging.load(std::memory_order_relaxed))) return nullptr;
  static std::mutex mutex;
  static auto *const names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> held(mutex);
  return names->insert(name).first->c_str();
}

void start_log() {
  check(mgd_clock_profile_start(g_clock));
  g_logging = true;
}

void stop_log(mgd_span **spans, std::size_t *count) {
  g_logging = false;
  check(mgd_clock_profile_stop(g_clock, spans, count));
}

std::uint64_t last_copy() {
  std::uint64_t number = 0;
  check(mgd_clock_last_copy(g_clock, t_copier, &number));
  return number;
}

void charge_copy(int from, int to, std::int64_t bytes, bool blocking, const char *name) {
  if (from == to) return charge(to, {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0, 2.0 * static_cast<double>(bytes), name});
  const mgd_transfer transfer{from, from == kHost ? 0 : t_stream[from], to, to == kHost ? 0 : t_stream[to], bytes, blocking, name};
  t_copier = issuer(from == kHost ? to : from);
  check(mgd_clock_copy(g_clock, t_copier, &transfer));
}

void charge_copy_on(int from, int from_stream, int to, int to_stream, std::int64_t bytes, const char *name) {
  const int thread = issuer(from == kHost ? to : from);
  if (from == to) {
    const mgd_work work{MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0, 2.0 * static_cast<double>(bytes), name};
    return check(mgd_clock_run(g_clock, thread, to, to_stream, &work));
  }
  const mgd_transfer transfer{from, from_stream, to, to_stream, bytes, false, name};
  t_copier = thread;
  check(mgd_clock_copy(g_clock, t_copier, &transfer));
}

std::int64_t stream_time(int device, int stream) {
  int64_t ns;
  check(mgd_clock_stream_time(g_clock, device, stream, &ns));
  return ns;
}

EndsAt::EndsAt(std::int64_t ns) noexcept : before_(std::exchange(t_ends_at, ns)) {}
EndsAt::~EndsAt() { t_ends_at = before_; }
void EndsAt::no_more() noexcept { t_ends_at = -1; }

namespace {

bool ends_at(mgd_moment *m) {
  if (C10_LIKELY(t_ends_at < 0)) return false;
  mgd_clock_set(g_clock, m, t_ends_at);
  return true;
}

}  // namespace

void record(int device, int stream, mgd_moment *m) {
  if (!ends_at(m)) check(mgd_clock_record(g_clock, caller_of_pass(), device, stream, m));
}

void forget(mgd_moment *m) noexcept { mgd_clock_forget(g_clock, m); }

void stream_wait(int device, int stream, const mgd_moment &m) { check(mgd_clock_stream_wait(g_clock, device, stream, &m)); }

std::int64_t moment_time(mgd_moment *m) {
  int64_t ns;
  check(mgd_clock_moment_time(g_clock, m, &ns));
  return ns;
}

void note_end(int device, int stream, mgd_moment *m) {
  if (!ends_at(m)) check(mgd_clock_end(g_clock, device, stream, m));
}

void set_clock_capacity(int device, std::size_t bytes) {
  check(mgd_clock_hold_set_capacity(g_clock, device, static_cast<int64_t>(std::min<std::size_t>(bytes, INT64_MAX))));
}

mgd_hold *take_bytes(int device, int stream, std::size_t bytes) {
  mgd_hold *hold = nullptr;
  check(mgd_clock_hold_take(g_clock, device, stream, static_cast<int64_t>(bytes), &hold));
  return hold;
}

void give_bytes(mgd_hold *hold, const mgd_moment *after) noexcept { mgd_clock_hold_give(g_clock, hold, after); }

void hand_over_bytes(mgd_hold *hold, int stream, bool alone) noexcept { mgd_clock_hold_hand_over(g_clock, hold, stream, alone); }

void start_audit() { check(mgd_clock_audit_start(g_clock)); }

std::int64_t check_audit(int device) {
  int64_t most;
  check(mgd_clock_audit_check(g_clock, device, &most));
  return most;
}

void host_wait(std::int64_t until) { check(mgd_clock_host_wait(g_clock, caller_of_pass(), until)); }

std::int64_t host_time() { return stream_time(kHost, caller_of_pass()); }

std::int64_t elapsed() {
  int64_t ns;
  check(mgd_clock_elapsed(g_clock, &ns));
  return ns;
}

std::int64_t device_time(int device) {
  int64_t ns;
  check(mgd_clock_device_time(g_clock, device, &ns));
  return ns;
}

std::int64_t worked(int device) {
  int64_t ns;
  check(mgd_clock_worked(g_clock, device, &ns));
  return ns;
}

std::int64_t busy_time(int from, int to) {
  int64_t ns;
  check(mgd_clock_busy(g_clock, from, to, &ns));
  return ns;
}

bool host_bus(int number, mgd_mask *devices, double *bytes_per_ns) {
  const int width = g_wiring.devices_per_switch, switches = width > 1 ? (g_devices + width - 1) / width : 0;
  const mgd_mask all = (mgd_mask{1} << g_devices) - 1, behind_one = (mgd_mask{1} << width) - 1;
  if (number < switches) {
    *devices = behind_one << number * width & all;
    *bytes_per_ns = g_wiring.host.bytes_per_ns;
  } else {
    *devices = all;
    *bytes_per_ns = g_wiring.all_bytes_per_ns;
  }
  return *bytes_per_ns > 0 && number < switches + (g_wiring.all_bytes_per_ns > 0);
}

void link_between(int from, int to, std::int64_t *latency_ns, double *bytes_per_ns) {
  mgd_link link{0, 0};
  if (from != to) check(mgd_clock_wiring_get_link(g_clock, from, to, &link));
  *latency_ns = link.latency_ns;
  *bytes_per_ns = link.bytes_per_ns;
}

}  // namespace managed::sim
