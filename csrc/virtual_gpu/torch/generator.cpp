// generator.cpp: see ../sim/generator.h. CUDA's generators, whose numbers are the CPU's.
//
// A generator of CUDA's is a seed and an offset, and torch's own functions read and set both. The CPU's numbers for
// the seed are drawn, and the offset says how many were: so a state that was taken, set, sent to another process or
// shared by several generators governs what comes, and equal seeds give the numbers of the CPU. The state of the
// CPU's engine is determined by the seed and the number of draws, so the last few engines are kept for all
// generators; a missing one is made from the seed and wound to its place.
#include "sim/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <deque>
#include <map>
#include <mutex>

#include "sim/device.h"

namespace managed::sim {
namespace {

constexpr int64_t kBlock = at::MERSENNE_STATE_N;  // numbers that the engine makes at once
constexpr size_t kKept = 16;                      // engines; a program uses few generators at a time
constexpr size_t kHalves = 1 << 16;

// Normal numbers come in pairs; the second of a pair may wait for its use.
struct Halves {
  std::optional<float> single;
  std::optional<double> full;
};

// A seed and an offset: 16 for each draw, 8 and 4 when a half waits. Torch wants multiples of 4.
using Place = std::pair<uint64_t, uint64_t>;

uint64_t offset_of(int64_t draws, const Halves &h) { return static_cast<uint64_t>(draws) * 16 + (h.full ? 8 : 0) + (h.single ? 4 : 0); }
int64_t draws_of(uint64_t offset) { return static_cast<int64_t>(offset / 16); }

// Moves an engine to its next block, of which one number is given.
void next_block(at::mt19937 &engine) {
  auto d = engine.data();
  d.left_ = 1;
  engine.set_data(d);
  engine();
}

// Numbers of its block that an engine has given; a fresh one has none to give.
int64_t given(const at::mt19937_data_pod &d) { return d.next_ ? d.next_ : kBlock; }

int64_t draws_between(at::mt19937 from, const at::mt19937_data_pod &to) {
  int64_t draws = given(to) - given(from.data());
  for (; from.data().state_ != to.state_; draws += kBlock) next_block(from);
  return draws;
}

at::mt19937 wound(uint64_t seed, int64_t draws) {
  at::mt19937 engine(seed);
  if (draws == 0) return engine;
  for (; draws > kBlock; draws -= kBlock) next_block(engine);
  next_block(engine);
  auto d = engine.data();
  d.next_ = static_cast<uint32_t>(draws);
  d.left_ = static_cast<int>(kBlock - draws + 1);
  engine.set_data(d);
  return engine;
}

// What is known of places; its lock is the last that is taken.
class Engines {
 public:
  at::mt19937 engine(const Place &p) {
    {
      std::lock_guard<std::mutex> held(lock_);
      for (const auto &[place, engine] : engines_)
        if (place == p) return engine;
    }
    return wound(p.first, draws_of(p.second));
  }
  Halves halves(const Place &p) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = halves_.find(p);
    return found == halves_.end() ? Halves{} : found->second;
  }
  void keep(const Place &p, const at::mt19937 &engine, const Halves &h) {
    std::lock_guard<std::mutex> held(lock_);
    engines_.emplace_front(p, engine);
    if (engines_.size() > kKept) engines_.pop_back();
    if (!h.single && !h.full) return;
    if (halves_.size() >= kHalves) halves_.clear();
    halves_[p] = h;
  }

 private:
  std::mutex lock_;
  std::deque<std::pair<Place, at::mt19937>> engines_;  // the newest first
  std::map<Place, Halves> halves_;
};

Engines &engines() {
  static auto *const all = new Engines;
  return *all;
}

// Lets one operator draw from a generator, and no other operator meanwhile.
class Lease {
 public:
  explicit Lease(const at::Generator &g)
      : device_(g),
        held_(device_.mutex()),
        place_(g.current_seed(), g.get_offset()),
        start_(engines().engine(place_)),
        cpu_(at::detail::createCPUGenerator(place_.first)) {
    const Halves h = engines().halves(place_);
    inside()->set_engine(start_);
    inside()->set_next_float_normal_sample(h.single);
    inside()->set_next_double_normal_sample(h.full);
  }
  ~Lease() {
    const auto end = inside()->engine();
    const Halves h{inside()->next_float_normal_sample(), inside()->next_double_normal_sample()};
    place_.second = offset_of(draws_of(place_.second) + draws_between(start_, end.data()), h);
    engines().keep(place_, end, h);
    device_.set_offset(place_.second);
  }
  Lease(const Lease &) = delete;
  Lease &operator=(const Lease &) = delete;
  const at::Generator &cpu() const { return cpu_; }

 private:
  at::CPUGeneratorImpl *inside() { return static_cast<at::CPUGeneratorImpl *>(cpu_.unsafeGetGeneratorImpl()); }

  at::Generator device_;
  std::unique_lock<std::mutex> held_;
  Place place_;
  at::mt19937 start_;
  at::Generator cpu_;
};

}  // namespace

const at::Generator &default_generator(int device) { return at::globalContext().defaultGenerator(device_at(device < 0 ? current_device() : device)); }

at::Generator cpu_generator(const at::Generator &g, std::shared_ptr<void> &lease) {
  if (!g.defined() || g.device().type() != kDevice) return g;
  auto own = std::make_shared<Lease>(g);
  lease = own;
  return own->cpu();
}

}  // namespace managed::sim
