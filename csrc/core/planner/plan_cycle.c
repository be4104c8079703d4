/* plan_cycle.c: checks a recorded step, and computes what comes after each use, for the planner.
 *
 * All checks of the caller's arguments are here: the other files trust all numbers. Nothing is decided here.
 */
#include "core/planner/internal_plan.h"

#include <string.h>

/* ---- checks */

static bool has_good_frame(const struct mgd_plan_step *step) {
  if (step->operators < 1 || step->operators > MGD_PLAN_MOST || step->storages < 0 || step->storages > MGD_PLAN_MOST ||
      !step->ns || !step->first_use || step->first_use[0] != 0) {
    return false;
  }
  for (int32_t o = 0; o < step->operators; o++) {
    if (step->ns[o] < 0 || step->first_use[o + 1] < step->first_use[o]) {
      return false;
    }
  }
  const int32_t uses = step->first_use[step->operators];
  return uses <= MGD_PLAN_MOST && (uses == 0 || step->uses) && (step->storages == 0 || step->storage);
}

static bool has_good_storages(const struct mgd_plan_step *step) {
  for (int32_t s = 0; s < step->storages; s++) {
    const struct mgd_plan_storage *storage = &step->storage[s];
    if (storage->bytes < 0 || storage->dies < -1 || storage->dies >= step->operators) {
      return false;
    }
  }
  return true;
}

static bool is_good_machine(const struct mgd_plan_machine *m) {
  return m->room >= 0 && m->in.latency_ns >= 0 && mgd_is_amount(m->in.bytes_per_ns) && m->out.latency_ns >= 0 &&
         mgd_is_amount(m->out.bytes_per_ns);
}

/* Checks flags and storages, and that no operator names a storage twice. made, seen: -1 for all storages before the
 * call. made is set to the operator that makes the storage. */
static bool has_good_uses(const struct mgd_plan_step *step, int32_t *made, int32_t *seen) {
  for (int32_t o = 0; o < step->operators; o++) {
    for (int32_t k = step->first_use[o]; k < step->first_use[o + 1]; k++) {
      const struct mgd_plan_use *use = &step->uses[k];
      if (use->storage < 0 || use->storage >= step->storages || use->flags < 1 || use->flags > 7 ||
          seen[use->storage] == o) {
        return false;
      }
      seen[use->storage] = o;
      if (use->flags & MGD_PLAN_MADE) {
        if (made[use->storage] >= 0 || step->storage[use->storage].dies < 0) {
          return false;
        }
        made[use->storage] = o;
      }
    }
  }
  return true;
}

/* Returns how many operators after the making of a storage operator o comes. */
static int32_t age_at(const struct mgd_plan_step *step, int32_t made, int32_t o) {
  return o >= made ? o - made : o - made + step->operators;
}

static bool has_good_lives(const struct mgd_plan_step *step, const int32_t *made) {
  for (int32_t s = 0; s < step->storages; s++) {
    if (step->storage[s].dies >= 0 && made[s] < 0) {
      return false;
    }
  }
  for (int32_t o = 0; o < step->operators; o++) {
    for (int32_t k = step->first_use[o]; k < step->first_use[o + 1]; k++) {
      const int32_t s = step->uses[k].storage, dies = step->storage[s].dies;
      if (dies >= 0 && age_at(step, made[s], o) > age_at(step, made[s], dies)) {
        return false;
      }
    }
  }
  return true;
}

/* ---- sums */

static int find_copy_times(struct mgd_plan_cycle *c) {
  int64_t total = 0;
  for (int32_t s = 0; s < c->storages; s++) {
    const int64_t bytes = c->step->storage[s].bytes;
    const struct mgd_link *in = &c->machine.in, *out = &c->machine.out;
    if (!mgd_add(total, bytes, &total) ||
        mgd_to_ns(in->latency_ns, mgd_duration((double)bytes, in->bytes_per_ns), &c->in_ns[s]) != MGD_OK ||
        mgd_to_ns(out->latency_ns, mgd_duration((double)bytes, out->bytes_per_ns), &c->out_ns[s]) != MGD_OK) {
      return MGD_E_OVERFLOW;
    }
  }
  return total < INT64_MAX / 8 ? MGD_OK : MGD_E_OVERFLOW;
}

