/* Objects that work again and again come to devices that have time for them, and stay where moving gains nothing.
 *
 * Usage: test_balance [seed] [steps]
 */
#include "expect.h"

#define DEVICES 4
#define MOST 40
#define MS 1000000

/* A program that lets objects do steps in turns. Each device does what it is given one after the other. The host issues
 * without waiting, but is never more than `lead` ns ahead of any device. */
struct program {
  struct mgd_machine *m;
  int64_t worked[MGD_MAX_DEVICES], busy_for[MGD_MAX_DEVICES], lead, issuing;
  int home[MOST], moves;
  int64_t takes[MOST], bytes;
  int64_t ran; /* ns */
};

static void pass(struct program *p, int64_t ns) {
  for (int id = 1; id <= DEVICES; id++) {
    p->busy_for[id] = p->busy_for[id] > ns ? p->busy_for[id] - ns : 0;
  }
  p->ran += ns;
}

/* One step of an object; true: it moved. */
static bool step(struct program *p, int object) {
  const int home = p->home[object];
  pass(p, p->issuing);
  p->worked[home] += p->takes[object];
  p->busy_for[home] += p->takes[object];
  if (p->busy_for[home] > p->lead) {
    pass(p, p->busy_for[home] - p->lead);
  }
  const struct mgd_object_step s = {.object = (uint64_t)object + 1,
                                    .home = home,
                                    .allowed = ((mgd_mask)1 << (DEVICES + 1)) - 2,
                                    .bytes = p->bytes,
                                    .worked = p->worked,
                                    .busy_for = p->busy_for,
                                    .time = p->ran};
  int there = -1;
  EXPECT_OK(mgd_balance_step(p->m, &s, &there));
  if (there == home) {
    return false;
  }
  mgd_balance_moved(p->m, s.object, there);
  p->home[object] = there;
  p->moves++;
  return true;
}

static void rounds(struct program *p, int objects, int n) {
  while (n--) {
    for (int i = 0; i < objects; i++) {
      step(p, i);
    }
  }
}

static struct program new_program(int64_t lead) {
  return (struct program){.m = new_machine(DEVICES, 1024 * MIB), .lead = lead, .issuing = MS / 100, .bytes = MIB};
}

/* Two objects of one device. */
static struct program two_on_one(int64_t lead, int64_t takes) {
  struct program p = new_program(lead);
  p.home[0] = p.home[1] = 1;
  p.takes[0] = p.takes[1] = takes;
  return p;
}

/* ns of the device that has most. */
static int64_t most(const struct program *p, int objects) {
  int64_t load[MGD_MAX_DEVICES] = {0}, largest = 0;
  for (int i = 0; i < objects; i++) {
    load[p->home[i]] += p->takes[i];
    largest = load[p->home[i]] > largest ? load[p->home[i]] : largest;
  }
  return largest;
}

static void objects_on_one_device_spread_over_all(void) {
  struct program p = new_program(50 * MS);
  for (int i = 0; i < 8; i++) {
    p.home[i] = 1, p.takes[i] = 5 * MS;
  }
  rounds(&p, 8, 60);
  EXPECT_INT(most(&p, 8), 10 * MS);
  EXPECT_INT(p.moves, 6);
  rounds(&p, 8, 2000);
  EXPECT_INT(p.moves, 6); /* they stay */
  mgd_machine_destroy(p.m);
}

static void uneven_work_is_evened_out(void) {
  struct program p = new_program(200 * MS);
  for (int i = 0; i < 16; i++) { /* as bytes have it: four to a device, and those of the first take most */
    p.home[i] = 1 + i / 4, p.takes[i] = i < 4 ? 12 * MS : 2 * MS;
  }
  EXPECT_INT(most(&p, 16), 48 * MS);
  rounds(&p, 16, 200);
  EXPECT(most(&p, 16) <= 20 * MS); /* 18 on each would be even */
  mgd_machine_destroy(p.m);
}

static void who_waits_for_each_step_stays(void) {
  struct program p = new_program(0); /* nothing is left to do when a step has ended */
  for (int i = 0; i < 4; i++) {
    p.home[i] = 1, p.takes[i] = 5 * MS;
  }
  rounds(&p, 4, 500);
  EXPECT_INT(p.moves, 0);
  mgd_machine_destroy(p.m);
}

