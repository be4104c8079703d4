// devices.h: torch's devices as ids of the core's machine, and time.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "../core/internal.h"

namespace managed {

struct mgd_machine* machine(); // lives as long as the process
void create_machine();         // called by mgd_torch_init, before anything else

// 0 for the CPU, -1 for a device that is not in the machine (meta, not yet discovered).
int id_of(c10::Device d);
c10::Device device_of(int id);

// Adds the accelerators that torch knows to the machine, once; throws c10::Error.
void discover();

// Reads what the allocators report into the ledger.
void observe();

int64_t now(); // ns, monotonic

// Bytes of a tensor's elements; the parts of a sparse tensor together.
int64_t bytes_of(const at::Tensor& t);

} // namespace managed
