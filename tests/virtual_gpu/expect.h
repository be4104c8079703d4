/* expect.h: expectations that say where they failed, and the small programs' common beginnings. */
#ifndef EXPECT_H
#define EXPECT_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "virtual_gpu/runtime/api.h"

enum { BYTES = 4096, MIB = 1 << 20 };

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)
#define EXPECT_CODE(call, code) expect_code(__FILE__, __LINE__, #call, (int)(call), (int)(code))
#define OK(call) EXPECT_CODE(call, cudaSuccess)
/* The accesses without an order since the last time; they are forgotten. */
#define EXPECT_RACES(n) expect_races(__FILE__, __LINE__, n)

static inline void expect_code(const char *file, int line, const char *what, int actual, int expected) {
  if (actual == expected) return;
  fprintf(stderr, "%s:%d: %s is %s, expected %s\n", file, line, what, cudaGetErrorName((cudaError_t)actual), cudaGetErrorName((cudaError_t)expected));
  exit(1);
}
static inline void expect_races(const char *file, int line, int expected) {
  const int actual = vgpu_errors();
  if (actual != expected) {
    static char text[1 << 16];
    (void)vgpu_report(text, sizeof text);
    fprintf(stderr, "%s:%d: %d races, expected %d\n%s", file, line, actual, expected, text);
    vgpu_clear();
    exit(1);
  }
  vgpu_clear();
}

static inline char *on_device(size_t bytes) {
  void *p = NULL;
  OK(cudaMalloc(&p, bytes));
  return p;
}
static inline char *pinned(size_t bytes, int value) {
  void *p = NULL;
  OK(cudaHostAlloc(&p, bytes, 0));
  memset(p, value, bytes);
  return p;
}
static inline cudaStream_t new_stream(void) {
  cudaStream_t s;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}
static inline cudaEvent_t new_event(void) {
  cudaEvent_t e;
  OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return e;
}
static inline void kernel(cudaStream_t s, const char *name, const void *read, void *written, size_t bytes) {
  OK((cudaError_t)vgpu_kernel_begin((void *)s, name));
  if (read) vgpu_kernel_access(read, bytes, 0);
  if (written) vgpu_kernel_access(written, bytes, 1);
  OK((cudaError_t)vgpu_kernel_end());
}

#endif
