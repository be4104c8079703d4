/* device.c: CUDA's calls for devices: which there are, what they report of themselves, and access between peers. */
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

cudaError_t cudaGetDeviceCount(int *n) {
  ENTER_LIGHT;
  *n = device_count();
  return leave(*n ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) {
  ENTER_LIGHT;
  if (!device_count()) return leave(cudaErrorNoDevice);
  *device = current_device();
  return leave(cudaSuccess);
}
static cudaError_t set_device(int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const cudaError_t error = make_context(device); /* since CUDA 12 */
  if (error != cudaSuccess) return error;
  set_current_device(device);
  return devices[device].sticky;
}
cudaError_t cudaSetDevice(int device) {
  ENTER_LIGHT;
  return leave(set_device(device));
}
cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more) {
  ENTER_LIGHT;
  (void)flags;
  (void)more;
  return leave(is_device(device) ? make_context(device) : cudaErrorInvalidDevice);
}
cudaError_t cudaDriverGetVersion(int *version) {
  ENTER_LIGHT;
  *version = CUDART_VERSION;
  return leave(cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  ENTER_LIGHT;
  *version = CUDART_VERSION;
  return leave(cudaSuccess);
}

static struct cudaDeviceProp properties(int device) {
  struct cudaDeviceProp p = {0};
  (void)snprintf(p.name, sizeof p.name, "virtual GPU");
  memcpy(p.uuid.bytes, "virtual GPU    ", 15);
  p.uuid.bytes[15] = (char)device;
  p.totalGlobalMem = devices[device].bytes;
  p.major = 8; /* an A100's, for kernels that choose by them */
  p.multiProcessorCount = 108;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxThreadsPerBlock = 1024;
  p.maxBlocksPerMultiProcessor = 32;
  p.warpSize = 32;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 163 << 10;
  p.sharedMemPerMultiprocessor = 164 << 10;
  p.totalConstMem = 64 << 10;
  p.l2CacheSize = 40 << 20;
  p.memoryBusWidth = 5120;
  p.memPitch = INT32_MAX;
  p.textureAlignment = 512;
  p.maxGridSize[0] = INT32_MAX;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.concurrentKernels = p.unifiedAddressing = p.canMapHostMemory = p.streamPrioritiesSupported = 1;
  p.asyncEngineCount = 3;
  p.cooperativeLaunch = p.hostRegisterSupported = p.memoryPoolsSupported = 1;
  p.pciBusID = device + 1;
  return p;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  ENTER_LIGHT;
  if (!is_device(device)) return leave(cudaErrorInvalidDevice);
  *p = properties(device);
  return leave(cudaSuccess);
}
static int attribute(enum cudaDeviceAttr a, int device) {
  const struct cudaDeviceProp p = properties(device);
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX: return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY: return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ: return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX: return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY: return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ: return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock: return (int)p.sharedMemPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)p.sharedMemPerBlockOptin;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)p.sharedMemPerMultiprocessor;
    case cudaDevAttrWarpSize: return p.warpSize;
    case cudaDevAttrMaxRegistersPerBlock: return p.regsPerBlock;
    case cudaDevAttrMultiProcessorCount: return p.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor: return p.major;
    case cudaDevAttrComputeCapabilityMinor: return p.minor;
    case cudaDevAttrClockRate: return 1410000;
    case cudaDevAttrMemoryClockRate: return 1215000;
    case cudaDevAttrGlobalMemoryBusWidth: return p.memoryBusWidth;
    case cudaDevAttrL2CacheSize: return p.l2CacheSize;
    case cudaDevAttrPciBusId: return p.pciBusID;
    case cudaDevAttrAsyncEngineCount: return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCooperativeLaunch: return 1;
    default: return 0;
  }
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device) {
  ENTER_LIGHT;
  if (!is_device(device)) return leave(cudaErrorInvalidDevice);
  *value = attribute(a, device);
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
  ENTER_LIGHT;
  if (!is_device(device)) return leave(cudaErrorInvalidDevice);
  (void)snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) {
  ENTER_LIGHT;
  if (!is_device(a) || !is_device(b)) return leave(cudaErrorInvalidDevice);
  *can = has_link(a, b);
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr what, int a, int b) {
  ENTER_LIGHT;
  if (!is_device(a) || !is_device(b) || a == b) return leave(cudaErrorInvalidDevice);
  const enum link link = link_between(a, b);
  switch (what) {
    case cudaDevP2PAttrPerformanceRank: *value = link == PCIE; break; /* 0 is the fastest */
    case cudaDevP2PAttrNativeAtomicSupported: *value = link == NVLINK; break;
    default: *value = link != NO_LINK;
  }
  return leave(cudaSuccess);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  ENTER;
  if (!is_device(peer) || flags) return leave(cudaErrorInvalidValue);
  if (!has_link(current_device(), peer)) return leave(cudaErrorPeerAccessUnsupported);
  if (devices[current_device()].peers >> peer & 1) return leave(cudaErrorPeerAccessAlreadyEnabled);
  devices[current_device()].peers |= (uint64_t)1 << peer;
  return leave(make_context(peer));
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  ENTER;
  if (!is_device(peer)) return leave(cudaErrorInvalidValue);
  if (!(devices[current_device()].peers >> peer & 1)) return leave(cudaErrorPeerAccessNotEnabled);
  devices[current_device()].peers &= ~((uint64_t)1 << peer);
  return leave(cudaSuccess);
}
int vgpu_has_context(int device) {
  lock();
  const int has = is_device(device) && devices[device].context;
  unlock();
  return has;
}
