/* A machine begins with the host alone, and its creation fails cleanly. */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <sys/wait.h>
#include <unistd.h>

static void a_new_machine_has_the_host_only(void) {
  struct mgd_machine *m = NULL;
  EXPECT_OK(mgd_machine_create(NULL, &m));
  char name[32];
  EXPECT_INT(mgd_device_count(m), 1);
  EXPECT_OK(mgd_device_name(m, MGD_HOST, name));
  EXPECT_TEXT(name, "cpu");
  EXPECT(usage_of(m, MGD_HOST).capacity == INT64_MAX);
  EXPECT_INT(usage_of(m, MGD_HOST).used, 0);
  EXPECT_OK(mgd_check(m));
  mgd_machine_destroy(m);
}

static void each_of_its_three_allocations_may_fail(void) {
  for (int64_t n = 1; n <= 4; n++) {
    struct mgd_machine *m = NULL;
    const struct mgd_config config = {.fail_allocation = n};
    EXPECT_CODE(mgd_machine_create(&config, &m), n <= 3 ? MGD_E_NOMEM : MGD_OK);
    EXPECT((m != NULL) == (n == 4));
    mgd_machine_destroy(m);
  }
}

static void what_cannot_be_is_refused(void) {
  struct mgd_machine *m = NULL;
  const struct mgd_config backwards = {.fail_allocation = -1};
  EXPECT_CODE(mgd_machine_create(&backwards, &m), MGD_E_INVALID);
  const struct mgd_config endless = {.trace_events = SIZE_MAX / 2};
  EXPECT_CODE(mgd_machine_create(&endless, &m), MGD_E_NOMEM);
  EXPECT(!m);
}

static void no_machine_is_destroyed_without_harm(void) { mgd_machine_destroy(NULL); }

static void a_child_of_fork_finds_it_free(void) {
  struct mgd_machine *m = NULL;
  EXPECT_OK(mgd_machine_create(NULL, &m));
  mgd_state_before_fork(m);
  pid_t child = fork();
  mgd_state_after_fork(m);
  bool whole = mgd_check(m) == MGD_OK && mgd_device_count(m) == 1;
  if (child == 0) {
    mgd_machine_destroy(m); /* memcheck looks at the child as well */
    _exit(whole ? 0 : 1);
  }
  int status = -1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(whole && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  mgd_machine_destroy(m);
}

int main(void) {
  a_new_machine_has_the_host_only();
  each_of_its_three_allocations_may_fail();
  what_cannot_be_is_refused();
  no_machine_is_destroyed_without_harm();
  a_child_of_fork_finds_it_free();
  return 0;
}
