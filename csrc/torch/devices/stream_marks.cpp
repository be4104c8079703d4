// stream_marks.cpp: see stream_marks.h.
#include "torch/devices/stream_marks.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "torch/devices/devices.h"
#include "torch/threads/forks.h"

namespace managed {

std::array<std::atomic<uint64_t>, MGD_MAX_DEVICES> points_begun{};

namespace {

constexpr uint32_t kEvery = 16; // operators
constexpr uint64_t kKept = 64;  // points of a device; the later ones serve for what lies before the earlier ones

struct Line {
  std::atomic<uint32_t> passed{0};
  std::array<PointPtr, kKept> points; // by number; null: the backend made none
};

struct Points {
  std::mutex mutex; // a leaf; guards the points
  std::array<Line, MGD_MAX_DEVICES> lines;
};

std::mutex& points_mutex();
Points& points() {
  static auto* all = [] {
    survive_fork<points_mutex>();
    return new Points; // never destroyed: tensors may outlive static destructors
  }();
  return *all;
}
std::mutex& points_mutex() { return points().mutex; }
const MadeAtStart points_at_start([] { points(); });

} // namespace

// The lock is not held while the backend makes the point. Meanwhile its slot is empty, so that the earlier point of the
// slot is not taken for it. If other threads have made so many points meanwhile that the slot is theirs, the point is
// dropped.
void pass_by(int device) noexcept {
  const auto at = static_cast<std::size_t>(device);
  Line& line = points().lines[at];
  if (C10_LIKELY(line.passed.fetch_add(1, std::memory_order_relaxed) % kEvery != 0)) return;
  const c10::Device d = device_of(device);
  const Bridge* backend = backend_of(d.type());
  if (!backend || !backend->point) return;
  PointPtr before, made; // destroyed outside of the locks
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(points().mutex);
    number = ++points_begun[at];
    before.swap(line.points[number % kKept]);
  }
  try {
    made = backend->point(d.index());
  } catch (const std::exception&) { // an earlier kernel has failed, and every call reports that
  }
  std::lock_guard<std::mutex> lock(points().mutex);
  if (points_begun[at] < number + kKept) made.swap(line.points[number % kKept]);
}

PointPtr point_after(int device, uint64_t begun) {
  const auto at = static_cast<std::size_t>(device);
  std::lock_guard<std::mutex> lock(points().mutex);
  const uint64_t made = points_begun[at];
  for (uint64_t n = std::max(begun, made - std::min(made, kKept)) + 1; n <= made; n++)
    if (const PointPtr& point = points().lines[at].points[n % kKept]) return point;
  return nullptr;
}


void forget_points() {
  for (Line& line : points().lines)
    for (PointPtr& point : line.points) new (&point) PointPtr; // not destroyed: its device does not exist here
}

} // namespace managed
