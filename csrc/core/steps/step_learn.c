/* step_learn.c: a period of the log becomes a step that can be planned and followed.
 *
 * The period is the `period` operators before the last one, which begins it anew. Storages get roles. One that was made
 * in the period and has died is a result of its operator; one that was there before and is alive at the end lives
 * through all steps. One that was made and is still alive dies in the next period, at the operator at which its
 * predecessor in the role died in this one. Nothing is decided here about bytes.
 */
#include "core/steps/internal_step.h"

#include <string.h>

void mgd_step_learn_forget_locked(struct mgd_step_learned *l) {
  for (int32_t r = 0; r < l->roles; r++) {
    if (l->role[r].handle) {
      l->role[r].handle->role[l->slot] = -1;
    }
  }
  mgd_alloc_free(l->kinds);
  mgd_alloc_free(l->buckets);
  mgd_alloc_free(l->use_roles);
  mgd_alloc_free(l->made_roles);
  mgd_alloc_free(l->role);
  mgd_alloc_free(l->ns);
  mgd_alloc_free(l->plan_first);
  mgd_alloc_free(l->plan_uses);
  mgd_alloc_free(l->plan_storages);
  mgd_plan_free(l->plan);
  mgd_plan_layout_free(l->layout);
  *l = (struct mgd_step_learned){0};
}

/* The period: operators first .. first + n - 1 of the log. */
struct period {
  const struct mgd_step_log *log;
  int32_t first, n;
  const struct mgd_step_clock *clock; /* NULL: `worked` is in ns */
  int32_t *role_of; /* indexed by storage of the log; -1: no role */
};

static int32_t made_from(const struct period *p, int32_t o) { return p->log->operators[p->first + o].first_made; }

/* Returns the storage that has the place of `s` one period later, or -1. `s` is not a result of the period. */
static int32_t successor(const struct period *p, const struct mgd_step_seen *s) {
  const int32_t by = s->made + p->n;
  if (s->made < 0 || by < p->first) { return -1; }
  const int32_t place = p->log->operators[by].first_made + s->ordinal;
  const bool made = place < p->log->operators[by + 1].first_made;
  return made && p->log->seen[p->log->made[place]].bytes == s->bytes ? p->log->made[place] : -1;
}

/* Returns the storage with the place of `s` in the period before, or NULL: the log does not go back so far, or that
 * storage has another size. */
static const struct mgd_step_seen *predecessor(const struct period *p, const struct mgd_step_seen *s) {
  const struct mgd_step_logged *before = s->made >= p->n ? &p->log->operators[s->made - p->n] : NULL;
  const int32_t place = before ? before->first_made + s->ordinal : 0;
  const struct mgd_step_seen *t =
      before && place < before[1].first_made ? &p->log->seen[p->log->made[place]] : NULL;
  return t && t->bytes == s->bytes ? t : NULL;
}

/* Returns after which operator of the step a result of the period dies. A result that dies at the operator that makes
 * its successor counts as dead one operator earlier: otherwise its lifetime would seem to be empty. */
static int32_t death_of(const struct period *p, const struct mgd_step_seen *s) {
  if (s->died >= 0) {
    return s->died - p->first < p->n ? s->died - p->first : p->n - 1;
  }
  const struct mgd_step_seen *t = predecessor(p, s);
  const int32_t died = t ? t->died - p->first : -1, made = s->made - p->first;
  return died >= 0 && died <= made && made > 0 ? (died < made ? died : made - 1) : p->n - 1;
}

/* Whether the time of death of all results is known: they have died, or their predecessors in the period before have.
 * Otherwise it is too soon to tell; or the period is a part of the step, such as the forward pass of a cell over the
 * words of a sentence, whose results wait for the backward pass. */
static bool knows_deaths(const struct period *p) {
  bool known = true;
  for (int32_t i = made_from(p, 0); known && i < made_from(p, p->n); i++) {
    const struct mgd_step_seen *s = &p->log->seen[p->log->made[i]], *t = predecessor(p, s);
    known = s->died >= 0 || (t && t->died >= 0);
  }
  return known;
}

static void add_role(struct mgd_step_learned *l, struct period *p, int32_t seen, bool lasting) {
  const struct mgd_step_seen *s = &p->log->seen[seen];
  p->role_of[seen] = l->roles;
  l->role[l->roles] = (struct mgd_step_role){.bytes = s->bytes, .lasting = lasting, .own = s->own};
  l->plan_storages[l->roles] = (struct mgd_plan_storage){s->bytes, lasting ? -1 : death_of(p, s)};
  l->roles++;
}

