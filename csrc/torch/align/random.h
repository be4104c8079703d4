// random.h: one stream of random numbers for the managed tensors of all accelerators.
//
// The stream is the default generator of the first accelerator, cuda:0 or sim:0, so torch's own functions seed, save
// and restore it. While an operator draws on another accelerator, the stream replaces the state of that device's
// generator; the state is put back afterwards, and plain tensors go on with it. Operators that draw with a generator of
// the program's choice, or on the CPU, are left alone.
//
// A checkpointed function that runs again in the backward pass (a replay) sets generators that all threads share, so
// replays take turns. These turns are not those of admission.h.
#pragma once
#include <ATen/core/stack.h>

#include <memory>

#include "torch/facts/facts.h"

namespace managed {

// Lends the stream to the device of an operator that draws, for the object's lifetime.
class OneStream {
 public:
  OneStream(const OpFacts& f, const torch::jit::Stack& stack);
  explicit OneStream(c10::Device d); // the operator draws on d
  ~OneStream();
  OneStream(const OneStream&) = delete;
  OneStream& operator=(const OneStream&) = delete;

 private:
  int borrower_; // id of the accelerator that has the stream on loan, or 0
};

// Whether this thread is running a checkpointed function again.
bool is_replaying();

// Suspends this thread's replay, if it has one, for a backward pass that starts inside it: the pass may need threads
// that wait for the turn. The constructor gives the turn back and sets the generators as they were before the replay;
// come_back() takes the turn and the replay's states again. Both throw if a generator refuses its state; the thread has
// its turn then. The destructor calls come_back() if that has not been done, and throws nothing.
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
