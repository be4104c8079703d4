/* types.h: the data of the core, documented where it is declared.
 *
 * The core decides and never acts: it takes numbers, returns decisions, and
 * knows neither Python nor torch nor CUDA. Bytes are int64_t, times are int64_t
 * nanoseconds given by the caller, devices are small ids: 0 is the host, 1 and
 * up are accelerators in the order in which they were added.
 *
 * Nothing here is a global: everything hangs from one struct mgd_machine.
 */
#ifndef MGD_TYPES_H
#define MGD_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/holders.h"
#include "core/residency.h"

#define MGD_HOST 0

/* Codes are negative, 0 is success; the text is a message for users.
 * The binding maps each name to one Python exception (see python/errors.c). */
#define MGD_ERRORS(X)                                                    \
  X(NOMEM, "the host has no memory left for bookkeeping")                \
  X(INVALID, "an argument is outside its documented range")              \
  X(NO_DEVICE, "there is no such device")                                \
  X(EXISTS, "this device is already known")                              \
  X(FULL, "no more devices can be added")                                \
  X(NO_ROOM, "the device has no room for this many bytes")               \
  X(WAIT, "no room yet: the request is queued")                          \
  X(DEADLINE, "no room appeared before the deadline")                    \
  X(PIN_CONFLICT, "operands are pinned to different devices")            \
  X(CALLBACK, "the heuristic function failed")                           \
  X(OVERFLOW, "a number of bytes is larger than 2**63 - 1")              \
  X(ABSENT, "there is no such copy")                                     \
  X(STALE, "the source was written while it was copied")                \
  X(BUSY, "others use what would have to leave first")                 \
  X(BROKEN, "an invariant of the core does not hold: this is a bug")

/* Codes are -1, -2, ... in the order of the list. */
enum mgd_error_position {
#define X(name, text) MGD_POS_##name,
  MGD_ERRORS(X)
#undef X
};
enum mgd_error {
  MGD_OK = 0,
#define X(name, text) MGD_E_##name = -1 - MGD_POS_##name,
  MGD_ERRORS(X)
#undef X
};

struct mgd_machine; /* opaque: see internal_machine.h for the core's own files */

/* What the caller may choose when it creates a machine; zero means default. */
struct mgd_config {
  size_t trace_events;      /* ring size, default 4096 */
  int64_t fail_allocation;  /* fail the n-th allocation of the core, 0 = never */
};

/* Each byte in use on a device has one of these owners. */
enum mgd_owner {
  MGD_MANAGED,  /* torch's allocator on behalf of tensors */
  MGD_REPLICA,  /* copies that the directory of replicas keeps; freeing them costs nothing, so they count as room */
  MGD_RESERVED, /* promised by admission, not yet allocated */
  MGD_FOREIGN,  /* other libraries and processes */
  MGD_OWNERS
};

/* On the clock of simulated devices, a profile divides the bytes in use among these owners. */
enum mgd_hold_owner {
  MGD_HOLD_OTHER,   /* none of those below: plain tensors, small ones, workspaces */
  MGD_HOLD_MANAGED, /* tensors that may be evicted */
  MGD_HOLD_REPLICA, /* a copy of another device's tensor, kept for its next use */
  MGD_HOLD_GUEST,   /* bytes that were spilled from another device */
  MGD_HOLD_OWNERS
};

/* A snapshot of one device's ledger. Invariant: free >= 0, peak >= used. */
struct mgd_usage {
  int64_t capacity;
  bool spills; /* its storages may leave */
  int64_t by_owner[MGD_OWNERS];
  int64_t used; /* sum of by_owner */
  int64_t free; /* capacity - used + replicas, never below 0 */
  int64_t peak; /* highest used since the last reset */
};

/* Size heuristic: how many bytes to look for when a tensor has `size` bytes.
 * Returns MGD_OK and *out >= 0, or MGD_E_CALLBACK. It is called with no lock held. */
typedef int (*mgd_heuristic_fn)(void *context, int64_t size, int64_t *out);

/* A set of devices as a bit mask: bit i is device id i. */
typedef uint64_t mgd_mask;

/* ---- placement */

struct mgd_object_request {
  int64_t bytes;     /* after the heuristic; >= 0 */
  bool disperse;     /* true: the device with the least in use for its speed; false: the fullest that still fits */
  mgd_mask allowed;  /* accelerators to consider; the host is the answer when none fits */
  double reserved;   /* fraction of each capacity kept free, 0 <= reserved < 1 */
};

