// exposure.h: hands bytes out to what writes them without an operator that the hook sees.
//
// Copies of such bytes are not kept, and they do not move by themselves: a pointer that has left would go on writing to
// the old place. Which bytes these are is in exposure_table.h.
#pragma once
#include <ATen/core/Tensor.h>

namespace managed {

// A pointer to t's bytes leaves (numpy, data_ptr, dlpack, a collective), and its end is unknown: the bytes come home
// and stay there. This thread waits for copies of the bytes that have not ended.
void expose(const at::Tensor& t);

// The program, or a plain tensor, gets the storage of t: its bytes come home and stay there for as long as these hold
// it.
void lend(const at::Tensor& t);

// The same for bytes that are at home.
void lend_in_place(const at::Tensor& t);

// Whether nothing but these tensors, and their gradients, has their bytes, and no two of them share any: they can move
// together, and no tensor is left behind. A view counts with its base, if the program does not hold that.
bool have_bytes_alone(c10::ArrayRef<at::Tensor> tensors);

} // namespace managed
