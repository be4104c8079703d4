/* internal.h: the table of contents of the virtual GPU, lowest layer first. A file calls no file that stands below it.
 *
 * One lock guards all state; functions here are called with it held unless their comments say otherwise. It is released
 * while a host callback or a kernel computes, and while a thread waits for another thread's kernel.
 */
#ifndef VIRTUAL_GPU_INTERNAL_H
#define VIRTUAL_GPU_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The build hides what is not CUDA's or api.h's. */
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "virtual_gpu/runtime/api.h"
#pragma GCC visibility pop

enum { DEVICES = 8, ACTORS = 1024, FRAMES = 24 };
/* After so many queries of an operation it is run, since a loop of queries would never end otherwise. */
enum { PATIENCE = 100 };

/* ---- lock.c */
void lock(void);
void unlock(void);
void wait_for_change(void); /* releases the lock until another thread calls tell_change() */
void tell_change(void);
void set_call_name(const char *name);
const char *call_name(void); /* the name of the call that this thread is in */
/* Returns a whole number from the environment, or `otherwise` if it is not set. */
uint64_t setting(const char *name, uint64_t otherwise);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2))); /* prints a line; needs no lock */

/* ---- clock.c: vector clocks: which operations are known to be done */
struct clock {
  int n;
  uint64_t *times;
};
struct epoch {
  int actor; /* -1: none */
  uint32_t site;
  uint64_t time;
};
int new_actor(const char *format, ...) __attribute__((format(printf, 1, 2))); /* -1: too many, not checked */
const char *actor_name(int actor);
void free_actor(int actor);
void clock_join(struct clock *into, const struct clock *from);
uint64_t clock_get(const struct clock *c, int actor);
uint64_t clock_tick(struct clock *c, int actor); /* returns the new time */
void clock_copy(struct clock *into, const struct clock *from);
void clock_free(struct clock *c);
bool knows(const struct clock *c, struct epoch e);
struct clock *host_clock(void);
struct epoch host_epoch(uint32_t site);
void host_learns(const struct clock *c);
void host_ticks(void);
uint64_t next_random(void);

/* ---- site.c: where calls come from */
uint32_t here(const char *what); /* stores `what` and the stack; 0 if the checker is off */
size_t describe(uint32_t site, char *text, size_t size);
bool checking(void); /* whether the checker is on */

/* ---- report.c: what the checker has found */
struct access {
  const void *address;
  size_t bytes;
  bool written;
};
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_race(struct access a, const struct clock *clock, struct epoch at, struct epoch before, bool before_written);

/* ---- shadow.c: the last accesses of each byte */
void shadow_access(uintptr_t low, uintptr_t high, bool written, const struct clock *clock, struct epoch at, struct access whole);
void shadow_forget(uintptr_t low, uintptr_t high);

/* ---- hardware.c */
struct device {
  bool context;
  size_t bytes, used;
  cudaError_t sticky;
  struct stream *legacy;
  uint64_t peers; /* bit i: access to device i is enabled from here */
};
extern struct device devices[DEVICES];
int device_count(void);
int current_device(void);
void set_current_device(int device);
cudaError_t make_context(int device);
bool is_device(int device);
enum link { NO_LINK, PCIE, NVLINK };
enum link link_between(int from, int to);
bool has_link(int from, int to);
bool take(int device, size_t bytes); /* counts them as used; false: the device has no room */
void give(int device, size_t bytes);

/* ---- allocations.c */
enum memory { PAGEABLE, DEVICE, PINNED };
struct block {
  uintptr_t address;
  size_t bytes;
  enum memory memory;
  int device;
  bool registered, late; /* its pages are the program's; a stream's operation frees it */
  unsigned flags;
  uint64_t number; /* no other block has the same, also at the same address */
  struct physical *physical; /* mapped there by cuMemMap; such blocks can touch, and one access cover several */
};
struct block *find_block(const void *address);
bool any_block_in(const void *address, size_t bytes);
uint64_t block_number(const void *address); /* 0: in no block */
/* Finds what lies at these bytes: PAGEABLE if they begin in no block. False: they end outside their allocation. */
bool memory_at(const void *address, size_t bytes, enum memory *memory, int *device);
struct block *add_block(struct block b); /* NULL: no host memory */
void remove_block(struct block *b);
void release(void *address); /* frees a device's block at once */
static inline size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* ---- order.c: the checker */
/* Checks and records an access by the actor of `at`, whose clock is `clock`. */
void check_access(struct access a, const struct clock *clock, struct epoch at);