/* One device as a target for objects. Other libraries' bytes reduce the room and, by their part of the memory, the
 * speed. */
struct mgd_share {
  int64_t room; /* bytes that it may still take */
  int64_t load; /* bytes of managed tensors and reservations; replicas, which cost nothing to free, do not count */
  double speed; /* > 0; only the ratio to other devices' speeds counts */
};

/* Layers of a pipeline and the devices for its stages, in order. A device's share says its room and its speed; what it
 * has in use costs no time. */
struct mgd_stages_request {
  size_t n, devices;
  const int64_t *ns; /* of each layer: forward and backward of one part of a batch on the fastest device */
  const int64_t *bytes; /* of each layer: what stays, such as parameters, gradients and the optimizer's state */
  const int64_t *part_bytes; /* of each layer: what each part in flight holds, such as activations */
  const int64_t *border; /* of each layer but the last: bytes of a part that cross a cut behind it; NULL: none */
  const struct mgd_share *shares; /* of each device */
  /* Of each device: how many parts it holds at once, at most. This depends on the device's position s among all p that
   * are given, although some may stay empty: for m parts it is m in GPipe's order and min(m, p - s) in 1F1B's. */
  const int64_t *in_flight;
  const double *bandwidth; /* of the link behind each device but the last, bytes/ns; 0 or NULL: it takes no time */
};

enum mgd_operand_flag {
  MGD_OP_PINNED = 1, /* must not move */
  MGD_OP_WRITTEN = 2, /* the operator writes it, or returns a view of it */
  MGD_OP_VOTES = 4, /* takes part in the vote: floating point when any operand is */
  MGD_OP_GENERATOR = 8, /* a random generator, which cannot move */
  MGD_OP_PLACED = 16, /* a parameter or buffer that the program put there */
  MGD_OP_GRADIENT = 32 /* the gradient that a backward formula was given: the formula runs there */
};

/* One operand of an operator, as placement sees it. */
struct mgd_operand {
  int device;
  unsigned flags;
  int64_t bytes;
  uint64_t made; /* order of creation, larger is later; 0: older than all that have a number */
  mgd_mask kept; /* devices that keep a current copy: to bring the operand there costs nothing */
};

/* Says why a device was chosen; also the reason in a trace event. */
#define MGD_REASONS(X)                                                         \
  X(NONE, "")                                                                  \
  X(PINNED, "an operand is pinned there")                                      \
  X(WRITTEN, "the operator writes a tensor that lives there")                  \
  X(GENERATOR, "the random generator lives there")                             \
  X(PLACED, "a parameter or buffer was put there")                             \
  X(ACCELERATOR, "an accelerator is preferred to the host")                    \
  X(COST, "moving the others there costs least")                               \
  X(HYSTERESIS, "most bytes are there and no other device is clearly cheaper") \
  X(NEWEST, "as many bytes are there as elsewhere, and made last")             \
  X(ONLY, "all operands that count are there")                                 \
  X(REQUIRED, "the operator demands this operand there")                       \
  X(REQUESTED, "the program asked for it")                                     \
  X(DISPERSED, "it has the least in use for its speed")                        \
  X(PACKED, "it is the fullest device that still fits")                        \
  X(NO_ROOM, "no accelerator has room")                                        \
  X(WRITE_BACK, "the operator wrote a copy, which goes home")                  \
  X(TRAFFIC, "it is needed there in each round and nowhere at home")           \
  X(GRADIENT, "a gradient goes to where its tensor lives")                     \
  X(PRESSURE, "its device had no room for something else")                     \
  X(PLANNED, "a plan that was learned from repeated steps foresees it")        \
  X(NEEDED, "an operator uses it")                                             \
  X(ON_HOST, "its device has no room, and the program allows the host")
enum mgd_reason {
#define X(name, text) MGD_WHY_##name,
  MGD_REASONS(X)
#undef X
  MGD_WHY_KINDS
};

/* ---- admission: a reservation holds bytes until it is released */

struct mgd_ticket {
  uint64_t id; /* 0 is no ticket */
  int device;
  int64_t bytes;
};

/* ---- trace */

