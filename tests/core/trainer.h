/* trainer.h: a device that trains layer after layer with too little room, for tests of steps.
 *
 * Storages are numbers, and so are their copies on the host: each operator checks that it finds what was written last.
 */
#ifndef TRAINER_H
#define TRAINER_H

#include "core/steps/internal_step.h"
#include "expect.h"

#define LAYERS 12
#define WEIGHT 10
#define RESULT 8
#define ROOM 160 /* of 12 * 10 for weights and as much for gradients, and 12 * 8 for results */

/* A storage and what is in it: a number, -1 on a device without it. The host's memory is a number, too. */
struct storage {
  struct mgd_handle h;
  int content, expected;
};

struct device {
  struct mgd_machine *m;
  int64_t room, worked, less, pieces; /* so much less than is free is certain, and so much more may be room */
  uint64_t tick, random;
  int64_t planned, needed, spares, refused; /* what was done ahead of need; restores at need; what found no room */
  int64_t copied; /* bytes, away and home */
  bool knows; /* that bytes had to leave */
  bool untimed; /* nobody knows what operators take */
  const struct mgd_step_clock *clock;
  struct mgd_step_request requests[MGD_STEP_REQUESTS]; /* of the last operator; the first `requested` */
  size_t requested;
  struct storage *weights[LAYERS], *results[LAYERS], *gradients[LAYERS];
};

static inline struct storage *storage_of(struct mgd_handle *h) { return (struct storage *)(void *)h; }

static inline int64_t in_use(struct device *d) {
  struct mgd_residency_usage u;
  EXPECT_OK(mgd_residency_read(d->m, 1, &u));
  return u.idle + u.in_use + u.held + u.moving + u.pinned[0];
}

/* ---- the executor */

static inline void put_mover(struct mgd_handle *h) {
  if (mgd_handle_put(h, 1)) { free(h); }
}

static inline void end_leaving(struct device *d, const struct mgd_action *a) {
  struct storage *s = storage_of(a->handle);
  const bool stays = a->kind == MGD_DO_SPARE;
  int *memory = a->memory ? a->memory : malloc(sizeof *memory);
  void *left = NULL;
  if (a->kind == MGD_DO_DROP) { EXPECT_INT(*memory, s->content); }
  *memory = s->content;
  s->content = stays ? s->content : -1;
  d->spares += stays;
  d->copied += a->kind == MGD_DO_DROP ? 0 : a->bytes;
  EXPECT_OK(mgd_evict_end(d->m, a->handle, stays ? 1 : MGD_HOST, memory, &left));
  free(left);
  put_mover(a->handle);
}

static inline void end_coming(struct device *d, const struct mgd_action *a, enum mgd_residency state) {
  struct storage *s = storage_of(a->handle);
  void *left = NULL;
  if (a->kind == MGD_DO_RESTORE && state != MGD_SPILLED) {
    s->content = *(int *)a->memory;
    d->copied += a->bytes;
  }
  EXPECT_OK(mgd_restore_end(d->m, a->handle, state, &left));
  free(left);
}

static inline void evict(struct device *d, int64_t bytes) {
  while (in_use(d) + bytes > d->room) {
    struct mgd_action actions[8];
    size_t n = 8;
    EXPECT_OK(mgd_evict_begin(d->m, 1, 1, NULL, 0, actions, &n));
    for (size_t i = 0; i < n; i++) { end_leaving(d, &actions[i]); }
    d->knows = true;
    EXPECT_OK(mgd_step_begin(d->m, 1));
  }
}

static inline void act_ahead(struct device *d, const struct mgd_action *actions, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const struct mgd_action *a = &actions[i];
    d->planned++;
    if (a->kind != MGD_DO_RESTORE) {
      end_leaving(d, a);
      continue;
    }
    const bool fits = in_use(d) <= d->room; /* the bytes of what comes are counted already */
    d->refused += !fits;
    end_coming(d, a, fits ? MGD_ARRIVING : MGD_SPILLED);
    put_mover(a->handle);
  }
}

