/* Each invariant stated in handle.h and internal_handle.h, broken on purpose:
 * mgd_check must see it. The state is put back afterwards. */
#include <math.h>

#include "core/internal_machine.h"
#include "handles.h"

#define EXPECT_BROKEN(d, field, ...)                                   \
  do {                                                                 \
    const __typeof__(field) value_ = (__typeof__(field))__VA_ARGS__;   \
    expect_broken(__LINE__, (d)->m, &(field), sizeof(field), &value_); \
  } while (0)

static void expect_broken(int line, struct mgd_machine *m, void *field, size_t size, const void *value) {
  unsigned char before[64];
  EXPECT_OK(mgd_check(m));
  memcpy(before, field, size);
  memcpy(field, value, size);
  if (mgd_check(m) != MGD_E_BROKEN) {
    fprintf(stderr, "test_check_handle.c:%d: not noticed\n", line);
    exit(1);
  }
  memcpy(field, before, size);
  EXPECT_OK(mgd_check(m));
}

/* Three devices with storages in every state; home is 1 unless the name says otherwise. */
struct directory {
  struct mgd_machine *m;
  struct mgd_handle *idle, *older, *pinned, *empty, *spare, *spare2, *spilled, *guest, *guest2; /* the guests are on 2 */
  struct mgd_handle *leaving, *going_on, *coming, *returning;                                    /* going on from 2, returning from 2 */
  struct mgd_handle *orphan, *orphan2;
};

static struct mgd_handle *open_leaving(struct mgd_machine *m) {
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct plan p;
  the_only_one = h;
  EXPECT_OK(mgd_evict_veto(m, is_the_only_one));
  EXPECT_OK(plan_eviction(m, 1, 1, NULL, &p));
  EXPECT_OK(mgd_evict_veto(m, NULL));
  return h;
}

static struct mgd_handle *open_away(struct mgd_machine *m, int to) {
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  spill(m, h, to);
  return h;
}

static void close_moving(struct mgd_machine *m, struct mgd_handle *h) {
  bool moving;
  void *memory;
  EXPECT_OK(mgd_handle_close(m, h, &moving, &memory));
  put_back(h, MGD_ALIVE);
}

static void set_up(struct directory *d) {
  struct plan p;
  d->m = new_directory(3);
  d->going_on = open_away(d->m, 2);
  EXPECT_OK(plan_eviction(d->m, 2, 1, NULL, &p));
  d->guest = open_away(d->m, 2);
  d->guest2 = open_away(d->m, 2);
  d->returning = open_away(d->m, 2);
  begin_restore(d->m, d->returning);
  d->spilled = open_away(d->m, MGD_HOST);
  d->coming = open_away(d->m, MGD_HOST);
  begin_restore(d->m, d->coming);
  d->leaving = open_leaving(d->m);
  close_moving(d->m, d->orphan = open_leaving(d->m));
  close_moving(d->m, d->orphan2 = open_leaving(d->m));
  d->spare = open_with_spare(d->m, 1, 8);
  d->spare2 = open_with_spare(d->m, 1, 8);
  d->pinned = open_handle(d->m, 1, 8, 0);
  EXPECT_OK(mgd_handle_pin(d->m, d->pinned, MGD_PIN_ASKED, true));
  d->empty = open_handle(d->m, 1, 0, 0);
  d->idle = open_handle(d->m, 1, 8, 20);
  d->older = open_handle(d->m, 1, 8, 1);
}