#define MGD_EVENTS(X)                                        \
  X(MOVE, "move") /* the tensor itself changed device */     \
  X(COPY, "copy") /* an operand was copied to align */       \
  X(WRITE_BACK, "write_back") /* a written copy went home */ \
  X(PLACE, "place") /* a device was chosen for an object */  \
  X(PIN, "pin")                                              \
  X(UNPIN, "unpin")                                          \
  X(WAITED, "waited") /* a request for room was queued */    \
  X(RESERVE, "reserve")                                      \
  X(RELEASE, "release")                                      \
  X(SPILL, "spill") /* bytes left for lack of room */        \
  X(DROP, "drop") /* a spill with a good copy there */       \
  X(SPARE, "spare") /* the host got a copy ahead of need */  \
  X(RESTORE, "restore") /* bytes came home to be used */
enum mgd_event_kind {
#define X(name, text) MGD_EV_##name,
  MGD_EVENTS(X)
#undef X
  MGD_EV_KINDS
};

/* A site is a place in the program that called the library. The strings of a
 * site that the core returns live as long as the machine. */
#define MGD_MAX_SITES 4095 /* distinct places that are remembered; further places get id 0 */

struct mgd_site {
  const char *file, *function; /* "" when there is none */
  int32_t line;
};

struct mgd_event {
  uint64_t sequence; /* filled by the trace: 1, 2, ... */
  uint64_t object;   /* id of the tensor or module the event is about, 0 if none */
  int64_t time;      /* ns, the caller's clock */
  int64_t duration;  /* ns, 0 when it was not timed */
  int64_t bytes;
  const char *operator_name; /* static lifetime, may be NULL */
  int16_t kind, reason;
  int16_t from, to; /* device ids, -1 when none */
  uint32_t site;    /* id of the call site, 0 when unknown */
  uint64_t transfer; /* number of the copy on the clock of simulated devices, 0 when there is none */
};

struct mgd_total {
  uint64_t count;
  int64_t bytes, ns;
};

/* Holds what the trace has counted since its last reset. It is too large for the stack. */
struct mgd_totals {
  uint64_t events; /* events ever recorded: the newest event has this sequence; a reset leaves it */
  struct mgd_total by_kind[MGD_EV_KINDS];
  struct mgd_total by_link[MGD_MAX_DEVICES]
                          [MGD_MAX_DEVICES]; /* [from][to]; moves, copies, write-backs, spills, spares, restores */
};

/* Counts the copies of one object to one device in this step. */
struct mgd_repeat {
  uint64_t count;
  int64_t bytes;
  bool due; /* the limit was just exceeded, and this call site has caused no warning yet: warn now */
  bool stepped; /* a step has ended before this one; if not, the counts start with the machine */
};

/* ---- traffic: whether a tensor lives where it is needed */

/* mgd_traffic_needed(): any -> OPEN; from IDLE it counts one idle round first.
 * mgd_traffic_returned(): OPEN -> IDLE if the home was idle; if it was not, any -> AT_HOME, and idle rounds become 0.
 * So one return that found the home busy decides the whole round.
 * mgd_traffic_moved(): any -> NONE, idle rounds 0. */
enum mgd_round {
  MGD_ROUND_NONE, /* no copy was made since the tensor came to where it is */
  MGD_ROUND_OPEN, /* copied, but nothing has come home yet */
  MGD_ROUND_IDLE, /* every return found the home idle */
  MGD_ROUND_AT_HOME /* the home used the tensor too */
};

/* Each tensor that may move has one; all zero at first, and again when history
 * should not count. It is independent of machines; the caller serializes access. */
struct mgd_traffic {
  uint32_t idle;  /* rounds in a row that found the home idle; stays at its largest value */
  uint8_t moves; /* moves advised so far; stays at the largest value that makes a difference */
  uint8_t round; /* enum mgd_round, of the current round or, between rounds, of the last one */
};

#define MGD_PLACE_ALIGNMENT 512 /* bytes; that of torch's CUDA allocator */
#define MGD_PLACE_LEAST (INT64_C(1) << 18) /* bytes; what is not larger has no place */
#define MGD_PLACE_APART (INT64_C(1) << 20) /* bytes; torch serves requests up to here from segments of their own */

/* A place in a block that an allocator divides by the plan of a learned step. */
struct mgd_step_place {
  int64_t offset, bytes;
};

/* ---- links */

/* Describes one direction between two places; 0 in bytes_per_ns means "instantly". */
struct mgd_link {
  int64_t latency_ns;
  double bytes_per_ns;
};

/* Bandwidths that copies of several devices share. */
struct mgd_buses {
  int count;
  mgd_mask devices[MGD_MAX_DEVICES];
  double bytes_per_ns[MGD_MAX_DEVICES];
};

#endif
