/* clock.c: vector clocks: what a stream, an event or the host knows to be done.
 *
 * Each stream is an actor, and so is the host. An actor's time counts its operations; a clock says up to which time of each actor
 * everything is known to be over. A wait joins clocks. The runtime cannot see how threads of the host wait for each other (locks, queues,
 * Python's own lock), so what one of them has waited for counts for all, unless VIRTUAL_GPU_THREADS=apart says that they share nothing.
 */
#include <stdarg.h>
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

struct host {
  struct clock clock;
  int actor;
};

static char names[ACTORS][32];
static int actors;
static int spare[ACTORS], spares;
static struct host everybody = {.actor = -2};
static _Thread_local struct host *mine;
static uint64_t random_state;
static pthread_key_t at_exit;

int new_actor(const char *format, ...) {
  if (!spares && actors == ACTORS) return -1;
  const int actor = spares ? spare[--spares] : actors++;
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(names[actor], sizeof names[actor], format, arguments);
  va_end(arguments);
  return actor;
}
/* Its times go on, so its next owner is taken to know what this one did: no false race is reported, but one may be
 * missed. */
void free_actor(int actor) {
  if (actor >= 0) spare[spares++] = actor;
}
const char *actor_name(int actor) { return actor >= 0 ? names[actor] : "an unknown stream"; }

static bool grow(struct clock *c, int n) {
  if (n <= c->n) return true;
  uint64_t *times = realloc(c->times, (size_t)n * sizeof *times);
  if (!times) return false;
  memset(times + c->n, 0, (size_t)(n - c->n) * sizeof *times);
  c->times = times;
  c->n = n;
  return true;
}
void clock_join(struct clock *into, const struct clock *from) {
  if (into == from || !grow(into, from->n)) return;
  for (int i = 0; i < from->n; i++)
    if (into->times[i] < from->times[i]) into->times[i] = from->times[i];
}
uint64_t clock_get(const struct clock *c, int actor) { return actor < 0 ? UINT64_MAX : actor < c->n ? c->times[actor] : 0; }
uint64_t clock_tick(struct clock *c, int actor) { return actor < 0 || !grow(c, actor + 1) ? 0 : ++c->times[actor]; }
void clock_copy(struct clock *into, const struct clock *from) {
  clock_free(into);
  clock_join(into, from);
}
void clock_free(struct clock *c) {
  free(c->times);
  *c = (struct clock){0};
}
bool knows(const struct clock *c, struct epoch e) { return e.actor < 0 || clock_get(c, e.actor) >= e.time; }

/* ---- the host */

static void thread_ends(void *host) {
  struct host *h = host;
  lock();
  free_actor(h->actor);
  clock_free(&h->clock);
  unlock();
  free(h);
}
static bool apart(void) {
  static int known = -1;
  if (known < 0) {
    const char *text = getenv("VIRTUAL_GPU_THREADS");
    known = text && strcmp(text, "apart") == 0;
    if (known) (void)pthread_key_create(&at_exit, thread_ends);
  }
  return known;
}
static struct host *host(void) {
  if (everybody.actor == -2) {
    everybody.actor = new_actor("the host");
    (void)clock_tick(&everybody.clock, everybody.actor);
  }
  if (!apart()) return &everybody;
  if (!mine) {
    struct host *h = calloc(1, sizeof *h);
    if (!h) return &everybody;
    static int threads;
    h->actor = new_actor("host thread %d", ++threads);
    clock_copy(&h->clock, &everybody.clock); /* a thread knows what was known when it began */
    (void)clock_tick(&h->clock, h->actor);
    (void)pthread_setspecific(at_exit, h);
    mine = h;
  }
  return mine;
}
struct clock *host_clock(void) { return &host()->clock; }
struct epoch host_epoch(uint32_t site) {
  const struct host *h = host();
  return (struct epoch){h->actor, site, clock_get(&h->clock, h->actor)};
}
void host_learns(const struct clock *c) {
  clock_join(host_clock(), c);
  if (apart()) clock_join(&everybody.clock, c);
}
void host_ticks(void) {
  struct host *h = host();
  (void)clock_tick(&h->clock, h->actor);
  if (h != &everybody) clock_join(&everybody.clock, &h->clock);
}

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014). 0 stands for no seed. */
uint64_t next_random(void) {
  static bool begun;
  if (!begun) {
    begun = true;
    if (!random_state) random_state = setting("VIRTUAL_GPU_SEED", 0);
  }
  if (!random_state) return 0;
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return z ? z : 1;
}
void vgpu_seed(unsigned long long seed) {
  lock();
  (void)next_random();
  random_state = seed;
  unlock();
}
