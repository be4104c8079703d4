// register.h: registers the kernels of managed's key with the dispatcher.
#pragma once
#include <string>

namespace managed {

// Registers the chokepoint (hook.h) for all operators, and the kernels below for theirs; mgd_torch_init() calls it. A
// second call does nothing. Throws c10::Error if another library has the key.
void register_hook();

// Registers the unboxed kernels of the frequent operators (typed.cpp).
void register_typed();
// Whether the operator, such as "aten::add.Tensor", has such a kernel. Call it after register_typed().
bool is_typed(const std::string& name);

// Registers the kernel of record_stream (streams.cpp).
void register_record_stream();
constexpr auto kRecordStream = "aten::record_stream";

} // namespace managed
