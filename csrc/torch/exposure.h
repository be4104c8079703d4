// exposure.h: bytes that somebody may write without an operator of ours seeing it.
//
// Copies of such bytes are not kept, and they do not move by themselves: whoever
// holds a pointer would go on writing where they were. Plain tensors count too,
// because a managed tensor may come to share their bytes later.
#pragma once
#include <ATen/core/Tensor.h>

namespace managed {

// A pointer to t's bytes has left (numpy, data_ptr, dlpack, a collective): nobody tells when it is given back.
void expose(const at::Tensor& t);

// The storage of t, or a plain tensor over it, is in other hands, for as long as these hold it.
void lend(const at::Tensor& t);

// The same without bringing them home: they have never left.
void lend_in_place(const at::Tensor& t);

// Whether a pointer to the storage's bytes has left.
bool is_exposed(const c10::StorageImpl* storage);

// Whether bytes may change unseen now. `through`: a view of t that the caller knows of, or undefined.
bool may_change_unseen(const at::Tensor& t, const at::Tensor& through);

// Whether nothing but these tensors, and their gradients, has their bytes, and no two of them share any: they can move
// together, and no tensor is left behind. A view counts with its base, if the program does not hold that.
bool have_bytes_alone(c10::ArrayRef<at::Tensor> tensors);

// Whether t is plain and the program holds it, or the tensor of which it is a view, and the thread is not in
// managed.on().
bool is_held_plainly(const at::TensorBase& t);

// Whether operators that do not come to the hook may write the operand: it is plain, or a view of what is held plainly.
// Version counters do not tell of such writes: some operators bump none, and inference tensors have none.
bool is_written_plainly(const at::Tensor& operand);

} // namespace managed
