// storage.h: storages of simulated devices and their twins on the CPU.
//
// A storage on a simulated device owns a twin: a CPU StorageImpl over the same
// bytes. CPU kernels get tensors over the twin, so nothing is ever copied. The
// twin's DataPtr holds the reservation, so the bytes count for exactly as long
// as they exist. No function here runs an operator.
#pragma once
#include <c10/core/Storage.h>

#include "sim/device.h"
#include "sim/values.h"

namespace managed::sim {

// torch's allocator for the device type. It allocates on the current device.
c10::DeviceAllocator *device_allocator();
// Allocates on one device, whichever is current. Storages keep it for resizing.
c10::Allocator *allocator_of(int device);

c10::Storage new_storage(int device, std::size_t bytes);
// Returns a storage on the device that owns the bytes of a CPU kernel's result from now on. Reserves them, so it may
// throw OutOfMemoryError. Without values it has bytes of its own, which are known if may_know() allows that.
c10::Storage adopt(c10::Storage cpu, int device, bool floating);
// Returns a storage that has a device and a size but no memory, for zero tensors.
c10::Storage bare_storage(int device, std::size_t bytes);

// Without values: returns what is known of a storage's bytes. An empty storage is known.
Known known_of(const c10::Storage &sim);
void set_known(const c10::Storage &sim, Known known);
// Without values: gives the storage new bytes, of which nothing is known.
void forget_bytes(c10::StorageImpl *sim, std::size_t bytes);

// owns(): whether a pointer is memory of a simulated device. is_shared(): whether that memory has an owner beside its
// storage.
bool owns(const c10::DataPtr &pointer);
bool is_shared(const c10::DataPtr &pointer);

// Returns the twin of a simulated storage; empty if its bytes are foreign (made by from_blob).
c10::Storage twin_of(const c10::Storage &sim);
// Whether the hook may move the bytes while no kernel reads them, so that the storage may lack a twin.
bool may_move(const c10::Storage &sim);
// Returns a CPU storage over foreign bytes, which it does not own; over no bytes unless `reads`.
c10::Storage look_at(const c10::Storage &sim, bool reads);
// Returns a meta storage of the same size, for meta kernels.
c10::Storage form_of(const c10::Storage &sim);

// Records that an operator uses the bytes on that stream of their device.
void note_use(const c10::DataPtr &pointer, int stream);
void note_use(c10::StorageImpl *sim, int stream);
// hand_over(): the stream holds the block instead of the stream that took it; `alone`: and instead of all other streams
// that used it. stay_until(): on the clock the block is not free before `end`.
void hand_over(const c10::DataPtr &pointer, int stream, bool alone = false);
void stay_until(const c10::DataPtr &pointer, std::shared_ptr<const mgd_moment> end);
// note_written(): the newest operation on that stream of the bytes' device writes them. written(): when the recorded
// write ends; null if none is recorded.
void note_written(const c10::DataPtr &pointer, int stream);
const mgd_moment *written(const c10::DataPtr &pointer);
void note_twin_written(const c10::Storage &twin, int stream);  // for the block that has this twin
// Sets the owner under which a profile lists the block's bytes.
void note_owner(const c10::DataPtr &block, mgd_hold_owner owner);
// Tells the hook that an operator, or a collective that went on after its call, has written the bytes.
void note_write(c10::StorageImpl *sim);
void note_collective(c10::StorageImpl *sim);

// Replaces the block of an existing storage: from now on its bytes are those of
// `twin`. Nothing else replaces one.
void put_block(c10::StorageImpl *sim, c10::Storage twin);
// Gives the storage the bytes and the size of its twin, which a CPU kernel may have resized.
void follow_twin(c10::StorageImpl *sim, const c10::Storage &twin);
// Resizes the storage and keeps its first min(old, new) bytes. Old and new exist
// together for a moment, and both count, as on real devices.
void resize_storage(const c10::Storage &sim, std::size_t bytes);

}  // namespace managed::sim
