/* Where one object goes and where one operator runs: the rules, one by one. */
#include <math.h>

#include "replica.h"

#define ALL (~(mgd_mask)0)
#define PINNED MGD_OP_PINNED
#define WRITTEN MGD_OP_WRITTEN
#define VOTES MGD_OP_VOTES
#define GENERATOR MGD_OP_GENERATOR
#define GRADIENT MGD_OP_GRADIENT
#define PLACED MGD_OP_PLACED

/* ---- one object */

/* Where the object goes. The reservation is given back. */
static int place(struct mgd_machine *m, const struct mgd_object_request *r, enum mgd_reason *why) {
  struct mgd_ticket t = {.device = -1};
  EXPECT_OK(mgd_admit_object(m, r, 0, &t, why));
  int device = t.device;
  EXPECT(t.id == 0 || mgd_admit_release(m, &t) == MGD_OK);
  return device;
}

static void expect_object(struct mgd_machine *m, struct mgd_object_request r, int device, enum mgd_reason why) {
  enum mgd_reason reason = MGD_WHY_NONE;
  EXPECT_INT(place(m, &r, &reason), device);
  EXPECT_TEXT(mgd_text_reason((int)reason), mgd_text_reason((int)why));
}

/* Three devices of 1000 bytes with 400, 700 and 500 free. */
static struct mgd_machine *uneven(void) {
  struct mgd_machine *m = new_machine(3, 1000);
  add_bytes(m, 1, MGD_MANAGED, 600);
  add_bytes(m, 2, MGD_FOREIGN, 300);
  add_bytes(m, 3, MGD_MANAGED, 500);
  (void)keep(m, open_source(m), 3, 0, 400); /* replicas are room */
  return m;
}

static void disperse_takes_the_least_in_use_and_pack_the_fullest_that_fits(void) {
  struct mgd_machine *m = uneven();
  expect_object(m, (struct mgd_object_request){100, true, ALL, 0.0}, 2, MGD_WHY_DISPERSED);
  expect_object(m, (struct mgd_object_request){100, false, ALL, 0.0}, 1, MGD_WHY_PACKED);
  expect_object(m, (struct mgd_object_request){400, false, ALL, 0.0}, 1, MGD_WHY_PACKED);
  expect_object(m, (struct mgd_object_request){401, false, ALL, 0.0}, 3, MGD_WHY_PACKED);
  expect_object(m, (struct mgd_object_request){501, false, ALL, 0.0}, 2, MGD_WHY_PACKED);
  mgd_machine_destroy(m);
}

