// engine.h: what the simulator needs of autograd's engine.
#pragma once

namespace managed::sim {

// True once a backward pass has run: the engine has then made its device
// threads, one for each device known at that moment, and makes no more.
bool engine_started();

// Whether the calling thread is running a backward pass.
bool in_backward() noexcept;

// Returns when every device thread of the engine has finished what it was doing,
// destructors of the last graph included, and waits for work, or after 10 s
// (TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT). To be called at exit, without the GIL: a
// thread that asks for the GIL while the interpreter ends aborts the process.
void park_engine_threads(int devices) noexcept;

}  // namespace managed::sim
