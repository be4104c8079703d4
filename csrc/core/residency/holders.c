/* holders.c: which other allocator is asked for what it keeps, when a device is short of room.
 *
 * The holder that has most to spare comes first: most cached bytes beyond those that it may keep. Nothing is called
 * here: the caller of mgd_holders_begin() asks for reports and bytes, and says what came of it.
 */
#include <string.h>

#include "core/arithmetic.h"
#include "core/internal_machine.h"

#define UNKNOWN (-1) /* the holder of an entry has not reported yet */
#define MOST_REST 6 /* a holder that gives nothing is left alone for 2 to the power of this many shortages at most */

static struct mgd_holder *find(struct mgd_machine *m, int id) {
  for (int i = 0; m->holders && id > 0 && i < MGD_MAX_HOLDERS; i++) {
    if (m->holders[i].id == id) { return &m->holders[i]; }
  }
  return NULL;
}

static int add_holder(struct mgd_machine *m, const char *name, int64_t keep, int *id) {
  if (!m->holders) { m->holders = mgd_alloc_new(&m->alloc, MGD_MAX_HOLDERS, sizeof *m->holders); }
  if (!m->holders) { return MGD_E_NOMEM; }
  struct mgd_holder *free = NULL;
  for (int i = MGD_MAX_HOLDERS; i-- > 0;) {
    struct mgd_holder *h = &m->holders[i];
    if (h->id == 0) {
      free = h;
    } else if (strcmp(h->name, name) == 0) {
      return MGD_E_EXISTS;
    }
  }
  if (!free) { return MGD_E_FULL; }
  memset(free, 0, sizeof *free);
  memcpy(free->name, name, strlen(name));
  free->keep = keep;
  *id = free->id = ++m->last_holder;
  return MGD_OK;
}

int mgd_holders_add(struct mgd_machine *m, const char *name, int64_t keep, int *id) {
  if (keep < 0 || !name[0] || strlen(name) >= MGD_NAME_BYTES) { return MGD_E_INVALID; }
  mgd_state_enter(m);
  return mgd_state_leave(m, add_holder(m, name, keep, id));
}

int mgd_holders_remove(struct mgd_machine *m, int id) {
  mgd_state_enter(m);
  struct mgd_holder *h = find(m, id);
  if (h) { h->id = 0; }
  return mgd_state_leave(m, h ? MGD_OK : MGD_E_INVALID);
}

static struct mgd_holder_entry *entry_of(struct mgd_holder_round *round, int id) {
  for (int i = 0; i < round->count; i++) {
    if (round->entries[i].id == id) { return &round->entries[i]; }
  }
  return NULL;
}

static void add_entry(struct mgd_holder_round *round, const struct mgd_holder *h) {
  round->entries[round->count++] = (struct mgd_holder_entry){.id = h->id, .spare = UNKNOWN};
}

int mgd_holders_begin(struct mgd_machine *m, int device, int requester, struct mgd_holder_round *round) {
  mgd_state_enter(m);
  if (device <= MGD_HOST || !mgd_state_knows_device_locked(m, device)) { return mgd_state_leave(m, MGD_E_NO_DEVICE); }
  if (requester) { return mgd_state_leave(m, MGD_E_ABSENT); }
  round->device = device;
  round->count = 0;
  for (int i = 0; m->holders && i < MGD_MAX_HOLDERS; i++) {
    struct mgd_holder *h = &m->holders[i];
    if (h->id == 0) { continue; }
    if (h->on[device].rest > 0) {
      h->on[device].rest--;
    } else {
      add_entry(round, h);
    }
  }
  return mgd_state_leave(m, MGD_OK);
}

int mgd_holders_wake(struct mgd_machine *m, struct mgd_holder_round *round) {
  mgd_state_enter(m);
  struct mgd_holder_round asked = *round;
  round->count = 0;
  for (int i = 0; m->holders && i < MGD_MAX_HOLDERS; i++) {
    const struct mgd_holder *h = &m->holders[i];
    if (h->id != 0 && !entry_of(&asked, h->id)) { add_entry(round, h); }
  }
  return mgd_state_leave(m, MGD_OK);
}

