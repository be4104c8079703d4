/* A place has one number, and there is an end to places. */
#include "core/internal_machine.h"
#include "expect.h"

static uint32_t id_of(struct mgd_machine *m, const char *file, int32_t line, const char *function) {
  const struct mgd_site site = {.file = file, .function = function, .line = line};
  uint32_t id = 99999;
  EXPECT_OK(mgd_site_intern(m, &site, &id));
  return id;
}

static void places_are_told_apart_by_each_of_their_parts(void) {
  struct mgd_machine *m = new_machine(0, 0);
  EXPECT_INT(id_of(m, "a.py", 1, "f"), 1);
  EXPECT_INT(id_of(m, "a.py", 2, "f"), 2);
  EXPECT_INT(id_of(m, "b.py", 1, "f"), 3);
  EXPECT_INT(id_of(m, "a.py", 1, "g"), 4);
  EXPECT_INT(id_of(m, "a.pyf", 1, ""), 5); /* the same letters, parted elsewhere */
  EXPECT_INT(id_of(m, "a.py", 1, "f"), 1);
  EXPECT_INT(id_of(m, "a.pyf", 1, ""), 5);
  mgd_machine_destroy(m);
}

static void strings_are_copied_and_stay(void) {
  struct mgd_machine *m = new_machine(0, 0);
  char file[] = "a.py", function[] = "f";
  struct mgd_site first, again;
  uint32_t id = id_of(m, file, 7, function);
  EXPECT_OK(mgd_site_get(m, id, &first));
  file[0] = function[0] = 'x';
  for (int32_t line = 0; line < 1000; line++) {
    (void)id_of(m, "many.py", line, "f");
  }
  EXPECT_TEXT(first.file, "a.py");
  EXPECT_TEXT(first.function, "f");
  EXPECT_INT(first.line, 7);
  EXPECT_OK(mgd_site_get(m, id, &again));
  EXPECT(again.file == first.file && again.function == first.function);
  mgd_machine_destroy(m);
}

static void nowhere_is_0(void) {
  struct mgd_machine *m = new_machine(0, 0);
  struct mgd_site site = {"x", "x", 9};
  EXPECT_INT(id_of(m, "", 5, ""), 0);
  EXPECT_INT(id_of(m, "", 0, "backward"), 1);
  EXPECT_OK(mgd_site_get(m, 0, &site));
  EXPECT_TEXT(site.file, "");
  EXPECT_TEXT(site.function, "");
  EXPECT_INT(site.line, 0);
  EXPECT_CODE(mgd_site_get(m, 2, &site), MGD_E_INVALID);
  mgd_machine_destroy(m);
}

static void late_places_are_nowhere(void) {
  struct mgd_machine *m = new_machine(0, 0);
  for (int32_t line = 1; line <= MGD_MAX_SITES; line++) {
    EXPECT_INT(id_of(m, "a.py", line, "f"), line);
  }
  EXPECT_INT(id_of(m, "a.py", MGD_MAX_SITES + 1, "f"), 0);
  EXPECT_INT(id_of(m, "a.py", MGD_MAX_SITES, "f"), MGD_MAX_SITES); /* those that are known stay known */
  EXPECT_INT(id_of(m, "a.py", 1, "f"), 1);
  EXPECT_OK(mgd_check(m));
  mgd_machine_destroy(m);
}

/* Names that fall on the same slot of the table, as many names do. */
static void names_do_not_get_mixed_up(void) {
  struct mgd_machine *m = new_machine(0, 0);
  char name[16];
  for (int round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 4000; i++) {
      (void)snprintf(name, sizeof name, "f%u", i * 7919);
      EXPECT_INT(id_of(m, i % 2 ? "a.py" : "b.py", (int32_t)(i % 3), name), i + 1);
    }
  }
  mgd_machine_destroy(m);
}

/* Allocations of a machine, then: the list, the index, the strings. */
static void without_memory_nothing_is_known_and_nothing_breaks(void) {
  const struct mgd_site site = {.file = "a.py", .function = "f", .line = 1};
  for (int64_t fail = 4; fail <= 6; fail++) {
    const struct mgd_config config = {.fail_allocation = fail};
    struct mgd_machine *m = NULL;
    uint32_t id = 77;
    EXPECT_OK(mgd_machine_create(&config, &m));
    EXPECT_CODE(mgd_site_intern(m, &site, &id), MGD_E_NOMEM);
    EXPECT_INT(id, 77);
    EXPECT_INT(m->sites.count, 0);
    EXPECT_OK(mgd_check(m));
    EXPECT_OK(mgd_site_intern(m, &site, &id)); /* the next one finds memory again */
    EXPECT_INT(id, 1);
    mgd_machine_destroy(m);
  }
}

int main(void) {
  places_are_told_apart_by_each_of_their_parts();
  strings_are_copied_and_stay();
  nowhere_is_0();
  late_places_are_nowhere();
  names_do_not_get_mixed_up();
  without_memory_nothing_is_known_and_nothing_breaks();
  return 0;
}
