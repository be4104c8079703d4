/* With VIRTUAL_GPU_OPERATION_NS elapsed times depend on the operations and on their orders alone. */
#include "expect.h"

static cudaEvent_t timed_event(void) {
  cudaEvent_t e;
  OK(cudaEventCreate(&e));
  return e;
}

static float ms_between(cudaEvent_t from, cudaEvent_t to) {
  float ms = -1;
  OK(cudaEventElapsedTime(&ms, from, to));
  return ms;
}

static void copy(char *to, const char *from, cudaStream_t s) {
  OK(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDefault, s));
}

static void each_copy_of_a_stream_takes_as_long(void) {
  cudaStream_t s = new_stream();
  cudaEvent_t from = timed_event(), to = timed_event();
  char *host = pinned(BYTES, 1), *device = on_device(BYTES);
  OK(cudaEventRecord(from, s));
  for (int i = 0; i < 3; i++) copy(device, host, s);
  OK(cudaEventRecord(to, s));
  OK(cudaEventSynchronize(to));
  EXPECT(ms_between(from, to) == 1.5f);
}

/* `now`: the host waits for the one stream before the other is told to. */
static void streams_work_beside_each_other_until_one_waits(int now) {
  cudaStream_t a = new_stream(), b = new_stream();
  cudaEvent_t from = timed_event(), done = timed_event(), to = timed_event();
  char *host = pinned(2 * BYTES, 1), *device = on_device(2 * BYTES);
  OK(cudaEventRecord(from, a));
  for (int i = 0; i < 4; i++) copy(device, host, a);
  OK(cudaEventRecord(done, a));
  if (now) OK(cudaStreamSynchronize(a));
  copy(device + BYTES, host + BYTES, b); /* beside the four */
  OK(cudaStreamWaitEvent(b, done, 0));
  copy(device + BYTES, host + BYTES, b);
  OK(cudaEventRecord(to, b));
  OK(cudaEventSynchronize(to));
  EXPECT(ms_between(from, done) == 2.0f);
  EXPECT(ms_between(from, to) == 2.5f);
}

int main(void) {
  OK(setenv("VIRTUAL_GPU_OPERATION_NS", "500000", 1));
  each_copy_of_a_stream_takes_as_long();
  streams_work_beside_each_other_until_one_waits(0);
  streams_work_beside_each_other_until_one_waits(1);
  return 0;
}
