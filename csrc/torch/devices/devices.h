// devices.h: torch's devices as ids of the core's machine, what their allocators report, and time.
//
// Nothing is placed, moved or waited for here: see align.h, room.h, waiting.h. How devices get into the machine is
// attach.h's.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "core/core.h"
#include "torch/devices/bridge.h"

namespace managed {

struct mgd_machine* machine(); // lives as long as the process

// 0 for the CPU, -1 for a device that is not in the machine (meta, not yet discovered).
int id_of(c10::Device d);
c10::Device device_of(int id);

// Adds the accelerators that torch knows to the machine, once in a process and by way of Registry::add_accelerators;
// throws c10::Error. Any thread may call it.
void discover();

int device_count(); // ids in use, the host included

// False: the process has not used it yet, and nobody knows what is free there.
bool has_context(c10::Device d);

// What the allocator of the device says is free, in bytes; of a simulated device exactly.
int64_t free_bytes(int id);
// The same and what will be free without anybody leaving (bridge.h). To ask changes nothing.
int64_t bytes_free_soon(int id);

// The backend that allocates on this kind of device, or null when nothing may leave there.
const Bridge* backend_of(c10::DeviceType type);

// Kernels go on when an operator has returned, so the backend must be told who uses which device.
extern std::atomic<bool> kernels_are_async;
// Backward passes run in the thread that calls them (bridge.h).
extern std::atomic<bool> backward_in_caller;
// The number of this thread's last copy on the clock of simulated devices; 0 without them.
uint64_t last_simulated_copy() noexcept;
bool record_stream_use(c10::Device d); // true: to be said again when the operator has returned

// Reads what the allocators report into the ledger.
void observe();

int64_t now(); // ns, monotonic

// Bytes of a tensor's elements; the parts of a sparse tensor together. 0 where the size is a symbol.
int64_t bytes_of(const at::Tensor& t);

} // namespace managed
