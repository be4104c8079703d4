/* Threads that use, write, pin, evict, restore and close the same storages. A
 * number behind each handle is moved as bytes are: copied away, overwritten at home, copied
 * back. Whoever uses it must find what was written last; nothing is lost or
 * freed twice, and no device holds more than it can.
 *
 * Usage: test_handle_threads [seed] [steps]; each thread makes steps / 20 rounds.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "expect.h"

#define USERS 3
#define SLOTS 24
#define DEVICES 3
#define CAPACITY 100
#define LARGEST 25 /* three operands and one that is pinned fit */
#define MOST 300       /* bytes of all storages: what is not on one device fits on the host */
#define HOST_LIMIT 220 /* too little for all spares */
#define PATIENCE_S 60
#define OVERWRITTEN INT64_C(-0x3434343434343435)

/* A storage as torch would hold it. `refs` are its tensors: the last one closes it. The lock is for those who use the number
 * at the same time; who moves it does not take it, and relies on the handle alone. */
struct block {
  struct mgd_handle h;
  atomic_int refs;
  pthread_mutex_t lock;
  int64_t at_home, at_guest, written;
  bool has_home, has_guest;
  int guest;
};

static struct mgd_machine *m;
static _Thread_local struct mgd_user *user;
static atomic_llong allocated[DEVICES], total, blocks, moved, dropped, forgotten, waited;
static struct slot {
  pthread_mutex_t lock;
  struct block *block;
} slots[SLOTS];
static pthread_mutex_t changes_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int64_t changes;
static atomic_bool stop;

/* ---- waiting is the caller's */

static void count_change(void) {
  EXPECT_INT(pthread_mutex_lock(&changes_lock), 0);
  changes++;
  EXPECT_INT(pthread_cond_broadcast(&changed), 0);
  EXPECT_INT(pthread_mutex_unlock(&changes_lock), 0);
}

static int64_t changes_seen(void) {
  EXPECT_INT(pthread_mutex_lock(&changes_lock), 0);
  int64_t seen = changes;
  EXPECT_INT(pthread_mutex_unlock(&changes_lock), 0);
  return seen;
}

static void wait_for_change(int64_t seen) {
  struct timespec until;
  EXPECT_INT(clock_gettime(CLOCK_REALTIME, &until), 0);
  until.tv_sec += PATIENCE_S;
  waited++;
  EXPECT_INT(pthread_mutex_lock(&changes_lock), 0);
  while (changes == seen) {
    EXPECT_INT(pthread_cond_timedwait(&changed, &changes_lock, &until), 0);
  }
  EXPECT_INT(pthread_mutex_unlock(&changes_lock), 0);
}

/* ---- memory */

static bool allocate(int device, int64_t bytes) {
  long long before = atomic_load(&allocated[device]);
  do {
    if (before + bytes > CAPACITY) {
      return false;
    }
  } while (!atomic_compare_exchange_weak(&allocated[device], &before, before + bytes));
  return true;
}

static void release(int device, int64_t bytes) { EXPECT(atomic_fetch_sub(&allocated[device], bytes) >= bytes); }

static void read_room(int64_t room[MGD_MAX_DEVICES]) {
  for (int d = 0; d < DEVICES; d++) {
    room[d] = d == MGD_HOST ? 0 : CAPACITY - atomic_load(&allocated[d]);
  }
}

static void release_bytes(struct block *b) {
  if (b->has_home) {
    release(b->h.home, b->h.bytes);
  }
  if (b->has_guest) {
    release(b->guest, b->h.bytes);
  }
  b->has_home = b->has_guest = false;
}

static void delete_if(bool last, struct block *b) {
  if (last) {
    release_bytes(b);
    total -= b->h.bytes;
    EXPECT_INT(pthread_mutex_destroy(&b->lock), 0);
    free(b);
    blocks--;
  }
}

static void drop_ref(struct block *b) {
  bool moving;
  void *memory;
  if (atomic_fetch_sub(&b->refs, 1) > 1) {
    return;
  }
  EXPECT_OK(mgd_handle_close(m, &b->h, &moving, &memory));
  if (!moving) {
    release_bytes(b);
  }
  free(memory);
  delete_if(mgd_handle_put(&b->h, MGD_ALIVE), b);
  count_change();
}

