/* allocations.c: the table of blocks, by address: which block has which bytes. */
#include <sys/mman.h>

#include "virtual_gpu/runtime/internal.h"

static struct block *blocks;
static size_t block_count, block_room;

static size_t after(uintptr_t address) { /* how many blocks begin at or below it */
  size_t a = 0, b = block_count;
  while (a < b) {
    const size_t middle = (a + b) / 2;
    if (blocks[middle].address <= address) a = middle + 1;
    else b = middle;
  }
  return a;
}

struct block *find_block(const void *address) {
  const size_t i = after((uintptr_t)address);
  struct block *b = i ? &blocks[i - 1] : NULL;
  return b && (uintptr_t)address - b->address < b->bytes ? b : NULL;
}

bool any_block_in(const void *address, size_t bytes) {
  const size_t i = after((uintptr_t)address + bytes - 1);
  return i && blocks[i - 1].address + blocks[i - 1].bytes > (uintptr_t)address;
}

uint64_t block_number(const void *address) {
  const struct block *b = find_block(address);
  return b ? b->number : 0;
}

bool memory_at(const void *address, size_t bytes, enum memory *memory, int *device) {
  const uintptr_t end = (uintptr_t)address + bytes;
  const struct block *b = find_block(address);
  *memory = b ? b->memory : PAGEABLE;
  *device = b ? b->device : -1;
  if (!b) return true;
  while (b->address + b->bytes < end) {
    const struct block *next = b + 1;
    if (!b->physical || next == blocks + block_count || !next->physical || next->address != b->address + b->bytes)
      return false;
    b = next;
  }
  return true;
}

struct block *add_block(struct block b) {
  if (block_count == block_room) {
    const size_t room = block_room ? 2 * block_room : 256;
    struct block *larger = realloc(blocks, room * sizeof *larger);
    if (!larger) return NULL;
    blocks = larger;
    block_room = room;
  }
  const size_t i = after(b.address);
  memmove(blocks + i + 1, blocks + i, (block_count - i) * sizeof *blocks);
  block_count++;
  static uint64_t made;
  blocks[i] = b;
  blocks[i].number = ++made;
  shadow_forget(b.address, b.address + b.bytes);
  return &blocks[i];
}
void remove_block(struct block *b) {
  shadow_forget(b->address, b->address + b->bytes);
  const size_t i = (size_t)(b - blocks);
  block_count--;
  memmove(blocks + i, blocks + i + 1, (block_count - i) * sizeof *blocks);
}

void release(void *address) {
  struct block *b = find_block(address);
  if (!b || b->address != (uintptr_t)address) return;
  give(b->device, b->bytes);
  const size_t bytes = b->bytes;
  remove_block(b);
  (void)munmap(address, round_up(bytes, 4096));
}
