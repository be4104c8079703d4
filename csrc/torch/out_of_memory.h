// out_of_memory.h: what a program is told when no room could be made.
#pragma once
#include <cstddef>

#include "../core/handle.h"
#include "facts.h"

namespace managed {

// The operands of one operator do not fit on the device together.
[[noreturn]] void throw_no_room(int device, mgd_handle* const* operands, std::size_t n);

// Rethrows what an allocator threw inside an operator as managed.OutOfMemoryError, with who holds what.
[[noreturn]] void explain_out_of_memory(const c10::OutOfMemoryError& e, const OpFacts& f);

} // namespace managed
