// engine.cpp: see engine.h.
#include "sim/device/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>

#include "sim/backend.h"

namespace managed::sim {
namespace {

using torch::autograd::Engine;

// Seconds to wait: a device thread may be stuck in a hook of the program for ever.
// torch's engine waits for its threads at exit and lets the same variable say how long.
double patience() {
  const char *limit = std::getenv("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT");
  return limit ? std::atof(limit) : 10.0;
}

// The engine's members are protected; a pointer to member taken through a
// derived struct is the legal way in.
struct EngineAccess : Engine {
  // The pool for re-entrant passes is the first thing the first pass makes, on
  // every build; the device queues stay empty if there is no device.
  static constexpr auto pool = &EngineAccess::thread_pool_shared_;
  static constexpr auto queues = &EngineAccess::device_ready_queues_;
};

// One gradient through the device's thread. Its queue is served in order, so
// the thread has left everything before it when this returns.
void visit(int device) {
  at::AutoGradMode grad(true);
  const at::TensorOptions options = at::TensorOptions().device(device_at(device));
  at::Tensor x = at::ones({}, options).set_requires_grad(true);
  at::Tensor y = x.alias();
  torch::autograd::edge_list roots{torch::autograd::impl::gradient_edge(y)};
  Engine::get_default_engine().execute(roots, {at::ones({}, options)}, false, false, true);
}

}  // namespace

bool engine_started() { return Engine::get_default_engine().*EngineAccess::pool != nullptr; }

bool in_backward() noexcept { return torch::autograd::get_current_graph_task_id() >= 0; }

namespace {

void visit_all(int threads) noexcept {
  for (int i = 0; i < threads; i++) {
    try {
      visit(i);
    } catch (...) {  // a full device, or a child of fork(): nothing can be done at exit, and nothing must be printed
    }
  }
}

}  // namespace

void park_engine_threads(int devices) noexcept try {
  const auto queues = (Engine::get_default_engine().*EngineAccess::queues).size();
  const int threads = std::min(devices, static_cast<int>(queues));
  if (threads == 0) return;
  // On a thread of its own, so that none of the caller's thread-local state (which may
  // hold Python objects) travels to the engine, and so that the wait can end.
  auto done = std::make_shared<std::promise<void>>();
  auto arrived = done->get_future();
  std::thread([done, threads] {
    visit_all(threads);
    done->set_value();
  }).detach();
  arrived.wait_for(std::chrono::duration<double>(patience()));
} catch (...) {  // no thread to be had: leave as torch would
}

}  // namespace managed::sim
