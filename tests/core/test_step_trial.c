/* Programs whose steps are not alike: that learning copies no more there than what is done without it.
 *
 * Usage: test_step_trial [seed]
 */
#include "trainer.h"

#define STEPS 320

/* A step whose results have that size; the weights and their updates are the same in all steps. */
static void train_of(struct device *d, int64_t bytes) {
  for (int i = 0; i < LAYERS; i++) {
    struct storage *in[] = {d->weights[i], i ? d->results[i - 1] : d->weights[i]};
    run(d, names[0], in, 2, false);
    d->results[i] = make(d, bytes);
  }
  for (int i = LAYERS - 1; i >= 0; i--) {
    struct storage *in[] = {d->weights[i], d->results[i]};
    run(d, names[1], in, 2, false);
    d->gradients[i] = make(d, WEIGHT);
    drop(d, &d->results[i]);
  }
  for (int k = 0; k < 4; k++) {
    for (int i = 0; i < LAYERS; i++) {
      struct storage *in[] = {d->weights[i], d->gradients[i]};
      run(d, names[2 + k % 2], in, 2, true);
    }
  }
  for (int i = 0; i < LAYERS; i++) { drop(d, &d->gradients[i]); }
}

/* Bytes copied by the last quarter of steps whose sizes are drawn at random. */
static int64_t copied_by(uint64_t seed, int64_t sizes, int64_t room, bool learns) {
  struct device d = new_device(seed, 0);
  EXPECT_OK(mgd_step_learn(d.m, learns));
  d.room = room;
  for (int i = 0; i < STEPS; i++) {
    d.copied = i == STEPS / 4 * 3 ? 0 : d.copied;
    train_of(&d, 1 + pick(&d.random, sizes));
  }
  const int64_t copied = d.copied;
  EXPECT_OK(mgd_step_learn(d.m, true));
  give_up(&d);
  return copied;
}

/* There is room for nearly all. A plan for one size lets storages leave that other sizes have room for. */
static void learning_stands_back_where_it_loses(uint64_t seed) {
  const int64_t room = ROOM + ROOM / 2;
  EXPECT(20 * copied_by(seed, 20, room, true) <= 21 * copied_by(seed, 20, room, false));
}

/* There are few sizes, and little room. */
static void learning_goes_on_where_it_wins(uint64_t seed) {
  EXPECT(10 * copied_by(seed, 4, ROOM, true) < 7 * copied_by(seed, 4, ROOM, false));
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  printf("test_step_trial: seed %" PRIu64 "\n", seed);
  (void)fflush(stdout);
  learning_stands_back_where_it_loses(seed);
  learning_goes_on_where_it_wins(seed);
  return 0;
}
