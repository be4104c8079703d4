/* growth.c: detects that what waits on the host grows step by step.
 *
 * A program that keeps a tensor, or a graph, of each step fills its device and then the host, and fails long after the
 * line at fault. This file counts the bytes of storages that wait on the host, compares them at the end of each step,
 * and says once when they have grown for too long. It keeps sums, so the end of a step looks at no storage; only the
 * one warning looks at all, for the oldest.
 */
#include "core/internal_machine.h"

#define NOTED_AFTER 8 /* steps in which it grew, after which new storages get their site */

void mgd_growth_count_locked(struct mgd_machine *m, struct mgd_handle *h, int by) {
  struct mgd_growth *g = &m->host.growth;
  if (h->state != MGD_SPILLED || h->away != MGD_HOST || h->mapped) { return; /* a file map takes none of the host's */ }
  g->waiting += by * (mgd_wide)h->bytes;
  if (by > 0) { h->left = g->calls; }
  if (g->calls - h->left < 2) { g->fresh[h->left % 2] += by * (mgd_wide)h->bytes; }
}

static int64_t waiting_bytes(const struct mgd_machine *m) {
  const mgd_wide bytes = m->host.growth.waiting;
  return bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
}

static void begin_row(struct mgd_growth_row *row, int64_t waiting) {
  row->length = 0;
  row->start = waiting;
}

/* Whether bytes that came to the host during the call before this one are still there. Begins the next call. */
static bool has_kept(struct mgd_growth *g) {
  const bool kept = g->fresh[(g->calls + 1) % 2] > 0;
  g->calls++;
  g->fresh[g->calls % 2] = 0;
  return kept;
}

/* Ends the rows of steps that were parts of a longer step. */
static void end_parts(struct mgd_growth *g, enum mgd_growth_end end, int64_t waiting) {
  for (int part = 0; part < (int)end; part++) {
    struct mgd_growth_row *row = &g->rows[part];
    row->longest = row->length > row->longest ? row->length : row->longest;
    begin_row(row, waiting);
    row->before = waiting;
  }
}

static bool is_due(const struct mgd_machine *m, enum mgd_growth_end end) {
  const struct mgd_growth_row *row = &m->host.growth.rows[end];
  const bool is_long = row->length >= MGD_GROWTH_STEPS && row->length / 2 > row->longest;
  return is_long && (end != MGD_GROWTH_CALL || row->before >= m->host.limit / 4);
}

static bool has_begun(const struct mgd_growth *g) {
  bool begun = false;
  for (int end = 0; end < MGD_GROWTH_ENDS; end++) { begun = begun || g->rows[end].length >= NOTED_AFTER; }
  return begun && !g->warned;
}

/* Returns the site of the oldest storage that waits and has one; if none waits, of the oldest that has one. */
static uint32_t oldest_site(const struct mgd_machine *m) {
  const struct mgd_handle *oldest[2] = {NULL, NULL};
  for (int id = 1; id < m->count; id++) {
    for (const struct mgd_handle *h = m->devices[id].storages.first; h; h = h->next) {
      const struct mgd_handle **best = &oldest[h->state == MGD_SPILLED && h->away == MGD_HOST];
      const bool has_site = __atomic_load_n(&h->site, __ATOMIC_RELAXED) != 0;
      if (has_site && (!*best || h->stamp < (*best)->stamp)) { *best = h; }
    }
  }
  const struct mgd_handle *found = oldest[1] ? oldest[1] : oldest[0];
  return found ? __atomic_load_n(&found->site, __ATOMIC_RELAXED) : 0;
}

bool mgd_growth_end_step(struct mgd_machine *m, enum mgd_growth_end end, struct mgd_growth_found *out) {
  mgd_state_enter(m);
  struct mgd_growth *g = &m->host.growth;
  struct mgd_growth_row *row = &g->rows[end];
  const int64_t waiting = waiting_bytes(m);
  end_parts(g, end, waiting);
  const bool kept = end != MGD_GROWTH_CALL || has_kept(g);
  if (kept && waiting > row->before) {
    row->length++;
  } else {
    begin_row(row, waiting);
  }
  row->before = waiting;
  const bool due = !g->warned && is_due(m, end);
  if (due) {
    const int64_t each = (waiting - row->start) / row->length;
    *out = (struct mgd_growth_found){.bytes_a_step = each, .waiting = waiting, .site = oldest_site(m)};
    g->warned = true;
  }
  __atomic_store_n(&g->notes, has_begun(g), __ATOMIC_RELAXED);
  (void)mgd_state_leave(m, MGD_OK);
  return due;
}

bool mgd_growth_notes(const struct mgd_machine *m) { return __atomic_load_n(&m->host.growth.notes, __ATOMIC_RELAXED); }
