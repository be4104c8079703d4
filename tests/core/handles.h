/* handles.h: what tests of the directory of storages share: storages in one
 * line each, and movers that carry out a plan at once. Copies on the host are
 * real memory, so that the sanitizers see one that is lost or freed twice. */
#ifndef HANDLES_H
#define HANDLES_H

#include "expect.h"

#define PLAN 128

struct plan {
  struct mgd_action actions[PLAN];
  size_t n;
};

/* Victims go by their last use alone, so that tests can say who leaves. */
static inline struct mgd_machine *new_directory(int accelerators) {
  struct mgd_machine *m = new_machine(accelerators, 100);
  EXPECT_OK(mgd_order_set_policy(m, mgd_policy_lru, NULL));
  return m;
}

static inline bool is_home(const struct mgd_handle *h) { return h->state == MGD_RESIDENT; }

static inline struct mgd_handle *open_handle(struct mgd_machine *m, int home, int64_t bytes, uint64_t stamp) {
  struct mgd_handle *h = calloc(1, sizeof *h);
  EXPECT(h);
  h->stamp = stamp;
  EXPECT_OK(mgd_handle_open(m, h, home, bytes));
  return h;
}

static inline void put_back(struct mgd_handle *h, uint32_t uses) {
  if (uses == MGD_ALIVE ? mgd_handle_put(h, uses) : mgd_handle_unuse(h, me, uses)) {
    free(h);
  }
}

/* Frees what is the closer's to free; the handle too, unless somebody uses it. */
static inline void close_handle(struct mgd_machine *m, struct mgd_handle *h) {
  bool moving = true;
  void *memory = &moving;
  EXPECT_OK(mgd_handle_close(m, h, &moving, &memory));
  EXPECT(!moving);
  free(memory);
  put_back(h, MGD_ALIVE);
}

static inline void use_at(struct mgd_handle *h, uint64_t tick) {
  EXPECT(i_use(h, tick));
  put_back(h, 1);
}

static inline void end_spill(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory) {
  void *left = NULL;
  EXPECT_OK(mgd_evict_end(m, h, to, memory, &left));
  free(left);
  if (mgd_handle_put(h, 1)) { /* the mover's */
    free(h);
  }
}

static inline void carry_out(struct mgd_machine *m, const struct plan *p) {
  for (size_t i = 0; i < p->n; i++) {
    const struct mgd_action *a = &p->actions[i];
    if (a->kind == MGD_DO_FORGET) {
      free(a->memory);
    } else {
      end_spill(m, a->handle, a->to, a->to != MGD_HOST ? NULL : a->memory ? a->memory
                                                                          : malloc(1));
    }
  }
}

static inline int plan_eviction(struct mgd_machine *m, int device, int64_t bytes, const int64_t *room, struct plan *p) {
  p->n = PLAN;
  return mgd_evict_begin(m, device, bytes, room, 0, p->actions, &p->n);
}

#define EXPECT_ACTION(a, kind, from, to, bytes, handle) expect_action(__FILE__, __LINE__, &(a), kind, from, to, bytes, handle)

static inline void expect_action(const char *file, int line, const struct mgd_action *a, int kind, int from, int to, int64_t bytes, const struct mgd_handle *h) {
  expect_int(file, line, "kind", (int64_t)a->kind, kind);
  expect_int(file, line, "from", a->from, from);
  expect_int(file, line, "to", a->to, to);
  expect_int(file, line, "bytes", a->bytes, bytes);
  expect_int(file, line, "the handle is the expected one", a->handle == h, 1);
}

static const struct mgd_handle *the_only_one;

static inline bool is_the_only_one(const struct mgd_handle *h) { return h == the_only_one; }

/* Makes this one leave, whoever else is there; takes away a veto of the test's own. */
static inline void spill(struct mgd_machine *m, struct mgd_handle *h, int to) {
  int64_t room[MGD_MAX_DEVICES] = {0};
  struct plan p;
  room[to] = to == MGD_HOST ? 0 : h->bytes;
  the_only_one = h;
  EXPECT_OK(mgd_evict_veto(m, is_the_only_one));
  EXPECT_OK(plan_eviction(m, h->home, 1, room, &p));
  EXPECT_OK(mgd_evict_veto(m, NULL));
  EXPECT_INT(p.n, 1);
  EXPECT(p.actions[0].handle == h);
  EXPECT_INT(p.actions[0].to, to);
  carry_out(m, &p);
}

static inline int acquire(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room, struct plan *p, int *device) {
  p->n = PLAN;
  return mgd_restore_begin(m, handles, n, room, p->actions, &p->n, device);
}

/* Uses it and plans its restore, which is to be ended. */
static inline void begin_restore(struct mgd_machine *m, struct mgd_handle *h) {
  int64_t room[MGD_MAX_DEVICES];
  struct plan p;
  int device = -7;
  for (int d = 0; d < MGD_MAX_DEVICES; d++) {
    room[d] = INT64_MAX;
  }
  EXPECT(!i_use(h, h->stamp));
  EXPECT_OK(acquire(m, &h, 1, room, &p, &device));
  EXPECT_INT(p.n, 1);
  EXPECT_ACTION(p.actions[0], MGD_DO_RESTORE, h->away, h->home, h->bytes, h);
  EXPECT(p.actions[0].memory == h->memory);
}

static inline void restore(struct mgd_machine *m, struct mgd_handle *h) {
  void *left = NULL;
  begin_restore(m, h);
  EXPECT_OK(mgd_restore_end(m, h, MGD_RESIDENT, &left));
  free(left);
  put_back(h, 1);
}

/* Away and back: a storage with a good copy on the host. */
static inline struct mgd_handle *open_with_spare(struct mgd_machine *m, int home, int64_t bytes) {
  struct mgd_handle *h = open_handle(m, home, bytes, 0);
  spill(m, h, MGD_HOST);
  restore(m, h);
  EXPECT(h->memory);
  return h;
}

static inline void write_to(struct mgd_handle *h) {
  EXPECT(i_use(h, h->stamp));
  mgd_handle_write(h);
  put_back(h, 1);
}

static inline struct mgd_residency_usage residency_of(struct mgd_machine *m, int device) {
  struct mgd_residency_usage u;
  EXPECT_OK(mgd_residency_read(m, device, &u));
  return u;
}

static inline int64_t host_used(struct mgd_machine *m) {
  int64_t used = -1, limit = -1, peak = -1;
  EXPECT_OK(mgd_host_usage(m, &used, &limit, &peak));
  return used;
}

#endif