/* Gives roles to results first, in the order in which they are made, then to used storages that live on. A storage that
 * is pinned, or is to leave last, stays where it is and is not planned. */
static void give_roles(struct mgd_step_learned *l, struct period *p) {
  const struct mgd_step_log *log = p->log;
  for (int32_t i = 0; i < log->seen_count; i++) {
    p->role_of[i] = -1;
  }
  for (int32_t i = made_from(p, 0); i < made_from(p, p->n); i++) {
    add_role(l, p, log->made[i], false);
  }
  const int32_t end = log->operators[p->first + p->n].first_use;
  for (int32_t i = log->operators[p->first].first_use; i < end; i++) {
    const int32_t x = log->uses[i].seen;
    const struct mgd_step_seen *s = &log->seen[x];
    if (p->role_of[x] < 0 && s->handle && s->handle->pins == 0 && !mgd_handle_leaves_last(s->handle)) {
      add_role(l, p, x, true);
    } else if (p->role_of[x] < 0 && !s->handle && successor(p, s) >= 0) {
      p->role_of[x] = p->role_of[successor(p, s)];
    }
  }
}

/* Whether the storage, which the operator o uses, lives in that role then. One that was made in the period does: it
 * dies after its last use. */
static bool lives(const struct mgd_step_learned *l, const struct period *p, int32_t seen, int32_t o) {
  const int32_t r = p->role_of[seen], made = p->log->seen[seen].made - p->first, dies = l->plan_storages[r].dies;
  return l->role[r].lasting || made >= 0 || (o <= dies && dies < made + p->n);
}

/* Adds a use of the role to the operator, or flags to the use that it already has. */
static void add_use(struct mgd_step_learned *l, int32_t *latest, int32_t first, int32_t role, uint32_t flags) {
  if (latest[role] < first) {
    latest[role] = l->uses++;
    l->plan_uses[latest[role]] = (struct mgd_plan_use){role, 0};
  }
  l->plan_uses[latest[role]].flags |= flags;
}

/* Unknown durations are estimated from the bytes an operator uses, at the memory bandwidth of a large card: a plan
 * needs only the proportions. */
#define BYTES_PER_NS 1000

static int64_t duration(const struct period *p, const struct mgd_step_logged *op) {
  int64_t ns = op->known_ns;
  if (ns < 0 && op->worked >= 0 && op[1].worked >= op->worked) {
    ns = p->clock ? p->clock->between(p->clock->context, op->worked, op[1].worked) : op[1].worked - op->worked;
  }
  if (ns >= 0) {
    return ns;
  }
  int64_t bytes = 0;
  for (int32_t i = op->first_use; i < op[1].first_use; i++) {
    bytes += p->log->seen[p->log->uses[i].seen].bytes;
  }
  return bytes / BYTES_PER_NS;
}

static void fill_operator(struct mgd_step_learned *l, const struct period *p, int32_t o, int32_t *latest) {
  const struct mgd_step_log *log = p->log;
  const struct mgd_step_logged *op = &log->operators[p->first + o];
  const int32_t base = log->operators[p->first].first_use, first = l->uses;
  l->kinds[o] =
      (struct mgd_step_kind){op->kind, op->window, op->first_use - base, op->first_made - made_from(p, 0), -1};
  l->ns[o] = duration(p, op);
  l->plan_first[o] = first;
  for (int32_t i = op->first_use; i < op[1].first_use; i++) {
    const struct mgd_step_logged_use *u = &log->uses[i];
    const int32_t r = p->role_of[u->seen];
    l->use_roles[i - base] = r;
    if (r >= 0 && lives(l, p, u->seen, o)) {
      add_use(l, latest, first, r, u->written ? MGD_PLAN_WRITTEN | MGD_PLAN_READ : MGD_PLAN_READ);
    }
  }
  for (int32_t i = op->first_made; i < op[1].first_made; i++) {
    const int32_t r = p->role_of[log->made[i]];
    l->made_roles[i - made_from(p, 0)] = r;
    add_use(l, latest, first, r, MGD_PLAN_MADE | MGD_PLAN_WRITTEN);
  }
}

