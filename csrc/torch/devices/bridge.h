// bridge.h: all that a backend (the simulator, CUDA's part) and the managed hook know of each other.
//
// managed._sim exports a pointer to its Bridge in the capsule "managed._sim.bridge"; managed._C attaches by filling the
// hook's half. managed._cuda is handed the hook's half in "managed._C.bridge" and fills the other. All are plain
// function pointers, called from any thread.
//
// The hook's half: make_room is called without the GIL and throws only what a device said that failed to let bytes
// leave. freed is called by deleters, with or without the GIL and possibly under a lock of torch's allocator: it takes
// leaf locks only, waits for nothing and throws nothing.
//
// The backend's half: is_shared is called with the core's mutex held, use sometimes with a lock of storage.cpp's, and
// start, capacity, link and speed with the lock of the registry. These must not call the hook.
//
// Bytes leave and come back by copies that nobody waits for. A copy begins, and what must come after it is told so:
// streams of a device (order), the taker of a block (free_after), another copy (`after`), or, last, a thread (wait).
#pragma once
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/types.h"
#include "torch/facts/key.h" // the simulator excludes the key while it runs kernels

namespace managed {

// What the hook puts in the place of a DataPtr's context begins with the DataPtr that was there. It is empty
// while the bytes are elsewhere. Who runs on the storage holds it still.
struct Head {
  c10::DataPtr block;
};

// How soon a copy is needed. Each has a stream of its own in each direction, so that a copy that somebody needs now
// does not stand behind those that will be needed. Operand: of bytes that stay where they are, for another device.
enum class Urgency : uint8_t { Now, Soon, Operand };
constexpr int kUrgencies = 3;

// A copy that has begun. Any thread may ask.
class Copy {
 public:
  virtual ~Copy() = default;
  // What streams of the block's device do with it from now on comes after the copy. No thread waits.
  virtual void order(const c10::DataPtr& block) = 0;
  // This thread waits for the end.
  virtual void wait() = 0;
  // Whether the memory at both ends may go.
  virtual bool has_ended() = 0;
};
using CopyPtr = std::shared_ptr<Copy>; // null: it has ended

// Stands for all that had been started on a device when it was made.
class Point {
 public:
  virtual ~Point() = default;
};
using PointPtr = std::shared_ptr<Point>;

struct Bridge {
  int version = 15;

  // ---- filled by the hook; null until it attaches
  // The device has no room for a request of so many bytes: free something and return true to look again. No lock of
  // an allocator is held meanwhile.
  bool (*make_room)(int device, std::size_t bytes) = nullptr;
  // Bytes came back: somebody may be waiting for them.
  void (*freed)(int device, std::size_t bytes) = nullptr;
  // A DataPtr with this deleter has a Head as its context.
  c10::DeleterFnPtr head = nullptr;
  // Gives such a storage another block of `bytes` bytes. An operator holds it.
  void (*replace)(c10::StorageImpl* storage, c10::DataPtr block, std::size_t bytes) = nullptr;
  // Such a storage was written, perhaps by an operator that did not come to the hook.
  void (*wrote)(c10::StorageImpl* storage) = nullptr;

  // A thread is about to wait for a device.
  void (*waited)() = nullptr;

  // ---- filled by the backend
  // Latency (ns) and bandwidth (bytes/ns) between devices, -1 is the host.
  void (*link)(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns) = nullptr;
  // Whether the pointer is the backend's own allocation.
  bool (*owns)(const c10::DataPtr& pointer) = nullptr;
  // Whether something beside its storage keeps such an allocation alive.
  bool (*is_shared)(const c10::DataPtr& pointer) = nullptr;
  // The backend allocates no more than this many bytes on the device, whatever its capacity.
  void (*limit)(int device, std::size_t bytes) = nullptr;
  // Begins to copy bytes between devices, -1 is the host. The copy comes after `point`, a point of `from`; where that
  // is null, after all that was started on `from`. It comes after the copies `after`, too; some may be null. The memory
  // at both ends stays until it has ended. May throw c10::Error, and has not begun then.
  CopyPtr (*begin_copy)(int to, void* target, int from, const void* source, std::size_t bytes, Urgency urgency,
                        c10::ArrayRef<CopyPtr> after, const PointPtr& point) = nullptr;
  // Null where what has been started on the device cannot be told. May throw c10::Error.
  PointPtr (*point)(int device) = nullptr;
  // Memory of the device for what such a copy will bring; the copy comes after what used the memory before. Throws as
  // the allocator does. `if_room`: nothing leaves for it, and where the device has no room it returns nothing, at once.
  c10::DataPtr (*allocate_for_copy)(int device, std::size_t bytes, Urgency urgency, bool if_room) = nullptr;
  // Frees a block of so many bytes (0: nobody knows) that the copy still reads or writes: whoever gets its memory comes
  // after that. `last`: nothing uses the block after the copy. Must not throw.
  void (*free_after)(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes) = nullptr;

