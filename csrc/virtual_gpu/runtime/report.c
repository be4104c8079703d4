/* report.c: accesses without an order, and other errors, as texts.
 *
 * Reports are kept until they are fetched; at the exit of the process the remaining ones are printed and make it fail.
 */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "virtual_gpu/runtime/internal.h"

enum { PAIRS = 4096, TEXT = 1 << 20 };

static char *text;
static size_t text_length;
static int error_count, untold;
static struct {
  uint32_t first, second;
} pairs[PAIRS]; /* a race in a loop is told once */
static int pair_count;
static void append(const char *format, va_list arguments) {
  if (!text) text = calloc(1, TEXT);
  if (!text || text_length + 1 >= TEXT) return;
  const int n = vsnprintf(text + text_length, TEXT - text_length, format, arguments);
  text_length += (size_t)n;
  if (text_length >= TEXT) text_length = TEXT - 1;
}

void report(const char *format, ...) {
  error_count++;
  untold++;
  va_list arguments;
  va_start(arguments, format);
  append(format, arguments);
  va_end(arguments);
}

static bool is_new(uint32_t first, uint32_t second) {
  for (int i = 0; i < pair_count; i++)
    if (pairs[i].first == first && pairs[i].second == second) return false;
  if (pair_count == PAIRS) return false;
  pairs[pair_count].first = first;
  pairs[pair_count++].second = second;
  return true;
}

void report_race(struct access a, const struct clock *clock, struct epoch at, struct epoch before,
                 bool before_written) {
  if (!is_new(before.site, at.site)) return;
  char now[4096], earlier[4096];
  (void)describe(at.site, now, sizeof now);
  (void)describe(before.site, earlier, sizeof earlier);
  report(
      "race %d: %zu bytes at %p are %s by %s (its operation %llu) in %s  and nothing orders it after what %s them: %s "
      "(its operation %llu, of which up to "
      "%llu are known to be over), in %s",
      error_count + 1, a.bytes, a.address, a.written ? "written" : "read", actor_name(at.actor),
      (unsigned long long)at.time, now, before_written ? "wrote" : "read", actor_name(before.actor),
      (unsigned long long)before.time, (unsigned long long)clock_get(clock, before.actor), earlier);
}

/* ---- for tests */

int vgpu_errors(void) {
  lock();
  const int n = error_count;
  unlock();
  return n;
}

size_t vgpu_report(char *out, size_t size) {
  lock();
  const size_t length = text_length;
  if (size) {
    const size_t n = length < size ? length : size - 1;
    if (n) memcpy(out, text, n);
    out[n] = 0;
    untold = 0;
  }
  unlock();
  return length;
}

void vgpu_clear(void) {
  lock();
  error_count = untold = pair_count = 0;
  text_length = 0;
  if (text) *text = 0;
  unlock();
}

/* Runs after the program's own: what it has written is flushed before. */
__attribute__((destructor)) static void tell_the_rest(void) {
  if (!untold) return;
  (void)fflush(NULL);
  complain("%d accesses without an order\n%s", untold, text ? text : "");
  (void)fflush(NULL);
  _exit(86);
}
