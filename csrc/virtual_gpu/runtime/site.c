/* site.c: where a call came from: its return addresses, kept once for each different stack while the checker is on.
 *
 * Taking the addresses is cheap; names are looked up only when a report is read.
 */
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

struct site {
  const char *what;
  int frames;
  void *stack[FRAMES];
};

static struct site *sites; /* number i + 1 is sites[i] */
static uint32_t site_count, site_room;
static uint32_t *table; /* open addressing over the numbers, twice as large as the sites */
static char **texts;    /* names of kernels, each once */
static size_t text_count;
static int checks = -1;

bool checking(void) {
  if (checks < 0) checks = setting("VIRTUAL_GPU_CHECK", 1) != 0;
  return checks;
}

/* Names of functions are constants; those of kernels come from anywhere. */
static const char *kept(const char *what) {
  for (size_t i = 0; i < text_count; i++)
    if (strcmp(texts[i], what) == 0) return texts[i];
  char **larger = realloc(texts, (text_count + 1) * sizeof *texts);
  if (!larger) return "something";
  texts = larger;
  char *copy = strdup(what);
  return copy ? texts[text_count++] = copy : "something";
}

static uint64_t hash(const struct site *s) {
  uint64_t h = 0xcbf29ce484222325u ^ (uintptr_t)s->what;
  for (int i = 0; i < s->frames; i++) h = (h ^ (uintptr_t)s->stack[i]) * 0x100000001b3u;
  return h ^ (h >> 29);
}
static uint32_t *slot(const struct site *s) {
  const uint32_t mask = 2 * site_room - 1;
  uint32_t i = (uint32_t)hash(s) & mask;
  while (table[i]) {
    const struct site *t = &sites[table[i] - 1];
    if (t->what == s->what && t->frames == s->frames && memcmp(t->stack, s->stack, (size_t)s->frames * sizeof *s->stack) == 0) break;
    i = (i + 1) & mask;
  }
  return &table[i];
}
static bool grow(void) {
  const uint32_t room = site_room ? 2 * site_room : 1024;
  struct site *larger = realloc(sites, room * sizeof *sites);
  if (!larger) return false;
  sites = larger;
  uint32_t *wider = calloc(2 * (size_t)room, sizeof *wider);
  if (!wider) return false;
  free(table);
  table = wider;
  site_room = room;
  for (uint32_t i = 0; i < site_count; i++) *slot(&sites[i]) = i + 1;
  return true;
}

uint32_t here(const char *what) {
  static int on = -1;
  if (on < 0) on = setting("VIRTUAL_GPU_SITES", 1) != 0;
  if (!checking()) return 0;
  struct site s = {.what = what ? kept(what) : call_name()};
  if (on) s.frames = backtrace(s.stack, FRAMES);
  if (site_count == site_room && !grow()) return 0;
  uint32_t *found = slot(&s);
  if (!*found) {
    sites[site_count] = s;
    *found = ++site_count;
  }
  return *found;
}

static char *demangled(const char *name) {
  static char *(*demangle)(const char *, char *, size_t *, int *);
  if (!demangle) demangle = (char *(*)(const char *, char *, size_t *, int *))(uintptr_t)dlsym(RTLD_DEFAULT, "__cxa_demangle");
  return demangle && name[0] == '_' && name[1] == 'Z' ? demangle(name, NULL, NULL, NULL) : NULL;
}

size_t describe(uint32_t number, char *text, size_t size) {
  if (!number) return (size_t)snprintf(text, size, "something\n");
  const struct site *s = &sites[number - 1];
  Dl_info own = {0}, frame = {0};
  (void)dladdr((void *)(uintptr_t)describe, &own);
  size_t length = (size_t)snprintf(text, size, "%s\n", s->what);
  bool inside = true;
  for (int i = 0, shown = 0; i < s->frames && shown < 12 && length < size; i++) {
    const bool found = dladdr((char *)s->stack[i] - 1, &frame) != 0;
    if (inside && found && frame.dli_fbase == own.dli_fbase) continue; /* the runtime's own frames come first */
    inside = false;
    shown++;
    const char *file = found && frame.dli_fname ? strrchr(frame.dli_fname, '/') : NULL;
    char *name = found && frame.dli_sname ? demangled(frame.dli_sname) : NULL;
    length += (size_t)snprintf(text + length, size - length, "      %s+0x%zx %.160s\n", file ? file + 1 : "?",
                               found ? (size_t)((char *)s->stack[i] - (char *)frame.dli_fbase) : 0,
                               name ? name : found && frame.dli_sname ? frame.dli_sname : "");
    free(name);
  }
  return length < size ? length : size - 1;
}

int vgpu_check(int value) {
  lock();
  const int before = checking();
  checks = value != 0;
  unlock();
  return before;
}