static void tear_down(struct directory *d) {
  struct mgd_handle *resting[] = {d->idle, d->older, d->pinned, d->empty, d->spare, d->spare2, d->spilled, d->guest, d->guest2};
  void *left = NULL;
  for (size_t i = 0; i < sizeof resting / sizeof *resting; i++) {
    close_handle(d->m, resting[i]);
  }
  end_spill(d->m, d->leaving, -1, NULL);
  end_spill(d->m, d->going_on, -1, NULL);
  end_spill(d->m, d->orphan, -1, NULL);
  end_spill(d->m, d->orphan2, -1, NULL);
  EXPECT_OK(mgd_restore_end(d->m, d->coming, MGD_SPILLED, &left));
  EXPECT_OK(mgd_restore_end(d->m, d->returning, MGD_SPILLED, &left));
  put_back(d->coming, 1);
  put_back(d->returning, 1);
  struct mgd_handle *ended[] = {d->leaving, d->going_on, d->coming, d->returning};
  for (size_t i = 0; i < sizeof ended / sizeof *ended; i++) {
    close_handle(d->m, ended[i]);
  }
  mgd_machine_destroy(d->m);
}

static void who_is_home(struct directory *d) {
  EXPECT_BROKEN(d, d->idle->away, 2);
  EXPECT_BROKEN(d, d->idle->on_host, true);
  EXPECT_BROKEN(d, d->idle->in_use, 1);
  EXPECT_BROKEN(d, d->idle->bytes, -1);
  EXPECT_BROKEN(d, d->idle->bytes, 0); /* then it has no place */
  EXPECT_BROKEN(d, d->idle->pins, 1);
  EXPECT_BROKEN(d, d->pinned->pins, -1);
  EXPECT_BROKEN(d, d->pinned->pins, 0);
  EXPECT_BROKEN(d, d->pinned->pins_by[MGD_PIN_ASKED], -1);
  EXPECT_BROKEN(d, d->pinned->pins_by[MGD_PIN_KINDS - 1], -1);
  EXPECT_BROKEN(d, d->pinned->pins_by[MGD_PIN_KINDS - 1], 1);
  EXPECT_BROKEN(d, d->pinned->position, 0);
  EXPECT_BROKEN(d, d->empty->bytes, 1);
  EXPECT_BROKEN(d, d->idle->home, MGD_HOST);
  EXPECT_BROKEN(d, d->idle->home, 2);
  EXPECT_BROKEN(d, d->idle->counted, true);
  EXPECT_BROKEN(d, d->idle->mapped, true); /* without a copy */
  EXPECT_BROKEN(d, d->idle->closed, true);
  EXPECT_BROKEN(d, d->idle->state, 5);
  EXPECT_BROKEN(d, d->idle->state, MGD_SPILLED);
  EXPECT_BROKEN(d, d->idle->state, MGD_SPILLING);
  EXPECT_BROKEN(d, d->idle->state, MGD_RESTORING);
  EXPECT_BROKEN(d, d->spare->on_host, false);
  EXPECT_BROKEN(d, d->spare->memory, NULL);
  EXPECT_BROKEN(d, d->spare->bytes, 9);
}

static void who_is_away(struct directory *d) {
  EXPECT_BROKEN(d, d->spilled->memory, NULL);
  EXPECT_BROKEN(d, d->spilled->on_host, false);
  EXPECT_BROKEN(d, d->spilled->away, 1);
  EXPECT_BROKEN(d, d->spilled->away, 2);
  EXPECT_BROKEN(d, d->spilled->away, 4);
  EXPECT_BROKEN(d, d->spilled->away, -1);
  EXPECT_BROKEN(d, d->spilled->position, 0);
  EXPECT_BROKEN(d, d->spilled->state, MGD_RESTORING); /* in nobody's hands */
  EXPECT_BROKEN(d, d->guest->memory, d);
  EXPECT_BROKEN(d, d->guest->on_host, true);
  EXPECT_BROKEN(d, d->guest->away, 3);
  EXPECT_BROKEN(d, d->guest->away, MGD_HOST);
  EXPECT_BROKEN(d, d->coming->away, 1);
  EXPECT_BROKEN(d, d->coming->in_use, MGD_ALIVE);
  EXPECT_BROKEN(d, d->coming->state, MGD_SPILLED);
  EXPECT_BROKEN(d, d->leaving->in_use, MGD_ALIVE);
  EXPECT_BROKEN(d, d->leaving->on_host, false); /* the host counts it */
  EXPECT_BROKEN(d, d->leaving->away, MGD_HOST);
  EXPECT_BROKEN(d, d->leaving->away, 1);
  EXPECT_BROKEN(d, d->leaving->away, 4);
  EXPECT_BROKEN(d, d->going_on->memory, d);
  EXPECT_BROKEN(d, d->going_on->away, 3);
}

