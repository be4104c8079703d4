/* plan_layout.h: addresses for the storages of a planned step, so that the free bytes of the device are in one piece.
 *
 * A plan (plan.h) says when bytes are on the device. An allocator that learns only of each request as it comes cuts the
 * free memory into pieces, and a plan that needs all of the room then finds no piece that is large enough. With the
 * whole step known, each stay of a storage on the device gets an offset in one block. This is offline dynamic storage
 * allocation, which is NP-hard (Garey and Johnson 1979, problem SR2). With time to search, a layout of some hundred
 * storages comes within a few per cent of the bytes in use.
 *
 * Bytes are int64_t. The layout needs no machine and keeps no state.
 */
#ifndef MGD_PLAN_LAYOUT_H
#define MGD_PLAN_LAYOUT_H

#include "core/planner/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes one time of a storage on the device: from right before operator `from` until right after operator `to`.
 * If `to` is less than `from`, that is in the next step. The place of a storage that is fetched may be free for it
 * since before its FETCH. */
struct mgd_layout_stay {
  int32_t storage, from, to;
  int64_t offset;
};

/* Invariant: two stays that have an operator in common have no byte in common. */
struct mgd_layout {
  int64_t height; /* bytes of the block */
  bool is_early;  /* a stay begins before its FETCH */
  int32_t stays, storages;
  struct mgd_layout_stay *stay; /* by storage */
  int32_t *first; /* storages + 1: those of s are first[s] .. first[s + 1] - 1 */
};

/* Lays out the storages of more than `least` bytes that are not `left_out` (by storage; NULL: none is). The plan must
 * be valid for the step. The block has at most `room` bytes, or else is the lowest that is found (0: always). `early`:
 * if it fits, stays of fetched storages begin before their FETCH, as far as it still does, so that copies need not wait
 * for operators that were issued just before. OVERFLOW: the sum of bytes is too large. NO_ROOM: there are too many
 * stays. NOMEM: memory ran out. Takes O(stays * (stays + operators)), and up to a quarter of a second for each of at
 * most three searches; `early` searches twice. The result is deterministic. */
int mgd_plan_layout_make(const struct mgd_plan_step *step, const struct mgd_plan *plan, int64_t least,
                         const bool *left_out, int64_t room, bool early, int64_t fail_allocation,
                         struct mgd_layout **out);
void mgd_plan_layout_free(struct mgd_layout *layout); /* NULL is ignored */

/* Returns the offset of the storage while the operator runs, or -1: it is not there then, or has no place. */
int64_t mgd_plan_layout_offset(const struct mgd_layout *layout, int32_t storage, int32_t operator_at);

#ifdef __cplusplus
}
#endif
#endif
