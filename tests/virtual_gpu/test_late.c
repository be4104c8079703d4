/* Nothing runs before somebody waits for it, and a wait runs what it needs and no more. */
#include <unistd.h>

#include "expect.h"

static void a_pinned_copy_reads_its_source_when_it_runs(void) {
  cudaStream_t s = new_stream();
  char *host = pinned(BYTES, 1), *device = on_device(BYTES), out = 0;
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, s));
  EXPECT(vgpu_pending() == 1);
  host[7] = 2; /* too early: the copy takes this */
  OK(cudaStreamSynchronize(s));
  EXPECT(vgpu_pending() == 0);
  EXPECT(device[0] == 1 && device[7] == 2);
  OK(cudaMemcpy(&out, device + 7, 1, cudaMemcpyDeviceToHost));
  EXPECT(out == 2);
  OK(cudaFree(device));
  OK(cudaFreeHost(host));
  OK(cudaStreamDestroy(s));
  EXPECT_RACES(0);
}

static void a_pageable_source_is_read_at_once_and_a_pageable_target_is_written(void) {
  cudaStream_t s = new_stream();
  char *device = on_device(BYTES), host[BYTES], back[BYTES];
  memset(host, 3, BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, s));
  memset(host, 4, BYTES);
  EXPECT(vgpu_pending() == 1); /* the host goes on while the device has nothing yet */
  OK(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, s));
  EXPECT(back[0] == 3 && back[BYTES - 1] == 3);
  OK(cudaFree(device));
  EXPECT_RACES(0);
}

static void a_wait_runs_what_it_needs_and_no_more(void) {
  cudaStream_t a = new_stream(), b = new_stream(), c = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(4 * BYTES, 1), *device = on_device(4 * BYTES);
  memset(device, 0, 4 * BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaEventRecord(e, a));
  OK(cudaMemcpyAsync(device + BYTES, host, BYTES, cudaMemcpyHostToDevice, a)); /* after the event */
  OK(cudaStreamWaitEvent(b, e, 0));
  OK(cudaMemcpyAsync(device + 2 * BYTES, device, BYTES, cudaMemcpyDeviceToDevice, b));
  OK(cudaMemcpyAsync(device + 3 * BYTES, host, BYTES, cudaMemcpyHostToDevice, c)); /* nobody's */
  OK(cudaStreamSynchronize(b));
  EXPECT(device[0] == 1 && device[BYTES] == 0 && device[2 * BYTES] == 1 && device[3 * BYTES] == 0);
  EXPECT(vgpu_pending() == 2);
  OK(cudaDeviceSynchronize());
  EXPECT(device[BYTES] == 1 && device[3 * BYTES] == 1 && vgpu_pending() == 0);
  EXPECT_RACES(0);
}

static void an_event_waits_for_its_newest_record(void) {
  cudaStream_t a = new_stream(), b = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(BYTES, 1), *device = on_device(BYTES);
  memset(device, 0, BYTES);
  OK(cudaEventQuery(e)); /* never recorded: over */
  OK(cudaEventRecord(e, a));
  OK(cudaStreamWaitEvent(b, e, 0)); /* for the record of now, not for those to come */
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaEventRecord(e, a));
  OK(cudaStreamSynchronize(b));
  EXPECT(device[0] == 0);
  OK(cudaEventSynchronize(e));
  EXPECT(device[0] == 1);
}

static void an_event_may_outlive_its_stream(void) {
  cudaStream_t s;
  cudaEvent_t e;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  OK(cudaEventCreate(&e));
  OK(cudaEventRecord(e, s));
  OK(cudaStreamSynchronize(s));
  OK(cudaStreamDestroy(s));
  OK(cudaEventSynchronize(e));
  OK(cudaEventQuery(e));
  OK(cudaEventDestroy(e));
}

static void a_query_does_not_wait_but_not_for_ever(void) {
  cudaStream_t a = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(BYTES, 1), *device = on_device(BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaEventRecord(e, a));
  EXPECT_CODE(cudaEventQuery(e), cudaErrorNotReady);
  EXPECT_CODE(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_CODE(cudaStreamQuery(a), cudaErrorNotReady);
  int asked = 1;
  while (cudaEventQuery(e) == cudaErrorNotReady) asked++;
  EXPECT(asked > 10);
  OK(cudaStreamQuery(a));
  EXPECT(device[0] == 1);
  (void)cudaGetLastError();
}

static void the_legacy_stream_waits_for_blocking_ones_and_they_for_it(void) {
  cudaStream_t blocking, free_one = new_stream();
  OK(cudaStreamCreate(&blocking));
  char *host = pinned(4 * BYTES, 1), *device = on_device(4 * BYTES);
  memset(device, 0, 4 * BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, blocking));
  OK(cudaMemcpyAsync(device + BYTES, host, BYTES, cudaMemcpyHostToDevice, free_one));
  OK(cudaMemcpyAsync(device + 2 * BYTES, device, BYTES, cudaMemcpyDeviceToDevice, NULL));
  OK(cudaMemcpyAsync(device + 3 * BYTES, device + 2 * BYTES, BYTES, cudaMemcpyDeviceToDevice, blocking));
  OK(cudaStreamSynchronize(blocking));
  EXPECT(device[3 * BYTES] == 1 && device[BYTES] == 0);
  EXPECT_RACES(0);
  OK(cudaMemcpyAsync(device + 2 * BYTES, device, BYTES, cudaMemcpyDeviceToDevice, cudaStreamPerThread));
  OK(cudaStreamSynchronize(NULL));
  OK(cudaDeviceSynchronize());
  EXPECT_RACES(0);
}