static void what_fits_nowhere_goes_to_the_host(void) {
  struct mgd_machine *m = uneven();
  expect_object(m, (struct mgd_object_request){701, true, ALL, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  expect_object(m, (struct mgd_object_request){701, false, ALL, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  expect_object(m, (struct mgd_object_request){INT64_MAX, true, ALL, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  mgd_machine_destroy(m);
}

static void only_allowed_accelerators_are_considered(void) {
  struct mgd_machine *m = uneven();
  expect_object(m, (struct mgd_object_request){100, true, 1u << 3 | 1u << 1, 0.0}, 3, MGD_WHY_DISPERSED);
  expect_object(m, (struct mgd_object_request){100, true, 1u << 0, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  expect_object(m, (struct mgd_object_request){100, true, 1u << 9, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  expect_object(m, (struct mgd_object_request){100, true, 0, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  mgd_machine_destroy(m);
}

/* reserved = 0.1 of 1000 bytes takes 100 from each device, once. */
static void the_reserved_fraction_counts_once(void) {
  struct mgd_machine *m = uneven();
  expect_object(m, (struct mgd_object_request){600, true, ALL, 0.1}, 2, MGD_WHY_DISPERSED);
  expect_object(m, (struct mgd_object_request){601, true, ALL, 0.1}, MGD_HOST, MGD_WHY_NO_ROOM);
  expect_object(m, (struct mgd_object_request){300, false, ALL, 0.1}, 1, MGD_WHY_PACKED);
  expect_object(m, (struct mgd_object_request){301, false, ALL, 0.1}, 3, MGD_WHY_PACKED);
  mgd_machine_destroy(m);
}

static void promised_bytes_are_not_free(void) {
  struct mgd_machine *m = uneven();
  struct mgd_ticket ticket = {0};
  EXPECT_OK(mgd_admit_request(m, 2, 450, 0.0, 0, 0, &ticket));
  expect_object(m, (struct mgd_object_request){100, true, ALL, 0.0}, 3, MGD_WHY_DISPERSED);
  EXPECT_OK(mgd_admit_release(m, &ticket));
  expect_object(m, (struct mgd_object_request){100, true, ALL, 0.0}, 2, MGD_WHY_DISPERSED);
  mgd_machine_destroy(m);
}

static void ties_go_to_the_lowest_id_and_nothing_fits_everywhere(void) {
  struct mgd_machine *m = new_machine(3, 1000);
  expect_object(m, (struct mgd_object_request){1, true, ALL, 0.0}, 1, MGD_WHY_DISPERSED);
  expect_object(m, (struct mgd_object_request){1, false, ALL, 0.0}, 1, MGD_WHY_PACKED);
  for (int id = 1; id <= 3; id++) { add_bytes(m, id, MGD_MANAGED, 5000); /* more than full */ }
  expect_object(m, (struct mgd_object_request){0, true, ALL, 0.5}, 1, MGD_WHY_DISPERSED);
  expect_object(m, (struct mgd_object_request){1, true, ALL, 0.0}, MGD_HOST, MGD_WHY_NO_ROOM);
  mgd_machine_destroy(m);
}

static void disperse_looks_at_what_is_in_use_and_not_at_what_is_free(void) {
  struct mgd_machine *m = new_machine(3, 1000);
  const struct mgd_object_request r = {100, true, ALL, 0.0}, empty = {0, true, ALL, 0.0};
  EXPECT_OK(mgd_device_set_capacity(m, 2, 9000));
  EXPECT_OK(mgd_device_set_capacity(m, 1, 99));
  expect_object(m, r, 2, MGD_WHY_DISPERSED); /* the first with room */
  add_bytes(m, 2, MGD_MANAGED, 1);
  expect_object(m, r, 3, MGD_WHY_DISPERSED);
  expect_object(m, empty, 1, MGD_WHY_DISPERSED);
  mgd_machine_destroy(m);
}

static void a_faster_device_holds_more(void) {
  struct mgd_machine *m = new_machine(2, 100000);
  int64_t held[3] = {0};
  EXPECT_OK(mgd_device_set_speed(m, 2, 2.0));
  for (int i = 0; i < 30; i++) {
    const struct mgd_object_request r = {10, true, ALL, 0.0};
    enum mgd_reason why;
    int device = place(m, &r, &why);
    add_bytes(m, device, MGD_MANAGED, 10);
    EXPECT(i > 0 || device == 2); /* the first as well: it is done sooner there */
    held[device] += 10;
  }
  EXPECT_INT(held[1], 100);
  EXPECT_INT(held[2], 200);
  mgd_machine_destroy(m);
}

/* A screen or a context on one card does not drive all small objects from it; somebody who holds half of it gets half. */
static void others_bytes_take_their_part_of_the_speed(void) {
  struct mgd_machine *m = new_machine(2, 1000000);
  const int64_t foreign[] = {50000, 500000}, expected[] = {97, 67};
  for (int k = 0; k < 2; k++) {
    int64_t objects[3] = {0};
    struct mgd_share share;
    EXPECT_OK(mgd_ledger_observe(m, 1, 0, foreign[k]));
    EXPECT_OK(mgd_ledger_observe(m, 2, 0, 0));
    for (int i = 0; i < 200; i++) {
      const struct mgd_object_request r = {10, true, ALL, 0.0};
      enum mgd_reason why;
      int device = place(m, &r, &why);
      add_bytes(m, device, MGD_MANAGED, 10);
      objects[device]++;
    }
    EXPECT_INT(objects[1], expected[k]);
    EXPECT_OK(mgd_place_share(m, 1, 0.1, &share));
    EXPECT_INT(share.load, 10 * objects[1]);
    EXPECT_INT(share.room, 900000 - foreign[k] - 10 * objects[1]);
  }
  struct mgd_share none;
  EXPECT_CODE(mgd_place_share(m, 3, 0.0, &none), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_place_share(m, 1, 1.0, &none), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_share(m, 1, -0.1, &none), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_share(m, 1, (double)NAN, &none), MGD_E_INVALID);
  EXPECT_OK(mgd_device_set_capacity(m, 2, 0)); /* as though others held all of it */
  EXPECT_OK(mgd_device_set_speed(m, 2, 0x1p22));
  EXPECT_OK(mgd_place_share(m, 2, 0.0, &none));
  EXPECT(none.speed >= 4.0 && none.speed <= 4.0);
  EXPECT_INT(none.room, 0);
  mgd_machine_destroy(m);
}

static void equal_objects_spread_to_within_one(void) {
  struct mgd_machine *m = new_machine(4, 1000);
  const struct mgd_object_request r = {10, true, ALL, 0.0};
  int count[5] = {0};
  for (int i = 0; i < 103; i++) {
    enum mgd_reason why;
    int device = place(m, &r, &why);
    add_bytes(m, device, MGD_MANAGED, 10);
    count[device]++;
  }
  EXPECT_INT(count[0], 0);
  for (int id = 1; id <= 4; id++) {
    EXPECT(count[id] == 25 || count[id] == 26);
  }
  mgd_machine_destroy(m);
}

static void bad_requests_are_refused(void) {
  struct mgd_machine *m = uneven();
  const struct mgd_object_request bad[] = {
      {-1, true, ALL, 0.0}, {1, true, ALL, -0.1}, {1, true, ALL, 1.0}, {1, true, ALL, (double)NAN}, {1, true, ALL, (double)INFINITY}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct mgd_ticket t = {.device = 77};
    enum mgd_reason why = MGD_WHY_REQUESTED;
    EXPECT_CODE(mgd_admit_object(m, &bad[i], 0, &t, &why), MGD_E_INVALID);
    EXPECT_INT(t.device, 77);
    EXPECT(why == MGD_WHY_REQUESTED);
  }
  mgd_machine_destroy(m);
}

/* ---- operands */

static void expect_operands(int line, struct mgd_machine *m, const struct mgd_operand *operands, size_t n, int device, enum mgd_reason why) {
  int got = -1, other = 77;
  enum mgd_reason reason = MGD_WHY_NONE;
  int code = mgd_place_operands(m, operands, n, &got, &other, &reason);
  if (code != MGD_OK || got != device || reason != why || other != 77) {
    fprintf(stderr, "test_place.c:%d: %s, device %d (expected %d) because %s (expected %s)\n", line, mgd_text_error_name(code), got, device,
            mgd_text_reason((int)reason), mgd_text_reason((int)why));
    exit(1);
  }
}
/* {device, flags, bytes} or, if the age matters, {device, flags, bytes, made}. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define EXPECT_RUNS(device, why, ...)                                                                                                                     \
  expect_operands(__LINE__, m, (const struct mgd_operand[]){__VA_ARGS__}, sizeof((const struct mgd_operand[]){__VA_ARGS__}) / sizeof(struct mgd_operand), \
                  device, why)

static void operands_in_one_place_stay_there(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(2, MGD_WHY_ONLY, {2, VOTES, 8}, {2, VOTES, 8});
  EXPECT_RUNS(0, MGD_WHY_ONLY, {0, VOTES, 8}, {0, 0, 8});
  EXPECT_RUNS(3, MGD_WHY_ONLY, {3, 0, 8});
  EXPECT_RUNS(2, MGD_WHY_ONLY, {2, VOTES, 8}, {0, 0, 100000}, {3, 0, 100000}); /* indices do not count */
  mgd_machine_destroy(m);
}

static void rules_go_before_cost(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(0, MGD_WHY_GENERATOR, {1, VOTES | PINNED, 8}, {2, VOTES | WRITTEN, 8}, {0, GENERATOR, 0});
  EXPECT_RUNS(1, MGD_WHY_PINNED, {1, VOTES | PINNED, 8}, {2, VOTES, 90000});
  EXPECT_RUNS(0, MGD_WHY_PINNED, {0, PINNED, 8}, {2, VOTES, 90000});
  EXPECT_RUNS(2, MGD_WHY_WRITTEN, {1, VOTES, 90000}, {2, WRITTEN, 8});
  EXPECT_RUNS(0, MGD_WHY_WRITTEN, {1, VOTES, 90000}, {0, VOTES | WRITTEN, 8});
  EXPECT_RUNS(2, MGD_WHY_WRITTEN, {2, WRITTEN, 8}, {1, WRITTEN, 90000}); /* the first of several */
  mgd_machine_destroy(m);
}

/* A pinned operand that is only read is copied to where the other is written. */
static void a_written_operand_beats_a_pin_that_is_only_read(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(2, MGD_WHY_WRITTEN, {1, VOTES | PINNED, 8}, {2, VOTES | WRITTEN, 8});
  EXPECT_RUNS(1, MGD_WHY_PINNED, {1, VOTES | PINNED | WRITTEN, 8}, {2, VOTES | WRITTEN, 8});
  EXPECT_RUNS(1, MGD_WHY_PINNED, {2, WRITTEN, 8}, {1, WRITTEN, 8}, {1, PINNED, 8}); /* one write is at the pin */
  mgd_machine_destroy(m);
}

/* Where the program put the parameters work goes, whatever it costs; operands that only weigh change nothing. */
static void work_goes_to_placed_parameters_that_agree(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  const unsigned parameter = VOTES | PLACED;
  EXPECT_RUNS(2, MGD_WHY_PLACED, {1, VOTES, 900000}, {2, parameter, 8});
  EXPECT_RUNS(2, MGD_WHY_PLACED, {2, parameter, 8}, {1, VOTES, 900000}, {3, VOTES, 900000}, {2, parameter, 8});
  EXPECT_RUNS(2, MGD_WHY_PLACED, {2, parameter, 8}, {0, VOTES, 900000});
  EXPECT_RUNS(2, MGD_WHY_PLACED, {2, parameter, 8}, {2, VOTES, 8}, {1, 0, 8});
  add_bytes(m, 2, MGD_MANAGED, MIB); /* no room: what others do there leaves */
  EXPECT_RUNS(2, MGD_WHY_PLACED, {1, VOTES, 900000}, {2, parameter, 8});
  mgd_machine_destroy(m);
}

static void rules_go_before_placed_parameters(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  const unsigned parameter = VOTES | PLACED;
  EXPECT_RUNS(1, MGD_WHY_WRITTEN, {1, VOTES | WRITTEN, 8}, {2, parameter, 8});
  EXPECT_RUNS(1, MGD_WHY_PINNED, {1, VOTES | PINNED, 8}, {2, parameter, 8});
  EXPECT_RUNS(1, MGD_WHY_GENERATOR, {1, GENERATOR, 0}, {2, parameter, 8});
  mgd_machine_destroy(m);
}

/* The engine refuses a gradient that is computed anywhere else. */
static void a_backward_formula_runs_where_its_gradient_is(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(1, MGD_WHY_GRADIENT, {2, VOTES | PLACED, 900000}, {1, VOTES, 8}, {1, GRADIENT, 0});
  EXPECT_RUNS(0, MGD_WHY_GRADIENT, {2, VOTES | PINNED | WRITTEN, 8}, {0, GRADIENT, 0}, {1, GENERATOR, 0});
  EXPECT_RUNS(3, MGD_WHY_GRADIENT, {1, VOTES, 8}, {2, VOTES, 8}, {3, GRADIENT, 0});
  EXPECT_RUNS(3, MGD_WHY_GRADIENT, {1, VOTES, 8}, {3, GRADIENT, 0}, {2, GRADIENT, 900000}); /* the first of several */
  const struct mgd_operand pins[] = {{1, PINNED, 8}, {2, PINNED, 8}, {3, GRADIENT, 0}};
  int device = 77, other = 77;
  enum mgd_reason why = MGD_WHY_REQUESTED;
  EXPECT_CODE(mgd_place_operands(m, pins, 3, &device, &other, &why), MGD_E_PIN_CONFLICT);
  mgd_machine_destroy(m);
}

/* Parameters on two devices, on the host, or without a vote prescribe nothing. */
static void placed_parameters_that_do_not_agree_leave_it_to_cost(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  const unsigned parameter = VOTES | PLACED;
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 900000}, {2, parameter, 8}, {3, parameter, 8});
  EXPECT_RUNS(3, MGD_WHY_COST, {2, parameter, 8}, {3, parameter, 900000});
  EXPECT_RUNS(1, MGD_WHY_ACCELERATOR, {0, parameter, 900000}, {1, VOTES, 8});
  EXPECT_RUNS(1, MGD_WHY_ONLY, {1, VOTES, 8}, {2, PLACED, 900000});
  mgd_machine_destroy(m);
}

static void two_pins_on_different_devices_conflict(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  const struct mgd_operand read_read[] = {{2, 0, 1}, {3, PINNED, 8}, {1, PINNED, 8}, {2, PINNED, 8}};
  const struct mgd_operand written_read[] = {{1, PINNED | WRITTEN, 8}, {1, PINNED, 8}, {2, PINNED, 8}};
  const struct mgd_operand with_generator[] = {{0, GENERATOR, 0}, {1, PINNED, 8}, {2, PINNED, 8}};
  int device = 77, other = 77;
  enum mgd_reason why = MGD_WHY_REQUESTED;
  EXPECT_CODE(mgd_place_operands(m, read_read, 4, &device, &other, &why), MGD_E_PIN_CONFLICT);
  EXPECT_INT(device, 3);
  EXPECT_INT(other, 1);
  EXPECT_CODE(mgd_place_operands(m, written_read, 3, &device, &other, &why), MGD_E_PIN_CONFLICT);
  EXPECT_INT(device, 1);
  EXPECT_INT(other, 2);
  EXPECT_CODE(mgd_place_operands(m, with_generator, 3, &device, &other, &why), MGD_E_PIN_CONFLICT);
  EXPECT(why == MGD_WHY_REQUESTED);
  mgd_machine_destroy(m);
}

static void an_accelerator_goes_before_the_host(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(2, MGD_WHY_ACCELERATOR, {0, VOTES, 900000}, {2, VOTES, 1});
  EXPECT_RUNS(0, MGD_WHY_ONLY, {0, VOTES, 8}, {2, 0, 100000}); /* only voters count */
  EXPECT_RUNS(2, MGD_WHY_ACCELERATOR, {0, 0, 8}, {2, 0, 8});   /* nobody votes: everybody does */
  EXPECT_RUNS(3, MGD_WHY_COST, {2, 0, 8}, {3, 0, 100000});
  mgd_machine_destroy(m);
}

static void the_cheapest_device_wins_and_ties_go_to_the_lowest(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 1000}, {2, VOTES, 500000}, {3, VOTES, 1000});
  EXPECT_RUNS(1, MGD_WHY_COST, {3, VOTES, 5000}, {1, VOTES, 5000});
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 5000}, {3, VOTES, 5000});
  /* Non-voters cannot be chosen; bringing them still costs. */
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 0}, {2, VOTES, 0}, {2, 0, 800000});
  mgd_machine_destroy(m);
}

static void link_all(struct mgd_machine *m, int from, int to, double bytes_per_ns) {
  const struct mgd_link link = {0, bytes_per_ns};
  EXPECT_OK(mgd_link_set(m, from, to, link));
}

/* Device 1 holds more, device 2 is cheaper: 1000 ns to run on 1, 1600 bytes at
 * some rate to run on 2. The holder stays until the other costs below 80 %. */
static void the_holder_of_most_bytes_has_20_percent_in_hand(void) {
  struct mgd_machine *m = new_machine(2, MIB);
  link_all(m, 2, 1, 1.0);
  link_all(m, 1, 2, 1.7); /* 941 ns */
  EXPECT_RUNS(1, MGD_WHY_HYSTERESIS, {1, VOTES, 1600}, {2, VOTES, 1000});
  link_all(m, 1, 2, 2.0); /* 800 ns: exactly 20 % */
  EXPECT_RUNS(1, MGD_WHY_HYSTERESIS, {1, VOTES, 1600}, {2, VOTES, 1000});
  link_all(m, 1, 2, 2.01); /* 796 ns */
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 1600}, {2, VOTES, 1000});
  link_all(m, 1, 2, 1.5); /* 1067 ns */
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 1600}, {2, VOTES, 1000});
  mgd_machine_destroy(m);
}