  // The number of the copy that this thread issued last, where there is a log of them. Must not throw.
  std::uint64_t (*last_copy)() = nullptr;
  // What the operators take that were issued to the device so far, in ns; or, where worked_between is there, the moment
  // at which its current stream has done them, and -1 where that cannot be told. Null: nobody knows. Must not throw.
  std::int64_t (*worked)(int device) = nullptr;
  // Whose bytes an allocation of the backend holds, for a profile. Takes no lock; must not throw.
  void (*own)(const c10::DataPtr& pointer, mgd_hold_owner owner) = nullptr;
  // Backward passes run in the thread that calls them, so that everything is issued in one order.
  bool one_thread = false;

  // False: storages are addresses that nobody may read or write, and copies count and take time.
  bool values = true;
  // Memory of the host for bytes that leave the backend's devices, or null: any will do. May throw.
  c10::DataPtr (*allocate_host)(std::size_t bytes) = nullptr;

  // ---- filled by a backend whose kernels go on when an operator has returned, or left null
  // The driver of the devices has been started: reports of freed bytes can begin. Called once.
  void (*start)() = nullptr;
  // Bytes of the device, and those that an allocation could have now. No context is made where there is none.
  std::size_t (*capacity)(int device) = nullptr;
  std::size_t (*room)(int device) = nullptr;
  // The room, and bytes that are none as yet: free pieces between blocks that are in use, which serve what fits or come
  // free with these; and freed blocks that copies or kernels on other streams may still use.
  std::size_t (*room_soon)(int device) = nullptr;
  // How fast it is beside the others, in any unit; 0: nobody knows.
  double (*speed)(int device) = nullptr;
  // An operator of this thread uses memory of the device: the backend remembers on which stream. True: it wants to hear
  // of it again when the operator has returned. Must not throw.
  bool (*use)(int device) = nullptr;
  // A block is about to be freed: it serves nobody else before the streams that may use it are done with it. Must not
  // throw.
  void (*retire)(const c10::DataPtr& block) = nullptr;

  // ---- operands that an operator needs elsewhere, filled by a backend that has copies for them, or left null
  // As begin_copy, from `offset` on in `source`, a block of another device or memory of the host that is not pinned, to
  // `target`, which allocate_for_copy() gave for that urgency. The copy comes after what wrote the source: after that
  // alone where the backend knows it, or else after all that the current stream of the source's device has to do.
  CopyPtr (*copy_operand)(const c10::DataPtr& target, const c10::DataPtr& source, std::size_t offset, std::size_t bytes,
                          Urgency urgency, const CopyPtr& after) = nullptr;
  // Whether the current stream of the device is recorded: a copy of the hook's could not be. Null: it never is.
  bool (*records)(int device) = nullptr;

  // ---- times, filled by a backend that knows them only when its kernels have run, or left null
  // What this thread puts into the current stream from now on is an operator's work; since the last moment it was what
  // the operator waits for. Must not throw.
  void (*begin_work)(int device) = nullptr;
  // ns that operators worked between two moments; -1: it has not come there, or has forgotten. Called with the core's
  // mutex held; must not throw.
  std::int64_t (*worked_between)(int device, std::int64_t from, std::int64_t to) = nullptr;
  void (*await_moments)(int device) = nullptr; // returns when the last of these moments has come; must not throw
  void (*stop_moments)(int device) = nullptr; // no pauses are noted until the next moment; must not throw
};

} // namespace managed