static inline void bring_home(struct device *d, struct mgd_handle *const *handles, size_t n) {
  struct mgd_action actions[8 + MGD_MAX_DEVICES];
  int64_t room[MGD_MAX_DEVICES];
  size_t made = sizeof actions / sizeof *actions;
  int where = 0;
  for (int i = 0; i < MGD_MAX_DEVICES; i++) { room[i] = INT64_MAX; }
  EXPECT_OK(mgd_restore_begin(d->m, handles, n, room, actions, &made, &where));
  for (size_t i = 0; i < made; i++) {
    d->needed += actions[i].kind == MGD_DO_RESTORE;
    evict(d, 0);
    end_coming(d, &actions[i], MGD_RESIDENT);
  }
}

/* ---- the program */

static inline struct storage *make_on(struct device *d, int home, int64_t bytes) {
  struct storage *s = calloc(1, sizeof *s);
  EXPECT(s);
  s->h.stamp = ++d->tick;
  EXPECT_OK(mgd_handle_open(d->m, &s->h, home, bytes));
  s->expected = s->content = (int)pick(&d->random, 1000000);
  return s;
}

static inline struct storage *make(struct device *d, int64_t bytes) {
  evict(d, bytes);
  return make_on(d, 1, bytes);
}

static inline void drop(struct device *d, struct storage **s) {
  bool moving = true;
  void *memory = NULL;
  EXPECT_OK(mgd_handle_close(d->m, &(*s)->h, &moving, &memory));
  EXPECT(!moving);
  free(memory);
  EXPECT(mgd_handle_put(&(*s)->h, MGD_ALIVE));
  free(*s);
  *s = NULL;
}

/* An operator; the first storage is written if `writes`. */
static inline void run(struct device *d, const char *name, struct storage *const *s, size_t n, bool writes) {
  struct mgd_step_use uses[4];
  struct mgd_handle *handles[4];
  struct mgd_action actions[MGD_STEP_ACTIONS];
  size_t made = MGD_STEP_ACTIONS;
  bool plans = false;
  for (size_t i = 0; i < n; i++) {
    handles[i] = &s[i]->h;
    uses[i] = (struct mgd_step_use){handles[i], writes && i == 0};
    (void)mgd_handle_use(handles[i], me, ++d->tick);
    if (uses[i].written) { (void)mgd_handle_write(handles[i]); }
  }
  const struct mgd_step_call call = {name, uses, n, d->untimed ? -1 : d->worked, d->requests, d->requested};
  /* Another thread may forget the step. */
  const int followed = mgd_step_operator(d->m, 1, &call, actions, &made, &plans);
  EXPECT(followed == MGD_OK || (followed == MGD_E_ABSENT && !d->m->devices[1].step));
  act_ahead(d, actions, made);
  while (made + 2 >= MGD_STEP_ACTIONS) {
    made = MGD_STEP_ACTIONS;
    EXPECT_OK(mgd_step_rest(d->m, 1, &call, actions, &made));
    act_ahead(d, actions, made);
  }
  if (plans) {
    const int code = mgd_step_plan(d->m, 1, d->room - in_use(d) - d->less, d->pieces, d->clock);
    EXPECT(code == MGD_OK || code == MGD_E_NOMEM || code == MGD_E_WAIT || code == MGD_E_ABSENT);
  }
  bring_home(d, handles, n);
  EXPECT(in_use(d) <= d->room);
  for (size_t i = 0; i < n; i++) {
    EXPECT_INT(s[i]->content, s[i]->expected);
    s[i]->content = s[i]->expected += uses[i].written;
    (void)mgd_handle_unuse(handles[i], me, 1);
  }
  d->worked += 100;
}

