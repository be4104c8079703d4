// conflict.h: the one error of the hook that Python knows by a class of its own.
#pragma once
#include <string>

namespace managed {

[[noreturn]] void throw_pin_conflict(std::string message);

} // namespace managed
