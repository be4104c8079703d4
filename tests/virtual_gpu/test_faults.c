/* Calls that are told to fail, and errors that stay. */
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

/* What a child of fork() is told by its first call. */
static cudaError_t in_a_child(void) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    void *p = NULL;
    _exit((int)cudaMalloc(&p, BYTES));
  }
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
  return (cudaError_t)WEXITSTATUS(status);
}

/* Only what has been called does not outlive a fork. */
static void a_child_has_cuda_of_its_own(void) {
  EXPECT_CODE(in_a_child(), cudaSuccess);
  OK(cudaFree(NULL));
  EXPECT_CODE(in_a_child(), cudaErrorInitializationError);
}

static void the_nth_call_fails(void) {
  void *p = NULL;
  const long before = vgpu_count("cudaMalloc");
  vgpu_fail("cudaMalloc", 3, cudaErrorMemoryAllocation);
  for (int i = 1; i <= 5; i++) EXPECT_CODE(cudaMalloc(&p, BYTES), i == 3 ? cudaErrorMemoryAllocation : cudaSuccess);
  EXPECT(vgpu_count("cudaMalloc") == before + 5);
  EXPECT_CODE(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_CODE(cudaGetLastError(), cudaSuccess);
  vgpu_fail("cudaStreamSynchronize", 1, cudaErrorUnknown);
  vgpu_fail("cudaStreamSynchronize", 0, 0); /* taken back */
  OK(cudaStreamSynchronize(NULL));
}

static void *made_before;
static void make_some(void) { OK(cudaMalloc(&made_before, BYTES)); }

/* Also a call of the same function. */
static void something_is_done_before_the_nth_call(void) {
  void *first = NULL, *second = NULL;
  const long before = vgpu_count("cudaMalloc");
  vgpu_before("cudaMalloc", 2, make_some);
  OK(cudaMalloc(&first, BYTES));
  EXPECT(!made_before);
  OK(cudaMalloc(&second, BYTES));
  EXPECT(made_before && made_before != second && vgpu_count("cudaMalloc") == before + 3);
  OK(cudaFree(first));
  OK(cudaFree(second));
  OK(cudaFree(made_before));
}

static void what_is_not_there_says_so(void) {
  char text[4096];
  cudaArray_t a;
  EXPECT(vgpu_refused(text, sizeof text) == 0);
  EXPECT_CODE(cudaMallocArray(&a, NULL, 1, 1, 0), cudaErrorNotSupported);
  EXPECT(vgpu_refused(text, sizeof text) > 0);
  EXPECT(strcmp(text, "cudaMallocArray\n") == 0 && vgpu_count("cudaMallocArray") == 1);
  EXPECT_CODE(cudaGetLastError(), cudaErrorNotSupported);
}

static void wrong_arguments_are_refused(void) {
  char *x = on_device(BYTES), *host = pinned(BYTES, 0), pageable[16];
  cudaEvent_t e = new_event();
  EXPECT_CODE(cudaMemcpyAsync(x + 1, host, BYTES, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue); /* beyond the end */
  EXPECT_CODE(cudaMemcpyAsync(x, pageable, 1, cudaMemcpyDeviceToDevice, NULL), cudaErrorInvalidValue);
  EXPECT_CODE(cudaMemcpyAsync(pageable, x, 1, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue);
  EXPECT_CODE(cudaFree(x + 1), cudaErrorInvalidValue);
  EXPECT_CODE(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_CODE(cudaStreamSynchronize((cudaStream_t)(void *)pageable), cudaErrorInvalidResourceHandle);
  OK(cudaEventDestroy(e));
  EXPECT_CODE(cudaEventQuery(e), cudaErrorInvalidResourceHandle);
  OK(cudaSetDevice(1));
  e = new_event();
  EXPECT_CODE(cudaSetDevice(2), cudaErrorInvalidDevice);
  OK(cudaSetDevice(0));
  EXPECT_CODE(cudaEventRecord(e, NULL), cudaErrorInvalidResourceHandle); /* another device's */
  OK(cudaEventDestroy(e));
  dim3 one = {1, 1, 1};
  EXPECT_CODE(cudaLaunchKernel(pageable, one, one, NULL, 0, NULL), cudaErrorInvalidDeviceFunction);
  OK(cudaFree(x));
  OK(cudaFreeHost(host));
  (void)cudaGetLastError();
}

/* Told when somebody waits, and then for ever; other devices go on. */
static void a_kernel_that_fails(void) {
  cudaStream_t s = new_stream();
  char *x = on_device(BYTES), *host = pinned(BYTES, 1);
  OK((cudaError_t)vgpu_kernel_begin((void *)s, "asserts"));
  vgpu_kernel_fail(cudaErrorAssert);
  OK((cudaError_t)vgpu_kernel_end());
  OK(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, s));
  OK(cudaPeekAtLastError());
  x[0] = 9;
  EXPECT_CODE(cudaStreamSynchronize(s), cudaErrorAssert);
  EXPECT(x[0] == 9); /* what came after did not run */
  void *p;
  size_t a, b;
  EXPECT_CODE(cudaMalloc(&p, 1), cudaErrorAssert);
  EXPECT_CODE(cudaFree(x), cudaErrorAssert);
  EXPECT_CODE(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, s), cudaErrorAssert);
  EXPECT_CODE(cudaEventQuery(NULL), cudaErrorAssert);
  EXPECT_CODE(cudaMemGetInfo(&a, &b), cudaErrorAssert);
  EXPECT_CODE(cudaGetLastError(), cudaErrorAssert);
  EXPECT_CODE(cudaSetDevice(0), cudaErrorAssert);
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&p, 1));
  EXPECT_CODE(cudaStreamSynchronize(s), cudaErrorAssert);
  (void)cudaGetLastError();
}

int main(void) {
  a_child_has_cuda_of_its_own();
  the_nth_call_fails();
  something_is_done_before_the_nth_call();
  what_is_not_there_says_so();
  wrong_arguments_are_refused();
  a_kernel_that_fails();
  return 0;
}
