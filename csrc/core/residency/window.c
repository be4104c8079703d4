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

/* Finds which storages that may leave are in which blocks, and notes when each was used last. */
static void find_storages(const struct mgd_machine *m, int device, const struct mgd_window_block *block, size_t n,
                          mgd_window_at_fn at, uint64_t *stamp, struct mgd_handle **in) {
  for (struct mgd_handle *h = m->devices[device].storages.first; h; h = h->next) {
    if (!mgd_residency_is_victim(h) || mgd_handle_leaves_last(h) || mgd_residency_must_stay_locked(m, h)) { continue; }
    const struct mgd_window_block *b = find_block(block, n, at(h));
    if (!b || b->is_free) { continue; }
    in[b - block] = h;
    stamp[b - block] = __atomic_load_n(&h->stamp, __ATOMIC_RELAXED);
  }
}

static void find_costs(const struct mgd_machine *m, int device, const struct mgd_window_block *block, size_t n,
                       const uint64_t *stamp, struct mgd_handle *const *in, double *cost) {
  const struct mgd_link *out = &m->links[device][MGD_HOST], *back = &m->links[MGD_HOST][device];
  uint64_t oldest = UINT64_MAX, newest = 0;
  for (size_t i = 0; i < n; i++) {
    oldest = in[i] && stamp[i] < oldest ? stamp[i] : oldest;
    newest = in[i] && stamp[i] > newest ? stamp[i] : newest;
  }
  for (size_t i = 0; i < n; i++) {
    cost[i] = block[i].is_free ? 0.0 : -1.0;
    if (!in[i]) { continue; }
    const bool goes_first = (in[i]->advice & (MGD_ADVICE_FIRST | MGD_ADVICE_NEXT)) != 0;
    const bool leaves_for_free = mgd_order_leaves_for_free(in[i], mgd_handle_is_clean(in[i]));
    const double leave = leaves_for_free ? 0.0 : mgd_link_estimate(out, 1, in[i]->bytes);
    const double recent = newest > oldest ? (double)(stamp[i] - oldest) / (double)(newest - oldest) : 0.0;
    cost[i] = goes_first ? 0.0 : (leave + mgd_link_estimate(back, 1, in[i]->bytes)) * (1.0 + recent);
  }
}

/* Whether the storages in the window have at most so many bytes, and the host has room for those that it has no copy
 * of. */
static bool may_all_leave(const struct mgd_machine *m, struct mgd_handle *const *in, size_t first, size_t last,
                          int64_t most) {
  int64_t bytes = 0, to_host = 0;
  for (size_t i = first; i <= last; i++) {
    bytes += in[i] ? in[i]->bytes : 0;
    to_host += in[i] && !in[i]->memory ? in[i]->bytes : 0;
  }
  return bytes <= most && to_host <= mgd_host_room_locked(m);
}

static int leave_window(struct mgd_machine *m, int device, int64_t bytes, int64_t most,
                        const struct mgd_window_block *block, size_t blocks, double *cost, struct mgd_handle **in,
                        struct mgd_action *actions, size_t *n) {
  const size_t size = *n;
  size_t first = 0, last = 0;
  *n = 0;
  if (!mgd_window_find(block, cost, blocks, bytes, &first, &last) || !may_all_leave(m, in, first, last, most)) {
    return MGD_E_ABSENT;
  }
  for (size_t i = first; i <= last; i++) {
    if (!in[i]) { continue; }
    if (!mgd_evict_leave_locked(m, in[i], actions, n, size)) { break; }
    m->devices[device].storages.pressed += in[i]->bytes;
  }
  return *n ? MGD_OK : MGD_E_ABSENT;
}

int mgd_window_evict(struct mgd_machine *m, int device, int64_t bytes, int64_t most,
                     const struct mgd_window_block *block, size_t blocks, mgd_window_at_fn at,
                     struct mgd_action *actions, size_t *n) {
  if (bytes <= 0 || *n < 2) { return MGD_E_INVALID; }
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (device != MGD_HOST && mgd_state_knows_device_locked(m, device)) {
    double *cost = mgd_alloc_new(&m->alloc, blocks + 1, sizeof *cost);
    uint64_t *stamp = mgd_alloc_new(&m->alloc, blocks + 1, sizeof *stamp);
    struct mgd_handle **in = mgd_alloc_new(&m->alloc, blocks + 1, sizeof *in);
    code = MGD_E_NOMEM;
    if (cost && stamp && in) {
      find_storages(m, device, block, blocks, at, stamp, in);
      find_costs(m, device, block, blocks, stamp, in, cost);
      code = leave_window(m, device, bytes, most, block, blocks, cost, in, actions, n);
    }
    mgd_alloc_free(cost);
    mgd_alloc_free(stamp);
    mgd_alloc_free(in);
  }
  return mgd_state_leave(m, code);
}
