// adopt.h: gives storages their handles (storage.h); only bytes of a storage with a handle may leave.
//
// A storage gets its handle when an operator has made it, or later as an operand if something else referred to it then.
// Storages that are too small, are not in a backend's memory, or may be read past the hook by plain tensors get none.
// Any thread may call these functions.
#pragma once
#include "torch/tensor/storage.h"

namespace managed {

// Gives the storage, which has no handle, a handle if it can have one. `fresh`: only this thread knows the storage. If
// not `fresh`, it gets one only if it has one reference: a plain tensor over the same storage could not read bytes that
// have left. `coming`: the copy that brings the bytes of a new storage. If the storage gets a handle, the handle takes
// that copy, and only uses of the bytes wait for it. Otherwise the copy stays the caller's. Throws std::bad_alloc.
void give_handle_slow(c10::StorageImpl* s, bool fresh, CopyPtr* coming = nullptr);
// Does the same for all storages of t that are large enough and have no handle.
inline void give_handle(const at::Tensor& t, bool fresh, CopyPtr* coming = nullptr) {
  if (C10_LIKELY(!handles_enabled.load(std::memory_order_relaxed)) || t.is_cpu()) return;
  each_storage(t, [fresh, coming](c10::StorageImpl* s) {
    if (!is_too_small(s) && !handle_of(s)) give_handle_slow(s, fresh, coming);
  });
}

// Gives the storage of an operand the handle that it could not get when it was made, because something else referred to
// the storage then. Returns the handle, or null if the storage still cannot have one.
StorageHandle* give_operand_handle_slow(const at::Tensor& t, c10::StorageImpl* s);
inline StorageHandle* give_operand_handle(const at::Tensor& t, c10::StorageImpl* s) {
  if (C10_LIKELY(is_too_small(s) || c10::raw::intrusive_ptr::use_count(s) != 1 || t.is_cpu())) return nullptr;
  return give_operand_handle_slow(t, s);
}

// Called when `copy`, which only this thread knows, has been made of t. If t is mapped from a file that holds the same
// bytes, the file becomes the host's copy of the new storage (mgd_handle_map). Never throws.
void keep_map_slow(const at::Tensor& t, const at::Tensor& copy) noexcept;
inline void keep_map(const at::Tensor& t, const at::Tensor& copy) {
  if (t.is_cpu() && t.has_storage() && !t.storage().resizable()) keep_map_slow(t, copy); // torch's own memory is no map
}

} // namespace managed