/* Logs an operator on the device of its storages, or follows the plan, and lets all actions fail: no bytes move. */
static inline int issue_uses(struct device *d, const char *name, const struct mgd_step_use *uses, size_t n,
                             bool *plans) {
  const struct mgd_step_call call = {name, uses, n, d->untimed ? -1 : d->worked, d->requests, d->requested};
  struct mgd_action actions[MGD_STEP_ACTIONS];
  size_t made = MGD_STEP_ACTIONS;
  for (size_t i = 0; i < n; i++) { (void)mgd_handle_use(uses[i].handle, me, ++d->tick); }
  const int code = mgd_step_operator(d->m, n ? uses[0].handle->home : 1, &call, actions, &made, plans);
  for (size_t i = 0; i < made; i++) {
    void *left = NULL;
    d->planned++;
    if (actions[i].kind == MGD_DO_RESTORE) {
      EXPECT_OK(mgd_restore_end(d->m, actions[i].handle, MGD_SPILLED, &left));
    } else {
      EXPECT_OK(mgd_evict_end(d->m, actions[i].handle, -1, NULL, &left));
    }
    free(left);
    put_mover(actions[i].handle);
  }
  for (size_t i = 0; i < n; i++) { (void)mgd_handle_unuse(uses[i].handle, me, 1); }
  d->worked += 100;
  return code;
}

/* The same for storages that the operator reads. True: a plan is to be made. */
static inline bool issue(struct device *d, const char *name, struct storage *const *s, size_t n) {
  struct mgd_step_use uses[4];
  bool plans = false;
  EXPECT(n <= 4);
  for (size_t i = 0; i < n; i++) { uses[i] = (struct mgd_step_use){&s[i]->h, false}; }
  EXPECT_OK(issue_uses(d, name, uses, n, &plans));
  return plans;
}

static const char *const names[] = {"forward", "backward", "update", "look"};

static inline void train(struct device *d) {
  for (int i = 0; i < LAYERS; i++) {
    struct storage *in[] = {d->weights[i], i ? d->results[i - 1] : d->weights[i]};
    run(d, names[0], in, 2, false);
    d->results[i] = make(d, RESULT);
  }
  for (int i = LAYERS - 1; i >= 0; i--) {
    struct storage *in[] = {d->weights[i], d->results[i]};
    run(d, names[1], in, 2, false);
    d->gradients[i] = make(d, WEIGHT);
    drop(d, &d->results[i]);
  }
  for (int i = 0; i < LAYERS; i++) {
    struct storage *in[] = {d->weights[i], d->gradients[i]};
    run(d, names[2], in, 2, true);
    drop(d, &d->gradients[i]);
  }
}

/* Each layer is looked at twice; as long as a step, and too much for the device. */
static inline void look(struct device *d) {
  for (int i = 0; i < 2 * LAYERS; i++) {
    struct storage *in[] = {d->weights[i / 2]};
    run(d, names[3], in, 1, false);
    if (i % 2 == 0) { d->results[i / 2] = make(d, RESULT); }
  }
  for (int i = 0; i < LAYERS; i++) { drop(d, &d->results[i]); }
}

static inline struct device new_device(uint64_t seed, int64_t fail) {
  struct device d = {.room = ROOM, .random = seed};
  const struct mgd_config config = {.fail_allocation = fail};
  int id;
  EXPECT_OK(mgd_machine_create(&config, &d.m));
  EXPECT_OK(mgd_device_add(d.m, "sim:0", ROOM, &id));
  EXPECT_OK(mgd_user_join(d.m, &me));
  EXPECT_OK(mgd_link_set(d.m, MGD_HOST, 1, (struct mgd_link){1, 1.0}));
  EXPECT_OK(mgd_link_set(d.m, 1, MGD_HOST, (struct mgd_link){1, 1.0}));
  for (int i = 0; i < LAYERS; i++) { d.weights[i] = make(&d, WEIGHT); }
  return d;
}

static inline void give_up(struct device *d) {
  for (int i = 0; i < LAYERS; i++) { drop(d, &d->weights[i]); }
  EXPECT_INT(in_use(d), 0);
  EXPECT(is_empty(d->m));
  mgd_machine_destroy(d->m);
}

static inline struct mgd_step_state state(struct device *d) {
  struct mgd_step_state s;
  EXPECT_OK(mgd_step_read(d->m, 1, &s));
  return s;
}

#endif
