/* managed_holder.h: how a library in C lets managed ask for memory of a device that it keeps, and how it asks managed.
 *
 * Another library puts such a struct in a PyCapsule named MANAGED_HOLDER_CAPSULE and gives it to managed.holders.add().
 * managed.holders.capsule() is the same from managed's side. A device is a string, "cuda:0" or "sim:1"; sizes are
 * bytes. The struct, and what its pointers lead to, must last until the process ends.
 */
#ifndef MANAGED_HOLDER_H
#define MANAGED_HOLDER_H

#include <stdint.h>

#define MANAGED_HOLDER_CAPSULE "managed.memory_holder"
#define MANAGED_HOLDER_ABI 1

/* The functions are called with Python's lock. Without this flag they are called without it, by any thread and by
 * several at once; they must then return soon and take no lock that is held while memory of the device is requested. */
#define MANAGED_HOLDER_NEEDS_GIL 1u

struct managed_holder {
  uint32_t abi;  /* MANAGED_HOLDER_ABI */
  uint32_t size; /* sizeof(struct managed_holder) */
  const char *name; /* 31 bytes at most */
  uint32_t flags;
  void *context; /* is passed to both functions */
  /* live: what the library's users use of the device. cached: what it keeps beside that and could give. Returns 0, or
   * -1 if it cannot tell. */
  int (*report)(void *context, const char *device, int64_t *live, int64_t *cached);
  /* Gives at least `bytes` of the cached bytes back to the driver, as far as it can. Returns how many. */
  int64_t (*reclaim)(void *context, const char *device, int64_t bytes);
};

#endif
