/* The checker: each kind of race is found, and the same program with the wait that it lacks is right. */
#include "expect.h"

/* `with`: the order that makes it right. */
static void order(int with, cudaStream_t after, cudaStream_t before) {
  if (!with) return;
  cudaEvent_t e = new_event();
  OK(cudaEventRecord(e, before));
  OK(cudaStreamWaitEvent(after, e, 0));
  OK(cudaEventDestroy(e)); /* what waits for it goes on waiting */
}

static void kernels_on_two_streams(int with) {
  cudaStream_t a = new_stream(), b = new_stream();
  char *x = on_device(BYTES), *y = on_device(BYTES);
  kernel(a, "writes x", NULL, x, BYTES);
  order(with, b, a);
  kernel(b, "reads x", x, y, BYTES);
  EXPECT_RACES(!with);
  order(with, a, b);
  kernel(a, "writes x again", NULL, x, BYTES); /* before b has read it */
  EXPECT_RACES(!with);
  order(1, a, b); /* y came from b */
  kernel(a, "reads x and y", x, NULL, BYTES);
  kernel(a, "reads y", y, NULL, BYTES);
  EXPECT_RACES(0);
}

static void readers_do_not_disturb_each_other(void) {
  cudaStream_t a = new_stream(), b = new_stream(), c = new_stream();
  char *x = on_device(BYTES);
  kernel(a, "writes", NULL, x, BYTES);
  order(1, b, a);
  order(1, c, a);
  kernel(b, "reads", x, NULL, BYTES);
  kernel(c, "reads", x, NULL, BYTES);
  EXPECT_RACES(0);
  order(1, a, b); /* for one of the two */
  kernel(a, "writes", NULL, x, BYTES);
  EXPECT_RACES(1);
}

static void only_bytes_that_overlap_conflict(void) {
  cudaStream_t a = new_stream(), b = new_stream();
  char *x = on_device(8 * MIB);
  kernel(a, "writes the first part", NULL, x, 3 * MIB);
  kernel(b, "writes the second part", NULL, x + 3 * MIB, 3 * MIB);
  EXPECT_RACES(0);
  kernel(b, "reads one byte of the first", x + 3 * MIB - 1, NULL, 1);
  EXPECT_RACES(1);
}

static void a_copy_and_a_kernel(int with) {
  cudaStream_t a = new_stream(), b = new_stream();
  char *host = pinned(BYTES, 1), *x = on_device(BYTES);
  OK(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, a));
  order(with, b, a);
  kernel(b, "reads", x, NULL, BYTES);
  EXPECT_RACES(!with);
}

static void a_fill_and_a_kernel(int with) {
  cudaStream_t a = new_stream(), b = new_stream();
  char *x = on_device(BYTES);
  kernel(a, "reads", x, NULL, BYTES);
  order(with, b, a);
  OK(cudaMemsetAsync(x, 0, BYTES, b));
  EXPECT_RACES(!with);
}

static void the_host_and_a_copy_out(int with) {
  cudaStream_t a = new_stream();
  char *host = pinned(BYTES, 1), *x = on_device(BYTES);
  OK(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, a));
  if (with) OK(cudaStreamSynchronize(a));
  vgpu_host_access(host, BYTES, 0);
  EXPECT_RACES(!with);
}

static void the_host_writes_what_is_being_copied(int with) {
  cudaStream_t a = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(BYTES, 1), *x = on_device(BYTES);
  vgpu_host_access(host, BYTES, 1); /* before: ordered by the call */
  OK(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaEventRecord(e, a));
  if (with) OK(cudaEventSynchronize(e));
  vgpu_host_access(host, BYTES, 1);
  EXPECT_RACES(!with);
}

static void pinned_memory_is_freed(int with) {
  cudaStream_t a = new_stream();
  char *host = pinned(BYTES, 1), *x = on_device(BYTES);
  OK(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, a));
  if (with) OK(cudaDeviceSynchronize());
  OK(cudaFreeHost(host));
  EXPECT_RACES(!with);
  if (!with) return;
  OK(cudaStreamSynchronize(a));
}

static void a_device_is_freed_below_anothers_stream(int with) {
  OK(cudaSetDevice(1));
  cudaStream_t other = new_stream();
  char *y = on_device(BYTES);
  OK(cudaSetDevice(0));
  char *x = on_device(BYTES);
  OK(cudaMemcpyPeerAsync(y, 1, x, 0, BYTES, other));
  if (with) OK(cudaStreamSynchronize(other));
  OK(cudaFree(x)); /* waits for device 0 alone */
  EXPECT_RACES(!with);
  if (with) OK(cudaStreamSynchronize(other));
}