/* In the worst case a step copies every storage back for each use, and to the host after each, and nothing overlaps. */
static int find_longest(struct mgd_plan_cycle *c) {
  for (int32_t o = 0; o < c->operators; o++) {
    c->longest_ns = mgd_about_sum(c->longest_ns, c->step->ns[o]);
  }
  for (int32_t k = 0; k < c->uses; k++) {
    const int32_t s = c->step->uses[k].storage;
    c->longest_ns = mgd_about_sum(c->longest_ns, mgd_about_sum(c->in_ns[s], c->out_ns[s]));
    c->largest = mgd_max(c->largest, c->step->storage[s].bytes);
  }
  return c->longest_ns < INT64_MAX / 64 ? MGD_OK : MGD_E_OVERFLOW;
}

/* Adds the bytes of storage s to the differences in `alive`. made: the operator that makes it; unused if it never
 * dies. */
static void add_life(struct mgd_plan_cycle *c, int32_t s, int32_t made) {
  const int32_t dies = c->step->storage[s].dies;
  const int64_t bytes = c->step->storage[s].bytes;
  const int32_t first = dies < 0 ? 0 : made, last = dies < 0 ? c->operators - 1 : dies;
  c->alive[first] += bytes;
  if (last + 1 < c->operators) {
    c->alive[last + 1] -= bytes;
  }
  if (last < first) {
    c->alive[0] += bytes;
  }
}

/* Computes the bytes at each operator. Storages that no operator uses (seen is -1) count as away. */
static int find_bytes(struct mgd_plan_cycle *c, const int32_t *made, const int32_t *seen) {
  for (int32_t k = 0; k < c->uses; k++) {
    const struct mgd_plan_use *use = &c->step->uses[k];
    const int64_t bytes = c->step->storage[use->storage].bytes;
    c->working[c->operator_of[k]] += bytes;
    c->made[c->operator_of[k]] += use->flags & MGD_PLAN_MADE ? bytes : 0;
  }
  for (int32_t s = 0; s < c->storages; s++) {
    if (seen[s] >= 0) {
      add_life(c, s, made[s]);
    }
  }
  int64_t alive = 0;
  for (int32_t o = 0; o < c->operators; o++) {
    alive += c->alive[o];
    c->alive[o] = alive;
    if (c->working[o] > c->machine.room) {
      return MGD_E_NO_ROOM;
    }
  }
  return MGD_OK;
}

/* ---- next uses */

static void find_deaths(struct mgd_plan_cycle *c) {
  for (int32_t s = 0; s < c->storages; s++) {
    if (c->step->storage[s].dies >= 0) {
      c->first_death[c->step->storage[s].dies]++;
    }
  }
  for (int32_t o = 0; o < c->operators; o++) { /* the ends of the ranges */
    c->first_death[o + 1] += c->first_death[o];
  }
  for (int32_t s = c->storages - 1; s >= 0; s--) { /* from the ends back to the begins */
    if (c->step->storage[s].dies >= 0) {
      c->dead[--c->first_death[c->step->storage[s].dies]] = s;
    }
  }
}

/* Goes backwards through two steps: the second one gives what comes after the end of the first. next and when, by
 * storage: the next use, and its operator; if the storage dies first, -1 and the operator after its last. */
static void find_gaps(struct mgd_plan_cycle *c, int32_t *next, int32_t *when) {
  for (int32_t base = c->operators; base >= 0; base -= c->operators) {
    for (int32_t o = c->operators - 1; o >= 0; o--) {
      for (int32_t i = c->first_death[o]; i < c->first_death[o + 1]; i++) {
        next[c->dead[i]] = -1;
        when[c->dead[i]] = base + o + 1;
      }
      for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
        const int32_t s = c->step->uses[k].storage;
        c->operator_of[k] = o;
        c->after[k] = next[s];
        c->until[k] = when[s] - base;
        next[s] = k;
        when[s] = base + o;
      }
    }
  }
}

