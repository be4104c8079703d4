// errors.h: managed's own exceptions, thrown where no Python may be called. Their texts are the callers'.
#pragma once
#include <string>

namespace managed {

[[noreturn]] void throw_pin_conflict(std::string message);
[[noreturn]] void throw_out_of_memory(std::string message);

} // namespace managed
