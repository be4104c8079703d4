// device.h: the simulated devices and their bytes.
//
// Owns: how many devices there are, what each may hold, what it holds now, and
// the text of the error when it is full. Must never hold a device's lock while
// it calls the managed hook, and never touches a tensor.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "clock/clock.h"
#include "torch/devices/bridge.h"
#include "sim/backend.h"

struct mgd_hold;

namespace managed::sim {

constexpr int kMaxDevices = 16;

// Bytes taken from a device for as long as the object lives. Living
// reservations of a device form a list, so that an out-of-memory error can say
// who is large. Never moved: the list holds its address.
class Reservation {
 public:
  // Throws c10::OutOfMemoryError when the device is full and the managed hook
  // could make no room.
  Reservation(int device, std::size_t bytes);
  ~Reservation();
  Reservation(const Reservation &) = delete;
  Reservation &operator=(const Reservation &) = delete;

  int device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  // An operator uses the bytes on that stream.
  void used_on(int stream) const;
  // On the clock: another stream has the bytes now; when they are given up, they wait for the moment.
  void hand_over(int stream, bool alone) const;
  void stay_until(std::shared_ptr<const mgd_moment> end) { end_ = std::move(end); }
  void belongs_to(mgd_hold_owner owner) const;
  // What the stream got last writes the bytes. Null: nobody has said so yet.
  void written_by(int stream);
  const mgd_moment *written() const { return is_written_ ? &written_ : nullptr; }
  const Reservation *next() const { return next_; }

 private:
  friend struct Device;
  int device_;
  std::size_t bytes_;
  mgd_hold *hold_ = nullptr;  // the same bytes on the clock
  std::shared_ptr<const mgd_moment> end_;  // they are not given up before
  mgd_moment written_{};
  bool is_written_ = false;
  Reservation *previous_ = nullptr;
  Reservation *next_ = nullptr;
};

struct Memory {
  std::size_t capacity, used, peak, limit; // the limit is at most the capacity
};

// Called once, before anything else here; `capacities` holds `count` sizes.
void devices_create(int count, const std::size_t *capacities);
int device_count() noexcept;

// The calling thread's device. Autograd's threads and user threads each have one.
int current_device() noexcept;
void set_current_device(int device) noexcept;
// Throws unless 0 <= device < device_count().
void check_device(int device);

Memory memory_of(int device);
// Below what is in use is allowed: nothing is freed, nothing more fits.
void set_capacity(int device, std::size_t bytes);
// What a program may use of it; at first all.
void set_limit(int device, std::size_t bytes);
void reset_peak(int device);
void reset_accumulated(int device);
c10::CachingDeviceAllocator::DeviceStats stats_of(int device);

// The hook's and the simulator's function pointers; exported as a capsule.
Bridge &bridge() noexcept;

// The clock is a new one: it is told of the bytes that are in use.
void take_bytes_again();
// A child of fork() inherits devices whose locks other threads may have held.
void devices_survive_fork();

}  // namespace managed::sim
