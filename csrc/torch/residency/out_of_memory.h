// out_of_memory.h: the error when no room could be made: what needed room, what holds memory, what to do next.
//
// It makes only the text and the exception; room.h and hold.h decide that there is no room.
#pragma once
#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

#include "core/handle.h"

namespace managed {

// Throws managed's OutOfMemoryError: the operands of one operator do not fit on the device together. operator_name is
// null for a copy and the like.
[[noreturn]] void throw_no_room(int device, mgd_handle* const* operands, std::size_t n, const char* operator_name);

// Returns an allocator's error text with a table of what holds memory, or, if this thread could make no room because
// the host had none, a text about the host. `where`: the operator that failed, or empty.
std::string with_table(const std::string& error, const std::string& where);
// Rethrows an allocator's error as managed.OutOfMemoryError with that text. `where`: as above.
[[noreturn]] void rethrow_out_of_memory(const c10::OutOfMemoryError& e, const std::string& where);

} // namespace managed
