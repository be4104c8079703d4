// bridge.h: all that the simulator and the managed hook know of each other.
//
// managed._sim exports a pointer to its Bridge in the capsule
// "managed._sim.bridge"; managed._C attaches by filling the hook's half.
// Both halves are plain function pointers, called without any lock held and
// without the GIL, from any thread; they must not throw.
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
