/* handle.h: the handle of one storage: where its bytes are and how many uses they have.
 *
 * The inline functions below are lock-free. Only the core makes any other change to an open handle, and every
 * transition of `state`. The caller owns the struct, which is part of one of its own objects, and deletes it when
 * mgd_handle_put() or mgd_handle_unuse() returns true.
 */
#ifndef MGD_HANDLE_H
#define MGD_HANDLE_H

#include "core/user.h"

enum mgd_residency {
  MGD_RESIDENT,  /* the bytes are at home */
  MGD_SPILLING,  /* a mover is taking them away, or from a peer to the host */
  MGD_SPILLED,   /* they are elsewhere; reading them at home is an error */
  MGD_RESTORING, /* a mover is bringing them home */
  MGD_ARRIVING   /* they are at home or on their way; no stream is ordered after the copy yet */
};

/* A pin keeps bytes at home. The texts are for tables of memory use; a storage with pins of several kinds counts under
 * the first. */
#define MGD_PINS(X)                                            \
  X(ASKED, "pinned")                                           \
  X(POINTER, "whose pointers the program has taken")           \
  X(GRADIENT, "of gradients that an operator is yet to use")   \
  X(GRAPH, "that recorded graphs read")                        \
  X(PLAIN, "of tensors that were managed and are plain again")
enum mgd_pin {
#define X(name, text) MGD_PIN_##name,
  MGD_PINS(X)
#undef X
  MGD_PIN_KINDS
};

#define MGD_ALIVE (UINT32_C(1) << 30) /* counted in `in_use` while the storage lives */
#define MGD_DIRTY_READ 2u             /* in `dirty` */
#define MGD_STEP_PLANS 4              /* learned steps that a device keeps at once */
#define MGD_HANDLE_REST 12            /* size of a handle's private part, in units of 8 bytes (handle.c asserts it) */

/* These functions lead from one state to the next:
 *
 *   RESIDENT  -> SPILLING   mgd_evict_begin(): the bytes have no uses and shall leave
 *   SPILLING  -> SPILLED    mgd_evict_end(): they have arrived elsewhere
 *   SPILLING  -> RESIDENT, or SPILLED for a guest   mgd_evict_end(to -1): the copy failed, they are where they were
 *   SPILLED   -> SPILLING   mgd_evict_begin(): a peer needs its room, and sends them on to the host
 *   SPILLED   -> RESTORING  mgd_restore_begin(): an operator needs them
 *   RESTORING -> RESIDENT   mgd_restore_end()
 *   RESTORING -> SPILLED    mgd_restore_end(): no room, or the copy failed
 *   RESTORING -> ARRIVING   mgd_restore_end(), from RESIDENT mgd_handle_arrive(): a copy has begun, ahead of need
 *   ARRIVING  -> RESTORING  mgd_restore_begin(): an operator needs them, and joins the copy
 *   ARRIVING  -> SPILLING   mgd_evict_begin()
 *   SPILLING  -> RESIDENT   mgd_evict_end(to home): the host has a good copy now, and the bytes stay
 *
 * In SPILLING and RESTORING the bytes belong to the mover, the caller that got the action: only the mover copies or
 * frees them. An operator may begin a use in any state, lock-free; it then reads the state and waits unless it is
 * RESIDENT. mgd_evict_begin() writes the state first and then reads the uses, so it backs off if an operator has just
 * begun to use the bytes. A storage may die in any state. If it dies while a mover has the bytes, the handle is
 * `closed`, and the mover frees both.
 *
 * Invariants. An open handle is in its home's list of all, and in_use is at
 * least MGD_ALIVE; during a move the mover counts as one use.
 * By state:
 *   RESIDENT   away is -1; memory, if any, is a spare or mapped, and on_host says
 *              whether there is a spare; dirty is set until a copy has been made
 *              elsewhere; it has a position unless it is pinned or empty
 *   ARRIVING   is like RESIDENT
 *   SPILLING   away is -1, or the peer that the bytes come from; memory that is not
 *              mapped implies on_host, which is also set for a first copy that is
 *              being made
 *   SPILLED    away is a device that is not home; memory is set if that is the
 *              host, and only then; on_host, if it is not mapped
 *   RESTORING  is like SPILLED, or like RESIDENT while an operator joins a copy
 * It is in the list of guests, spares or orphans that its state implies, and in no
 * other, because the lists share links. */
