// timeline.h: virtual time: streams, events and links of the simulated devices.
//
// Owns the one clock (csrc/clock/clock.c) and each thread's current streams.
// No real clock is read: the same program gives the same times.
#pragma once
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>

#include "clock/clock.h"
#include "sim/device.h"

namespace managed::sim {

constexpr int kHost = -1;

// How the devices are connected. Copies share the lanes of a card and the uplink of the switch that it is behind.
struct Wiring {
  mgd_link host, peer;  // between a device and the host; between two devices
  int devices_per_switch;
  bool peers_over_host;  // devices have no links of their own and copy over their lanes to the host
  double all_bytes_per_ns;  // what all copies of the machine share, in all directions; 0: no limit
};

// `repeatable`: operators of a backward pass are charged to the engine's device threads, although the pass runs in the
// thread that calls it, and the interpreter's lock takes no time.
void timeline_create(int devices, const mgd_speed &speed, const Wiring &wiring, bool repeatable);

// A child of fork() starts at time 0 and calls take_bytes(), which tells the new clock which bytes are in use.
void timeline_survives_fork(void (*take_bytes)());

// The calling thread's stream on a device: 0 is the default stream.
int current_stream(int device) noexcept;
int exchange_stream(int device, int stream) noexcept;
int new_stream(int device) noexcept;
// Bit i is set if a thread has used stream i; bit 0 always is.
std::uint64_t streams_in_use(int device) noexcept;

// Returns the stream of asynchronous copies of that way and urgency. Operands have one for each device at the other
// end. new_stream() returns none of these.
enum class Way { In, Out };
int copy_stream(Way way, Urgency urgency, int other = kHost) noexcept;

// While it lives, allocations of this thread belong to that stream instead of the current one.
class TakenBy {
 public:
  explicit TakenBy(int stream) noexcept;
  ~TakenBy();
  TakenBy(const TakenBy &) = delete;
  TakenBy &operator=(const TakenBy &) = delete;

 private:
  int before_;
};
int taking_stream(int device) noexcept;

// Returns the name of an operator for a log, which lives for ever; null while there is no log.
const char *log_name(const std::string &name);
void start_log();
// Returns what happened since then. The caller frees it with mgd_clock_profile_free().
void stop_log(mgd_span **spans, std::size_t *count);
std::uint64_t last_copy();  // the number of the copy that this thread issued last

// Runs one operator on the current stream of the device.
void charge(int device, const mgd_work &work);
// From now on each operator of this thread takes `ns`, or the launch time if that is more; -1: the time of its work.
// Returns the previous setting.
std::int64_t exchange_duration(std::int64_t ns) noexcept;
// Runs one copy between two places (kHost is the CPU). The calling thread waits for it if `blocking`.
void charge_copy(int from, int to, std::int64_t bytes, bool blocking, const char *name = nullptr);
// Runs such a copy on the given streams. No thread waits.
void charge_copy_on(int from, int from_stream, int to, int to_stream, std::int64_t bytes, const char *name);

std::int64_t stream_time(int device, int stream);
void host_wait(std::int64_t until);  // the calling thread
std::int64_t host_time();  // the calling thread's
std::int64_t elapsed();    // when all that was issued has ended, everywhere
std::int64_t device_time(int device);  // the latest of its streams
std::int64_t worked(int device);  // the time of all operators that were issued
std::int64_t busy_time(int from, int to);  // of a link; from == to: of the device's operators

// Moments for events. record(): *m is the end of what the stream holds now, and not before the thread's time.
void record(int device, int stream, mgd_moment *m);
void forget(mgd_moment *m) noexcept;
void stream_wait(int device, int stream, const mgd_moment &m);
std::int64_t moment_time(mgd_moment *m);
// *m is the end of what the stream holds, whatever the thread's time. It takes no place in the stream.
void note_end(int device, int stream, mgd_moment *m);

// While it lives, what this thread records or notes of a stream is that time instead of the stream's end.
class EndsAt {
 public:
  explicit EndsAt(std::int64_t ns) noexcept;
  ~EndsAt();
  static void no_more() noexcept;  // ends the thread's innermost one early
  EndsAt(const EndsAt &) = delete;
  EndsAt &operator=(const EndsAt &) = delete;

 private:
  const std::int64_t before_;
};

// Bytes on the clock. They stay in use until their streams have finished what these hold at give_bytes().
void set_clock_capacity(int device, std::size_t bytes);
mgd_hold *take_bytes(int device, int stream, std::size_t bytes);
void give_bytes(mgd_hold *hold, const mgd_moment *after) noexcept;  // not before `after`, if it is not null
// The stream holds them instead of the stream that took them; `alone`: and instead of all other streams that used them.
void hand_over_bytes(mgd_hold *hold, int stream, bool alone) noexcept;
// Whether a thread has ever used a stream beside the default one. Only then several streams can use the same bytes.
bool has_side_streams() noexcept;
// For tests. start_audit() begins to record; check_audit() returns the most bytes in use at one time since then, and
// throws if the device has less.
void start_audit();
std::int64_t check_audit(int device);

// Finds latency and bandwidth between two places, for the bridge.
void link_between(int from, int to, std::int64_t *latency_ns, double *bytes_per_ns);
// Finds the buses to the host, for the bridge: those of switches, and then that of all copies.
bool host_bus(int number, mgd_mask *devices, double *bytes_per_ns);

}  // namespace managed::sim
