// host_memory.h: memory of the host for bytes that left a device.
//
// Freed blocks are kept for reuse, because fresh memory costs page faults (and, if a device needs page-locked memory, a
// slow driver call). If the driver refuses to lock pages the memory is pageable: copies are slower, the host waits for
// them, and one RuntimeWarning reports it. The driver is asked again when locked memory has been given back to it, and
// otherwise after more and more allocations.
#pragma once
#include <c10/core/DeviceType.h>

#include <cstddef>

#include "torch/api.h"
#include "torch/devices/bridge.h"
#include "torch/tensor/file_map.h"

namespace managed {

// A piece of memory; the core knows it as void*.
struct HostMemory;

HostMemory* allocate_host(std::size_t bytes, c10::DeviceType leaves); // `leaves`: their device; throws std::bad_alloc
// Memory that lies in a file: it is only read, and none of the host's is used for it. Throws std::bad_alloc.
HostMemory* host_memory_in(FilePart part);
bool is_in_file(const HostMemory* memory);
bool is_good(const HostMemory* memory); // false: it lies in a file that was written or truncated
// Throws c10::Error if the memory lies in a file that was written or truncated.
void* data_of(HostMemory* memory);
// The last copy to or from the memory, which may not have ended: the next use of the memory must come after it.
CopyPtr& last_copy(HostMemory* memory);
void free_host(void* memory); // NULL is allowed
mgd_host_bytes host_bytes();
// Allocates page-locked memory that the pool does not count. Returns an empty pointer if the driver refuses, or is not
// asked because it has refused as much lately. Throws nothing; CUDA's part is loaded.
c10::DataPtr lock_pages(std::size_t bytes);

} // namespace managed