/* ---- construction */

static int make_indexes(struct mgd_alloc *a, struct mgd_plan_cycle *c) {
  const size_t uses = (size_t)c->uses + 1, storages = (size_t)c->storages + 1, operators = (size_t)c->operators + 1;
  c->operator_of = mgd_alloc_new(a, uses, sizeof *c->operator_of);
  c->until = mgd_alloc_new(a, uses, sizeof *c->until);
  c->after = mgd_alloc_new(a, uses, sizeof *c->after);
  c->first_death = mgd_alloc_new(a, operators, sizeof *c->first_death);
  c->dead = mgd_alloc_new(a, storages, sizeof *c->dead);
  c->made = mgd_alloc_new(a, operators, sizeof *c->made);
  c->working = mgd_alloc_new(a, operators, sizeof *c->working);
  c->alive = mgd_alloc_new(a, operators, sizeof *c->alive);
  c->in_ns = mgd_alloc_new(a, storages, sizeof *c->in_ns);
  c->out_ns = mgd_alloc_new(a, storages, sizeof *c->out_ns);
  return c->operator_of && c->until && c->after && c->first_death && c->dead && c->made && c->working && c->alive &&
                 c->in_ns && c->out_ns
             ? MGD_OK
             : MGD_E_NOMEM;
}

/* Checks the uses and fills the arrays. made, seen: scratch, by storage. */
static int fill_cycle(struct mgd_plan_cycle *c, int32_t *made, int32_t *seen) {
  for (int32_t s = 0; s < c->storages; s++) {
    made[s] = seen[s] = -1;
  }
  if (!has_good_uses(c->step, made, seen) || !has_good_lives(c->step, made)) {
    return MGD_E_INVALID;
  }
  find_deaths(c);
  int code = find_copy_times(c);
  code = code == MGD_OK ? find_longest(c) : code;
  for (int32_t o = 0; o < c->operators; o++) {
    for (int32_t k = c->step->first_use[o]; k < c->step->first_use[o + 1]; k++) {
      c->operator_of[k] = o;
    }
  }
  code = code == MGD_OK ? find_bytes(c, made, seen) : code;
  if (code == MGD_OK) {
    memset(made, 0, (size_t)c->storages * sizeof *made);
    memset(seen, 0, (size_t)c->storages * sizeof *seen);
    find_gaps(c, made, seen);
  }
  return code;
}

int mgd_plan_cycle_make(struct mgd_alloc *a, const struct mgd_plan_step *step, const struct mgd_plan_machine *machine,
                        struct mgd_plan_cycle *c) {
  memset(c, 0, sizeof *c);
  if (!step || !machine || !has_good_frame(step) || !has_good_storages(step) || !is_good_machine(machine)) {
    return MGD_E_INVALID;
  }
  c->step = step;
  c->machine = *machine;
  c->operators = step->operators;
  c->storages = step->storages;
  c->uses = step->first_use[step->operators];
  const size_t storages = (size_t)c->storages + 1;
  int code = make_indexes(a, c);
  int32_t *made = code == MGD_OK ? mgd_alloc_new(a, storages, sizeof *made) : NULL;
  int32_t *seen = made ? mgd_alloc_new(a, storages, sizeof *seen) : NULL;
  code = seen ? fill_cycle(c, made, seen) : MGD_E_NOMEM;
  mgd_alloc_free(seen);
  mgd_alloc_free(made);
  return code;
}

void mgd_plan_cycle_free(struct mgd_plan_cycle *c) {
  mgd_alloc_free(c->operator_of);
  mgd_alloc_free(c->until);
  mgd_alloc_free(c->after);
  mgd_alloc_free(c->first_death);
  mgd_alloc_free(c->dead);
  mgd_alloc_free(c->made);
  mgd_alloc_free(c->working);
  mgd_alloc_free(c->alive);
  mgd_alloc_free(c->in_ns);
  mgd_alloc_free(c->out_ns);
}
