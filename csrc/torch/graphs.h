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

extern std::atomic<int> recording_graphs; // graphs that are being recorded
extern std::atomic<int> private_pools;    // these, and blocks of a program that allocates from a pool of its own
// There has been one of either: a storage that had no handle then may be one of a graph or a pool, and gets none later.
extern std::atomic<bool> graphs_recorded;

} // namespace managed
