// links.h: latency and bandwidth between CUDA devices and the host.
#pragma once
#include <cstdint>

namespace managed {

// Implements Bridge::link. Makes no context, and measures nothing: the same machine gives the same figures.
void link(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns);

} // namespace managed
