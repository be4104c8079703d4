// host_memory.h: memory of the host for bytes that left a device.
//
// Blocks are kept when they are given back, because fresh memory costs page
// faults (and, where a device needs page-locked memory, a slow call of its driver). Where the driver refuses to lock
// pages the memory is pageable: copies are slower and the host waits for them, and one RuntimeWarning says so.
#pragma once
#include <c10/core/DeviceType.h>

#include <cstddef>

#include "torch/devices/bridge.h"

namespace managed {

// A piece of memory; the core knows it as void*.
struct HostMemory;

HostMemory* allocate_host(std::size_t bytes, c10::DeviceType leaves); // of which devices; throws std::bad_alloc
void* data_of(HostMemory* memory);
// The last copy to it or from it, which may not have ended: whoever uses the memory next comes after that.
CopyPtr& last_copy(HostMemory* memory);
void free_host(void* memory); // NULL is allowed
std::size_t kept_host();      // bytes that are kept for the next one
std::size_t pageable_host();  // bytes so far that the driver did not page-lock

} // namespace managed
