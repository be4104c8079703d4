// exposure.h: hands bytes out to code that writes them without an operator that the hook sees.
//
// Copies of such bytes are not kept, and the bytes do not move by themselves: a leaked pointer would go on writing to
// the old place. exposure_table.h keeps the list of these bytes.
#pragma once
#include <ATen/core/Tensor.h>

namespace managed {

// Brings t's bytes home and keeps them there for good: a pointer to them leaks (numpy, data_ptr, dlpack, a collective),
// and how long it is used is unknown. This thread waits for unfinished copies of the bytes.
void expose(const at::Tensor& t);

// Brings t's bytes home and keeps them there while the program, or a plain tensor, holds t's storage.
void lend(const at::Tensor& t);

// Does the same for bytes that are already at home.
void lend_in_place(const at::Tensor& t);

// Whether only these tensors and their gradients refer to their bytes, and no two of them share any. Then they can move
// together, and no tensor is left behind. The base of a view may refer to them too, unless the program holds the base.
bool have_bytes_alone(c10::ArrayRef<at::Tensor> tensors);

} // namespace managed