static void a_query_that_says_yes_orders(void) {
  cudaStream_t a = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(BYTES, 1), *x = on_device(BYTES);
  OK(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, a));
  OK(cudaEventRecord(e, a));
  while (cudaEventQuery(e) == cudaErrorNotReady) continue;
  (void)cudaGetLastError();
  vgpu_host_access(host, BYTES, 1);
  EXPECT_RACES(0);
}

static void memory_in_the_order_of_a_stream(int with) {
  cudaStream_t a = new_stream(), b = new_stream();
  void *p = NULL;
  OK(cudaMallocAsync(&p, BYTES, a));
  order(with, b, a);
  kernel(b, "writes", NULL, p, BYTES);
  EXPECT_RACES(!with);
  order(with, a, b);
  OK(cudaFreeAsync(p, a));
  EXPECT_RACES(!with);
  OK(cudaDeviceSynchronize());
}

static void memory_that_was_freed(void) {
  cudaStream_t a = new_stream();
  char *x = on_device(BYTES);
  OK(cudaFree(x));
  kernel(a, "writes what is gone", NULL, x, BYTES);
  EXPECT_RACES(1);
}

static void a_report_names_both(void) {
  cudaStream_t a = new_stream(), b = new_stream();
  char *x = on_device(BYTES), text[8192];
  kernel(a, "the first kernel", NULL, x, BYTES);
  for (int i = 0; i < 5; i++) kernel(b, "the second kernel", x, NULL, BYTES); /* once each place */
  EXPECT(vgpu_errors() == 1);
  EXPECT(vgpu_report(text, sizeof text) > 0);
  EXPECT(strstr(text, "the first kernel") && strstr(text, "the second kernel") && strstr(text, "test_order+0x"));
  vgpu_clear();
  EXPECT(vgpu_errors() == 0 && vgpu_report(text, sizeof text) == 0 && !*text);
  EXPECT(vgpu_check(0) == 1);
  kernel(a, "writes", NULL, x, BYTES);
  EXPECT_RACES(0);
  EXPECT(vgpu_check(1) == 0);
}

/* 10,000 random accesses against one byte of clocks a stream, kept the plain way. */
static void the_map_agrees_with_a_map_of_single_bytes(void) {
  enum { N = 64, STREAMS = 3 };
  cudaStream_t s[STREAMS];
  for (int i = 0; i < STREAMS; i++) s[i] = new_stream();
  char *x = on_device(8 * MIB) + 2 * MIB - N / 2; /* over the border of a page, wherever it lies */
  x = (char *)(((size_t)x + 2 * MIB) & ~((size_t)2 * MIB - 1)) - N / 2;
  long at[STREAMS][STREAMS] = {{0}}, wrote[N][2], read[N][STREAMS];
  memset(wrote, 0, sizeof wrote);
  memset(read, 0, sizeof read);
  unsigned state = 1;
  for (int step = 0; step < 10000; step++) {
    state = state * 1664525u + 1013904223u;
    const int i = (int)(state >> 8) % STREAMS, low = (int)(state >> 12) % N, high = low + 1 + (int)(state >> 20) % (N - low), w = (int)(state >> 28) & 1;
    if ((state >> 29) == 0) { /* i waits for another */
      const int j = (i + 1 + (int)(state >> 10) % (STREAMS - 1)) % STREAMS;
      order(1, s[i], s[j]);
      for (int k = 0; k < STREAMS; k++)
        if (at[i][k] < at[j][k]) at[i][k] = at[j][k];
      continue;
    }
    at[i][i]++;
    int race = 0;
    for (int b = low; b < high; b++) {
      race |= wrote[b][1] > at[i][wrote[b][0]];
      for (int k = 0; w && k < STREAMS; k++) race |= read[b][k] > at[i][k];
      if (w) {
        wrote[b][0] = i, wrote[b][1] = at[i][i];
        memset(read[b], 0, sizeof read[b]);
      } else {
        read[b][i] = at[i][i];
      }
    }
    kernel(s[i], "any", w ? NULL : x + low, w ? x + low : NULL, (size_t)(high - low));
    EXPECT((vgpu_errors() > 0) == race);
    vgpu_clear();
  }
}

int main(void) {
  for (int with = 0; with < 2; with++) {
    kernels_on_two_streams(with);
    a_copy_and_a_kernel(with);
    a_fill_and_a_kernel(with);
    the_host_and_a_copy_out(with);
    the_host_writes_what_is_being_copied(with);
    memory_in_the_order_of_a_stream(with);
    a_report_names_both();
  }
  readers_do_not_disturb_each_other();
  only_bytes_that_overlap_conflict();
  a_query_that_says_yes_orders();
  memory_that_was_freed();
  the_map_agrees_with_a_map_of_single_bytes();
  pinned_memory_is_freed(1);
  a_device_is_freed_below_anothers_stream(1);
  a_device_is_freed_below_anothers_stream(0);
  pinned_memory_is_freed(0); /* last: the copy that is left has lost its memory */
  EXPECT_CODE(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  return 0;
}