/* As many bytes on several devices: what was made last stays, unless another device is clearly cheaper. */
static void a_tie_goes_to_what_was_made_last(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(2, MGD_WHY_NEWEST, {1, VOTES, 5000, 7}, {2, VOTES, 5000, 9});
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 5000, 9}, {2, VOTES, 5000, 7});
  EXPECT_RUNS(3, MGD_WHY_NEWEST, {3, VOTES, 5000, 9}, {1, VOTES, 5000, 7}, {2, VOTES, 5000, 8});
  EXPECT_RUNS(2, MGD_WHY_NEWEST, {1, VOTES, 5000, 0}, {2, VOTES, 5000, 1}); /* without a number: oldest */
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 5001, 7}, {2, VOTES, 5000, 9});   /* no tie */
  link_all(m, 1, 2, 1.0);
  link_all(m, 2, 1, 1.0);
  EXPECT_RUNS(2, MGD_WHY_NEWEST, {2, VOTES, 5000, 7}, {1, VOTES, 4000, 3}, {1, 0, 1000, 9}); /* indices have no say */
  link_all(m, 2, 1, 1.25); /* 80 % */
  EXPECT_RUNS(2, MGD_WHY_NEWEST, {1, VOTES, 5000, 7}, {2, VOTES, 5000, 9});
  link_all(m, 2, 1, 1.26);
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 5000, 7}, {2, VOTES, 5000, 9});
  mgd_machine_destroy(m);
}

