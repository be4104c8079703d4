// exposure_table.h: which bytes may change without an operator that the hook sees, because a pointer to them has leaked
// or a plain tensor has them.
//
// Plain tensors count because a managed tensor may come to share their bytes later. exposure.h hands bytes out and
// invalidates their copies. Any thread may call these functions, with the GIL or without it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace managed {

// Whether the program has a reference to the Python object of a tensor or a storage. If it has none, only the tensor or
// the storage itself keeps that object alive, and the program cannot write through it.
bool is_in_program(const c10::impl::PyObjectSlot* slot);

// Whether the program, or more than `known` tensors and copies of tensors, hold the storage.
bool is_held_beyond(c10::StorageImpl* storage, uint32_t known);

// Enters the storage of t into the table: its bytes are handed out now, for good or while the program holds the
// storage.
void note_exposure(const at::Tensor& t, bool for_good);

// Whether the storage's bytes have been handed out for good: a pointer to them has leaked.
bool is_exposed(const c10::StorageImpl* storage);

// Whether the bytes of t may change unseen now. `through`: a view of t that the caller knows of, or undefined.
bool may_change_unseen(const at::Tensor& t, const at::Tensor& through);

// Whether t is plain, the program holds t (if t is a view, its base), and the thread is not in managed.on().
bool is_held_plainly(const at::TensorBase& t);

// Whether operators that do not come to the hook may write the operand: it is plain, or a view of a base that is held
// plainly. Version counters do not show such writes: some operators bump none, and inference tensors have none.
bool is_written_plainly(const at::Tensor& operand);

} // namespace managed
