// unknown.h: what a program hears that asks a device without values for one.
//
// It goes on with 0, and a warning tells so at each place that asks, unless simulate(unknown="error") was said: then that
// is an error. A loop that waits for a truth value would never end, so asking for one too often at one place is one, too.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace managed::sim {

void set_unknown_is_error(bool yes);

// The number in a tensor of one element whose value is unknown. Throws as said above.
c10::IValue unknown_number(const at::Tensor &t);
// Whether the tensors are equal: only those that are one tensor are known to be.
c10::IValue unknown_equality(const at::Tensor &a, const at::Tensor &b);
// Unknown values go from a device (-1: from the host, where they had been spilled) to the program, which will find zeros.
void unknown_copy(int device);
// The shape of a result depends on unknown values.
[[noreturn]] void unknown_form(const std::string &name);

}  // namespace managed::sim
