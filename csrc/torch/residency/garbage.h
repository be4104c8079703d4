// garbage.h: what Python's collector can free, before a device counts as full.
//
// The collector itself is run by the binding (csrc/python/garbage.c), which this asks and waits for.
#pragma once

namespace managed {

// Runs Python's collector, in a thread of its own, and waits for it with a deadline; not again for a while, however
// often it is called. Needs no GIL, and releases it while it waits, if the caller has it. Must not be called with a
// lock held that the death of a tensor takes. True: the collector has run, and bytes came free meanwhile, in any
// thread.
bool collect_garbage();

} // namespace managed
