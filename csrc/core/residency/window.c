/* window.c: see window.h.
 *
 * This file chooses, evict.c lets each storage leave. Nothing is kept between two calls.
 */
#include "core/window.h"

#include <math.h>

#include "core/internal_machine.h"

bool mgd_window_find(const struct mgd_window_block *block, const double *cost, size_t n, int64_t bytes, size_t *first,
                     size_t *last) {
  double sum = 0, least = INFINITY;
  int64_t size = 0;
  for (size_t end = 0, begin = 0; end < n; end++) {
    if (block[end].begins || cost[end] < 0) {
      begin = end + (cost[end] < 0);
      sum = 0;
      size = 0;
    }
    if (cost[end] < 0) { continue; }
    sum += cost[end];
    size += block[end].bytes;
    for (; size - block[begin].bytes >= bytes && begin < end; begin++) {
      size -= block[begin].bytes;
      sum -= cost[begin];
    }
    if (size >= bytes && sum < least) {
      least = sum;
      *first = begin;
      *last = end;
    }
  }
  return least < INFINITY;
}

/* Returns the block at that address, or NULL. */
static const struct mgd_window_block *find_block(const struct mgd_window_block *block, size_t n, const void *at) {
  size_t low = 0, high = n;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    low = (uintptr_t)block[middle].at < (uintptr_t)at ? middle + 1 : low;
    high = (uintptr_t)block[middle].at < (uintptr_t)at ? high : middle;
  }
  return low < n && block[low].at == at ? &block[low] : NULL;
}

/* Sets the cost of each block, and which storage is in it. */
static void find_costs(const struct mgd_machine *m, int device, const struct mgd_window_block *block, size_t n,
                       mgd_window_at_fn at, double *cost, struct mgd_handle **in) {
  uint64_t oldest = UINT64_MAX, newest = 0;
  for (size_t i = 0; i < n; i++) { cost[i] = block[i].is_free ? 0.0 : -1.0; }
  for (struct mgd_handle *h = m->devices[device].storages.first; h; h = h->next) {
    const struct mgd_window_block *b =
        mgd_residency_is_victim(h) && !mgd_residency_must_stay_locked(m, h) ? find_block(block, n, at(h)) : NULL;
    if (!b || b->is_free) { continue; }
    const uint64_t stamp = __atomic_load_n(&h->stamp, __ATOMIC_RELAXED);
    oldest = stamp < oldest ? stamp : oldest;
    newest = stamp > newest ? stamp : newest;
    in[b - block] = h;
  }
  for (size_t i = 0; i < n; i++) {
    if (!in[i]) { continue; }
    const uint64_t stamp = __atomic_load_n(&in[i]->stamp, __ATOMIC_RELAXED);
    const double age = newest > oldest && stamp <= newest ? (double)(stamp - oldest) / (double)(newest - oldest) : 1.0;
    const double leave = mgd_handle_is_clean(in[i])
        ? 0.0
        : mgd_link_estimate(&m->links[device][MGD_HOST], 1, in[i]->bytes);
    cost[i] = (leave + mgd_link_estimate(&m->links[MGD_HOST][device], 1, in[i]->bytes)) * (1.0 + age);
  }
}

static int leave_window(struct mgd_machine *m, int device, int64_t bytes, const struct mgd_window_block *block,
                        size_t blocks, mgd_window_at_fn at, double *cost, struct mgd_handle **in,
                        struct mgd_action *actions, size_t *n) {
  const size_t size = *n;
  size_t first = 0, last = 0;
  *n = 0;
  find_costs(m, device, block, blocks, at, cost, in);
  if (!mgd_window_find(block, cost, blocks, bytes, &first, &last)) { return MGD_E_ABSENT; }
  for (size_t i = first; i <= last; i++) {
    if (in[i] && mgd_evict_leave_locked(m, in[i], actions, n, size)) {
      m->devices[device].storages.pressed += in[i]->bytes;
    }
  }
  return *n ? MGD_OK : MGD_E_ABSENT;
}

int mgd_window_evict(struct mgd_machine *m, int device, int64_t bytes, const struct mgd_window_block *block,
                     size_t blocks, mgd_window_at_fn at, struct mgd_action *actions, size_t *n) {
  if (bytes <= 0 || *n < 2) { return MGD_E_INVALID; }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (device != MGD_HOST && mgd_state_knows_device_locked(m, device)) {
    double *cost = mgd_alloc_new(&m->alloc, blocks + 1, sizeof *cost);
    struct mgd_handle **in = mgd_alloc_new(&m->alloc, blocks + 1, sizeof *in);
    code = cost && in ? leave_window(m, device, bytes, block, blocks, at, cost, in, actions, n) : MGD_E_NOMEM;
    mgd_alloc_free(cost);
    mgd_alloc_free(in);
  }
  return mgd_state_leave(m, code);
}
