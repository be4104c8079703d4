// timeline.h: virtual time: streams, events and links of the simulated devices.
//
// Owns the one clock (csrc/core/clock.c) and each thread's current streams.
// Real time never enters: the same program gives the same times.
#pragma once
#include <c10/core/Stream.h>

#include <cstdint>

#include "../core/core.h"
#include "device.h"

namespace managed::sim {

constexpr int kHost = -1;

void timeline_create(int devices, const mgd_speed &speed, const mgd_link &host, const mgd_link &peer);

// A child of fork() starts at time 0.
void timeline_survives_fork();

// The calling thread's stream on a device: 0 is the default stream.
int current_stream(int device) noexcept;
int exchange_stream(int device, int stream) noexcept;
int new_stream(int device) noexcept;

// One operator on the current stream of the device.
void charge(int device, const mgd_work &work);
// One copy between two places (kHost is the CPU); the host waits for it when `blocking`.
void charge_copy(int from, int to, std::int64_t bytes, bool blocking);

std::int64_t stream_time(int device, int stream);
void stream_wait(int device, int stream, std::int64_t until);
void host_wait(std::int64_t until);  // the calling thread
std::int64_t host_time();  // of the calling thread
std::int64_t elapsed();    // when all that was issued has ended, everywhere
std::int64_t device_time(int device);  // the latest of its streams

// For the bridge: latency and bandwidth between two places.
void link_between(int from, int to, std::int64_t *latency_ns, double *bytes_per_ns);

}  // namespace managed::sim