/* What does not fit is spilled to the host over the candidate's own link. */
static void evicting_has_its_price(void) {
  struct mgd_machine *m = new_machine(2, 1000);
  add_bytes(m, 1, MGD_MANAGED, 1000); /* full */
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 510}, {2, VOTES, 490});
  add_bytes(m, 1, MGD_MANAGED, -1000);
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 510}, {2, VOTES, 490});
  mgd_machine_destroy(m);
}

/* The stream is on 1 and weighs more; 2 has a copy of it, so only the branch could cross. */
static void a_kept_copy_costs_nothing(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 4000}, {2, VOTES, 2000});
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 4000, 0, 1u << 2}, {2, VOTES, 2000});
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 4000, 0, 1u << 3}, {2, VOTES, 2000}); /* 3 takes no part */
  EXPECT_RUNS(1, MGD_WHY_COST, {1, VOTES, 4000, 0, 1u << 2}, {2, VOTES, 2000, 0, 1u << 1});
  EXPECT_RUNS(2, MGD_WHY_COST, {1, VOTES, 400000, 0, 1u << 2}, {1, VOTES, 1000},
              {2, VOTES, 200000}); /* of one of two */
  EXPECT_RUNS(1, MGD_WHY_WRITTEN, {1, VOTES | WRITTEN, 4000, 0, 1u << 2}, {2, VOTES, 2000});
  mgd_machine_destroy(m);
}

