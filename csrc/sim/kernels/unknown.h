// unknown.h: what a program gets when it asks a device without values for a value.
//
// It gets 0, and a warning for each line that asks; with simulate(unknown="error") it gets an error instead. A loop
// that waits for a truth value would never end, so asking for one too often (1000 times) on one line is an error too.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace managed::sim {

void set_unknown_is_error(bool yes);

// Returns the number for a tensor of one element whose value is unknown. Warns or throws as described above.
c10::IValue unknown_number(const at::Tensor &t);
// Returns whether the tensors are equal. Tensors of different sizes are known to differ, and the same tensor of
// integers is known to equal itself; anything else warns or throws, and is false.
c10::IValue unknown_equality(const at::Tensor &a, const at::Tensor &b);
// Called when unknown values are copied from a device (-1: from the host, after a spill) to the program, which reads
// zeros. Warns or throws as described above; throws if they are being saved.
void unknown_copy(int device);
// Throws because the shape of a result depends on unknown values.
[[noreturn]] void unknown_form(const std::string &name);

}  // namespace managed::sim
