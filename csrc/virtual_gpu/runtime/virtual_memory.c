/* virtual_memory.c: the driver's calls that map memory at addresses of one's choice: expandable segments are made of them.
 *
 * A range of addresses is reserved and has no bytes; bytes of a device (a "physical" piece) are mapped into it. All pieces are parts of
 * one file without a name, so that a piece keeps its bytes wherever it is mapped.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "virtual_gpu/runtime/internal.h"

enum { GRAIN = 2 << 20 };

struct physical {
  int device, references; /* its handle, and each place where it is mapped */
  size_t bytes;
  off_t offset;
};
struct range {
  struct range *next;
  uintptr_t address;
  size_t bytes;
};

static struct range *ranges;
static int file = -1;
static off_t file_end;

static struct range *range_of(uintptr_t address, size_t bytes) {
  struct range *r = ranges;
  while (r && (address < r->address || address + bytes > r->address + r->bytes)) r = r->next;
  return r;
}

static int prop_device(const CUmemAllocationProp *prop) { return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : -1; }

CUresult cuMemGetAllocationGranularity(size_t *grain, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags flags) {
  DRIVER_LIGHT;
  (void)prop;
  (void)flags;
  *grain = GRAIN;
  return leave_driver(cudaSuccess);
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  DRIVER_ENTER;
  (void)hint;
  const size_t align = alignment > GRAIN ? alignment : GRAIN;
  if (!bytes || bytes % GRAIN || flags || (align & (align - 1))) return leave_driver(cudaErrorInvalidValue);
  char *found = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct range *r = malloc(sizeof *r);
  if (!r || found == MAP_FAILED) {
    if (found != MAP_FAILED) (void)munmap(found, bytes + align);
    free(r);
    return leave_driver(cudaErrorMemoryAllocation);
  }
  const uintptr_t start = ((uintptr_t)found + align - 1) & ~(uintptr_t)(align - 1);
  if (start > (uintptr_t)found) (void)munmap(found, start - (uintptr_t)found);
  const uintptr_t end = (uintptr_t)found + bytes + align;
  if (end > start + bytes) (void)munmap((void *)(start + bytes), end - start - bytes);
  *r = (struct range){ranges, start, bytes};
  ranges = r;
  *p = start;
  return leave_driver(cudaSuccess);
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  DRIVER_ENTER;
  struct range **at = &ranges;
  while (*at && ((*at)->address != p || (*at)->bytes != bytes)) at = &(*at)->next;
  struct range *r = *at;
  if (!r) return leave_driver(cudaErrorInvalidValue);
  for (uintptr_t a = r->address; a < r->address + r->bytes; a += GRAIN)
    if (find_block((void *)a)) return leave_driver(cudaErrorInvalidValue); /* still mapped */
  (void)munmap((void *)r->address, r->bytes);
  *at = r->next;
  free(r);
  return leave_driver(cudaSuccess);
}

static cudaError_t create(CUmemGenericAllocationHandle *handle, size_t bytes, int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  if (!bytes || bytes % GRAIN) return cudaErrorInvalidValue;
  const cudaError_t error = make_context(device);
  if (error != cudaSuccess) return error;
  if (file < 0) file = memfd_create("virtual GPU", MFD_CLOEXEC);
  if (file < 0 || !take(device, bytes)) return cudaErrorMemoryAllocation;
  struct physical *piece = malloc(sizeof *piece);
  if (!piece || ftruncate(file, file_end + (off_t)bytes) != 0) {
    free(piece);
    give(device, bytes);
    return cudaErrorMemoryAllocation;
  }
  *piece = (struct physical){device, 1, bytes, file_end};
  file_end += (off_t)bytes;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)piece;
  return cudaSuccess;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
  DRIVER_ENTER;
  if (flags || prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC)
    return leave_driver(cudaErrorNotSupported); /* a type may be asked for; nothing can be exported */
  return leave_driver(create(handle, bytes, prop_device(prop)));
}

static void drop(struct physical *piece) {
  if (--piece->references) return;
  (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, piece->offset, (off_t)piece->bytes);
  give(piece->device, piece->bytes);
  free(piece);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  DRIVER_ENTER;
  drop((struct physical *)(uintptr_t)handle);
  return leave_driver(cudaSuccess);
}

/* Mapped, but closed until cuMemSetAccess. */
CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  DRIVER_ENTER;
  struct physical *piece = (struct physical *)(uintptr_t)handle;
  if (flags || offset || bytes != piece->bytes || !range_of(p, bytes) || find_block((void *)p) || find_block((void *)(p + bytes - 1)))
    return leave_driver(cudaErrorInvalidValue);
  if (mmap((void *)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, piece->offset) == MAP_FAILED ||
      !add_block((struct block){.address = p, .bytes = bytes, .memory = DEVICE, .device = piece->device, .physical = piece}))
    return leave_driver(cudaErrorMemoryAllocation);
  piece->references++;
  return leave_driver(cudaSuccess);
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *list, size_t count) {
  DRIVER_ENTER;
  enum memory memory;
  int device;
  if (!memory_at((void *)p, bytes, &memory, &device) || memory != DEVICE) return leave_driver(cudaErrorInvalidValue);
  bool open = false;
  for (size_t i = 0; i < count; i++) open = open || list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const int failed = mprotect((void *)p, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  return leave_driver(failed ? cudaErrorUnknown : cudaSuccess);
}

/* CUDA promises no wait: the caller must have waited. */
CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
  DRIVER_ENTER;
  enum memory memory;
  int device;
  if (!memory_at((void *)p, bytes, &memory, &device) || memory != DEVICE) return leave_driver(cudaErrorInvalidValue);
  const uint32_t site = here(NULL);
  for (size_t done = 0; done < bytes;) {
    struct block *b = find_block((void *)(p + done));
    if (!b || !b->physical || b->address != p + done || done + b->bytes > bytes) return leave_driver(cudaErrorInvalidValue);
    struct physical *piece = b->physical;
    const size_t size = b->bytes;
    check_access((struct access){(void *)b->address, size, true}, host_clock(), host_epoch(site));
    remove_block(b);
    (void)mmap((void *)(p + done), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(piece);
    done += size;
  }
  return leave_driver(cudaSuccess);
}
