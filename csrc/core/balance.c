/* balance.c: which device an object that works again and again had better live on.
 *
 * An object is what moves as a whole, such as a module with its gradients and its optimizer's state. When one of its
 * steps has ended, this file is told how much the devices have been given to do so far. What the object's device got
 * since the last step of any object there, operators and bytes that were brought, is taken for this one's work. From
 * that follows how much of each device's time each object takes, and whether all would be done sooner if it lived
 * elsewhere. What it takes on a device where it has been is known; elsewhere it is supposed to take the same time.
 *
 * Work that waits for other work gains nothing by another device, although that stands idle: two models of which one
 * works with what the other has made. So each move is a trial. If the time from step to step has not become shorter by
 * half of what was to be expected, the object goes back, and stays.
 *
 * An object moves if three things are true in several of its steps in a row:
 *   - No device has more to do than its own, and the other one would have clearly less with the object on it.
 *   - The other device would begin its next step earlier, by more than a step takes. A program that waits for each step
 *     leaves nothing in any queue, so there is nothing to gain, however uneven the work is.
 *   - What ten steps gain pays for the copies of the move.
 */
#include "arithmetic.h"
#include "internal_machine.h"

#define OBJECTS 256    /* of which work is known; the one whose last step is longest ago gives way */
#define WEIGHT 0.25    /* of the newest step in a mean */
#define LEAST_STEPS 3  /* of an object, before it moves for the first time; each move doubles it */
#define MOST_DOUBLED 8 /* moves after which it is doubled no more */
#define MARGIN 0.9     /* most that the other device may have to do with it, over what its own has now */
#define BEHIND 1e6     /* ns that a device must be behind */
#define PAYS_IN 10.0   /* steps */
#define TRIAL 8        /* steps until it is seen whether a move was worth it */
#define FORGOTTEN 4.0  /* periods without a step, and its work does not count any more */

/* The work of one object. Invariants: ns >= 0; period is 0 or at least 1. */
struct mgd_work {
  uint64_t object; /* 0: nobody's */
  uint64_t last;   /* step of the machine in which its last one ended */
  uint64_t steps;
  int home;        /* the host: it is not on one device, and does not move */
  double ns;       /* that its device takes for one step, a mean */
  double at[MGD_MAX_DEVICES]; /* the same for where it has been; 0: it has not */
  double period;   /* steps of anybody from one of its steps to the next, a mean */
  uint32_t wishes; /* steps in a row in which a move was worth it */
  uint32_t moves;
  int64_t done_at; /* when the devices have done all that was issued when its last step had ended */
  double pace;     /* ns from one done_at to the next, a mean */
  int from;        /* where it would go back to, or the host; it is on trial while it is anywhere else */
  double wanted;   /* on trial: the pace that is worth it */
  bool is_tied;    /* it has gone back, and stays */
};

struct mgd_balance {
  uint64_t step; /* of anybody */
  double given[MGD_MAX_DEVICES]; /* ns that the device had been given when the last step of an object there ended */
  struct mgd_work list[OBJECTS];
};

static struct mgd_work *work_of(struct mgd_balance *b, uint64_t object) {
  struct mgd_work *oldest = b->list;
  for (struct mgd_work *w = b->list; w < b->list + OBJECTS; w++) {
    if (w->object == object) {
      return w;
    }
    oldest = w->last < oldest->last ? w : oldest;
  }
  *oldest = (struct mgd_work){.object = object};
  return oldest;
}

static double mean(double before, double now, bool first) {
  return first ? now : before + WEIGHT * (now - before);
}

/* ns of its device in a step of anybody. */
static double part_here(const struct mgd_work *w) { return w->period >= 1.0 ? w->ns / w->period : 0.0; }

/* ns of operators, and of bytes that came there by all links, one after the other. */
static double given_to(const struct mgd_machine *m, int device, const int64_t *worked) {
  double ns = (double)worked[device];
  for (int from = 0; from < m->count; from++) {
    const struct mgd_total *t = &m->trace.totals.by_link[from][device];
    ns += mgd_link_estimate(&m->links[from][device], (int64_t)t->count, t->bytes);
  }
  return ns;
}

static int64_t done_at(const struct mgd_machine *m, const struct mgd_object_step *r) {
  int64_t longest = 0;
  for (int id = 1; id < m->count; id++) {
    longest = mgd_max(longest, r->busy_for[id]);
  }
  return r->time + longest;
}

static void count_work(struct mgd_machine *m, struct mgd_work *w, const struct mgd_object_step *r) {
  struct mgd_balance *b = m->balance;
  const double given = given_to(m, r->home, r->worked), took = fmax(given - b->given[r->home], 0.0);
  const int64_t done = done_at(m, r);
  b->step++;
  b->given[r->home] = given; /* less than before: somebody has reset the totals */
  if (w->home != r->home) { /* it is new, or the program has moved it */
    *w = (struct mgd_work){.object = w->object, .home = r->home};
  } else if (w->steps > 0) {
    w->ns = w->at[w->home] = mean(w->ns, took, w->steps == 1);
    w->period = mean(w->period, (double)(b->step - w->last), w->steps == 1);
    w->pace = mean(w->pace, (double)(done - w->done_at), w->steps == 1);
  }
  w->done_at = done;
  w->last = b->step;
  w->steps++;
}

