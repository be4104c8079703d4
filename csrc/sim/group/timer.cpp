// timer.cpp: gives DistributedDataParallel virtual times for the figures that it logs. Without a timer for its device,
// torch prints a warning instead.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <memory>
#include <optional>

#include "sim/device/timeline.h"
#include "sim/operators.h"

namespace managed::sim {
namespace {

class VirtualTimer final : public c10d::Timer {
 public:
  explicit VirtualTimer(c10::Device device) : device_(device.index()) {}
  ~VirtualTimer() override {
    for (mgd_moment &m : moments_) forget(&m);
  }

  void record(Event event) override {
    getTimeRef(event) = host_time();
    managed::sim::record(device_, current_stream(device_), &moment(event));
  }
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (!getTimestamp(start) || !getTimestamp(end)) return std::nullopt;
    const int64_t ns = moment_time(&moment(end)) - moment_time(&moment(start));
    return ns < 0 ? std::nullopt : std::optional<int64_t>(ns); // as torch's own: the two are of different passes
  }

 private:
  mgd_moment &moment(Event event) { return moments_[static_cast<std::size_t>(event)]; }

  const int device_;
  std::array<mgd_moment, 5> moments_{};
};

}  // namespace

void register_timer() {
  c10d::TimerRegistry()->Register(kDevice, [](c10::Device device) -> std::unique_ptr<c10d::Timer> {
    return std::make_unique<VirtualTimer>(device);
  });
}

}  // namespace managed::sim