static void rest_longer(struct mgd_holder_on *on) {
  on->refusals += on->refusals < MOST_REST;
  on->rest = (int64_t)1 << on->refusals;
}

int mgd_holders_reported(struct mgd_machine *m, struct mgd_holder_round *round, int id, int64_t live, int64_t cached) {
  mgd_state_enter(m);
  struct mgd_holder *h = find(m, id);
  struct mgd_holder_entry *entry = entry_of(round, id);
  if (!h || !entry || entry->spare != UNKNOWN || live < 0 || cached < 0) { return mgd_state_leave(m, MGD_E_INVALID); }
  struct mgd_holder_on *on = &h->on[round->device];
  on->live = live;
  on->cached = cached;
  entry->spare = mgd_max(0, cached - h->keep);
  if (entry->spare == 0) { rest_longer(on); }
  return mgd_state_leave(m, MGD_OK);
}

int mgd_holders_note(struct mgd_machine *m, int id, int device, int64_t live, int64_t cached) {
  mgd_state_enter(m);
  struct mgd_holder *h = find(m, id);
  if (!h || device <= MGD_HOST || !mgd_state_knows_device_locked(m, device) || live < 0 || cached < 0) {
    return mgd_state_leave(m, MGD_E_INVALID);
  }
  h->on[device].live = live;
  h->on[device].cached = cached;
  return mgd_state_leave(m, MGD_OK);
}

int mgd_holders_next(struct mgd_machine *m, struct mgd_holder_round *round, int64_t missing, int *id, int64_t *bytes) {
  mgd_state_enter(m);
  struct mgd_holder_entry *most = NULL;
  for (int i = 0; i < round->count; i++) {
    struct mgd_holder_entry *e = &round->entries[i];
    if (e->spare > (most ? most->spare : 0) && find(m, e->id)) { most = e; }
  }
  if (!most || missing <= 0) { return mgd_state_leave(m, MGD_E_ABSENT); }
  struct mgd_holder_on *on = &find(m, most->id)->on[round->device];
  *id = most->id;
  *bytes = mgd_min(most->spare, missing);
  most->spare = 0;
  on->asks++;
  on->asked = mgd_about_sum(on->asked, *bytes);
  return mgd_state_leave(m, MGD_OK);
}

int mgd_holders_gave(struct mgd_machine *m, const struct mgd_holder_round *round, int id, int64_t bytes) {
  mgd_state_enter(m);
  struct mgd_holder *h = find(m, id);
  if (h) {
    struct mgd_holder_on *on = &h->on[round->device];
    on->given = mgd_about_sum(on->given, mgd_max(0, bytes));
    on->cached -= mgd_min(on->cached, mgd_max(0, bytes));
    if (bytes > 0) {
      on->refusals = 0;
      on->rest = 0;
    } else {
      rest_longer(on);
    }
  }
  return mgd_state_leave(m, h ? MGD_OK : MGD_E_INVALID);
}

int mgd_holders_read(struct mgd_machine *m, int device, struct mgd_holding out[MGD_MAX_HOLDERS], int *n) {
  mgd_state_enter(m);
  if (device <= MGD_HOST || !mgd_state_knows_device_locked(m, device)) { return mgd_state_leave(m, MGD_E_NO_DEVICE); }
  *n = 0;
  for (int i = 0; m->holders && i < MGD_MAX_HOLDERS; i++) {
    const struct mgd_holder *h = &m->holders[i];
    if (h->id == 0) { continue; }
    const struct mgd_holder_on *on = &h->on[device];
    struct mgd_holding *read = &out[(*n)++];
    *read = (struct mgd_holding){.id = h->id,
                                 .live = on->live,
                                 .cached = on->cached,
                                 .asked = on->asked,
                                 .given = on->given,
                                 .asks = on->asks,
                                 .rest = on->rest};
    memcpy(read->name, h->name, sizeof read->name);
  }
  return mgd_state_leave(m, MGD_OK);
}
