/* shadow.c: for each byte of devices and pinned memory, its last write and the reads since then.
 *
 * Bytes are gathered in intervals that had the same accesses, and intervals in pages, so that a program that uses
 * the same tensors again and again meets few of them: a write makes one interval of all that it covers.
 */
#include "virtual_gpu/runtime/internal.h"

enum { PAGE_BITS = 21, BUCKETS = 1 << 14 };

struct interval {
  uint32_t low; /* within the page; it ends where the next begins */
  uint32_t reads;
  struct epoch write;
  struct epoch *readers; /* those that no later reader knows of */
};
struct page {
  struct page *next;
  uintptr_t number;
  uint32_t count, room;
  struct interval *intervals; /* ascending, the first at 0 */
};

static struct page *pages[BUCKETS];

static struct page **bucket(uintptr_t number) { return &pages[(number * 0x9e3779b97f4a7c15u) >> 50]; }

static struct page *page_of(uintptr_t number, bool make) {
  for (struct page *p = *bucket(number); p; p = p->next)
    if (p->number == number) return p;
  struct page *p = make ? calloc(1, sizeof *p) : NULL;
  struct interval *first = p ? calloc(8, sizeof *first) : NULL;
  if (!first) return free(p), NULL;
  first->write.actor = -1;
  *p = (struct page){*bucket(number), number, 1, 8, first};
  return *bucket(number) = p;
}

/* The index of the interval that begins at `low`, which is made when there is none; -1 without memory. */
static int64_t split(struct page *p, uint32_t low) {
  if (low == 1u << PAGE_BITS) return p->count;
  uint32_t a = 0, b = p->count;
  while (b - a > 1) {
    const uint32_t middle = (a + b) / 2;
    if (p->intervals[middle].low <= low) a = middle;
    else b = middle;
  }
  if (p->intervals[a].low == low) return a;
  if (p->count == p->room) {
    struct interval *larger = realloc(p->intervals, 2 * (size_t)p->room * sizeof *larger);
    if (!larger) return -1;
    p->intervals = larger;
    p->room *= 2;
  }
  struct interval *at = p->intervals + a;
  struct epoch *readers = NULL;
  if (at->reads) {
    readers = malloc(at->reads * sizeof *readers);
    if (!readers) return -1;
    memcpy(readers, at->readers, at->reads * sizeof *readers);
  }
  memmove(at + 2, at + 1, (p->count - a - 1) * sizeof *at);
  at[1] = at[0];
  at[1].low = low;
  at[1].readers = readers;
  p->count++;
  return a + 1;
}

static void remove_range(struct page *p, uint32_t from, uint32_t to) {
  for (uint32_t i = from; i < to; i++) free(p->intervals[i].readers);
  memmove(p->intervals + from, p->intervals + to, (p->count - to) * sizeof *p->intervals);
  p->count -= to - from;
}

static bool equal(const struct interval *a, const struct interval *b) {
  return a->write.actor == b->write.actor && a->write.time == b->write.time && a->write.site == b->write.site && a->reads == b->reads &&
         (!a->reads || memcmp(a->readers, b->readers, a->reads * sizeof *a->readers) == 0);
}

static void read_by(struct interval *i, const struct clock *clock, struct epoch at) {
  uint32_t kept = 0; /* what comes after this reader comes after those that it knows of */
  for (uint32_t r = 0; r < i->reads; r++)
    if (!knows(clock, i->readers[r])) i->readers[kept++] = i->readers[r];
  if (kept == i->reads) {
    struct epoch *larger = realloc(i->readers, (kept + 1) * sizeof *larger);
    if (!larger) return;
    i->readers = larger;
  }
  i->readers[kept] = at;
  i->reads = kept + 1;
}

static void check(const struct interval *i, bool written, const struct clock *clock, struct epoch at, struct access whole) {
  if (!knows(clock, i->write)) report_race(whole, clock, at, i->write, true);
  for (uint32_t r = 0; written && r < i->reads; r++)
    if (!knows(clock, i->readers[r])) report_race(whole, clock, at, i->readers[r], false);
}

/* The intervals from `from` to before `to` become one, which has not been read since it was written. */
static void overwrite(struct page *p, int64_t from, int64_t to, struct epoch write) {
  struct interval *i = &p->intervals[from];
  free(i->readers);
  i->readers = NULL;
  i->reads = 0;
  i->write = write;
  remove_range(p, (uint32_t)from + 1, (uint32_t)to);
}

static void access_page(struct page *p, uint32_t low, uint32_t high, bool written, const struct clock *clock, struct epoch at, struct access whole) {
  const int64_t from = split(p, low), to = from < 0 ? -1 : split(p, high);
  if (to < 0) return;
  for (int64_t k = from; k < to; k++) check(&p->intervals[k], written, clock, at, whole);
  if (written) {
    overwrite(p, from, to, at);
    return;
  }
  for (int64_t k = from; k < to; k++) read_by(&p->intervals[k], clock, at);
  for (int64_t k = to; k >= from; k--) /* neighbours that had the same accesses are one */
    if (k > 0 && k < p->count && equal(&p->intervals[k - 1], &p->intervals[k])) remove_range(p, (uint32_t)k, (uint32_t)k + 1);
}

void shadow_access(uintptr_t low, uintptr_t high, bool written, const struct clock *clock, struct epoch at, struct access whole) {
  while (low < high) {
    const uintptr_t number = low >> PAGE_BITS, start = number << PAGE_BITS, end = start + (1u << PAGE_BITS);
    struct page *p = page_of(number, true);
    if (p) access_page(p, (uint32_t)(low - start), (uint32_t)((high < end ? high : end) - start), written, clock, at, whole);
    low = end;
  }
}

void shadow_forget(uintptr_t low, uintptr_t high) {
  const struct epoch none = {-1, 0, 0};
  while (low < high) {
    const uintptr_t number = low >> PAGE_BITS, start = number << PAGE_BITS, end = start + (1u << PAGE_BITS);
    struct page *p = page_of(number, false);
    const int64_t from = p ? split(p, (uint32_t)(low - start)) : -1, to = from < 0 ? -1 : split(p, (uint32_t)((high < end ? high : end) - start));
    if (to >= 0) overwrite(p, from, to, none);
    low = end;
  }
}
