/* hardware.c: which devices there are, their room and contexts, and which reach each other.
 *
 * A context is made by the first call that needs one on a device, and takes room there. VIRTUAL_GPU_DEVICES lists the
 * bytes of each device ("1073741824,..."), VIRTUAL_GPU_LINKS the pairs of devices that reach each other, and how
 * ("0-1,2-3:pcie", "all", or nothing for none).
 */
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

struct device devices[DEVICES];
static _Thread_local int current;
static int count = -1;

int current_device(void) { return current; }
void set_current_device(int device) { current = device; }

/* Without a list one device of 1 GiB; "" is a machine that has none. */
int device_count(void) {
  if (count >= 0) return count;
  const char *text = getenv("VIRTUAL_GPU_DEVICES");
  int n = 0;
  if (!text) text = "1073741824";
  while (*text && n < DEVICES) {
    char *end;
    devices[n].bytes = strtoull(text, &end, 0);
    if (end == text || !devices[n].bytes) break;
    n++;
    text = *end == ',' ? end + 1 : end;
    if (*end && *end != ',') break;
  }
  if (*text)
    complain("VIRTUAL_GPU_DEVICES ends at \"%s\": it is a list of at most %d sizes in bytes, with commas between them",
             text, DEVICES);
  return count = n;
}

static size_t context_bytes(void) {
  static size_t bytes = SIZE_MAX;
  if (bytes == SIZE_MAX) bytes = setting("VIRTUAL_GPU_CONTEXT_BYTES", (size_t)64 << 20);
  return bytes;
}

bool take(int device, size_t bytes) {
  struct device *d = &devices[device];
  if (bytes > d->bytes - d->used) return false;
  d->used += bytes;
  return true;
}
void give(int device, size_t bytes) { devices[device].used -= bytes; }

cudaError_t make_context(int device) {
  if (device_count() == 0) return cudaErrorNoDevice;
  if (devices[device].context) return cudaSuccess;
  if (!take(device, context_bytes())) return cudaErrorMemoryAllocation;
  devices[device].context = true;
  return cudaSuccess;
}

bool is_device(int device) { return device >= 0 && device < device_count(); }

/* A pair of VIRTUAL_GPU_LINKS is joined by NVLink, unless ":pcie" stands behind it. */
enum link link_between(int from, int to) {
  const char *text = getenv("VIRTUAL_GPU_LINKS");
  for (size_t n; text && *text && from != to; text += n + (text[n] == ',')) {
    int a = -1, b = -1;
    n = strcspn(text, ",");
    const bool pcie = n >= 5 && strncmp(text + n - 5, ":pcie", 5) == 0;
    const bool all = n - (pcie ? 5 : 0) == 3 && strncmp(text, "all", 3) == 0;
    const bool pair = sscanf(text, "%d-%d", &a, &b) == 2 && ((a == from && b == to) || (a == to && b == from));
    if (all || pair) return pcie ? PCIE : NVLINK;
  }
  return NO_LINK;
}

bool has_link(int from, int to) { return link_between(from, to) != NO_LINK; }
