/* site.c: places in the program, told apart and numbered.
 *
 * A place is a file, a line and a function. Each is kept once, so an event needs four bytes for it, and its strings are
 * valid as long as the machine lives. Their number is bounded: further places get id 0, "unknown". The caller passes
 * the place; no program text or stack is read here.
 */
#include "core/internal_machine.h"

#include <string.h>

/* FNV-1a over a string and its end. */
static uint64_t hash_text(uint64_t hash, const char *text) {
  do {
    hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  } while (*text++);
  return hash;
}

static size_t first_slot(const struct mgd_site *site) {
  uint64_t hash = hash_text(hash_text(0xcbf29ce484222325u, site->file), site->function);
  hash = (hash ^ (uint32_t)site->line) * 0x9e3779b97f4a7c15u;
  return (size_t)(hash >> 32) % MGD_SITE_SLOTS;
}

static bool is_same(const struct mgd_site *a, const struct mgd_site *b) {
  return a->line == b->line && strcmp(a->file, b->file) == 0 && strcmp(a->function, b->function) == 0;
}

/* Returns the slot that holds this site, or the empty slot for it. */
static uint16_t *slot_of_site(const struct mgd_sites *sites, const struct mgd_site *site) {
  size_t slot = first_slot(site);
  while (sites->index[slot] && !is_same(&sites->list[sites->index[slot] - 1], site)) {
    slot = (slot + 1) % MGD_SITE_SLOTS;
  }
  return &sites->index[slot];
}

uint32_t mgd_site_find_locked(const struct mgd_sites *sites, const struct mgd_site *site) {
  return sites->index ? *slot_of_site(sites, site) : 0;
}

/* Allocates the two arrays, if they are missing. */
static int make_arrays(struct mgd_machine *m) {
  struct mgd_sites *sites = &m->sites;
  if (!sites->list) {
    sites->list = mgd_alloc_new(&m->alloc, MGD_MAX_SITES, sizeof *sites->list);
  }
  if (!sites->index) {
    sites->index = mgd_alloc_new(&m->alloc, MGD_SITE_SLOTS, sizeof *sites->index);
  }
  return sites->list && sites->index ? MGD_OK : MGD_E_NOMEM;
}

/* Keeps a copy of the strings under the next id. */
static int keep(struct mgd_machine *m, const struct mgd_site *site, uint32_t *id) {
  struct mgd_sites *sites = &m->sites;
  size_t file = strlen(site->file) + 1, function = strlen(site->function) + 1;
  char *text = mgd_alloc_new(&m->alloc, file + function, 1);
  if (!text) {
    return MGD_E_NOMEM;
  }
  memcpy(text, site->file, file);
  memcpy(text + file, site->function, function);
  uint16_t *slot = slot_of_site(sites, site);
  sites->list[sites->count] = (struct mgd_site){.file = text, .function = text + file, .line = site->line};
  *id = ++sites->count;
  *slot = (uint16_t)*id;
  return MGD_OK;
}

static int intern(struct mgd_machine *m, const struct mgd_site *site, uint32_t *id) {
  uint32_t found = mgd_site_find_locked(&m->sites, site);
  if (found || m->sites.count == MGD_MAX_SITES) {
    *id = found;
    return MGD_OK;
  }
  int code = make_arrays(m);
  return code == MGD_OK ? keep(m, site, id) : code;
}

int mgd_site_intern(struct mgd_machine *m, const struct mgd_site *site, uint32_t *id) {
  if (site->file[0] == '\0' && site->function[0] == '\0') {
    *id = 0;
    return MGD_OK;
  }
  mgd_state_enter(m);
  return mgd_state_leave(m, intern(m, site, id));
}

int mgd_site_get(struct mgd_machine *m, uint32_t id, struct mgd_site *out) {
  int code = MGD_E_INVALID;
  mgd_state_enter(m);
  if (id <= m->sites.count) {
    *out = id ? m->sites.list[id - 1] : (struct mgd_site){"", "", 0};
    code = MGD_OK;
  }
  return mgd_state_leave(m, code);
}

void mgd_site_free(struct mgd_sites *sites) {
  for (uint32_t i = 0; i < sites->count; i++) {
    mgd_alloc_free((char *)sites->list[i].file);
  }
  mgd_alloc_free(sites->list);
  mgd_alloc_free(sites->index);
}
