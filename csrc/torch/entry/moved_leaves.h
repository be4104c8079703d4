// moved_leaves.h: gradients of leaves that have moved since their graphs were made.
//
// A graph from before a move holds an accumulator that is the leaf's no more (move.cpp), and the engine is asked for
// leaves by their accumulators. So the earlier ones are asked for as well, and what they give is added.
#pragma once
#include <torch/csrc/utils/object_ptr.h>

#include <utility>
#include <vector>

#include "torch/facts/compat.h"

namespace managed {

// Returns the edge to a node as a torch.autograd.graph.GradientEdge; null with a Python exception set.
PyObject* object_of_edge(const NodePtr& node);

// The inputs of one call of torch's run_backward. The GIL must be held.
class MovedLeaves {
 public:
  // Returns the arguments with the earlier accumulators behind the inputs; null with a Python exception set.
  PyObject* with_earlier(PyObject* args);
  // Returns what the call has returned, with the gradients of each leaf added and on its device, where `bring` brings
  // them. Takes over the reference, which may be null.
  PyObject* with_sums(PyObject* results, PyObject* (*bring)(PyObject* gradient, c10::Device home));

 private:
  int add_earlier(Py_ssize_t leaf, PyObject* inputs);

  THPObjectPtr inputs_;                 // the program's
  std::vector<Py_ssize_t> leaf_of_;     // the index of the leaf of each further input
  bool allows_unused_ = true;
};

} // namespace managed
