/* step_file.c: steps that were learned, as numbers that a file can keep, and back.
 *
 * The plan is not saved: it is made anew from the step, for the room and the links at that time. The same functions
 * read and write the numbers, so the two directions agree. Which handle has which role is found when the program uses
 * the handles.
 */
#include "core/steps/step_file.h"

#include "core/arithmetic.h"
#include "core/steps/internal_step.h"

/* The numbers in their order. If both pointers are NULL, the numbers are only counted. */
struct tape {
  int64_t *write;
  const int64_t *read;
  size_t at;
  bool good;
};

struct head {
  int64_t operators, roles, named, made, uses; /* lengths of the arrays */
  int64_t room, capacity, margin;              /* bytes: for the plan, of the device when saved, left free */
};
#define HEAD (sizeof(struct head) / sizeof(int64_t))

static int64_t pass(struct tape *t, int64_t value) {
  if (t->read) {
    value = t->read[t->at];
  } else if (t->write) {
    t->write[t->at] = value;
  }
  t->at++;
  return value;
}

/* Passes a number that must be in least..most; t->good becomes false otherwise. */
static int32_t pass_index(struct tape *t, int64_t value, int64_t least, int64_t most) {
  value = pass(t, value);
  const bool good = value >= least && value <= most;
  t->good = t->good && good;
  return (int32_t)(good ? value : least);
}

static struct head pass_head(struct tape *t, struct head h) {
  h.operators = pass_index(t, h.operators, 1, MGD_STEP_OPERATORS);
  h.named = pass_index(t, h.named, 0, MGD_STEP_USES);
  h.made = pass_index(t, h.made, 0, MGD_PLAN_MOST);
  h.roles = pass_index(t, h.roles, 0, h.named + h.made);
  h.uses = pass_index(t, h.uses, 0, h.named + h.made);
  h.room = pass(t, h.room);
  h.capacity = pass(t, h.capacity);
  h.margin = pass(t, h.margin);
  t->good = t->good && h.room >= 0 && h.room <= INT64_MAX / 4 && h.capacity >= 0 && h.margin >= 0 && h.margin <= h.room;
  return h;
}

static size_t numbers_behind(const struct head *h) {
  return (size_t)(6 * (h->operators + 1) + h->named + h->made + 2 * h->uses + 2 * h->roles);
}

/* Passes the arrays, which have the lengths of the head. The offsets into another array must not decrease, so the last
 * offset is the largest: it is that array's length. */
static void pass_arrays(struct tape *t, const struct head *h, const struct mgd_step_learned *l) {
  int32_t use = 0, made = 0, planned = 0;
  for (int64_t o = 0; o <= h->operators; o++) {
    const bool end = o == h->operators;
    struct mgd_step_kind *k = &l->kinds[o];
    k->kind = (uint64_t)pass(t, (int64_t)k->kind);
    k->window = (uint64_t)pass(t, (int64_t)k->window);
    k->first_use = use = pass_index(t, k->first_use, o == 0 ? 0 : end ? h->named : use, o == 0 ? 0 : h->named);
    k->first_made = made = pass_index(t, k->first_made, o == 0 ? 0 : end ? h->made : made, o == 0 ? 0 : h->made);
    l->plan_first[o] = planned =
        pass_index(t, l->plan_first[o], o == 0 ? 0 : end ? h->uses : planned, o == 0 ? 0 : h->uses);
    l->ns[o] = pass(t, l->ns[o]);
  }
  for (int64_t i = 0; i < h->named; i++) {
    l->use_roles[i] = pass_index(t, l->use_roles[i], -1, h->roles - 1);
  }
  for (int64_t i = 0; i < h->made; i++) {
    l->made_roles[i] = pass_index(t, l->made_roles[i], 0, h->roles - 1);
  }
  for (int64_t i = 0; i < h->uses; i++) {
    l->plan_uses[i].storage = pass_index(t, l->plan_uses[i].storage, 0, h->roles - 1);
    l->plan_uses[i].flags = (uint32_t)pass_index(t, l->plan_uses[i].flags, 1, 7);
  }
  for (int64_t r = 0; r < h->roles; r++) {
    l->plan_storages[r].bytes = pass(t, l->plan_storages[r].bytes);
    l->plan_storages[r].dies = pass_index(t, l->plan_storages[r].dies, -1, h->operators - 1);
  }
}

/* ---- to numbers */

