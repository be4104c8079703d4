/* The largest storages of a device are told in order, with where they are and why they stay. */
#include "core/residency/largest.h"

#include "handles.h"

static void stamp_of(const struct mgd_handle *h, uint64_t *object, uint64_t *number) {
  *object = h->stamp;
  *number = h->stamp + 100;
}

static size_t largest(struct mgd_machine *m, int device, struct mgd_large *out, size_t room) {
  EXPECT_OK(mgd_largest_read(m, device, stamp_of, out, &room));
  return room;
}

static void the_largest_come_first(void) {
  struct mgd_machine *m = new_directory(2);
  const int64_t sizes[] = {4, 9, 1, 9, 7};
  struct mgd_handle *h[5];
  struct mgd_large out[8];
  for (int i = 0; i < 5; i++) {
    h[i] = open_handle(m, 1, sizes[i], (uint64_t)i);
  }
  const uint64_t order[] = {3, 1, 4, 0, 2}; /* of equals the one that was made last */
  EXPECT_INT(largest(m, 1, out, 8), 5);
  for (int i = 0; i < 5; i++) {
    EXPECT_INT(out[i].object, order[i]);
    EXPECT_INT(out[i].number, order[i] + 100);
    EXPECT_INT(out[i].bytes, sizes[order[i]]);
  }
  EXPECT_INT(largest(m, 1, out, 3), 3);
  EXPECT_INT(out[2].object, 4);
  EXPECT_INT(largest(m, 1, out, 0), 0);
  EXPECT_INT(largest(m, 2, out, 8), 0);
  for (int i = 0; i < 5; i++) {
    close_handle(m, h[i]);
  }
  EXPECT_INT(largest(m, 1, out, 8), 0);
  mgd_machine_destroy(m);
}

static void what_is_said_of_one(void) {
  struct mgd_machine *m = new_directory(2);
  struct mgd_handle *h = open_handle(m, 1, 8, 0);
  struct mgd_large l;
  EXPECT_INT(largest(m, 1, &l, 1), 1);
  EXPECT_INT(l.away, -1);
  EXPECT_INT(l.pin, MGD_PIN_KINDS);
  EXPECT(!l.in_use);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_GRADIENT, true));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_POINTER, true));
  EXPECT(i_use(h, 1));
  EXPECT_INT(largest(m, 1, &l, 1), 1);
  EXPECT_INT(l.pin, MGD_PIN_POINTER); /* the first of the list */
  EXPECT(l.in_use);
  put_back(h, 1);
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_GRADIENT, false));
  EXPECT_OK(mgd_handle_pin(m, h, MGD_PIN_POINTER, false));
  spill(m, h, 2);
  EXPECT_INT(largest(m, 1, &l, 1), 1);
  EXPECT_INT(l.away, 2);
  EXPECT_INT(largest(m, 2, &l, 1), 0); /* its home is elsewhere */
  close_handle(m, h);
  mgd_machine_destroy(m);
}

static void devices_that_are_not_there(void) {
  struct mgd_machine *m = new_directory(1);
  struct mgd_large l;
  size_t n = 1;
  EXPECT_CODE(mgd_largest_read(m, 2, stamp_of, &l, &n), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_largest_read(m, -1, stamp_of, &l, &n), MGD_E_NO_DEVICE);
  EXPECT_INT(n, 1);
  EXPECT_INT(largest(m, MGD_HOST, &l, 1), 0);
  mgd_machine_destroy(m);
}

int main(void) {
  the_largest_come_first();
  what_is_said_of_one();
  devices_that_are_not_there();
  return 0;
}