static struct block *take_ref(int slot) {
  EXPECT_INT(pthread_mutex_lock(&slots[slot].lock), 0);
  struct block *b = slots[slot].block;
  if (b) {
    atomic_fetch_add(&b->refs, 1);
  }
  EXPECT_INT(pthread_mutex_unlock(&slots[slot].lock), 0);
  return b;
}

/* ---- movers */

static void end_spill(struct block *b, int to, void *memory) {
  void *left = NULL;
  EXPECT_OK(mgd_evict_end(m, &b->h, to, memory, &left));
  free(left);
  delete_if(mgd_handle_put(&b->h, 1), b);
  count_change();
}

/* Whatever is behind comes to where it goes, and only then is it overwritten where it was. */
static void leave(const struct mgd_action *a, int64_t *memory) {
  struct block *b = (struct block *)(void *)a->handle;
  bool to_peer = a->to != MGD_HOST;
  int64_t *from = a->from == b->h.home ? &b->at_home : &b->at_guest;
  if (a->kind == MGD_DO_SPILL) {
    *(to_peer ? &b->at_guest : memory) = *from;
  }
  *from = OVERWRITTEN;
  *(a->from == b->h.home ? &b->has_home : &b->has_guest) = false;
  if (to_peer) {
    b->has_guest = true;
    b->guest = a->to;
  }
  release(a->from, a->bytes);
  *(a->kind == MGD_DO_DROP ? &dropped : &moved) += 1;
  end_spill(b, a->to, memory);
}

static void carry_out(const struct mgd_action *actions, size_t n, uint64_t *random) {
  for (const struct mgd_action *a = actions; a < actions + n; a++) {
    struct block *b = (struct block *)(void *)a->handle;
    if (a->kind == MGD_DO_FORGET) {
      free(a->memory);
      forgotten++;
    } else if (pick(random, 16) == 0 || (a->to != MGD_HOST && !allocate(a->to, a->bytes))) {
      if (a->kind == MGD_DO_SPILL && a->memory) {
        *(int64_t *)a->memory = OVERWRITTEN; /* it failed half way */
      }
      end_spill(b, -1, NULL);
    } else {
      leave(a, a->to != MGD_HOST ? NULL : a->memory ? a->memory
                                                    : malloc(sizeof(int64_t)));
    }
  }
}

static bool make_room(int device, int64_t bytes, int64_t mine, uint64_t *random) {
  struct mgd_action actions[6];
  int64_t room[MGD_MAX_DEVICES];
  size_t n = 6;
  read_room(room);
  int code = mgd_evict_begin(m, device, bytes, room, mine, actions, &n);
  EXPECT(code == MGD_OK || code == MGD_E_BUSY || code == MGD_E_NO_ROOM || code == MGD_E_ABSENT);
  carry_out(actions, n, random);
  return code == MGD_OK;
}

static bool bring(const struct mgd_action *a, int64_t mine, uint64_t *random) {
  struct block *b = (struct block *)(void *)a->handle;
  void *left = NULL;
  bool has_room = allocate(a->to, a->bytes);
  while (!has_room && make_room(a->to, a->bytes, mine, random)) {
    has_room = allocate(a->to, a->bytes);
  }
  if (has_room && pick(random, 16) == 0) { /* the copy fails */
    release(a->to, a->bytes);
    has_room = false;
  }
  if (has_room) {
    EXPECT_INT(b->at_home, OVERWRITTEN);
    b->at_home = a->from == MGD_HOST ? *(int64_t *)a->memory : b->at_guest;
    b->has_home = true;
    if (b->has_guest) {
      b->at_guest = OVERWRITTEN;
      b->has_guest = false;
      release(b->guest, a->bytes);
    }
  }
  EXPECT_OK(mgd_restore_end(m, &b->h, has_room ? MGD_RESIDENT : MGD_SPILLED, &left));
  free(left);
  count_change();
  return has_room;
}

/* ---- users */

struct operation {
  struct block *operands[3];
  size_t n;
  uint64_t *random;
};

static bool use_all(struct operation *o) {
  bool home = true;
  for (size_t i = 0; i < o->n; i++) {
    home = mgd_handle_use(&o->operands[i]->h, user, next_random(o->random) >> 20) && home;
  }
  return home;
}

