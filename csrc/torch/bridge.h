// bridge.h: all that the simulator and the managed hook know of each other.
//
// managed._sim exports a pointer to its Bridge in the capsule
// "managed._sim.bridge"; managed._C attaches by filling the hook's half.
// Both halves are plain function pointers, called from any thread and never
// with a lock of ours held; they must not throw. make_room is called without
// the GIL. freed is called by deleters, with or without it and possibly under a
// lock of torch's allocator, so it takes leaf locks only and waits for nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "key.h" // the simulator excludes the key while it runs kernels

namespace managed {

struct Bridge {
  int version = 1;

  // ---- filled by the hook; null until it attaches
  // The device is full: free something and return true to look again.
  bool (*make_room)(int device, std::size_t bytes) = nullptr;
  // Bytes came back: somebody may be waiting for them.
  void (*freed)(int device, std::size_t bytes) = nullptr;

  // ---- filled by the simulator
  // Latency (ns) and bandwidth (bytes/ns) between devices, -1 is the host.
  void (*link)(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns) = nullptr;
};

} // namespace managed