static void one_object_alone_stays(void) {
  struct program p = new_program(50 * MS);
  p.home[0] = 1, p.takes[0] = 5 * MS;
  rounds(&p, 1, 500);
  p.home[1] = 1, p.takes[1] = 5 * MS;
  for (int i = 0; i < 500; i++) {
    step(&p, 1); /* after it, not beside it */
  }
  EXPECT_INT(p.moves, 0);
  mgd_machine_destroy(p.m);
}

static void what_costs_more_than_ten_steps_gain_stays(void) {
  struct program p = two_on_one(50 * MS, 2 * MS); /* ten steps gain 20 ms, in which 500 MB go to a peer */
  p.bytes = 600 * MIB;
  rounds(&p, 2, 500);
  EXPECT_INT(p.moves, 0);
  p.bytes = 400 * MIB;
  rounds(&p, 2, 500);
  EXPECT_INT(p.moves, 1);
  mgd_machine_destroy(p.m);
}

/* Nothing is known of a move that did not happen: it is asked for again, and no trial begins. */
static void who_did_not_move_is_not_on_trial(void) {
  struct program p = two_on_one(50 * MS, 5 * MS);
  int asked = 0, there;
  for (int round = 0; round < 100; round++) {
    for (int i = 0; i < 2; i++) {
      p.worked[1] += 5 * MS;
      p.busy_for[1] = 50 * MS;
      p.ran += 5 * MS;
      const struct mgd_object_step s = {.object = (uint64_t)i + 1,
                                        .home = 1,
                                        .allowed = 6,
                                        .worked = p.worked,
                                        .busy_for = p.busy_for,
                                        .time = p.ran};
      EXPECT_OK(mgd_balance_step(p.m, &s, &there));
      asked += there == 2;
    }
  }
  EXPECT(asked > 150);
  mgd_machine_destroy(p.m);
}

static void it_goes_where_there_is_room_and_where_it_may(void) {
  struct program p = two_on_one(50 * MS, 5 * MS);
  for (int id = 2; id <= DEVICES; id++) {
    EXPECT_OK(mgd_ledger_add(p.m, id, MGD_MANAGED, (id == 3 ? 1000 : 1024) * MIB));
  }
  rounds(&p, 2, 50);
  EXPECT_INT(p.moves, 1);
  EXPECT_INT(p.home[0] + p.home[1], 1 + 3);
  const struct mgd_object_step stays = {
      .object = 99, .home = 1, .worked = p.worked, .busy_for = p.busy_for};
  for (int i = 0; i < 50; i++) {
    p.worked[1] += 50 * MS, p.busy_for[1] = 100 * MS;
    int there;
    EXPECT_OK(mgd_balance_step(p.m, &stays, &there));
    EXPECT_INT(there, 1);
  }
  mgd_machine_destroy(p.m);
}

/* Whose work changes all the time moves less and less often. */
static void nobody_wanders(uint64_t seed) {
  struct program p = new_program(100 * MS);
  for (int i = 0; i < 8; i++) {
    p.home[i] = 1 + i % DEVICES;
  }
  for (int round = 0; round < 5000; round++) {
    for (int i = 0; i < 8; i++) {
      p.takes[i] = round % 20 ? p.takes[i] : 1 + pick(&seed, 20 * MS);
      step(&p, i);
    }
  }
  EXPECT(p.moves <= 8 * 10);
  mgd_machine_destroy(p.m);
}

/* An object whose data is on its first device: elsewhere each step brings 1 GiB, which takes longer than its work. */
static void who_brings_its_data_along_each_time_goes_back_and_stays(void) {
  struct program p = two_on_one(500 * MS, 20 * MS);
  for (int round = 0; round < 300; round++) {
    for (int i = 0; i < 2; i++) {
      const int home = p.home[i];
      if (home != 1) {
        const struct mgd_event copy = {
            .kind = MGD_EV_COPY, .from = 1, .to = (int16_t)home, .bytes = 1024 * MIB, .duration = 1};
        EXPECT_OK(mgd_trace_add(p.m, &copy));
        p.busy_for[home] += 43 * MS; /* at 25 bytes/ns */
      }
      step(&p, i);
    }
  }
  EXPECT(p.moves <= 12); /* each of the two tries each of the three others once */
  EXPECT_INT(p.home[0] + p.home[1], 2);
  mgd_machine_destroy(p.m);
}

