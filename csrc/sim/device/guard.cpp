// guard.cpp: torch's view of current devices, streams and events.
//
// Streams are small ids on the virtual clock; an event is a moment on it.
// Kernels have always finished in real time, so waiting only moves virtual time.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "sim/device/register.h"
#include "sim/storage.h"
#include "sim/device/timeline.h"

namespace managed::sim {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

struct Event {
  mgd_moment when{};
  ~Event() { forget(&when); }
};

Event *event(void *p) { return static_cast<Event *>(p); }

int index_of(Device d) { return d.index() < 0 ? current_device() : d.index(); }

Stream stream_at(int device, int id) { return Stream(Stream::UNSAFE, device_at(device), id); }

int id_of(const Stream &s) { return static_cast<int>(s.id()); }

// A program that polls does nothing else that moves the host's time, so a poll that finds work unfinished lets it
// finish for the next one: loops end.
bool poll(int64_t until) {
  if (host_time() >= until) return true;
  host_wait(until);
  return false;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }

  Device getDevice() const override { return {kDevice, static_cast<DeviceIndex>(current_device())}; }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.type() == kDevice, "expected a sim device, got ", d);
    check_device(d.index());
    set_current_device(d.index());
  }
  Device exchangeDevice(Device d) const override {
    const Device before = getDevice();
    setDevice(d);
    return before;
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.index() >= 0) set_current_device(d.index());
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count()); }

  Stream getStream(Device d) const override { return stream_at(index_of(d), current_stream(index_of(d))); }
  Stream getDefaultStream(Device d) const override { return stream_at(index_of(d), 0); }
  Stream getNewStream(Device d, int) const override {
    check_device(index_of(d));
    return stream_at(index_of(d), new_stream(index_of(d)));
  }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
  Stream exchangeStream(Stream s) const override { return stream_at(s.device_index(), exchange_stream(s.device_index(), id_of(s))); }
  void *getStreamNativeHandle(const Stream s) const override { return reinterpret_cast<void *>(s.id()); }

  bool queryStream(const Stream &s) const override { return poll(stream_time(s.device_index(), id_of(s))); }
  void synchronizeStream(const Stream &s) const override { host_wait(stream_time(s.device_index(), id_of(s))); }
  void synchronizeDevice(const DeviceIndex d) const override {
    const int device = d < 0 ? current_device() : d;
    check_device(device);
    host_wait(device_time(device));
  }

  void record(void **e, const Stream &s, const DeviceIndex, const c10::EventFlag) const override {
    if (!*e) *e = new Event;
    managed::sim::record(s.device_index(), id_of(s), &event(*e)->when);
  }
  void block(void *e, const Stream &s) const override {
    if (e) stream_wait(s.device_index(), id_of(s), event(e)->when);
  }
  bool queryEvent(void *e) const override { return !e || poll(moment_time(&event(e)->when)); }
  void synchronizeEvent(void *e) const override {
    if (e) host_wait(moment_time(&event(e)->when));
  }
  double elapsedTime(void *from, void *to, const DeviceIndex) const override {
    TORCH_CHECK(from && to, "Both events must be recorded before calculating elapsed time.");
    return static_cast<double>(moment_time(&event(to)->when) - moment_time(&event(from)->when)) * 1e-6;  // ms
  }
  void destroyEvent(void *e, const DeviceIndex) const noexcept override { delete event(e); }

  void recordDataPtrOnStream(const c10::DataPtr &p, const Stream &s) const override { device_allocator()->recordStream(p, s); }
};

}  // namespace

void register_guard() { c10::impl::DeviceGuardImplRegistrar(kDevice, new Guard); }

}  // namespace managed::sim