static void put_all(struct operation *o) {
  for (size_t i = 0; i < o->n; i++) {
    delete_if(mgd_handle_unuse(&o->operands[i]->h, user, 1), o->operands[i]);
  }
  count_change();
}

/* Once through the plan; false when some of it failed. */
static bool bring_all(struct operation *o, const struct mgd_action *actions, size_t n) {
  bool good = true;
  void *left = NULL;
  for (size_t i = 0; i < n; i++) {
    if (actions[i].kind == MGD_DO_MAKE_ROOM) {
      (void)make_room(actions[i].from, actions[i].bytes, (int64_t)o->n, o->random);
    } else if (good) {
      good = bring(&actions[i], (int64_t)o->n, o->random);
    } else {
      EXPECT_OK(mgd_restore_end(m, actions[i].handle, MGD_SPILLED, &left));
    }
  }
  return good;
}

/* Whoever waits holds nothing: else two that wait for each other would never end. */
static void begin(struct operation *o) {
  for (bool home = use_all(o); !home;) {
    struct mgd_handle *handles[3];
    struct mgd_action actions[3 + MGD_MAX_DEVICES];
    int64_t room[MGD_MAX_DEVICES], seen = changes_seen();
    size_t n = 3 + MGD_MAX_DEVICES;
    int device;
    for (size_t i = 0; i < o->n; i++) {
      handles[i] = &o->operands[i]->h;
    }
    read_room(room);
    int code = mgd_restore_begin(m, handles, o->n, room, actions, &n, &device);
    EXPECT(code == MGD_OK || code == MGD_E_WAIT || code == MGD_E_BUSY || code == MGD_E_NO_ROOM);
    home = code == MGD_OK && n == 0;
    if (code == MGD_OK && bring_all(o, actions, n)) {
      continue;
    }
    put_all(o);
    if (code != MGD_OK) {
      wait_for_change(seen);
    }
    (void)use_all(o);
  }
}

static void read_or_write(struct block *b, bool writes) {
  if (writes) {
    mgd_handle_write(&b->h);
  }
  EXPECT_INT(pthread_mutex_lock(&b->lock), 0);
  EXPECT_INT(b->at_home, b->written);
  if (writes) {
    b->at_home = ++b->written;
  }
  EXPECT_INT(pthread_mutex_unlock(&b->lock), 0);
}

static void operate(uint64_t *random, bool pins) {
  struct operation o = {.random = random};
  size_t most = pins ? 1 : 3;
  int first = (int)pick(random, SLOTS);
  for (size_t i = 0; i < most; i++) { /* sometimes one twice */
    struct block *b = take_ref((first + (int)pick(random, 4)) % SLOTS);
    if (b) {
      o.operands[o.n++] = b;
    }
  }
  if (pins && o.n) {
    EXPECT_OK(mgd_handle_pin(m, &o.operands[0]->h, MGD_PIN_ASKED, true));
  }
  begin(&o);
  for (size_t i = 0; i < o.n; i++) {
    read_or_write(o.operands[i], pick(random, 3) == 0);
  }
  put_all(&o);
  if (pins && o.n) {
    read_or_write(o.operands[0], false); /* with no use, but a pin */
    EXPECT_OK(mgd_handle_pin(m, &o.operands[0]->h, MGD_PIN_ASKED, false));
  }
  for (size_t i = 0; i < o.n; i++) {
    drop_ref(o.operands[i]);
  }
}

/* ---- threads */

struct worker {
  uint64_t random;
  int64_t rounds;
};

static void *use(void *argument) {
  struct worker *w = argument;
  EXPECT_OK(mgd_user_join(m, &user));
  for (int64_t i = 0; i < w->rounds; i++) {
    operate(&w->random, false);
  }
  mgd_user_leave(m, user);
  return NULL;
}

static void *pin(void *argument) {
  struct worker *w = argument;
  EXPECT_OK(mgd_user_join(m, &user));
  for (int64_t i = 0; i < w->rounds; i++) {
    operate(&w->random, true);
  }
  mgd_user_leave(m, user);
  return NULL;
}

static void *evict(void *argument) {
  struct worker *w = argument;
  EXPECT_OK(mgd_user_join(m, &user));
  while (!atomic_load(&stop)) {
    struct mgd_action actions[8];
    size_t n = 8;
    int device = 1 + (int)pick(&w->random, DEVICES - 1);
    if (pick(&w->random, 2)) {
      (void)make_room(device, 1 + pick(&w->random, 60), 0, &w->random);
    } else if (mgd_evict_random(m, device, 3, &w->random, actions, &n) == MGD_OK) {
      carry_out(actions, n, &w->random);
    }
    count_change();
  }
  return NULL;
}

