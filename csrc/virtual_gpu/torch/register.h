// register.h: making torch's CUDA operators compute on the host, once a process.
#pragma once
#include <torch/library.h>

namespace managed::sim {

// No operator of CUDA's launches anything afterwards: it is computed, or refused. Cannot be undone.
void register_kernels();

void register_derivatives(torch::Library &m);  // derivatives.cpp

}  // namespace managed::sim
