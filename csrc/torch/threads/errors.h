// errors.h: throws managed's own exceptions from code that may not call Python. The callers write the texts.
#pragma once
#include <exception>
#include <string>

namespace managed {

[[noreturn]] void throw_pin_conflict(std::string message);
[[noreturn]] void throw_out_of_memory(std::string message);
bool is_out_of_memory(const std::exception& error); // managed's own error or torch's

} // namespace managed
