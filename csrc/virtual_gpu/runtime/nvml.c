/* nvml.c: the few functions of NVIDIA's management library that torch asks for, without its header.
 *
 * It is found if a link named libnvidia-ml.so.1 to this library is on the loader's path.
 */
#include "virtual_gpu/runtime/internal.h"

#include <unistd.h>

enum { NVML_OK = 0, NVML_INVALID = 2, NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };

#pragma GCC visibility push(default)
int nvmlInit(void);
int nvmlInit(void) { return NVML_OK; }
int nvmlInit_v2(void);
int nvmlInit_v2(void) { return NVML_OK; }
int nvmlShutdown(void);
int nvmlShutdown(void) { return NVML_OK; }
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count) {
  lock();
  *count = (unsigned)device_count();
  unlock();
  return NVML_OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDART_VERSION, NVML_OK; }
static int handle_of(unsigned index, void **handle) {
  if ((int)index >= device_count()) return NVML_INVALID;
  *handle = &devices[index];
  return NVML_OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return handle_of(index, handle); }
/* "00000000:01:00.0" is device 0. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  const char *bus = strchr(id, ':');
  return handle_of(bus ? (unsigned)strtoul(bus + 1, NULL, 16) - 1 : UINT32_MAX, handle);
}
/* This process alone uses a device. torch asks for it when it tells of a lack of memory. */
struct process {
  unsigned id;
  unsigned long long bytes;
};
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process *processes);
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process *processes) {
  const int has_room = *count > 0;
  *count = 1;
  if (!has_room) return NVML_INSUFFICIENT_SIZE;
  lock();
  *processes = (struct process){(unsigned)getpid(), ((const struct device *)handle)->used};
  unlock();
  return NVML_OK;
}
#define REFUSED(name) \
  int name(void);     \
  int name(void) { return NVML_NOT_SUPPORTED; }
/* No fabric: the state is a byte behind a version, 16 bytes of a cluster, a status and a clique. */
int nvmlDeviceGetGpuFabricInfoV(void *handle, char *information);
int nvmlDeviceGetGpuFabricInfoV(void *handle, char *information) {
  (void)handle;
  information[28] = 0;
  return NVML_OK;
}
REFUSED(nvmlDeviceGetNvLinkCapability)
REFUSED(nvmlDeviceGetNvLinkState)
REFUSED(nvmlDeviceGetNvLinkRemoteDeviceType)
REFUSED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
REFUSED(nvmlDeviceGetUUID)
REFUSED(nvmlSystemGetDriverVersion)
#pragma GCC visibility pop
