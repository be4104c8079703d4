// graphs.h: whether CUDA graphs are recorded, or memory comes from a pool that the program chose.
//
// A graph reads and writes the addresses it was recorded with for as long as it lives. While one is recorded nothing
// leaves, new storages can never leave, no kept copy serves, and the storages that an operator uses stay home for good.
// Copies of what it uses or makes are not kept, since a replay writes unseen. The counts are for all threads: graphs
// are recorded seldom, and an error about the thread would be silent.
#pragma once
#include <atomic>

namespace managed {

extern std::atomic<int> recording_graphs; // CUDA graphs that are being recorded now
extern std::atomic<int> private_pools; // open recordings, and open scopes with a memory pool of the program's own
// True for good once a graph or such a pool was used. From then on a storage without a handle may belong to a graph or
// a pool, so only new results get handles.
extern std::atomic<bool> graphs_recorded;

} // namespace managed
