// devices.h: torch's devices as ids of the core's machine, what their allocators report, and time.
//
// Nothing is placed, moved or waited for here: see align.h, room.h, waiting.h. attach.h adds devices to the machine.
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

// False: the process has not used the device yet, so its free bytes are unknown.
bool has_context(c10::Device d);

// What the device's allocator has handed out, and all bytes that it has of the driver; 0 without a context. False: it
// cannot tell.
bool allocator_usage(int id, int64_t* allocated, int64_t* reserved) noexcept;

// Free bytes as the device's allocator reports them; exact for a simulated device.
int64_t free_bytes(int id);
// Free bytes plus those that will be free without an eviction (Bridge::room_soon). Changes nothing.
int64_t bytes_free_soon(int id);

// The backend that allocates on this kind of device, or null if nothing can leave such devices.
const Bridge* backend_of(c10::DeviceType type);

// True: kernels go on when an operator has returned, so the backend must be told which devices it uses.
extern std::atomic<bool> kernels_are_async;
// True: backward passes run in the thread that calls them (bridge.h).
extern std::atomic<bool> backward_in_caller;
// The number of this thread's last copy on the clock of simulated devices; 0 without them.
uint64_t last_simulated_copy() noexcept;
bool record_stream_use(c10::Device d); // true: call it again when the operator has returned

// Reads what the allocators report into the ledger.
void observe();

int64_t now(); // ns, monotonic

// Bytes of a tensor's elements; for a sparse tensor the sum of its parts. 0 if the size is symbolic.
int64_t bytes_of(const at::Tensor& t);

} // namespace managed
