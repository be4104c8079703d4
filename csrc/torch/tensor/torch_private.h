// torch_private.h: the private members of torch's DataPtr and StorageImpl that managed reads and writes.
//
// A storage's handle is the context of its DataPtr, and a storage whose bytes are away is made unreadable: torch has no
// public functions for either. If torch renames a member, the explicit instantiations here no longer compile.
#pragma once
#include <c10/core/StorageImpl.h>

#include <memory>

#include "torch/facts/compat.h"

namespace managed {

// One tag for each member. An explicit instantiation may name a private member, so it can define a function that
// returns the pointer to it: object.*private_member(members::Pointer{}) is the member.
namespace members {
template <class Tag, typename Tag::type member>
struct Reach {
  friend typename Tag::type private_member(Tag) { return member; }
};
struct Pointer {
  using type = c10::detail::UniqueVoidPtr c10::DataPtr::*;
  friend type private_member(Pointer);
};
template struct Reach<Pointer, &c10::DataPtr::ptr_>;
struct Data {
  using type = void* c10::detail::UniqueVoidPtr::*;
  friend type private_member(Data);
};
template struct Reach<Data, &c10::detail::UniqueVoidPtr::data_>;
struct Context {
  using type = std::unique_ptr<void, c10::DeleterFnPtr> c10::detail::UniqueVoidPtr::*;
  friend type private_member(Context);
};
template struct Reach<Context, &c10::detail::UniqueVoidPtr::ctx_>;
struct ThrowsOnRead {
  using type = bool c10::StorageImpl::*;
  friend type private_member(ThrowsOnRead);
};
template struct Reach<ThrowsOnRead, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
struct ChecksOnWrite {
  using type = bool c10::StorageImpl::*;
  friend type private_member(ChecksOnWrite);
};
template struct Reach<ChecksOnWrite, &c10::StorageImpl::has_mutable_data_ptr_check_>;
struct Bytes { // sym_nbytes() returns a copy, which costs more than reading the member
  using type = c10::SymInt c10::StorageImpl::*;
  friend type private_member(Bytes);
};
template struct Reach<Bytes, &c10::StorageImpl::size_bytes_>;
} // namespace members

// Changes only the address: context, deleter and device stay.
inline void set_pointer(c10::DataPtr& p, void* data) {
  (p.*private_member(members::Pointer{})).*private_member(members::Data{}) = data;
}

// Makes each access to the storage that is no operator of managed's throw, or makes accesses work again.
//
// Torch's own function for this, release_data_and_set_meta_custom_data_ptr_error_msg_, releases the storage's block and
// touches metadata that a dying storage frees on another thread.
inline void set_unreadable(c10::StorageImpl* s, bool unreadable) {
  s->*private_member(members::ThrowsOnRead{}) = unreadable;
  s->*private_member(members::ChecksOnWrite{}) = unreadable || has_materializer(*s);
}

} // namespace managed
