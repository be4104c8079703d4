// register.h: makes torch's CUDA operators compute on the host, once a process.
#pragma once
#include <torch/library.h>

namespace managed::sim {

// Afterwards no CUDA operator launches anything: it is computed, or refused. This cannot be undone.
void register_kernels();

void register_derivatives(torch::Library &m);  // derivatives.cpp

}  // namespace managed::sim