static void the_order_of_operands_does_not_matter_to_the_price(void) {
  struct mgd_machine *m = new_machine(3, MIB);
  struct mgd_operand o[] = {{1, VOTES, 333}, {2, VOTES, 7001}, {3, VOTES, 90001}, {1, VOTES, 90000}, {2, VOTES, 1}};
  int first = -1, other;
  enum mgd_reason why;
  EXPECT_OK(mgd_place_operands(m, o, 5, &first, &other, &why));
  for (int turn = 0; turn < 5; turn++) {
    struct mgd_operand head = o[0];
    memmove(o, o + 1, 4 * sizeof *o);
    o[4] = head;
    int device = -1;
    EXPECT_OK(mgd_place_operands(m, o, 5, &device, &other, &why));
    EXPECT_INT(device, first);
  }
  mgd_machine_destroy(m);
}

static void bad_operands_are_refused(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  const struct mgd_operand unknown[] = {{0, 0, 1}, {2, 0, 1}}, below[] = {{-1, 0, 1}}, negative[] = {{1, 0, -1}};
  const struct mgd_operand flags[] = {{1, 2 * GRADIENT, 1}}, large[] = {{1, 0, INT64_MAX}, {0, 0, 1}};
  int device = 77, other = 77;
  enum mgd_reason why = MGD_WHY_REQUESTED;
  EXPECT_CODE(mgd_place_operands(m, unknown, 2, &device, &other, &why), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_place_operands(m, below, 1, &device, &other, &why), MGD_E_NO_DEVICE);
  EXPECT_CODE(mgd_place_operands(m, negative, 1, &device, &other, &why), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_operands(m, flags, 1, &device, &other, &why), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_operands(m, NULL, 0, &device, &other, &why), MGD_E_INVALID);
  EXPECT_CODE(mgd_place_operands(m, large, 2, &device, &other, &why), MGD_E_OVERFLOW);
  EXPECT_INT(device, 77);
  EXPECT_INT(other, 77);
  EXPECT(why == MGD_WHY_REQUESTED);
  mgd_machine_destroy(m);
}

