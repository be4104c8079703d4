/* Who has which bytes: contexts, devices, pinned memory, pieces mapped at chosen addresses. */
#include "expect.h"

enum { CONTEXT = 16 * MIB, DEVICE_BYTES = 256 * MIB };

static void contexts_are_made_where_they_are_used(void) {
  int n = 0, active = 1;
  unsigned flags = 0;
  struct cudaDeviceProp p;
  OK(cudaGetDeviceCount(&n));
  EXPECT(n == 2);
  OK(cudaGetDeviceProperties(&p, 1));
  EXPECT(p.totalGlobalMem == DEVICE_BYTES);
  OK(cudaDeviceCanAccessPeer(&n, 0, 1));
  EXPECT(n == 1 && !vgpu_has_context(0) && !vgpu_has_context(1) && vgpu_bytes(0) == 0);
  OK(cudaFree(NULL));
  EXPECT(vgpu_has_context(0) && !vgpu_has_context(1) && vgpu_bytes(0) == CONTEXT);
  OK((cudaError_t)cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT(!active);
  OK(cudaSetDevice(1)); /* since CUDA 12 */
  EXPECT(vgpu_has_context(1));
  OK((cudaError_t)cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT(active);
  OK(cudaSetDevice(0));
}

static void bytes_are_counted(void) {
  void *p = NULL, *q = NULL;
  size_t available, total;
  OK(cudaMalloc(&p, 1000));
  EXPECT(vgpu_bytes(0) == CONTEXT + 1024);
  EXPECT_CODE(cudaMalloc(&q, DEVICE_BYTES - CONTEXT - 512), cudaErrorMemoryAllocation);
  EXPECT(q == NULL && cudaGetLastError() == cudaErrorMemoryAllocation);
  OK(cudaMalloc(&q, DEVICE_BYTES - CONTEXT - 1024));
  OK(cudaMemGetInfo(&available, &total));
  EXPECT(available == 0 && total == DEVICE_BYTES);
  struct cudaPointerAttributes a;
  OK(cudaPointerGetAttributes(&a, (char *)q + MIB));
  EXPECT(a.type == cudaMemoryTypeDevice && a.device == 0);
  OK(cudaPointerGetAttributes(&a, &total));
  EXPECT(a.type == cudaMemoryTypeUnregistered);
  OK(cudaFree(p));
  OK(cudaFree(q));
  EXPECT(vgpu_bytes(0) == CONTEXT);
}

static void pinned_bytes_are_counted(void) {
  static char own[3 * BYTES];
  struct cudaPointerAttributes a;
  char *p = pinned(BYTES + 1, 0);
  EXPECT(vgpu_bytes(-1) == 2 * BYTES);
  OK(cudaHostRegister(own + BYTES, BYTES, 0));
  EXPECT_CODE(cudaHostRegister(own, 2 * BYTES, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT(vgpu_bytes(-1) == 3 * BYTES);
  OK(cudaPointerGetAttributes(&a, own + 2 * BYTES - 1));
  EXPECT(a.type == cudaMemoryTypeHost);
  EXPECT_CODE(cudaFreeHost(own + BYTES), cudaErrorInvalidValue);
  OK(cudaHostUnregister(own + BYTES));
  EXPECT_CODE(cudaHostUnregister(own + BYTES), cudaErrorHostMemoryNotRegistered);
  OK(cudaFreeHost(p));
  EXPECT(vgpu_bytes(-1) == 0);
  (void)cudaGetLastError();
}

static void frees_in_the_order_of_a_stream_come_late(void) {
  cudaStream_t s = new_stream();
  void *p = NULL, *q = NULL;
  OK(cudaMallocAsync(&p, 200 * MIB, s));
  OK(cudaFreeAsync(p, s));
  EXPECT(vgpu_bytes(0) == CONTEXT + 200 * MIB);
  EXPECT_CODE(cudaFreeAsync(p, s), cudaErrorInvalidValue);
  OK(cudaMallocAsync(&q, 200 * MIB, s)); /* waits for the room */
  OK(cudaFreeAsync(q, s));
  OK(cudaStreamSynchronize(s));
  EXPECT(vgpu_bytes(0) == CONTEXT);
  (void)cudaGetLastError();
}

static void pieces_are_mapped_and_keep_their_bytes(void) {
  enum { PIECE = 2 * MIB };
  void *found = NULL;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle h[2];
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  cudaStream_t s = new_stream();
  char *host = pinned(2 * PIECE, 1);
  EXPECT_CODE(cudaGetDriverEntryPointByVersion("cuMemMap", &found, CUDART_VERSION, 0, NULL), cudaSuccess);
  EXPECT(found == (void *)cuMemMap);
  OK((cudaError_t)cuMemAddressReserve(&range, 8 * PIECE, 0, 0, 0));
  EXPECT(vgpu_bytes(0) == CONTEXT);
  for (int i = 0; i < 2; i++) {
    OK((cudaError_t)cuMemCreate(&h[i], PIECE, &prop, 0));
    OK((cudaError_t)cuMemMap(range + (CUdeviceptr)i * PIECE, PIECE, 0, h[i], 0));
  }
  EXPECT(vgpu_bytes(0) == CONTEXT + 2 * PIECE);
  EXPECT_CODE(cuMemMap(range, PIECE, 0, h[0], 0), CUDA_ERROR_INVALID_VALUE);
  OK((cudaError_t)cuMemSetAccess(range, 2 * PIECE, &access, 1));
  OK(cudaMemcpyAsync((void *)range, host, 2 * PIECE, cudaMemcpyHostToDevice, s)); /* over both */
  EXPECT_CODE(cudaMemcpyAsync((void *)range, host, 2 * PIECE + 1, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
  OK(cudaStreamSynchronize(s));
  OK((cudaError_t)cuMemUnmap(range, 2 * PIECE));
  EXPECT(vgpu_bytes(0) == CONTEXT + 2 * PIECE); /* the handles hold them */
  OK((cudaError_t)cuMemMap(range + 4 * PIECE, PIECE, 0, h[1], 0));
  OK((cudaError_t)cuMemSetAccess(range + 4 * PIECE, PIECE, &access, 1));
  EXPECT(((char *)range)[4 * PIECE] == 1);
  EXPECT_RACES(0);
  kernel(s, "writes", NULL, (void *)(range + 4 * PIECE), BYTES);
  OK((cudaError_t)cuMemUnmap(range + 4 * PIECE, PIECE)); /* without a wait */
  EXPECT_RACES(1);
  EXPECT_CODE(cuMemAddressFree(range, PIECE), CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < 2; i++) OK((cudaError_t)cuMemRelease(h[i]));
  OK((cudaError_t)cuMemAddressFree(range, 8 * PIECE));
  EXPECT(vgpu_bytes(0) == CONTEXT);
  OK(cudaFreeHost(host));
  (void)cudaGetLastError();
}

int main(void) {
  contexts_are_made_where_they_are_used();
  bytes_are_counted();
  pinned_bytes_are_counted();
  frees_in_the_order_of_a_stream_come_late();
  pieces_are_mapped_and_keep_their_bytes();
  return 0;
}
