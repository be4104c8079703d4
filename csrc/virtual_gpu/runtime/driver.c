/* driver.c: the driver's functions; this library also stands where libcuda.so.1 is looked for.
 *
 * The driver speaks CUresult, whose numbers are those of cudaError_t.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

#define DRIVER(call) return leave_driver(call)

CUresult cuInit(unsigned flags) {
  DRIVER_LIGHT;
  DRIVER(flags ? cudaErrorInvalidValue : device_count() ? cudaSuccess : cudaErrorNoDevice);
}
CUresult cuDriverGetVersion(int *version) {
  DRIVER_LIGHT;
  *version = CUDART_VERSION;
  DRIVER(cudaSuccess);
}
CUresult cuDeviceGetCount(int *n) {
  DRIVER_LIGHT;
  *n = device_count();
  DRIVER(cudaSuccess);
}
CUresult cuDeviceGet(CUdevice *device, int i) {
  DRIVER_LIGHT;
  *device = i;
  DRIVER(i >= 0 && i < device_count() ? cudaSuccess : cudaErrorInvalidDevice);
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice device) {
  /* those that torch asks the driver for: may memory be mapped, and shared by file descriptor or fabric? */
  if (a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return *value = 1, CUDA_SUCCESS;
  return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)a, device); /* the numbers are the same */
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  DRIVER_LIGHT;
  if (device < 0 || device >= device_count()) DRIVER(cudaErrorInvalidDevice);
  *flags = 0;
  *active = devices[device].context;
  DRIVER(cudaSuccess);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  DRIVER_LIGHT;
  if (device < 0 || device >= device_count()) DRIVER(cudaErrorInvalidDevice);
  *context = (CUcontext)(void *)&devices[device];
  DRIVER(make_context(device));
}
CUresult cuCtxGetCurrent(CUcontext *context) {
  DRIVER_LIGHT;
  const int device = current_device();
  *context = devices[device].context ? (CUcontext)(void *)&devices[device] : NULL;
  DRIVER(cudaSuccess);
}
CUresult cuCtxSetCurrent(CUcontext context) {
  DRIVER_LIGHT;
  for (int i = 0; i < device_count(); i++)
    if ((void *)context == (void *)&devices[i]) set_current_device(i);
  DRIVER(cudaSuccess);
}
CUresult cuCtxGetDevice(CUdevice *device) {
  DRIVER_LIGHT;
  *device = current_device();
  DRIVER(devices[*device].context ? cudaSuccess : (cudaError_t)CUDA_ERROR_INVALID_CONTEXT);
}

/* Devices whose contexts were current before cuCtxPushCurrent(). */
static __thread struct {
  int n, device[16];
} pushed;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (pushed.n == 16) return CUDA_ERROR_OUT_OF_MEMORY;
  pushed.device[pushed.n++] = current_device();
  return cuCtxSetCurrent(context);
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  DRIVER_LIGHT;
  if (pushed.n == 0) DRIVER((cudaError_t)CUDA_ERROR_INVALID_CONTEXT);
  if (context) *context = (CUcontext)(void *)&devices[current_device()];
  set_current_device(pushed.device[--pushed.n]);
  DRIVER(cudaSuccess);
}
CUresult cuCtxSynchronize(void) { return (CUresult)cudaDeviceSynchronize(); }

/* ---- what the runtime has under other names */

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  struct cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error == cudaSuccess) (void)snprintf(name, (size_t)bytes, "%s", p.name);
  return (CUresult)error;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  struct cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error == cudaSuccess) *uuid = p.uuid;
  return (CUresult)error;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  struct cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error == cudaSuccess) *bytes = p.totalGlobalMem;
  return (CUresult)error;
}
CUresult cuMemGetInfo_v2(size_t *available, size_t *total) { return (CUresult)cudaMemGetInfo(available, total); }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) { return (CUresult)cudaMalloc((void **)p, bytes); }
CUresult cuMemFree_v2(CUdeviceptr p) { return (CUresult)cudaFree((void *)p); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  return (CUresult)cudaMemcpy((void *)to, from, bytes, cudaMemcpyHostToDevice);
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  return (CUresult)cudaMemcpy(to, (const void *)from, bytes, cudaMemcpyDeviceToHost);
}

CUresult cuGetErrorString(CUresult error, const char **text) { return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **text) { return *text = cudaGetErrorName((cudaError_t)error), CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute a, CUdeviceptr p) {
  DRIVER_ENTER;
  const struct block *b = find_block((const void *)p);
  if (!b) DRIVER(cudaErrorInvalidValue);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(void **)value = &devices[b->device]; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(int *)value = b->memory == DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = b->device; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = p; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = b->address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = b->bytes; break;
    default: DRIVER(cudaErrorNotSupported);
  }
  DRIVER(cudaSuccess);
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
  DRIVER_ENTER;
  const struct block *b = find_block((const void *)p);
  if (!b) DRIVER(cudaErrorInvalidValue);
  if (base) *base = b->address;
  if (bytes) *bytes = b->bytes;
  DRIVER(cudaSuccess);
}

CUresult cuLaunchKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, CUstream stream, void **arguments, void **more) {
  (void)more;
  const dim3 grid = {a, b, c}, block = {d, e, g};
  return (CUresult)cudaLaunchKernel((const void *)f, grid, block, arguments, shared, (cudaStream_t)stream);
}

/* ---- looking up functions by name */

static int unsupported(void) {
  static struct call call = {.name = "a driver function that torch looked up"};
  return refuse_driver(&call);
}
static cudaError_t entry_point(const char *name, void **f, enum cudaDriverEntryPointQueryResult *result) {
  Dl_info own;
  void *self = dladdr((void *)(uintptr_t)entry_point, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  char newer[128];
  *f = self ? dlsym(self, name) : NULL;
  (void)snprintf(newer, sizeof newer, "%s_v2", name);
  if (!*f && self) *f = dlsym(self, newer);
  if (!*f) *f = (void *)(uintptr_t)unsupported;
  if (self) (void)dlclose(self);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  (void)version;
  (void)flags;
  return entry_point(name, f, result);
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **f, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  (void)flags;
  return entry_point(name, f, result);
}
CUresult cuGetProcAddress_v2(const char *name, void **f, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *result) {
  (void)version;
  (void)flags;
  if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
  return (CUresult)entry_point(name, f, NULL);
}
