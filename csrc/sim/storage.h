// storage.h: storages of simulated devices and their twins on the CPU.
//
// A storage on a simulated device owns a twin: a CPU StorageImpl over the same
// bytes. CPU kernels get tensors over the twin, so nothing is ever copied. The
// twin's DataPtr holds the reservation, so the bytes count for exactly as long
// as they exist. Must never run an operator.
#pragma once
#include <c10/core/Storage.h>

#include "sim/device.h"
#include "sim/values.h"

namespace managed::sim {

// torch's allocator of the device type: gives memory of the current device.
c10::DeviceAllocator *device_allocator();
// Memory of one device, whatever is current: what storages remember for resizing.
c10::Allocator *allocator_of(int device);

c10::Storage new_storage(int device, std::size_t bytes);
// A storage on the device that becomes the owner of a CPU kernel's result; its bytes are
// reserved now, so this may throw OutOfMemoryError. Without values it has bytes of its own, which are known if they may be.
c10::Storage adopt(c10::Storage cpu, int device, bool floating);
// A storage that has a device but no bytes (zero tensors).
c10::Storage bare_storage(int device, std::size_t bytes);

// Without values: what is known of a storage's bytes. Those of none are known.
Known known_of(const c10::Storage &sim);
void set_known(const c10::Storage &sim, Known known);
// Without values: other bytes, of which nothing is known.
void forget_bytes(c10::StorageImpl *sim, std::size_t bytes);

// Whether a pointer is memory of a simulated device, and whether others than its storage hold that.
bool owns(const c10::DataPtr &pointer);
bool is_shared(const c10::DataPtr &pointer);

// The twin of a simulated storage; empty when its bytes are foreign (made by from_blob).
c10::Storage twin_of(const c10::Storage &sim);
// Whether the hook may move its bytes while nobody reads them: then the twin comes and goes.
bool may_move(const c10::Storage &sim);
// A CPU storage that looks at foreign bytes without owning them; at none when nobody reads them.
c10::Storage look_at(const c10::Storage &sim, bool reads);
// A meta storage of that size, for kernels that tell forms.
c10::Storage form_of(const c10::Storage &sim);

// An operator uses the bytes on that stream of their device.
void note_use(const c10::DataPtr &pointer, int stream);
void note_use(c10::StorageImpl *sim, int stream);
// The stream has a block in the place of the one that took it, `alone`: and no other uses it any more; a block stays
// until a moment has come.
void hand_over(const c10::DataPtr &pointer, int stream, bool alone = false);
void stay_until(const c10::DataPtr &pointer, std::shared_ptr<const mgd_moment> end);
// What that stream of the bytes' device got last writes them; what did, if it is known, or null.
void note_written(const c10::DataPtr &pointer, int stream);
const mgd_moment *written(const c10::DataPtr &pointer);
// Whose bytes a block holds, for a profile.
void note_owner(const c10::DataPtr &block, mgd_hold_owner owner);
// An operator has written the bytes.
void note_write(c10::StorageImpl *sim);

// The only place where a storage that exists gets another block: its bytes are
// from now on those of `twin`.
void put_block(c10::StorageImpl *sim, c10::Storage twin);
// A CPU kernel may have resized the twin it was given: follow it.
void follow_twin(c10::StorageImpl *sim, const c10::Storage &twin);
// Keeps the first min(old, new) bytes. Old and new exist together for a moment,
// and both count, as on real devices.
void resize_storage(const c10::Storage &sim, std::size_t bytes);

}  // namespace managed::sim
