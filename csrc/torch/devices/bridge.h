// bridge.h: the interface between a backend (the simulator, CUDA's part) and the managed hook.
//
// managed._sim exports a pointer to its Bridge in the capsule "managed._sim.bridge"; managed._C attaches by filling the
// hook's half. managed._cuda gets the hook's half in "managed._C.bridge" and fills the other. All are plain function
// pointers, called from any thread.
//
// The hook's half: make_room is called without the GIL and throws only the error of a device that failed while bytes
// left it. freed is called by deleters, with or without the GIL and possibly under a lock of torch's allocator: it
// takes leaf locks only, waits for nothing and throws nothing.
//
// The backend's half: is_shared is called with the core's mutex held, use sometimes with a lock of adopt.cpp's, and
// start, capacity, link and speed with the lock of the registry. These must not call the hook.
//
// Bytes leave and come back by asynchronous copies. Work that must come after a copy is ordered after it: streams of a
// device (order), the next user of a block (free_after), another copy (`after`) or, as a last resort, a thread (wait).
#pragma once
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/types.h"
#include "torch/facts/key.h" // the simulator excludes the key while it runs kernels

namespace managed {

// The context of a DataPtr whose storage has a handle begins with the allocator's own DataPtr, which the handle
// replaced. It is empty while the bytes are elsewhere. An operator that uses the storage keeps it in place.
struct Head {
  c10::DataPtr block;
};

// How soon a copy is needed. Each kind has its own stream in each direction, so that a copy that is needed now does not
// queue behind prefetches. Operand: a copy for an operator on another device, on a stream of that pair of devices.
enum class Urgency : uint8_t { Now, Soon, Operand };
constexpr int kUrgencies = 3;

// A copy that has begun. Any thread may call its functions.
class Copy {
 public:
  virtual ~Copy() = default;
  // Orders what streams of the block's device do with it from now on after the copy. No thread waits.
  virtual void order(const c10::DataPtr& block) = 0;
  // Makes this thread wait until the copy has ended.
  virtual void wait() = 0;
  // Whether the memory at both ends may be freed.
  virtual bool has_ended() = 0;
};
using CopyPtr = std::shared_ptr<Copy>; // null: it has ended

// All work that had been started on a device when the point was made.
class Point {
 public:
  virtual ~Point() = default;
};
using PointPtr = std::shared_ptr<Point>;

struct Bridge {
  int version = 24; // of this struct: modules of two versions refuse each other

