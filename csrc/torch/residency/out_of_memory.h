// out_of_memory.h: what a program is told when no room could be made: who asked, who holds what, what to do next.
//
// Only the text and the exception. Whether there is room is found out in room.h and hold.h.
#pragma once
#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

#include "core/handle.h"

namespace managed {

// The operands of one operator (null: of a copy and the like) do not fit on the device together.
[[noreturn]] void throw_no_room(int device, mgd_handle* const* operands, std::size_t n, const char* operator_name);

// The text of an allocator's error with who holds what. `where`: the operator, if it was in one.
std::string with_table(const std::string& error, const std::string& where);
// Rethrows what an allocator threw as managed.OutOfMemoryError, with who holds what. `where`: the operator, if it was
// in one.
[[noreturn]] void rethrow_out_of_memory(const c10::OutOfMemoryError& e, const std::string& where);

} // namespace managed
