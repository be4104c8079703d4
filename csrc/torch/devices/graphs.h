// graphs.h: what a recorded CUDA graph, and memory from a pool that the program chose, forbid.
//
// A graph reads and writes the addresses it was recorded with for as long as it
// lives. While one is recorded nothing leaves, nothing new may ever leave, no
// kept copy serves, and what an operator uses stays for good; nor are copies kept
// of what it uses or makes, since a replay writes unseen. The counts concern all threads: a graph
// is recorded seldom, and being wrong about the thread would be silent.
#pragma once
#include <atomic>

namespace managed {

extern std::atomic<int> recording_graphs; // CUDA graphs that are being recorded now
extern std::atomic<int> private_pools; // such recordings, and scopes with a memory pool of the program's own, now open
// True for good once there was one of either. From then on a storage without a handle may belong to a graph or a pool,
// so only new results get one.
extern std::atomic<bool> graphs_recorded;

} // namespace managed