struct mgd_handle {
  uint32_t in_use; /* MGD_ALIVE, plus one for each operator that uses the bytes and each mover that copies them */
  uint32_t state;  /* enum mgd_residency */
  uint32_t dirty;  /* the bytes may have been written since they came home, or soon will be; MGD_DIRTY_READ: also, a
                      copy may be reading them. Operators set it without a lock, so 0 is certain only for a mover
                      (take_bytes(), evict.c); elsewhere it is a hint */
  int16_t home, away; /* away: where the bytes are, or are being copied from; -1 for home */
  uint64_t stamp;  /* tick of the last use */
  int64_t bytes;
  uint32_t site; /* of the line that made it, if mgd_growth_notes() asked for it, else 0; written without a lock */
  uint32_t left; /* mgd_growth.calls when its bytes came to the host */
#ifdef __cplusplus
  uint64_t of_the_core[MGD_HANDLE_REST]; /* C++ callers do not see the private part; it has this size */
#else
  void *memory; /* the host's copy: the bytes of a spilled storage, or a spare of one at home; the caller
                   allocates and frees it */
  struct mgd_handle *next, *previous;       /* all open handles of the home device */
  struct mgd_handle *younger, *elder;       /* in the list of guests, spares or orphans, by state */
  int32_t position;                         /* in the order of victims, -1: it is no victim */
  int32_t pins, pins_by[MGD_PIN_KINDS];     /* pins of all kinds, and of each kind */
  int32_t seen;                             /* its place in the log of its home's step (step.h), -1: none */
  int32_t role[MGD_STEP_PLANS];             /* its role in each learned step of its home, -1: none */
  bool was_clean;     /* the host's copy was good when the key was computed */
  bool on_host;       /* its bytes count as the host's */
  bool mapped; /* `memory` lies in a file: it is only read, and takes none of the host's memory */
  bool closed;        /* its storage died; it is an orphan until the move ends */
  bool counted;       /* mgd_restore_begin() has counted its bytes; false outside of that call */
  uint8_t advice;     /* enum mgd_advice, residency.h */
#endif
};

/* Begins a use of the bytes by an operator of the user's thread. False: they are not at home, and the operator needs
 * mgd_restore_begin(). The use is counted before the state is read; mgd_evict_begin() writes the state before it reads
 * the uses. So at least one of the two sees the other. */
static inline bool mgd_handle_use(struct mgd_handle *h, struct mgd_user *user, uint64_t tick) {
  mgd_count_up(&user->begun[h->home], 1); /* first: a reader that sees in_use also sees this count */
  __atomic_fetch_add(&h->in_use, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&h->stamp, tick, __ATOMIC_RELAXED);
  return __atomic_load_n(&h->state, __ATOMIC_SEQ_CST) == MGD_RESIDENT;
}

/* Gives back uses that no user counts: a mover's, or with MGD_ALIVE the storage's own. True: none is left, and the
 * caller deletes the handle. */
static inline bool mgd_handle_put(struct mgd_handle *h, uint32_t uses) {
  return __atomic_sub_fetch(&h->in_use, uses, __ATOMIC_SEQ_CST) == 0;
}

/* Ends `uses` uses of the user; returns what mgd_handle_put() returns. */
static inline bool mgd_handle_unuse(struct mgd_handle *h, struct mgd_user *user, uint32_t uses) {
  const int home = h->home;
  const bool last = mgd_handle_put(h, uses);
  mgd_count_up(&user->ended[home], uses);
  return last;
}

/* Marks the bytes as written. An operator that writes them calls it between mgd_handle_use() and mgd_handle_unuse(),
 * even while they are still away: a mover clears the mark before it takes the bytes, so a later mark stays. True: the
 * host may have a good copy, or a copy that reads the bytes may be under way. */
static inline bool mgd_handle_write(struct mgd_handle *h) {
  if (__atomic_load_n(&h->dirty, __ATOMIC_RELAXED) == 1) {
    return false;
  }
  __atomic_store_n(&h->dirty, 1, __ATOMIC_RELAXED);
  return true;
}

/* Records that a copy of the bytes has begun, so the next mgd_handle_write() returns true. The caller holds a use. */
static inline void mgd_handle_read_by_copy(struct mgd_handle *h) {
  uint32_t written = 1;
  __atomic_compare_exchange_n(&h->dirty, &written, MGD_DIRTY_READ, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Marks the host's copy as bad or uncertain although the bytes were not written. A copy may still be reading them. */
static inline void mgd_handle_distrust(struct mgd_handle *h) {
  __atomic_store_n(&h->dirty, MGD_DIRTY_READ, __ATOMIC_RELAXED);
}

/* True: the bytes are elsewhere, or a mover has them. */
static inline bool mgd_handle_is_away(const struct mgd_handle *h) {
  const uint32_t state = __atomic_load_n(&h->state, __ATOMIC_SEQ_CST);
  return state != MGD_RESIDENT && state != MGD_ARRIVING;
}

#endif
