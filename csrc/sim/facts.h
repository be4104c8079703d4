// facts.h: what the fallback must know about an operator.
//
// Owns reading it from the schema, once per operator, and the table of what
// schemas do not say. Must never look at a tensor.
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

// Devices without values (values.h): how a call goes on when its operands are not known.
enum class Unknown : uint8_t {
  form,       // the meta kernel tells what results look like
  host_form,  // the CPU's kernel answers, without their bytes
  truth,      // as `form`; and what is true of all operands is true of the result
  same,       // what it writes stays as large as it was
  finite,     // as `same`; and what says whether a number was not finite stays what it is
  scalar,     // the program is told that the number is 0,
  equal,      // or that tensors are not equal
  nothing,    // no result: what it would look like depends on values
};

struct OperatorFacts {
  std::string name;                   // "aten::add.Tensor"
  c10::SmallVector<int, 4> written;   // arguments the operator writes
  c10::SmallVector<int, 4> returned;  // per result: the written argument it is, or -1
  int generator = -1;                 // argument that takes a random generator, -1 when none does
  bool may_mix = false;               // accepts CPU operands with dimensions beside simulated ones
  bool has_cpu_kernel = false;        // may go straight to the CPU key
  bool view = false;           // results share the operands' bytes, and none are read
  bool free = false;           // does no work on the device: views, and questions about a tensor's form
  bool waits = false;          // the host needs the values, or how many there are, to go on
  bool whole = false;          // a composite that torch computes differently off the CPU: it goes there in one piece
  bool updates = false;        // reads all of what it writes, whose bytes pass twice
  bool overwrites = false;     // does not read what it writes, all of which it writes
  Unknown unknown = Unknown::form;
  Flops flops = Flops::none;
};

OperatorFacts facts_of(const c10::OperatorHandle &op);

// "aten::add.Tensor" of an operator's name.
std::string full_name(const c10::OperatorName &name);

}  // namespace managed::sim