bool mgd_step_learn_allocate(struct mgd_alloc *a, struct mgd_step_learned *l, size_t operators, size_t uses,
                             size_t made) {
  const size_t n = operators + 1, all = uses + made + 2;
  l->kinds = mgd_alloc_new(a, n, sizeof *l->kinds);
  l->buckets = mgd_alloc_new(a, n, sizeof *l->buckets);
  l->ns = mgd_alloc_new(a, n, sizeof *l->ns);
  l->plan_first = mgd_alloc_new(a, n, sizeof *l->plan_first);
  l->use_roles = mgd_alloc_new(a, uses + 1, sizeof *l->use_roles);
  l->made_roles = mgd_alloc_new(a, made + 1, sizeof *l->made_roles);
  l->role = mgd_alloc_new(a, all, sizeof *l->role);
  l->plan_uses = mgd_alloc_new(a, all, sizeof *l->plan_uses);
  l->plan_storages = mgd_alloc_new(a, all, sizeof *l->plan_storages);
  return l->kinds && l->buckets && l->ns && l->plan_first && l->use_roles && l->made_roles && l->role && l->plan_uses &&
      l->plan_storages;
}

void mgd_step_learn_index(struct mgd_step_learned *l) {
  memset(l->buckets, 0xff, (size_t)l->operators * sizeof *l->buckets);
  for (int32_t o = 0; o < l->operators; o++) {
    int32_t *bucket = &l->buckets[l->kinds[o].window % (uint64_t)l->operators];
    l->kinds[o].next = *bucket;
    *bucket = o;
  }
}

static bool fill_step(struct mgd_machine *m, struct mgd_step_learned *l, struct period *p) {
  give_roles(l, p);
  int32_t *latest = mgd_alloc_new(&m->alloc, (size_t)l->roles + 1, sizeof *latest);
  if (!latest) {
    return false;
  }
  memset(latest, 0xff, ((size_t)l->roles + 1) * sizeof *latest);
  for (int32_t o = 0; o < p->n; o++) {
    fill_operator(l, p, o, latest);
  }
  const struct mgd_step_logged *end = &p->log->operators[p->first + p->n];
  l->kinds[p->n].first_use = end->first_use - p->log->operators[p->first].first_use;
  l->kinds[p->n].first_made = end->first_made - made_from(p, 0);
  l->plan_first[p->n] = l->uses;
  l->operators = p->n;
  mgd_step_learn_index(l);
  mgd_alloc_free(latest);
  return true;
}

int mgd_step_learn_from_log_locked(struct mgd_machine *m, struct mgd_step *s, const struct mgd_step_clock *clock,
                                   struct mgd_step_learned *out) {
  struct period p = {
      .log = &s->log, .first = s->log.count - 1 - s->log.period, .n = s->log.period, .clock = clock};
  p.role_of = mgd_alloc_new(&m->alloc, (size_t)s->log.seen_count + 1, sizeof *p.role_of);
  *out = (struct mgd_step_learned){0};
  if (!knows_deaths(&p)) {
    mgd_alloc_free(p.role_of);
    return MGD_E_WAIT;
  }
  const struct mgd_step_logged *begin = &s->log.operators[p.first], *end = begin + p.n;
  const bool done = p.role_of &&
      mgd_step_learn_allocate(&m->alloc, out, (size_t)p.n, (size_t)(end->first_use - begin->first_use),
                              (size_t)(end->first_made - begin->first_made)) &&
      fill_step(m, out, &p);
  mgd_alloc_free(p.role_of);
  if (!done) {
    mgd_step_learn_forget_locked(out);
    return MGD_E_NOMEM;
  }
  return MGD_OK;
}

/* Binds the handles in the log to the roles. The log must still end with the operator that it ended with when the roles
 * were given; results of that operator may have been added. */
void mgd_step_learn_bind_locked(const struct mgd_step_log *log, struct mgd_step_learned *l) {
  const int32_t first = log->count - 1 - l->operators, base = log->operators[first].first_use;
  const int32_t made = log->operators[first].first_made;
  for (int32_t i = 0; i < l->kinds[l->operators].first_made + l->kinds[l->operators].first_use; i++) {
    const bool result = i < l->kinds[l->operators].first_made;
    const int32_t u = i - l->kinds[l->operators].first_made;
    const int32_t r = result ? l->made_roles[i] : l->use_roles[u];
    struct mgd_handle *h = log->seen[result ? log->made[made + i] : log->uses[base + u].seen].handle;
    if (r >= 0 && h && h->role[l->slot] < 0) {
      l->alive += l->role[r].lasting;
      l->role[r].handle = h;
      h->role[l->slot] = r;
    }
  }
}
