/* alloc.c: the one place where the core gets memory.
 *
 * All allocations of the core go through mgd_alloc_resize, which can be set to fail at its n-th call. So the tests
 * reach every out-of-memory path; no other file of the core may call malloc. This file does not depend on the machine.
 */
#include "core/internal_machine.h"

#include <stdlib.h>
#include <string.h>

void mgd_alloc_init(struct mgd_alloc *a, int64_t fail_at) {
  atomic_init(&a->made, 0);
  a->fail_at = fail_at;
}

/* Counts a call. True: it is the one that must fail. */
static bool must_fail(struct mgd_alloc *a) {
  return atomic_fetch_add_explicit(&a->made, 1, memory_order_relaxed) + 1 == a->fail_at;
}

void *mgd_alloc_resize(struct mgd_alloc *a, void *old, size_t count, size_t size) {
  if (must_fail(a) || count > SIZE_MAX / size) {
    return NULL;
  }
  return realloc(old, count * size);
}

void *mgd_alloc_new(struct mgd_alloc *a, size_t count, size_t size) {
  void *memory = mgd_alloc_resize(a, NULL, count, size);
  return memory ? memset(memory, 0, count * size) : NULL;
}

void mgd_alloc_free(void *memory) { free(memory); }

int mgd_alloc_mutex(struct mgd_alloc *a, pthread_mutex_t *mutex) {
  return must_fail(a) || pthread_mutex_init(mutex, NULL) ? MGD_E_NOMEM : MGD_OK;
}
