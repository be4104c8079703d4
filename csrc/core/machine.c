/* machine.c: creates and destroys a machine.
 *
 * A machine owns all state of the core, so this file has the initial state of all other files, and no other file uses
 * this one. The mutex is in state.c. Nothing is decided here about devices or bytes.
 */
#include "core/steps/internal_step.h"

#include <string.h>

#define DEFAULT_TRACE_EVENTS 4096
#define DEFAULT_COPIES                                                                                \
  16 /* of one tensor to one device in a step: more than a layer has uses, fewer than a loop makes */

/* The host's memory is not limited here: its capacity is unlimited until a caller sets it. */
static void add_host(struct mgd_machine *m) {
  struct mgd_device *host = &m->devices[MGD_HOST];
  memcpy(host->name, "cpu", sizeof "cpu");
  host->capacity = INT64_MAX;
  host->first_waiter = host->last_waiter = -1;
  host->kept = (struct mgd_replica_list){-1, -1};
  host->speed = 1.0;
  m->count = 1;
  mgd_link_reset_locked(m, MGD_HOST);
}

static int fill_machine(struct mgd_machine *m, size_t trace_events) {
  m->check = mgd_check_locked;
  m->claims.first_free = -1;
  mgd_replica_table_init(&m->replicas);
  m->host.limit = INT64_MAX;
  m->victim = mgd_policy_greedy_dual;
  m->heuristic = mgd_heuristic_default;
  m->heuristic_enabled = true;
  m->learns = true;
  m->repeats.limit = DEFAULT_COPIES;
  add_host(m);
  m->trace.size = trace_events ? trace_events : DEFAULT_TRACE_EVENTS;
  m->trace.ring = mgd_alloc_new(&m->alloc, m->trace.size, sizeof *m->trace.ring);
  if (!m->trace.ring) {
    return MGD_E_NOMEM;
  }
  return mgd_alloc_mutex(&m->alloc, &m->mutex);
}

int mgd_machine_create(const struct mgd_config *config, struct mgd_machine **out) {
  const struct mgd_config standard = {0};
  config = config ? config : &standard;
  if (config->fail_allocation < 0) {
    return MGD_E_INVALID;
  }
  struct mgd_alloc first;
  mgd_alloc_init(&first, config->fail_allocation);
  struct mgd_machine *m = mgd_alloc_new(&first, 1, sizeof *m);
  if (!m) {
    return MGD_E_NOMEM;
  }
  /* The allocation of the machine itself counts as the first one. */
  mgd_alloc_init(&m->alloc, config->fail_allocation);
  atomic_store_explicit(&m->alloc.made, 1, memory_order_relaxed);
  int code = fill_machine(m, config->trace_events);
  if (code != MGD_OK) {
    mgd_alloc_free(m->trace.ring);
    mgd_alloc_free(m);
    return code;
  }
  *out = m;
  return MGD_OK;
}

void mgd_machine_destroy(struct mgd_machine *m) {
  if (!m) {
    return;
  }
  (void)pthread_mutex_destroy(&m->mutex);
  mgd_alloc_free(m->claims.slots);
  mgd_alloc_free(m->holders);
  mgd_alloc_free(m->replicas.slots);
  mgd_alloc_free(m->replicas.buckets);
  mgd_alloc_free(m->replicas.sources);
  for (int id = 0; id < m->count; id++) {
    mgd_alloc_free(m->devices[id].storages.order);
    mgd_step_free(m->devices[id].step);
  }
  mgd_user_free(m->users);
  mgd_alloc_free(m->trace.ring);
  mgd_alloc_free(m->repeats.slots);
  mgd_site_free(&m->sites);
  mgd_alloc_free(m);
}