  // ---- filled by the hook; null until it attaches
  // Called when the device has no room for a request of so many bytes. True: something was freed, and the caller tries
  // again. The caller holds no lock of an allocator. Null for CUDA's part, which calls CudaBridge::make_hole.
  bool (*make_room)(int device, std::size_t bytes) = nullptr;
  // Called when bytes were freed; wakes threads that wait for room.
  void (*freed)(int device, std::size_t bytes) = nullptr;
  // The deleter of a DataPtr whose context is a Head.
  c10::DeleterFnPtr head = nullptr;
  // Gives such a storage another block of `bytes` bytes. The calling operator holds the storage.
  void (*replace)(c10::StorageImpl* storage, c10::DataPtr block, std::size_t bytes) = nullptr;
  // Called when such a storage was written, perhaps by an operator that did not come to the hook.
  void (*wrote)(c10::StorageImpl* storage) = nullptr;
  // Called when a collective, which goes on after its call, has written the storage. The backend shares the blocks of
  // its operands until then (is_shared). Any thread may call it. Null: the hook keeps the operands in place for good.
  void (*collective_wrote)(c10::StorageImpl* storage) = nullptr;
  // Called when a thread is about to wait for a device.
  void (*waited)() = nullptr;
  // ---- filled by the backend
  // Latency (ns) and bandwidth (bytes/ns) between devices, -1 is the host.
  void (*link)(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns) = nullptr;
  // Finds which devices (bit i: device i) share a bandwidth for copies from and to the host: the number-th such bus, or
  // false. Null: there is none.
  bool (*bus)(int number, mgd_mask* devices, double* bytes_per_ns) = nullptr;
  // Whether the pointer is the backend's own allocation.
  bool (*owns)(const c10::DataPtr& pointer) = nullptr;
  // Whether something beside its storage keeps such an allocation alive.
  bool (*is_shared)(const c10::DataPtr& pointer) = nullptr;
  // The backend allocates no more than this many bytes on the device, whatever its capacity.
  void (*limit)(int device, std::size_t bytes) = nullptr;
  // Begins to copy bytes between devices, -1 is the host. The copy comes after `point`, a point of `from`, or, if that
  // is null, after all that was started on `from`; and after the copies `after`, some of which may be null. The caller
  // keeps the memory at both ends until the copy has ended. May throw c10::Error; then no copy has begun.
  CopyPtr (*begin_copy)(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                        c10::ArrayRef<CopyPtr> after, const PointPtr& point) = nullptr;
  // Makes a point. Null if the work that has been started on the device is unknown. May throw c10::Error.
  PointPtr (*point)(int device) = nullptr;
  // Allocates memory of the device as the target of such a copy, which comes after what used the memory before. `from`:
  // where an operand comes from, else -1. Throws as the allocator does. `if_room`: evicts nothing, may return nothing.
  c10::DataPtr (*allocate_for_copy)(int device, std::size_t bytes, int from, Urgency urgency, bool if_room) = nullptr;
  // Frees a block of so many bytes (0: unknown) that the copy still reads or writes: the next use of its memory comes
  // after the copy. `last`: nothing uses the block after the copy. Must not throw.
  void (*free_after)(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes) = nullptr;
  // The number of the copy that this thread issued last, if the backend logs copies. Must not throw.
  std::uint64_t (*last_copy)() = nullptr;
  // The time in ns that the operators issued to the device so far take. If worked_between is set: instead the number of
  // the moment when its current stream has done them, -1 if unknown. Null: the backend has no times. Must not throw.
  std::int64_t (*worked)(int device) = nullptr;
  // Notes the owner of the bytes in an allocation of the backend, for a profile. Takes no lock; must not throw.
  void (*own)(const c10::DataPtr& pointer, mgd_hold_owner owner) = nullptr;
  // True: backward passes run in the thread that calls them, so that everything is issued in one order.
  bool one_thread = false;
  // False: storages are addresses that must not be read or written; copies count and take time.
  bool values = true;
  // Allocates host memory for bytes that leave the backend's devices. Null: any memory will do. May throw.
  c10::DataPtr (*allocate_host)(std::size_t bytes) = nullptr;
  // ---- filled by a backend whose kernels go on when an operator has returned, or left null
  // Called once, when the driver of the devices has been started: reports of freed bytes can begin.
  void (*start)() = nullptr;
  // capacity: bytes of the device. room: bytes that an allocation could have now. Neither creates a context.
  std::size_t (*capacity)(int device) = nullptr;
  std::size_t (*room)(int device) = nullptr;
  // room() plus bytes that will be room: free fragments between blocks in use, which serve requests that fit or become
  // free with these; and pending frees, that is freed blocks that copies or kernels on other streams may still use.
  std::size_t (*room_soon)(int device) = nullptr;
  // Gets the bytes that torch's allocator has handed out, without those that the backend keeps, and those it has
  // from the driver. Null: the allocator's own figures will do.
  void (*usage)(int device, std::int64_t* allocated, std::int64_t* reserved) = nullptr;
  // The device's speed relative to the other devices, in any unit; 0: unknown.
  double (*speed)(int device) = nullptr;
  // Called when an operator of this thread uses memory of the device; the backend remembers the stream. True: it must
  // be called again when the operator has returned. Must not throw.
  bool (*use)(int device) = nullptr;
  // Called before a block is freed: its memory is not used again before the streams that may use it are done with it.
  // Must not throw.
  void (*retire)(const c10::DataPtr& block) = nullptr;

  // ---- operands that an operator needs elsewhere, filled by a backend that has copies for them, or left null
  // Does what begin_copy does, from `offset` on in `source`, a block of another device or host memory that is not
  // pinned, to `target`, which allocate_for_copy() gave for that copy. It comes after the copy `after`, and after
  // what wrote the source, if the backend knows that, or else all work in the current stream of the source's device.
  CopyPtr (*copy_operand)(const c10::DataPtr& target, const c10::DataPtr& source, std::size_t offset, std::size_t bytes,
                          Urgency urgency, const CopyPtr& after) = nullptr;
  // Whether the device's current stream is recorded into a graph; a copy of the hook's cannot be. Null: it never is.
  bool (*records)(int device) = nullptr;

  // ---- times, filled by a backend that knows them only when its kernels have run, or left null
  // Called when an operator's work begins: what this thread put into the current stream since the last moment was what
  // the operator waits for, and counts as a pause. Must not throw.
  void (*begin_work)(int device) = nullptr;
  // ns that operators worked between two moments; -1: one has not come yet, or is too long ago. Called with the core's
  // mutex held; must not throw.
  std::int64_t (*worked_between)(int device, std::int64_t from, std::int64_t to) = nullptr;
  void (*await_moments)(int device) = nullptr; // returns when the last moment has come; must not throw
  void (*stop_moments)(int device) = nullptr; // notes no pauses until the next moment; must not throw
};
static_assert(sizeof(Bridge) == 288, "a bridge of another size needs another version");

} // namespace managed