int main(void) {
  disperse_takes_the_least_in_use_and_pack_the_fullest_that_fits();
  what_fits_nowhere_goes_to_the_host();
  only_allowed_accelerators_are_considered();
  the_reserved_fraction_counts_once();
  promised_bytes_are_not_free();
  ties_go_to_the_lowest_id_and_nothing_fits_everywhere();
  disperse_looks_at_what_is_in_use_and_not_at_what_is_free();
  a_faster_device_holds_more();
  others_bytes_take_their_part_of_the_speed();
  equal_objects_spread_to_within_one();
  bad_requests_are_refused();
  operands_in_one_place_stay_there();
  rules_go_before_cost();
  a_written_operand_beats_a_pin_that_is_only_read();
  work_goes_to_placed_parameters_that_agree();
  rules_go_before_placed_parameters();
  a_backward_formula_runs_where_its_gradient_is();
  placed_parameters_that_do_not_agree_leave_it_to_cost();
  two_pins_on_different_devices_conflict();
  an_accelerator_goes_before_the_host();
  the_cheapest_device_wins_and_ties_go_to_the_lowest();
  the_holder_of_most_bytes_has_20_percent_in_hand();
  a_tie_goes_to_what_was_made_last();
  evicting_has_its_price();
  a_kept_copy_costs_nothing();
  the_order_of_operands_does_not_matter_to_the_price();
  bad_operands_are_refused();
  return 0;
}
