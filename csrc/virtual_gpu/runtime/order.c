/* order.c: the checker: every access must be ordered after the last ones that conflict with it.
 *
 * What is ordered is known when a call is made, whatever runs when, so one run finds the races of all of them.
 */

#include "virtual_gpu/runtime/internal.h"

void check_access(struct access a, const struct clock *clock, struct epoch at) {
  enum memory memory;
  int device;
  if (!checking() || !a.bytes || at.actor < 0) return;
  if (memory_at(a.address, a.bytes, &memory, &device) && memory == PAGEABLE) return; /* the host waits for such copies itself */
  shadow_access((uintptr_t)a.address, (uintptr_t)a.address + a.bytes, a.written, clock, at, a);
}

/* ---- for tests */

void vgpu_host_access(const void *address, size_t bytes, int written) {
  lock();
  check_access((struct access){address, bytes, written}, host_clock(), host_epoch(here(written ? "the host's write" : "the host's read")));
  unlock();
}