static void a_free_drains_its_device(void) {
  cudaStream_t a = new_stream();
  char *host = pinned(BYTES, 5), *device = on_device(BYTES), *other = on_device(BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaFree(other));
  EXPECT(device[0] == 5 && vgpu_pending() == 0);
  OK(cudaFree(device));
  EXPECT_RACES(0);
}

static void in_order(void *data) { __atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST); }

static void a_callback_runs_in_order_and_also_when_nobody_waits(void) {
  cudaStream_t a = new_stream();
  int calls = 0;
  char *host = pinned(BYTES, 5), *device = on_device(BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaLaunchHostFunc(a, in_order, &calls));
  for (int i = 0; i < 500 && !__atomic_load_n(&calls, __ATOMIC_SEQ_CST); i++) (void)usleep(10000);
  EXPECT(calls == 1 && device[0] == 5);
  OK(cudaLaunchHostFunc(a, in_order, &calls));
  OK(cudaStreamSynchronize(a));
  EXPECT(calls == 2);
}

static void a_kernel_comes_after_what_its_stream_waits_for(void) {
  cudaStream_t a = new_stream(), b = new_stream();
  cudaEvent_t e = new_event();
  char *host = pinned(BYTES, 6), *device = on_device(BYTES);
  memset(device, 0, BYTES);
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, a));
  OK(cudaEventRecord(e, a));
  OK(cudaStreamWaitEvent(b, e, 0));
  OK((cudaError_t)vgpu_kernel_begin((void *)b, "reads"));
  vgpu_kernel_access(device, BYTES, 0);
  EXPECT(device[9] == 6);
  OK(cudaStreamSynchronize(b)); /* inside: the kernel does not wait for itself */
  OK((cudaError_t)vgpu_kernel_begin((void *)b, "a part of it"));
  OK((cudaError_t)vgpu_kernel_end());
  OK((cudaError_t)vgpu_kernel_end());
  EXPECT_CODE(vgpu_kernel_end(), cudaErrorIllegalState);
  EXPECT_RACES(0);
}

/* Every seed gives the same bytes; some run what nobody has waited for. */
static void seeds_change_when_and_never_what(void) {
  int early = 0;
  for (unsigned long long seed = 0; seed < 200; seed++) {
    vgpu_seed(seed);
    cudaStream_t s[3] = {new_stream(), new_stream(), new_stream()};
    cudaEvent_t e = new_event();
    char *host = pinned(BYTES, 1), *device = on_device(3 * BYTES), out[BYTES];
    OK(cudaMemsetAsync(device, 7, 3 * BYTES, s[0]));
    OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, s[0]));
    OK(cudaEventRecord(e, s[0]));
    for (int i = 1; i < 3; i++) {
      OK(cudaStreamWaitEvent(s[i], e, 0));
      OK(cudaMemcpyAsync(device + i * BYTES, device, BYTES, cudaMemcpyDeviceToDevice, s[i]));
    }
    if (vgpu_pending() < 7) early++;
    OK(cudaMemcpyAsync(out, device + 2 * BYTES, BYTES, cudaMemcpyDeviceToHost, s[2]));
    EXPECT(out[0] == 1 && out[BYTES - 1] == 1);
    OK(cudaFree(device));
    OK(cudaFreeHost(host));
    for (int i = 0; i < 3; i++) OK(cudaStreamDestroy(s[i]));
    OK(cudaEventDestroy(e));
  }
  vgpu_seed(0);
  EXPECT(early > 100 && early < 200);
  EXPECT_RACES(0);
}

int main(void) {
  a_pinned_copy_reads_its_source_when_it_runs();
  a_pageable_source_is_read_at_once_and_a_pageable_target_is_written();
  a_wait_runs_what_it_needs_and_no_more();
  an_event_waits_for_its_newest_record();
  an_event_may_outlive_its_stream();
  a_query_does_not_wait_but_not_for_ever();
  the_legacy_stream_waits_for_blocking_ones_and_they_for_it();
  a_free_drains_its_device();
  a_callback_runs_in_order_and_also_when_nobody_waits();
  a_kernel_comes_after_what_its_stream_waits_for();
  seeds_change_when_and_never_what();
  return 0;
}
