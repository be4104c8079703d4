// garbage.h: what Python's collector can free, before a device counts as full.
//
// The collector itself is run by the binding (csrc/python/garbage.c), which this asks and waits for.
#pragma once

namespace managed {

// Runs Python's collector, in a thread of its own, and waits for it with a deadline; not again for a while, however
// often it is called. Needs no GIL, and lets go of it meanwhile; not for who holds a lock that a dying tensor takes.
// True: bytes came back since, here or elsewhere.
bool collect_garbage();

} // namespace managed
