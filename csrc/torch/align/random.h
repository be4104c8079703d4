// random.h: one stream of random numbers for the managed tensors of all accelerators.
//
// The stream is the default generator of the first accelerator, cuda:0 or sim:0, so torch's own functions seed, save
// and restore it. An operator that draws on another one finds the stream in the place of its device's generator, whose
// own state waits meanwhile: plain tensors go on with it afterwards. Operators that draw with a generator of the
// program's choice, or on the CPU, are left alone.
//
// A checkpointed function that runs again in the backward pass (a replay) sets generators that all threads share, so
// replays take turns. That turn has nothing to do with admission.h.
#pragma once
#include <ATen/core/stack.h>

#include <memory>

#include "torch/facts/facts.h"

namespace managed {

// Stands around an operator that draws.
class OneStream {
 public:
  OneStream(const OpFacts& f, const torch::jit::Stack& stack);
  explicit OneStream(c10::Device d); // it draws there
  ~OneStream();
  OneStream(const OneStream&) = delete;
  OneStream& operator=(const OneStream&) = delete;

 private:
  int borrower_; // id of the accelerator that has the stream on loan, or 0
};

// Whether this thread is running a checkpointed function again.
bool is_replaying();

// Around a backward pass that starts inside a replay. That pass may need threads which wait for the turn. So this
// thread gives the turn back and sets the generators as they were before the replay; come_back() takes the turn and
// the replay's states again. Both throw when a generator refuses its state; the thread has its turn then. The
// destructor comes back if nothing else has, and throws nothing.
class StepAside {
 public:
  StepAside();
  void come_back();
  ~StepAside();
  StepAside(const StepAside&) = delete;
  StepAside& operator=(const StepAside&) = delete;

 private:
  std::unique_ptr<struct Replay> replay_;
};

} // namespace managed
