/* Memory comes from one function, which fails exactly when it is told to. */
#include "core/internal_machine.h"
#include "expect.h"

static void the_nth_call_fails_and_only_that(void) {
  struct mgd_alloc a;
  mgd_alloc_init(&a, 2);
  void *first = mgd_alloc_new(&a, 4, 8);
  EXPECT(first);
  EXPECT(!mgd_alloc_new(&a, 4, 8));
  void *third = mgd_alloc_new(&a, 4, 8);
  EXPECT(third);
  mgd_alloc_free(first);
  mgd_alloc_free(third);
}

static void new_memory_is_zero(void) {
  struct mgd_alloc a;
  mgd_alloc_init(&a, 0);
  unsigned char *bytes = mgd_alloc_new(&a, 1000, 3);
  EXPECT(bytes);
  for (int i = 0; i < 3000; i++) {
    EXPECT_INT(bytes[i], 0);
  }
  mgd_alloc_free(bytes);
}

static void growing_keeps_what_is_there_also_when_it_fails(void) {
  struct mgd_alloc a;
  mgd_alloc_init(&a, 3);
  int *numbers = mgd_alloc_new(&a, 2, sizeof *numbers);
  EXPECT(numbers);
  numbers[0] = 7;
  int *more = mgd_alloc_resize(&a, numbers, 100, sizeof *numbers);
  EXPECT(more);
  EXPECT_INT(more[0], 7);
  EXPECT(!mgd_alloc_resize(&a, more, 200, sizeof *more));
  EXPECT_INT(more[0], 7);
  mgd_alloc_free(more);
}

static void a_size_that_overflows_is_no_small_block(void) {
  struct mgd_alloc a;
  mgd_alloc_init(&a, 0);
  EXPECT(!mgd_alloc_new(&a, SIZE_MAX / 8 + 2, 8));
}

static void a_mutex_counts_as_an_allocation(void) {
  struct mgd_alloc a;
  pthread_mutex_t mutex;
  mgd_alloc_init(&a, 1);
  EXPECT_CODE(mgd_alloc_mutex(&a, &mutex), MGD_E_NOMEM);
  EXPECT_OK(mgd_alloc_mutex(&a, &mutex));
  EXPECT_INT(pthread_mutex_destroy(&mutex), 0);
}

int main(void) {
  the_nth_call_fails_and_only_that();
  new_memory_is_zero();
  growing_keeps_what_is_there_also_when_it_fails();
  a_size_that_overflows_is_no_small_block();
  a_mutex_counts_as_an_allocation();
  return 0;
}
