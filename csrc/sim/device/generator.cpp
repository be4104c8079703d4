// generator.cpp: see generator.h.
#include "sim/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <utility>
#include <vector>

#include "sim/device.h"

namespace managed::sim {
namespace {

struct SimGenerator final : c10::GeneratorImpl {
  at::Generator cpu;

  explicit SimGenerator(c10::DeviceIndex device) : SimGenerator(device, at::detail::createCPUGenerator(c10::default_rng_seed_val)) {}
  SimGenerator(c10::DeviceIndex device, at::Generator inside)
      : GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu(std::move(inside)) {}

  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl &state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  SimGenerator *clone_impl() const override { return new SimGenerator(device_.index(), cpu.clone()); }
  // Like CUDA's, this returns the state itself, which two generators then share.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override { return c10::make_intrusive<SimGenerator>(device_.index(), cpu); }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl> &state) override {
    const auto *other = dynamic_cast<const SimGenerator *>(state.get());
    TORCH_CHECK(other, "expected a generator of a simulated device");
    cpu = other->cpu;
  }
};

}  // namespace

const at::Generator &default_generator(int device) {
  static const auto *const all = [] {
    auto *v = new std::vector<at::Generator>;
    for (int i = 0; i < kMaxDevices; i++) v->push_back(at::make_generator<SimGenerator>(static_cast<c10::DeviceIndex>(i)));
    return v;
  }();
  const int chosen = device < 0 ? current_device() : device;
  check_device(chosen);
  return (*all)[static_cast<size_t>(chosen)];
}

at::Generator new_generator(int device) {
  const int chosen = device < 0 ? current_device() : device;
  check_device(chosen);
  return at::make_generator<SimGenerator>(static_cast<c10::DeviceIndex>(chosen));
}

at::Generator cpu_generator(const at::Generator &g, std::shared_ptr<void> &) {
  if (!g.defined() || g.device().type() != kDevice) return g;
  auto *sim = static_cast<SimGenerator *>(g.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(sim->mutex_);  // another thread may be exchanging the state
  return sim->cpu;
}

}  // namespace managed::sim