/* Two that work in turns: each begins when the other has done what it was given, wherever that is. */
static void who_waits_for_another_goes_back_and_stays(void) {
  struct program p = two_on_one(500 * MS, 20 * MS);
  for (int round = 0; round < 500; round++) {
    for (int i = 0; i < 2; i++) {
      const int other = p.home[1 - i], home = p.home[i];
      if (p.busy_for[home] < p.busy_for[other]) {
        p.busy_for[home] = p.busy_for[other];
      }
      step(&p, i);
    }
  }
  EXPECT(p.moves <= 4); /* each of the two tries it once */
  EXPECT_INT(p.home[0], p.home[1]);
  mgd_machine_destroy(p.m);
}

static void a_faster_device_counts_as_such(void) {
  struct program p = two_on_one(50 * MS, 5 * MS);
  for (int id = 1; id <= DEVICES; id++) {
    EXPECT_OK(mgd_device_set_speed(p.m, id, id == 4 ? 1.0 : id == 1 ? 1.0 : 0.5));
  }
  rounds(&p, 2, 50);
  EXPECT_INT(p.home[0] + p.home[1], 1 + 4); /* on a slower one it would take as long as both here */
  mgd_machine_destroy(p.m);
}

static void as_many_objects_as_there_may_be(void) {
  struct mgd_machine *m = new_machine(DEVICES, MIB);
  int64_t none[MGD_MAX_DEVICES] = {0};
  for (uint64_t i = 1; i <= 1000; i++) {
    const struct mgd_object_step s = {.object = i, .home = 1, .worked = none, .busy_for = none};
    int there = -1;
    EXPECT_OK(mgd_balance_step(m, &s, &there));
    EXPECT_INT(there, 1);
  }
  mgd_balance_moved(m, 5000, 2); /* nobody has heard of it */
  mgd_machine_destroy(m);
}

static void bad_requests_are_refused(void) {
  struct mgd_machine *m = new_machine(1, MIB);
  int64_t none[MGD_MAX_DEVICES] = {0};
  struct mgd_object_step s = {.object = 0, .home = 1, .worked = none, .busy_for = none};
  int there = 7;
  mgd_balance_moved(m, 1, 1); /* before anybody has done a step */
  EXPECT_CODE(mgd_balance_step(m, &s, &there), MGD_E_INVALID);
  s.object = 1, s.bytes = -1;
  EXPECT_CODE(mgd_balance_step(m, &s, &there), MGD_E_INVALID);
  s.bytes = 0, s.home = 2;
  EXPECT_CODE(mgd_balance_step(m, &s, &there), MGD_E_NO_DEVICE);
  EXPECT_INT(there, 7);
  mgd_machine_destroy(m);
  for (int64_t n = 1; n <= 12; n++) { /* the n-th allocation fails */
    struct mgd_config config = {.fail_allocation = n};
    if (mgd_machine_create(&config, &m) != MGD_OK) {
      continue;
    }
    int id;
    s.home = 1;
    if (mgd_device_add(m, "sim:0", MIB, &id) == MGD_OK) {
      const int code = mgd_balance_step(m, &s, &there);
      EXPECT(code == MGD_OK || code == MGD_E_NOMEM);
      EXPECT_OK(mgd_balance_step(m, &s, &there));
    }
    mgd_machine_destroy(m);
  }
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
  objects_on_one_device_spread_over_all();
  uneven_work_is_evened_out();
  who_waits_for_each_step_stays();
  one_object_alone_stays();
  what_costs_more_than_ten_steps_gain_stays();
  who_did_not_move_is_not_on_trial();
  it_goes_where_there_is_room_and_where_it_may();
  nobody_wanders(seed);
  who_waits_for_another_goes_back_and_stays();
  who_brings_its_data_along_each_time_goes_back_and_stays();
  a_faster_device_counts_as_such();
  as_many_objects_as_there_may_be();
  bad_requests_are_refused();
  printf("test_balance: seed %" PRIu64 "\n", seed);
  return 0;
}
