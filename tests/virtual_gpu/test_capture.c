/* Recording: what is forbidden in which mode, and what a graph does when it is launched. */
#include <pthread.h>

#include "expect.h"

static cudaError_t in_thread_error;
static void *allocates(void *relaxed) {
  enum cudaStreamCaptureMode mode = relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
  void *p = NULL;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  in_thread_error = cudaMalloc(&p, BYTES);
  (void)cudaGetLastError();
  return NULL;
}
static cudaError_t malloc_elsewhere(int relaxed) {
  pthread_t t;
  (void)pthread_create(&t, NULL, allocates, relaxed ? &in_thread_error : NULL);
  (void)pthread_join(t, NULL);
  return in_thread_error;
}

/* What another thread may do, and whether that spoils the recording. */
static void modes(enum cudaStreamCaptureMode mode, cudaError_t here, cudaError_t elsewhere) {
  cudaStream_t s = new_stream();
  cudaGraph_t g;
  void *p = NULL;
  OK(cudaStreamBeginCapture(s, mode));
  EXPECT_CODE(malloc_elsewhere(1), cudaSuccess);
  EXPECT_CODE(malloc_elsewhere(0), elsewhere);
  EXPECT_CODE(cudaStreamEndCapture(s, &g), elsewhere ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  OK(cudaStreamBeginCapture(s, mode));
  EXPECT_CODE(cudaMalloc(&p, BYTES), here);
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(s, &status));
  EXPECT(status == (here ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive));
  EXPECT_CODE(cudaStreamEndCapture(s, &g), here ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  (void)cudaGetLastError();
  OK(cudaStreamDestroy(s));
}

static void waits_are_refused(void) {
  cudaStream_t s = new_stream(), blocking;
  cudaGraph_t g;
  cudaEvent_t e = new_event();
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  EXPECT_CODE(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
  EXPECT_CODE(cudaMemsetAsync(NULL, 0, 0, s), cudaSuccess);
  EXPECT_CODE(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  EXPECT_CODE(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_CODE(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  OK(cudaEventRecord(e, s));
  EXPECT_CODE(cudaEventSynchronize(e), cudaErrorCapturedEvent);
  EXPECT_CODE(cudaEventQuery(e), cudaErrorCapturedEvent);
  OK(cudaStreamEndCapture(s, &g));
  OK(cudaStreamCreate(&blocking));
  OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  char *x = pinned(BYTES, 0);
  EXPECT_CODE(cudaMemcpyAsync(x, x, 1, cudaMemcpyDefault, NULL), cudaErrorStreamCaptureImplicit);
  EXPECT_CODE(cudaStreamEndCapture(blocking, &g), cudaErrorStreamCaptureInvalidated);
  EXPECT_CODE(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_CODE(cudaStreamEndCapture(s, &g), cudaErrorIllegalState);
  (void)cudaGetLastError();
}

static char *of_kernel;
static int dropped;
static void adds(void *data) { of_kernel[0] = (char)(of_kernel[0] + *(int *)data); }
static void drops(void *data) { dropped += *(int *)data; }

static void a_graph_runs_what_was_recorded(void) {
  cudaStream_t s = new_stream(), joined = new_stream();
  cudaEvent_t e = new_event();
  cudaGraph_t g;
  cudaGraphExec_t x;
  static int two = 2;
  size_t n = 0;
  char *host = pinned(BYTES, 1), *device = on_device(2 * BYTES);
  of_kernel = device + BYTES;
  memset(device, 0, 2 * BYTES);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  EXPECT_CODE(vgpu_kernel_begin((void *)new_stream(), "not recorded"), cudaSuccess);
  OK((cudaError_t)vgpu_kernel_end());
  OK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, s));
  OK(cudaEventRecord(e, s));
  OK(cudaStreamWaitEvent(joined, e, 0)); /* joins */
  OK(cudaMemcpyAsync(device + BYTES, device, BYTES, cudaMemcpyDeviceToDevice, joined));
  OK((cudaError_t)vgpu_kernel_record((void *)s, "adds two", adds, drops, &two));
  vgpu_kernel_access(of_kernel, 1, 1);
  OK((cudaError_t)vgpu_kernel_end());
  OK(cudaStreamEndCapture(s, &g));
  OK(cudaGraphGetNodes(g, NULL, &n));
  EXPECT(n == 3);
  OK(cudaGraphInstantiate(&x, g, 0));
  OK(cudaGraphDestroy(g));
  OK(cudaDeviceSynchronize());
  EXPECT(device[0] == 0 && of_kernel[0] == 0);
  for (int i = 0; i < 3; i++) {
    host[0] = (char)(10 * i);
    OK(cudaGraphLaunch(x, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(device[0] == 10 * i && of_kernel[0] == 10 * i + 2);
  }
  EXPECT_RACES(0);
  OK(cudaGraphLaunch(x, s));
  kernel(joined, "reads", device, NULL, BYTES);
  EXPECT_RACES(1);
  OK(cudaDeviceSynchronize());
  EXPECT(dropped == 0);
  OK(cudaGraphExecDestroy(x));
  OK(cudaMemsetAsync(device, 0, 1, s)); /* the stream's newest operation held the graph until now */
  EXPECT(dropped == 2);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  EXPECT_CODE(vgpu_kernel_begin((void *)s, "cannot be recorded like this"), cudaErrorStreamCaptureUnsupported);
  EXPECT_CODE(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
  (void)cudaGetLastError();
}

int main(void) {
  modes(cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported);
  modes(cudaStreamCaptureModeThreadLocal, cudaErrorStreamCaptureUnsupported, cudaSuccess);
  modes(cudaStreamCaptureModeRelaxed, cudaSuccess, cudaSuccess);
  waits_are_refused();
  a_graph_runs_what_was_recorded();
  return 0;
}