/* Memory without its bytes on the host. */
static void who_leaves_over_its_copy(struct directory *d) {
  struct plan p;
  the_only_one = d->spare;
  EXPECT_OK(mgd_evict_veto(d->m, is_the_only_one));
  EXPECT_OK(plan_eviction(d->m, 1, 1, NULL, &p));
  EXPECT_OK(mgd_evict_veto(d->m, NULL));
  int64_t used = d->m->host.used;
  d->m->host.used -= 8;
  d->spare->on_host = false;
  EXPECT_CODE(mgd_check(d->m), MGD_E_BROKEN);
  d->m->host.used = used;
  d->spare->on_host = true;
  end_spill(d->m, d->spare, -1, NULL);
}

static void the_order(struct directory *d) {
  struct mgd_storages *s = &d->m->devices[1].storages;
  EXPECT_BROKEN(d, s->ordered, s->ordered - 1);
  EXPECT_BROKEN(d, s->ordered, 0);
  EXPECT_BROKEN(d, s->ordered, s->ordered + 1);
  EXPECT_BROKEN(d, s->sorted, -1);
  EXPECT_BROKEN(d, s->sorted, s->ordered + 1);
  EXPECT_BROKEN(d, d->m->devices[2].storages.sorted, 1); /* nobody lives there who could be out of order */
  EXPECT_BROKEN(d, s->parked, 1);
  EXPECT_BROKEN(d, s->parked, -1);
  EXPECT_BROKEN(d, s->ordered_bytes, s->ordered_bytes + 1);
  EXPECT_BROKEN(d, s->last_bytes, 8);
  EXPECT_BROKEN(d, s->moving_bytes, s->moving_bytes - 8);
  EXPECT_BROKEN(d, s->departures, s->departures - 1);
  EXPECT_BROKEN(d, d->m->devices[2].storages.guest_bytes, 8);
  EXPECT_BROKEN(d, d->m->devices[2].storages.guest_count, 1);
  EXPECT_BROKEN(d, s->size, s->open - 1);
  EXPECT_BROKEN(d, s->open, s->open - 1);
  EXPECT_BROKEN(d, s->open, -1);
  EXPECT_BROKEN(d, s->age, (double)NAN);
  EXPECT_BROKEN(d, s->order[0].handle, s->order[1].handle);
  EXPECT_BROKEN(d, s->order[0].handle->position, 1);
  EXPECT_BROKEN(d, s->order[0].handle->position, 99);
  EXPECT_BROKEN(d, s->order[0].handle->position, -1);
  EXPECT_BROKEN(d, s->order[0].key, 1e9);
  EXPECT_BROKEN(d, s->order[s->sorted - 1].key, -1.0);
  EXPECT_BROKEN(d, s->order[s->ordered - 1].key, (double)NAN);
  EXPECT_BROKEN(d, d->m->victim, NULL);
}

/* There are as many as before, one of them parked less often than never. */
static void parked_storages(struct directory *d) {
  struct mgd_storages *s = &d->m->devices[1].storages;
  s->ordered++;
  s->parked--;
  EXPECT_CODE(mgd_check(d->m), MGD_E_BROKEN);
  s->ordered--;
  s->parked++;
  EXPECT_OK(mgd_check(d->m));
}

static void all_of_a_device(struct directory *d) {
  struct mgd_storages *s = &d->m->devices[1].storages;
  EXPECT_BROKEN(d, s->first, NULL);
  EXPECT_BROKEN(d, s->first, s->first->next);
  EXPECT_BROKEN(d, s->first->next, NULL);
  EXPECT_BROKEN(d, s->first->next->previous, NULL);
  EXPECT_BROKEN(d, s->first->previous, s->first);
  EXPECT_BROKEN(d, d->m->devices[3].storages.first, s->first);
}

