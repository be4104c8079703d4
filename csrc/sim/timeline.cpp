// timeline.cpp: see timeline.h.
#include "timeline.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>

namespace managed::sim {
namespace {

mgd_clock *g_clock = nullptr;  // made once, before the first operator; leaked
int g_devices = 0;
mgd_speed g_speed{};
mgd_link g_host_link{}, g_peer_link{};
std::array<std::atomic<int>, kMaxDevices> g_streams_given{};
thread_local std::array<int, kMaxDevices> t_stream{};

// The clock knows as many threads at once as it has streams; those beyond them share the last place.
std::mutex &threads_mutex() {
  static auto *mutex = new std::mutex;  // threads may end after static destructors have run
  return *mutex;
}
std::array<bool, MGD_MAX_STREAMS> g_thread_taken{};

class ThreadPlace {
 public:
  ThreadPlace() {
    const std::lock_guard<std::mutex> lock(threads_mutex());
    while (number < MGD_MAX_STREAMS - 1 && g_thread_taken[number]) number++;
    g_thread_taken[number] = true;
    if (number < MGD_MAX_STREAMS - 1) mgd_clock_begin_thread(g_clock, number);
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

mgd_clock *new_clock() {
  mgd_clock *clock;
  check(mgd_clock_create(g_devices, &clock));
  for (int i = 0; i < g_devices; i++) {
    check(mgd_clock_set_speed(clock, i, g_speed));
    check(mgd_clock_set_link(clock, kHost, i, g_host_link));
    check(mgd_clock_set_link(clock, i, kHost, g_host_link));
    for (int j = 0; j < g_devices; j++)
      if (i != j) check(mgd_clock_set_link(clock, i, j, g_peer_link));
  }
  return clock;
}

// Another thread may have held the clock's lock at fork(), or that of the threads: a child starts new ones.
void restart() noexcept {
  try {
    new (&threads_mutex()) std::mutex;
    g_clock = new_clock();
  } catch (...) {  // out of memory: the old one will do in most cases
  }
}

}  // namespace

void timeline_create(int devices, const mgd_speed &speed, const mgd_link &host, const mgd_link &peer) {
  g_devices = devices;
  g_speed = speed;
  g_host_link = host;
  g_peer_link = peer;
  g_clock = new_clock();
}

void timeline_survives_fork() { pthread_atfork(nullptr, nullptr, &restart); }

int current_stream(int device) noexcept { return t_stream[device]; }

int exchange_stream(int device, int stream) noexcept {
  const int before = t_stream[device];
  t_stream[device] = stream;
  return before;
}

// Round robin over the streams beside the default one, as CUDA's pool does.
int new_stream(int device) noexcept { return 1 + g_streams_given[device].fetch_add(1, std::memory_order_relaxed) % (MGD_MAX_STREAMS - 1); }

void charge(int device, const mgd_work &work) {
  int64_t end;
  check(mgd_clock_run(g_clock, this_thread(), device, t_stream[device], &work, &end));
}

void charge_copy(int from, int to, std::int64_t bytes, bool blocking) {
  if (from == to) return charge(to, {MGD_WORK_ELEMENTWISE, MGD_FLOAT32, 0, 2.0 * static_cast<double>(bytes)});
  int64_t end;
  const int from_stream = from == kHost ? 0 : t_stream[from];
  const int to_stream = to == kHost ? 0 : t_stream[to];
  check(mgd_clock_copy(g_clock, this_thread(), from, from_stream, to, to_stream, bytes, &end));
  if (blocking) host_wait(end);
}

std::int64_t stream_time(int device, int stream) {
  int64_t ns;
  check(mgd_clock_stream_time(g_clock, device, stream, &ns));
  return ns;
}

void stream_wait(int device, int stream, std::int64_t until) { check(mgd_clock_stream_wait(g_clock, device, stream, until)); }

void host_wait(std::int64_t until) { check(mgd_clock_host_wait(g_clock, this_thread(), until)); }

std::int64_t host_time() { return stream_time(kHost, this_thread()); }

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

void link_between(int from, int to, std::int64_t *latency_ns, double *bytes_per_ns) {
  const mgd_link none{0, 0};
  const mgd_link &l = from == to ? none : from == kHost || to == kHost ? g_host_link
                                                                       : g_peer_link;
  *latency_ns = l.latency_ns;
  *bytes_per_ns = l.bytes_per_ns;
}

}  // namespace managed::sim