/* How much each device has to do in a step of anybody. Who has not worked for long counts no more. */
static void sum_loads(const struct mgd_balance *b, double *load) {
  for (int id = 0; id < MGD_MAX_DEVICES; id++) {
    load[id] = 0.0;
  }
  for (const struct mgd_work *w = b->list; w < b->list + OBJECTS; w++) {
    if (w->object && (double)(b->step - w->last) <= FORGOTTEN * w->period) {
      load[w->home] += part_here(w);
    }
  }
}

static bool has_most(const struct mgd_machine *m, const double *load, int home) {
  for (int id = 1; id < m->count; id++) {
    if (load[id] > load[home]) {
      return false;
    }
  }
  return true;
}

/* ns of its device in a step of anybody, if that were its device. */
static double part_there(const struct mgd_machine *m, const struct mgd_work *w, int device) {
  const double supposed = w->ns * m->devices[w->home].speed / m->devices[device].speed;
  return (w->at[device] > 0.0 ? w->at[device] : supposed) / w->period;
}

/* The device where the object would be best, or its home. */
static int better(const struct mgd_machine *m, const struct mgd_work *w, const struct mgd_object_step *r,
                  const double *load) {
  int best = r->home;
  double least = MARGIN * load[r->home];
  for (int id = 1; id < m->count; id++) {
    const double then = load[id] + part_there(m, w, id);
    if (!(r->allowed >> id & 1) || id == r->home || r->bytes > mgd_ledger_room_locked(m, id, 0.0) || then > least) {
      continue;
    }
    const double gained = w->period * (load[r->home] - fmax(load[r->home] - part_here(w), then));
    const bool idle = (double)r->busy_for[id] + w->ns <= (double)r->busy_for[r->home];
    if (idle && mgd_link_estimate(&m->links[r->home][id], 1, r->bytes) <= PAYS_IN * gained) {
      best = id;
      least = then;
    }
  }
  return best;
}

/* The end of a trial: where the object goes on. */
static int judge(const struct mgd_machine *m, struct mgd_work *w, const struct mgd_object_step *r) {
  const int back = w->from;
  w->from = MGD_HOST;
  if (w->pace <= w->wanted) {
    return r->home;
  }
  w->is_tied = true;
  const bool can = (r->allowed >> back & 1) && r->bytes <= mgd_ledger_room_locked(m, back, 0.0);
  return can ? back : r->home;
}

/* It moves to where there will be so much to do then. */
static void begin_trial(struct mgd_work *w, const double *load, double then) {
  const double most = fmax(load[w->home] - part_here(w), then), gains = 1.0 - most / load[w->home];
  w->from = w->home;
  w->wanted = w->pace * (1.0 - gains / 2.0);
}

static int decide(struct mgd_machine *m, const struct mgd_object_step *r) {
  double load[MGD_MAX_DEVICES];
  struct mgd_work *w = work_of(m->balance, r->object);
  count_work(m, w, r);
  if (w->from != MGD_HOST && w->from != r->home) {
    return w->steps > TRIAL ? judge(m, w, r) : r->home;
  }
  if (r->home == MGD_HOST || w->is_tied || w->steps < LEAST_STEPS || (double)r->busy_for[r->home] < BEHIND) {
    w->wishes = 0;
    return r->home;
  }
  sum_loads(m->balance, load);
  const int there = has_most(m, load, r->home) ? better(m, w, r, load) : r->home;
  w->wishes = there == r->home ? 0 : w->wishes + 1;
  if (w->wishes < (uint32_t)LEAST_STEPS << w->moves) {
    return r->home;
  }
  begin_trial(w, load, load[there] + part_there(m, w, there));
  return there;
}

int mgd_balance_step(struct mgd_machine *m, const struct mgd_object_step *r, int *device) {
  if (r->object == 0 || r->bytes < 0) {
    return MGD_E_INVALID;
  }
  mgd_state_enter(m);
  int code = mgd_state_knows_device_locked(m, r->home) ? MGD_OK : MGD_E_NO_DEVICE;
  if (code == MGD_OK && !m->balance) {
    m->balance = mgd_alloc_new(&m->alloc, 1, sizeof *m->balance);
    code = m->balance ? MGD_OK : MGD_E_NOMEM;
  }
  if (code == MGD_OK) {
    *device = decide(m, r);
  }
  return mgd_state_leave(m, code);
}

void mgd_balance_moved(struct mgd_machine *m, uint64_t object, int device) {
  mgd_state_enter(m);
  if (m->balance) {
    struct mgd_work *w = work_of(m->balance, object);
    w->home = device; /* its work counts there from now on */
    w->steps = 0;     /* the next step brings what belongs to it, and the one after that is measured */
    w->wishes = 0;
    w->moves += w->moves < MOST_DOUBLED;
  }
  (void)mgd_state_leave(m, MGD_OK);
}
