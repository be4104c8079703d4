// generator.cpp: see generator.h.
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "device.h"

namespace managed::sim {
namespace {

struct SimGenerator final : c10::GeneratorImpl {
  at::Generator cpu;

  explicit SimGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(at::detail::createCPUGenerator(c10::default_rng_seed_val)) {}

  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl &state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  SimGenerator *clone_impl() const override {
    auto *copy = new SimGenerator(device_.index());
    copy->cpu = cpu.clone();
    return copy;
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

at::Generator cpu_generator(const at::Generator &g) {
  if (!g.defined() || g.device().type() != kSim) return g;
  return static_cast<SimGenerator *>(g.unsafeGetGeneratorImpl())->cpu;
}

}  // namespace managed::sim
