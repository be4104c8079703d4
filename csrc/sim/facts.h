// facts.h: what the fallback must know about an operator.
//
// Reads it from the schema once per operator, and owns the tables of what
// schemas do not say. Never looks at a tensor.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

namespace managed::sim {

// How to count arithmetic; see cost.cpp.
enum class Flops { none,
                   mm,
                   addmm,
                   mv,
                   addmv,
                   dot,
                   convolution,
                   convolution_backward,
                   attention,
                   attention_backward,
                   rnn_layer,
                   solve,
                   factor };

// For devices without values (values.h): what a call does if its operands are not known.
enum class Unknown : uint8_t {
  form,       // the meta kernel computes the form of the results
  host_form,  // the CPU's kernel runs, without their bytes
  truth,      // like `form`; results are Known::truth if all operands are
  same,       // no kernel runs: written operands keep their form
  finite,     // like `same`; the flag for numbers that are not finite keeps its value
  scalar,     // the program gets the number 0
  equal,      // the program gets False
  nothing,    // throws: the form of the result depends on values
};

// Types that CUDA has a kernel for and the host has none. The host computes in a wider type and rounds, as CUDA does.
enum class Widened : uint8_t { none, integers, halves };

struct OperatorFacts {
  std::string name;                   // "aten::add.Tensor"
  c10::SmallVector<int, 4> written;   // arguments the operator writes
  c10::SmallVector<int, 4> returned;  // per result: the written argument it is, or -1
  int generator = -1;                 // argument that takes a random generator, -1 when none does
  bool may_mix = false;               // accepts CPU operands with dimensions beside simulated ones
  bool has_cpu_kernel = false;        // may go straight to the CPU key
  bool view = false;           // results share the operands' bytes, and none are read
  bool free = false;           // does no work on the device: views, and queries of a tensor's form
  bool waits = false;          // the host needs the values, or how many there are, to go on
  bool whole = false;          // a composite that torch computes differently off the CPU: it runs there in one piece
  bool updates = false;        // reads all that it writes, so those bytes count twice
  bool overwrites = false;     // writes all of its written operands and reads none of them
  Widened widened = Widened::none;
  Unknown unknown = Unknown::form;
  Flops flops = Flops::none;
};

OperatorFacts facts_of(const c10::OperatorHandle &op);

// Returns the full name of an operator, such as "aten::add.Tensor".
std::string full_name(const c10::OperatorName &name);

}  // namespace managed::sim
