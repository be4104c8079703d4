// device.h: the simulated devices and their bytes.
//
// Owns the number of devices, the capacity and use of each, and the text of the
// error when one is full. Never holds a device's lock while it calls the managed
// hook, and never touches a tensor.
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

// Holds bytes of a device for as long as it lives. The reservations of a device
// form a list, so that an out-of-memory error can name the largest size. A
// reservation is never moved: the list holds its address.
class Reservation {
 public:
  // Bytes of a tensor. Throws c10::OutOfMemoryError when the device is full and the managed hook
  // could make no room.
  Reservation(int device, std::size_t bytes);
  // Bytes of another library, which no limit bounds and for which nothing leaves. Throws std::bad_alloc without room.
  enum class Foreign {};
  Reservation(Foreign tag, int device, std::size_t bytes);
  ~Reservation();
  Reservation(const Reservation &) = delete;
  Reservation &operator=(const Reservation &) = delete;

  int device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  bool is_foreign() const { return is_foreign_; }
  // Records that an operator uses the bytes on that stream.
  void used_on(int stream) const;
  // These concern the clock. hand_over(): another stream holds the bytes now (storage.h). stay_until(): the bytes are
  // not free before `end`. belongs_to(): their owner, for a profile.
  void hand_over(int stream, bool alone) const;
  void stay_until(std::shared_ptr<const mgd_moment> end) { end_ = std::move(end); }
  void belongs_to(mgd_hold_owner owner) const;
  // The newest operation on the stream writes the bytes. written() is null if no write is recorded.
  void written_by(int stream);
  const mgd_moment *written() const { return is_written_ ? &written_ : nullptr; }
  const Reservation *next() const { return next_; }

 private:
  friend struct Device;
  void take_time();

  int device_;
  std::size_t bytes_;
  bool is_foreign_ = false;
  mgd_hold *hold_ = nullptr;  // the same bytes on the clock
  std::shared_ptr<const mgd_moment> end_;  // the bytes are not free before it
  mgd_moment written_{};
  bool is_written_ = false;
  Reservation *previous_ = nullptr;
  Reservation *next_ = nullptr;
};

// used, peak: bytes of tensors. foreign: of other libraries. room: what a tensor could get; a limit counts tensors
// alone.
struct Memory {
  std::size_t capacity, used, peak, foreign, room;
};

// Must be called once, before anything else here; `capacities` holds `count` sizes.
void devices_create(int count, const std::size_t *capacities);
int device_count() noexcept;

// Gets or sets the calling thread's device. Each thread, also of autograd, has its own.
int current_device() noexcept;
void set_current_device(int device) noexcept;
// Throws unless 0 <= device < device_count().
void check_device(int device);

Memory memory_of(int device);
// A capacity below what is in use is allowed: nothing is freed, and nothing more fits.
void set_capacity(int device, std::size_t bytes);
// Sets how much of the device tensors may use; at first it is all.
void set_limit(int device, std::size_t bytes);
void reset_peak(int device);
void reset_accumulated(int device);
c10::CachingDeviceAllocator::DeviceStats stats_of(int device);

// Returns the function pointers of the hook and the simulator; a capsule exports them.
Bridge &bridge() noexcept;

// Tells a new clock which bytes are in use.
void take_bytes_again();
// Installs handlers for fork(), so that a child inherits no lock that another thread holds.
void devices_survive_fork();

}  // namespace managed::sim