/* A new storage, as soon as there is room for it. */
static struct block *open_block(uint64_t *random) {
  int home = 1 + (int)pick(random, DEVICES - 1);
  int64_t bytes = 1 + pick(random, LARGEST);
  bytes = total + bytes + SLOTS > MOST ? 1 : bytes;
  total += bytes;
  for (int64_t seen = changes_seen(); !allocate(home, bytes); seen = changes_seen()) {
    if (!make_room(home, bytes, 0, random)) {
      wait_for_change(seen);
    }
  }
  struct block *b = calloc(1, sizeof *b);
  EXPECT(b);
  EXPECT_INT(pthread_mutex_init(&b->lock, NULL), 0);
  atomic_init(&b->refs, 1);
  b->at_home = b->written = pick(random, 1000);
  b->at_guest = OVERWRITTEN;
  b->has_home = true;
  EXPECT_OK(mgd_handle_open(m, &b->h, home, bytes));
  blocks++;
  return b;
}

static void replace(int slot, struct block *b) {
  EXPECT_INT(pthread_mutex_lock(&slots[slot].lock), 0);
  struct block *old = slots[slot].block;
  slots[slot].block = b;
  EXPECT_INT(pthread_mutex_unlock(&slots[slot].lock), 0);
  if (old) {
    drop_ref(old);
  }
}

static void *close_and_open(void *argument) {
  struct worker *w = argument;
  EXPECT_OK(mgd_user_join(m, &user));
  for (int64_t i = 0; i < w->rounds; i++) {
    int slot = (int)pick(&w->random, SLOTS);
    replace(slot, NULL);
    replace(slot, open_block(&w->random));
    struct mgd_residency_usage u;
    EXPECT_OK(mgd_residency_read(m, 1, &u));
    EXPECT(u.idle >= 0 && u.in_use >= 0 && u.moving >= 0 && u.guests >= 0);
  }
  return NULL;
}

static void nothing_is_left_over(void) {
  int64_t used, limit, peak;
  for (int i = 0; i < SLOTS; i++) {
    replace(i, NULL);
  }
  EXPECT_INT(blocks, 0);
  EXPECT_INT(total, 0);
  EXPECT_OK(mgd_host_usage(m, &used, &limit, &peak));
  EXPECT_INT(used, 0);
  for (int d = 1; d < DEVICES; d++) {
    EXPECT_INT(allocated[d], 0);
  }
  EXPECT(is_empty(m));
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t rounds = (argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000) / 20;
  void *(*const work[])(void *) = {evict, use, use, use, pin, close_and_open};
  enum { THREADS = sizeof work / sizeof *work };
  struct worker w[THREADS];
  pthread_t thread[THREADS];
  printf("test_handle_threads: seed %" PRIu64 ", %" PRId64 " rounds in each of %d threads", seed, rounds, THREADS - 1);
  m = new_machine(DEVICES - 1, CAPACITY);
  EXPECT_OK(mgd_host_set_limit(m, HOST_LIMIT));
  for (int i = 0; i < SLOTS; i++) {
    EXPECT_INT(pthread_mutex_init(&slots[i].lock, NULL), 0);
  }
  for (int i = 0; i < SLOTS; i++) {
    replace(i, open_block(&seed));
  }
  for (int i = 0; i < THREADS; i++) {
    w[i] = (struct worker){.random = seed * THREADS + (uint64_t)i, .rounds = rounds};
    EXPECT_INT(pthread_create(&thread[i], NULL, work[i], &w[i]), 0);
  }
  for (int i = THREADS - 1; i >= 0; i--) { /* the one who evicts goes on to the end */
    atomic_store(&stop, i == 0);
    EXPECT_INT(pthread_join(thread[i], NULL), 0);
  }
  nothing_is_left_over();
  printf(": moved %lld, dropped %lld, forgotten %lld, waited %lld\n", atomic_load(&moved), atomic_load(&dropped), atomic_load(&forgotten), atomic_load(&waited));
  mgd_machine_destroy(m);
  return 0;
}