static void write_steps(const struct mgd_machine *m, int device, struct tape *t, int *steps) {
  const struct mgd_step *s = mgd_step_of_locked(m, device);
  *steps = 0;
  for (int i = 0; s && i < MGD_STEP_PLANS; i++) {
    const struct mgd_step_learned *l = &s->known[i];
    if (mgd_step_is_known(l)) {
      const struct head h = pass_head(t, (struct head){.operators = l->operators,
                                                       .roles = l->roles,
                                                       .named = l->kinds[l->operators].first_use,
                                                       .made = l->kinds[l->operators].first_made,
                                                       .uses = l->uses,
                                                       .room = l->room,
                                                       .capacity = m->devices[device].capacity,
                                                       .margin = l->margin});
      if (t->write) {
        pass_arrays(t, &h, l);
      } else {
        t->at += numbers_behind(&h);
      }
      ++*steps;
    }
  }
}

int mgd_step_file_save(struct mgd_machine *m, int device, int64_t **out, size_t *numbers, int *steps) {
  int code = MGD_E_NO_DEVICE;
  mgd_state_enter(m);
  if (mgd_state_knows_device_locked(m, device)) {
    struct tape t = {.good = true};
    int found;
    write_steps(m, device, &t, &found);
    int64_t *memory = t.at ? mgd_alloc_new(&m->alloc, t.at, sizeof *memory) : NULL;
    code = t.at && !memory ? MGD_E_NOMEM : MGD_OK;
    if (memory) {
      t = (struct tape){.write = memory, .good = true};
      write_steps(m, device, &t, &found);
    }
    if (code == MGD_OK) {
      *out = memory;
      *numbers = t.at;
      *steps = found;
    }
  }
  return mgd_state_leave(m, code);
}

/* ---- from numbers */

/* Puts the step that was read and planned into the device's known steps. */
static int take_up(struct mgd_machine *m, int device, struct mgd_step_learned *l) {
  int code = MGD_E_ABSENT;
  mgd_state_enter(m);
  struct mgd_step *s = mgd_step_of_locked(m, device);
  if (s && s->planning) {
    code = MGD_E_WAIT;
  } else if (s) {
    l->slot = mgd_step_free_slot_locked(s);
    l->used = s->calls;
    s->known[l->slot] = *l;
    *l = (struct mgd_step_learned){0};
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

/* Memory that storages could not use when the plan was saved is assumed to be unusable now, too. */
static struct mgd_plan_machine machine_now(struct mgd_machine *m, int device, const struct head *h) {
  mgd_state_enter(m);
  const int64_t more = m->devices[device].capacity - h->capacity;
  const struct mgd_plan_machine machine = {.room = mgd_max(0, more > 0 ? mgd_about_sum(h->room, more) : h->room + more),
                                           .in = m->links[MGD_HOST][device],
                                           .out = m->links[device][MGD_HOST]};
  (void)mgd_state_leave(m, MGD_OK);
  return machine;
}

/* Loads one step, which begins at t->at. */
static int load_one(struct mgd_machine *m, int device, struct tape *t, size_t n) {
  struct mgd_step_learned l = {0};
  if (n - t->at < HEAD) {
    return MGD_E_INVALID;
  }
  const struct head h = pass_head(t, (struct head){0});
  if (!t->good || n - t->at < numbers_behind(&h)) {
    return MGD_E_INVALID;
  }
  int code = MGD_E_NOMEM;
  if (mgd_step_learn_allocate(&m->alloc, &l, (size_t)h.operators, (size_t)h.named, (size_t)h.made)) {
    pass_arrays(t, &h, &l);
    const struct mgd_plan_machine machine = machine_now(m, device, &h);
    l.operators = (int32_t)h.operators;
    l.roles = (int32_t)h.roles;
    l.uses = (int32_t)h.uses;
    l.room = machine.room;
    l.margin = h.margin;
    l.whole = l.too_much = mgd_about_sum(machine.room, h.margin);
    l.plans = 1;
    l.loaded = true;
    for (int32_t r = 0; r < l.roles; r++) {
      const bool lasting = l.plan_storages[r].dies < 0;
      l.alive += lasting;
      l.role[r] = (struct mgd_step_role){.bytes = l.plan_storages[r].bytes, .lasting = lasting, .unseen = lasting};
    }
    mgd_step_learn_index(&l);
    code = t->good ? mgd_step_plan_of(&l, &machine, &l.plan) : MGD_E_INVALID;
    code = code == MGD_OK ? take_up(m, device, &l) : code;
  }
  l.roles = code == MGD_OK ? l.roles : 0; /* no handle has them */
  mgd_step_learn_forget_locked(&l);
  return code;
}

int mgd_step_file_load(struct mgd_machine *m, int device, const int64_t *numbers, size_t n, int *steps) {
  struct tape t = {.read = numbers, .good = true};
  *steps = 0;
  int code = mgd_step_begin(m, device);
  while (code == MGD_OK && t.at < n) {
    code = load_one(m, device, &t, n);
    *steps += code == MGD_OK;
  }
  return code;
}
