// registry.h: the table of known devices, which attach.cpp fills and devices.cpp reads.
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "torch/devices/devices.h"

namespace managed {

constexpr int kMaxIndex = 64;

struct Registry {
  std::mutex mutex; // guards discovery and attaching
  struct mgd_machine* machine = nullptr;
  void (*add_accelerators)() = nullptr; // adds those that torch knows to the machine; called once, under the mutex
  std::atomic<bool> discovered{false};
  std::atomic<int> count{1};                            // ids in use, the host included
  std::array<c10::Device, MGD_MAX_DEVICES> devices;     // by id; written before count grows
  std::array<std::atomic<int8_t>, kMaxIndex> cuda, sim; // index -> id, -1 when there is none
  Bridge* bridge = nullptr;                             // the simulator's
  std::atomic<Bridge*> cuda_bridge{nullptr};            // set when its devices are in the machine
  std::atomic<bool> cuda_is_lost{false};                // true in a forked child whose parent used CUDA

  template <std::size_t... I>
  explicit Registry(std::index_sequence<I...>) : devices{((void)I, c10::Device(c10::kCPU))...} {
    for (auto& id : cuda) id = -1;
    for (auto& id : sim) id = -1;
  }
};

Registry& registry(); // defined in devices.cpp, filled by attach.cpp

// Throws c10::Error if `code`, of the core's, is not MGD_OK.
void check(int code, const char* what);

// Free bytes and all bytes, as the device's allocator reports them.
std::pair<int64_t, int64_t> memory_info(c10::Device d);

} // namespace managed
