/* test_bucket.c: groups of tensors that cross to other devices as one copy. */
#include "core/bucket.h"
#include "expect.h"

#define LEAST ((int64_t)16 << 10)
#define MANY ((int64_t)1 << 20)

static void a_bucket_takes_what_fits_in_order(void) {
  const struct mgd_bucket_item items[] = {{0, 6, MANY}, {0, 6, MANY}, {0, 6, MANY},
                                          {0, 6, MANY}, {0, 6, 1},    {0, 6, MANY}};
  const uint32_t wanted[] = {0, 0, 0, 0, 4, 4};
  uint32_t bucket_of[6];
  EXPECT_OK(mgd_bucket_group(items, 6, LEAST, bucket_of));
  for (size_t i = 0; i < 6; i++) { EXPECT_INT(bucket_of[i], wanted[i]); }
}

static void homes_and_types_stay_apart(void) {
  const struct mgd_bucket_item items[] = {{0, 6, MANY}, {1, 6, MANY}, {0, 7, MANY}, {0, 6, MANY}, {1, 6, MANY}};
  const uint32_t wanted[] = {0, 1, 2, 0, 1};
  uint32_t bucket_of[5];
  EXPECT_OK(mgd_bucket_group(items, 5, LEAST, bucket_of));
  for (size_t i = 0; i < 5; i++) { EXPECT_INT(bucket_of[i], wanted[i]); }
}

static void a_large_tensor_is_a_bucket(void) {
  const struct mgd_bucket_item items[] = {{0, 6, MANY}, {0, 6, MGD_BUCKET_LARGE}, {0, 6, MANY}, {0, 6, MANY}};
  const uint32_t wanted[] = {0, 1, 2, 2};
  uint32_t bucket_of[4];
  EXPECT_OK(mgd_bucket_group(items, 4, LEAST, bucket_of));
  for (size_t i = 0; i < 4; i++) { EXPECT_INT(bucket_of[i], wanted[i]); }
}

static void a_small_rest_joins_the_bucket_before(void) {
  const struct mgd_bucket_item items[] = {{0, 6, 4 * MANY}, {1, 6, 5}, {0, 6, LEAST - 1}};
  uint32_t bucket_of[3];
  EXPECT_OK(mgd_bucket_group(items, 3, LEAST, bucket_of));
  EXPECT_INT(bucket_of[0], 0);
  EXPECT_INT(bucket_of[1], 1); /* there is none before it */
  EXPECT_INT(bucket_of[2], 0);
  const struct mgd_bucket_item behind[] = {{0, 6, MGD_BUCKET_LARGE}, {0, 6, LEAST - 1}};
  EXPECT_OK(mgd_bucket_group(behind, 2, LEAST, bucket_of));
  EXPECT_INT(bucket_of[1], 0);
}

static void a_bucket_grows_until_it_gets_a_handle(void) {
  const struct mgd_bucket_item items[] = {{0, 6, 5}, {0, 6, 5 * MANY}, {0, 6, 5 * MANY}};
  uint32_t bucket_of[3];
  EXPECT_OK(mgd_bucket_group(items, 3, LEAST, bucket_of));
  EXPECT_INT(bucket_of[1], 0);
  EXPECT_INT(bucket_of[2], 2);
}

static void numbers_out_of_range_are_refused(void) {
  const struct mgd_bucket_item bad[] = {
      {-1, 6, 1}, {MGD_MAX_DEVICES, 6, 1}, {0, -1, 1}, {0, MGD_BUCKET_TYPES, 1}, {0, 6, -1}};
  uint32_t bucket_of[1] = {77};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    EXPECT_CODE(mgd_bucket_group(&bad[i], 1, LEAST, bucket_of), MGD_E_INVALID);
  }
  EXPECT_INT(bucket_of[0], 77);
  EXPECT_OK(mgd_bucket_group(NULL, 0, LEAST, bucket_of));
  const struct mgd_bucket_item good = {0, 6, 1};
  EXPECT_CODE(mgd_bucket_group(&good, (size_t)UINT32_MAX + 1, LEAST, bucket_of), MGD_E_INVALID);
  EXPECT_INT(bucket_of[0], 77);
  const struct mgd_bucket_item huge[] = {{0, 6, INT64_MAX}, {0, 6, INT64_MAX}, {0, 6, 0}};
  uint32_t of[3];
  EXPECT_OK(mgd_bucket_group(huge, 3, LEAST, of));
  EXPECT_INT(of[0], 0);
  EXPECT_INT(of[1], 1);
}

static void what_is_more_than_a_share_is_relayed(void) {
  EXPECT(mgd_bucket_is_relayed(MGD_BUCKET_LARGE, 3 * MGD_BUCKET_LARGE, 4));
  EXPECT(!mgd_bucket_is_relayed(MGD_BUCKET_LARGE, 4 * MGD_BUCKET_LARGE, 4)); /* a share */
  EXPECT(!mgd_bucket_is_relayed(MGD_BUCKET_LARGE - 1, MGD_BUCKET_LARGE, 4)); /* is not large */
  EXPECT(!mgd_bucket_is_relayed(MGD_BUCKET_LARGE, MGD_BUCKET_LARGE, 2)); /* there is no other device */
}

/* Whatever is given, each bucket has one home and type, keeps the order, and is large enough unless it is alone. */
static void buckets_keep_their_word(uint64_t seed, int64_t cases) {
  enum { ITEMS = 200 };
  uint64_t state = seed;
  for (int64_t c = 0; c < cases; c++) {
    struct mgd_bucket_item items[ITEMS];
    uint32_t bucket_of[ITEMS];
    const size_t n = (size_t)pick(&state, ITEMS + 1);
    for (size_t i = 0; i < n; i++) {
      items[i] = (struct mgd_bucket_item){(int)pick(&state, 3), (int)pick(&state, 2),
                                          pick(&state, 2) ? pick(&state, 2 * MANY) : pick(&state, 3000)};
    }
    EXPECT_OK(mgd_bucket_group(items, n, LEAST, bucket_of));
    int64_t bytes[ITEMS] = {0};
    for (size_t i = 0; i < n; i++) {
      const struct mgd_bucket_item *first = &items[bucket_of[i]];
      EXPECT(bucket_of[i] <= i && first->home == items[i].home && first->type == items[i].type);
      bytes[bucket_of[i]] += items[i].bytes;
    }
    for (size_t i = 0; i < n; i++) {
      bool others = false;
      for (size_t k = 0; k < n; k++) {
        others |= items[k].home == items[i].home && items[k].type == items[i].type && bucket_of[k] != bucket_of[i];
      }
      EXPECT(bytes[bucket_of[i]] < MGD_BUCKET_BYTES + 2 * LEAST && (!others || bytes[bucket_of[i]] >= LEAST));
    }
  }
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int64_t steps = argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000;
  printf("seed %" PRIu64 "\n", seed);
  a_bucket_takes_what_fits_in_order();
  homes_and_types_stay_apart();
  a_large_tensor_is_a_bucket();
  a_small_rest_joins_the_bucket_before();
  a_bucket_grows_until_it_gets_a_handle();
  numbers_out_of_range_are_refused();
  what_is_more_than_a_share_is_relayed();
  buckets_keep_their_word(seed, steps / 1000);
  return 0;
}