/* The three lists by elder and younger. */
static void lists(struct directory *d) {
  struct mgd_handle_list *all[] = {&d->m->devices[2].storages.guests, &d->m->host.spares, &d->m->orphans};
  for (int i = 0; i < 3; i++) {
    struct mgd_handle_list *list = all[i];
    struct mgd_handle_list empty = {NULL, NULL};
    EXPECT(list->oldest && list->oldest->younger == list->youngest);
    EXPECT_BROKEN(d, list->oldest, NULL);
    EXPECT_BROKEN(d, list->oldest, list->youngest);
    EXPECT_BROKEN(d, list->youngest, NULL);
    EXPECT_BROKEN(d, list->youngest->younger, list->oldest); /* a ring */
    EXPECT_BROKEN(d, list->youngest->elder, NULL);
    EXPECT_BROKEN(d, list->oldest->elder, list->youngest);
    EXPECT_BROKEN(d, list->oldest->younger, NULL);
    EXPECT_BROKEN(d, *list, empty);
    EXPECT_BROKEN(d, d->m->devices[3].storages.guests, *list); /* two lists, or the wrong device */
    for (int k = 0; k < 3; k++) {
      if (k != i) {
        EXPECT_BROKEN(d, *list, *all[k]);
      }
    }
  }
}

/* As many as there are spares, at home, and without a copy. */
static void spares_without_a_copy(struct directory *d) {
  struct mgd_handle_list two = {d->idle, d->older};
  d->idle->younger = d->older;
  d->older->elder = d->idle;
  EXPECT_BROKEN(d, d->m->host.spares, two);
  d->idle->younger = d->older->elder = NULL;
}

static void orphans(struct directory *d) {
  EXPECT_BROKEN(d, d->orphan->closed, false);
  EXPECT_BROKEN(d, d->orphan->state, MGD_RESIDENT);
  EXPECT_BROKEN(d, d->orphan->next, d->idle);
  EXPECT_BROKEN(d, d->orphan->previous, d->idle);
  EXPECT_BROKEN(d, d->orphan->in_use, 0);
  EXPECT_BROKEN(d, d->orphan->position, 0);
  EXPECT_BROKEN(d, d->orphan->home, MGD_HOST);
  EXPECT_BROKEN(d, d->orphan->home, 4);
  EXPECT_BROKEN(d, d->orphan->on_host, false);
  EXPECT_BROKEN(d, d->guest->closed, true);
}

static void counts(struct directory *d) {
  struct mgd_storages *s = &d->m->devices[2].storages;
  EXPECT_BROKEN(d, d->m->host.used, d->m->host.used - 8);
  EXPECT_BROKEN(d, d->m->host.peak, d->m->host.used - 1);
  EXPECT_BROKEN(d, d->m->host.spare_bytes, 8);
  EXPECT_BROKEN(d, d->m->host.limit, -1);
  EXPECT_BROKEN(d, d->m->host.growth.waiting, 0);
  EXPECT_BROKEN(d, d->m->host.growth.fresh[0], 0);
  EXPECT_BROKEN(d, d->m->host.growth.fresh[1], 8);
  EXPECT_BROKEN(d, s->departures, 1);
  EXPECT_BROKEN(d, s->departing, 8);
  EXPECT_BROKEN(d, d->m->devices[3].storages.departures, 1);
}

int main(void) {
  struct directory d;
  set_up(&d);
  who_is_home(&d);
  who_is_away(&d);
  who_leaves_over_its_copy(&d);
  the_order(&d);
  parked_storages(&d);
  all_of_a_device(&d);
  lists(&d);
  spares_without_a_copy(&d);
  orphans(&d);
  counts(&d);
  tear_down(&d);
  return 0;
}