/* ---- op.c: operations, and graphs of them */
enum kind { COPY, FILL, RECORD, WAIT, HOST, KERNEL, FAIL, FREE, GRAPH };
enum state { QUEUED, RUNNING, DONE };
struct part { /* a copy or a fill: rows of bytes */
  void *to;
  const void *from;
  size_t bytes, rows, to_pitch, from_pitch;
  int value, width; /* of a fill, which is 1, 2 or 4 bytes wide */
  uint64_t to_block, from_block; /* the blocks when the call was made; 0: pageable */
};
struct op {
  struct op *next; /* in its stream, or in its graph */
  struct stream *stream; /* may no longer exist when the operation is over */
  int device;            /* the stream's */
  enum kind kind;
  enum state state;
  int references, asked, depth;
  struct op **waits;
  size_t wait_count;
  struct clock clock; /* of records and kernels only */
  struct epoch at;
  struct part part;
  void *staged;
  void (*run)(void *);
  void (*drop)(void *);
  void *data;
  cudaError_t error;
  uint64_t ends_ns; /* until it has ended: when what it waits for and had ended before has */
  pthread_t owner;
  struct access *accesses; /* of an operation of a graph */
  size_t access_count;
  struct graph *graph;
  struct op *outer; /* the kernel that this thread had open before */
};
struct op *new_op(enum kind kind, struct stream *s); /* has one reference; NULL: no memory */
void drop_op(struct op *op);
void op_waits(struct op *op, struct op *before);
bool still_there(const struct part *p, bool fill);
void do_part(const struct part *p, bool fill);
struct graph {
  int references;
  struct op *first, *last;
  size_t count;
};
void run_graph(struct graph *g);
void drop_graph(struct graph *g);
struct capture {
  struct capture *next;
  unsigned long long id;
  enum cudaStreamCaptureMode mode;
  pthread_t thread;
  struct stream *origin;
  bool invalid;
  struct graph *graph;
};
/* Puts the operation into the graph that its stream is recorded in. Takes over the reference. */
cudaError_t record_op(struct op *op, const struct access *accesses, size_t count);

/* ---- queue.c */
struct stream {
  struct stream *next;
  int device, priority, actor, index; /* index in the list of streams with work, or -1 */
  unsigned flags;
  bool is_legacy, is_dead;
  uint64_t id;
  struct handle *handle; /* the program's handle; null for default streams and once it is destroyed */
  struct op *head, *tail, *last; /* last: the newest, run or not; a reference */
  uint64_t ends_ns;              /* of the last operation that has ended */
  struct clock clock;
  struct capture *capture;
};
extern struct stream *streams;
struct stream *new_stream(int device, unsigned flags, int priority); /* NULL: no memory */
void sweep_streams(void); /* frees destroyed streams that have run */
cudaError_t find_stream(cudaStream_t handle, struct stream **out); /* an error if it is no stream */
void before_enqueue(struct stream *s, struct op *op); /* orders it and the default stream after each other */

/* ---- run.c: what runs when */
/* Puts the operation into its stream's queue, or into the graph if the stream is recorded. Takes over the reference.
 * `accesses` are checked in the order given. */
cudaError_t enqueue(struct op *op, const struct access *accesses, size_t count);
cudaError_t run_until(struct op *op);     /* runs it and what it waits for, no more */
cudaError_t host_waits(struct stream *s); /* runs the stream and joins its clock into the host's */
cudaError_t drain_device(int device);
bool is_ready_after_asking(struct op *op); /* a query: runs what the seed chooses; see PATIENCE */
void let_run(void);                        /* runs what the seed chooses */
void finish_op(struct op *op);

/* ---- call.c: what every call of CUDA's begins and ends with; the files with these calls are above it */
struct call {
  const char *name;
  long count;
  bool known;
  struct call *next;
};
/* Takes the lock, counts the call, and runs what the seed chooses. On an error the call must end with leave(error). */
cudaError_t enter(struct call *call, bool needs_context);
cudaError_t leave(cudaError_t error);
/* ENTER begins a function that uses the current device (and makes its context), ENTER_LIGHT one that does not. */
#define ENTER_AS(needs, leaving)                          \
  static struct call this_call = {.name = __func__};      \
  const cudaError_t entered = enter(&this_call, (needs)); \
  if (entered != cudaSuccess) return leaving(entered)
#define ENTER ENTER_AS(true, leave)
#define ENTER_LIGHT ENTER_AS(false, leave)
/* These are for the driver's functions, whose errors cudaGetLastError does not know. */
CUresult leave_driver(cudaError_t error);
#define DRIVER_ENTER ENTER_AS(true, leave_driver)
#define DRIVER_LIGHT ENTER_AS(false, leave_driver)
int refuse(struct call *call); /* takes the lock itself */
int refuse_driver(struct call *call);

/* ---- capture.c */
extern struct capture *captures;
/* For a call that a recording forbids: malloc, free, queries and waits. Invalidates the recordings that forbid it. */
cudaError_t unsafe_call(void);
/* For a wait for, or a query of, this stream, or the whole device if it is NULL: invalidates their recordings. */
cudaError_t refuse_recorded(struct stream *s, int device);
cudaError_t refuse_legacy(struct stream *s);

#endif
