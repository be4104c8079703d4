// timeline.h: virtual time: streams, events and links of the simulated devices.
//
// Owns the one clock (csrc/clock/clock.c) and each thread's current streams.
// Real time never enters: the same program gives the same times.
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
  bool peers_over_host;  // no links of their own: they talk over the lanes to the host
  double all_bytes_per_ns;  // what all copies of the machine share, in all directions; 0: nothing
};

// `repeatable`: what the engine's device threads would issue counts as theirs, although backward passes run in the
// thread that calls them. The threads share no interpreter's lock then.
void timeline_create(int devices, const mgd_speed &speed, const Wiring &wiring, bool repeatable);

// A child of fork() starts at time 0 and calls take_bytes(), which tells the clock of the bytes that it has inherited.
void timeline_survives_fork(void (*take_bytes)());

// The calling thread's stream on a device: 0 is the default stream.
int current_stream(int device) noexcept;
int exchange_stream(int device, int stream) noexcept;
int new_stream(int device) noexcept;
// Bit i: a thread has worked on stream i.
std::uint64_t streams_in_use(int device) noexcept;

// The streams of copies that nobody waits for, which no program gets.
enum class Way { In, Out };
int copy_stream(Way way, Urgency urgency) noexcept;

// While it lives, what this thread allocates is taken by that stream and not by the current one.
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

// What a log calls an operator; null while there is none.
const char *log_name(const std::string &name);
void start_log();
// Gives what happened since then, to be freed with mgd_clock_profile_free().
void stop_log(mgd_span **spans, std::size_t *count);
std::uint64_t last_copy();  // the number of the copy that this thread issued last

// One operator on the current stream of the device.
void charge(int device, const mgd_work &work);
// From now on each operator of this thread takes so many ns (and the launch at least), whatever it does; -1: what its work
// takes. Returns what was said before.
std::int64_t exchange_duration(std::int64_t ns) noexcept;
// One copy between two places (kHost is the CPU); the host waits for it when `blocking`.
void charge_copy(int from, int to, std::int64_t bytes, bool blocking, const char *name = nullptr);
// The same on the streams that it names; nobody waits.
void charge_copy_on(int from, int from_stream, int to, int to_stream, std::int64_t bytes, const char *name);

std::int64_t stream_time(int device, int stream);
void host_wait(std::int64_t until);  // the calling thread
std::int64_t host_time();  // of the calling thread
std::int64_t elapsed();    // when all that was issued has ended, everywhere
std::int64_t device_time(int device);  // the latest of its streams
std::int64_t worked(int device);  // what all operators take that were issued
std::int64_t busy_time(int from, int to);  // of a link; of a device with itself: of its operators

// Marks of events: what the stream holds now, and not before the thread's time.
void record(int device, int stream, mgd_moment *m);
void forget(mgd_moment *m) noexcept;
void stream_wait(int device, int stream, const mgd_moment &m);
std::int64_t moment_time(mgd_moment *m);
// The end of what the stream holds, as a mark that takes no place in it.
void note_end(int device, int stream, mgd_moment *m);

// Bytes on the clock, which are used until the streams have come to where they are when they are given up.
void set_clock_capacity(int device, std::size_t bytes);
mgd_hold *take_bytes(int device, int stream, std::size_t bytes);
void give_bytes(mgd_hold *hold, const mgd_moment *after) noexcept;  // not before `after`, if it is not null
// The stream has them in the place of the one that took them; `alone`: and of all others that used them.
void hand_over_bytes(mgd_hold *hold, int stream, bool alone) noexcept;
// Whether a thread has ever worked on another stream than the default one: only then bytes can be used on several.
bool has_side_streams() noexcept;
// For tests: from now on, or what was most since then. Throws if it was more than the device has.
void start_audit();
std::int64_t check_audit(int device);

// For the bridge: latency and bandwidth between two places.
void link_between(int from, int to, std::int64_t *latency_ns, double *bytes_per_ns);

}  // namespace managed::sim
