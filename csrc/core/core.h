/* core.h: the table of contents of the core.
 *
 * It declares every function that crosses a file, under the name of the file
 * that defines it. Functions return MGD_OK or a negative mgd_error, and give
 * results through the last parameters, which are untouched on failure
 * unless a comment says otherwise.
 * Every function that takes a machine may be called from any thread.
 */
#ifndef MGD_CORE_H
#define MGD_CORE_H

#include "core/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- text.c: codes, reasons and events in words */
const char *mgd_text_error_name(int code); /* "NO_ROOM"; "OK" for 0; "UNKNOWN" otherwise */
const char *mgd_text_error(int code);
const char *mgd_text_reason(int reason);
const char *mgd_text_event(int kind);

/* ---- machine.c: everything hangs from one machine */
int mgd_machine_create(const struct mgd_config *config, struct mgd_machine **out);
void mgd_machine_destroy(struct mgd_machine *m);

/* ---- state.c */
/* Hold the mutex across fork(), so that in the child it is not locked by a thread that does not exist there. No other
 * function may be called in between. */
void mgd_state_before_fork(struct mgd_machine *m);
void mgd_state_after_fork(struct mgd_machine *m); /* in the parent and in the child */

/* ---- device.c: which devices there are */
/* Adds an accelerator; `name` ("sim:0", at most 31 bytes) is copied. */
int mgd_device_add(struct mgd_machine *m, const char *name, int64_t capacity, int *id);
int mgd_device_count(struct mgd_machine *m); /* the host included, so >= 1 */
int mgd_device_name(struct mgd_machine *m, int id, char out[32]);
int mgd_device_set_capacity(struct mgd_machine *m, int id, int64_t capacity); /* dooms replicas beyond its limit */
int mgd_device_set_spills(struct mgd_machine *m, int id, bool spills); /* false: storages stay whose home it is */
/* Sets how much a device does in a given time relative to other devices, in any unit, > 0; 1 at first. */
int mgd_device_set_speed(struct mgd_machine *m, int id, double speed);

/* ---- link.c: what it costs to bring bytes over; defaults are documented there */
int mgd_link_set(struct mgd_machine *m, int from, int to, struct mgd_link link);
int mgd_link_get(struct mgd_machine *m, int from, int to, struct mgd_link *out);
/* Copies between the host and these devices share a bandwidth in each direction, such as that of a PCIe switch. */
int mgd_link_share(struct mgd_machine *m, mgd_mask devices, double bytes_per_ns);

/* ---- ledger.c: bytes per device by owner */
/* Records what a driver reported. `allocated`: all bytes that torch's allocator has handed out, replicas included. Only
 * admission and the directory of replicas change the bytes of RESERVED and REPLICA. */
int mgd_ledger_observe(struct mgd_machine *m, int device, int64_t allocated, int64_t foreign);
int mgd_ledger_usage(struct mgd_machine *m, int device, struct mgd_usage *out);
int mgd_ledger_reset_peak(struct mgd_machine *m, int device);

/* ---- heuristic.c: how much room to look for */
int mgd_heuristic_default(void *unused, int64_t size, int64_t *out); /* size + int(1.5 * sqrt(size)) */
/* NULL restores the default; enabled == false makes mgd_heuristic_apply the identity. */
int mgd_heuristic_set(struct mgd_machine *m, mgd_heuristic_fn fn, void *context);
int mgd_heuristic_enable(struct mgd_machine *m, bool enabled);
int mgd_heuristic_apply(struct mgd_machine *m, int64_t size, int64_t *out);

/* ---- place.c: which device */
/* The room is the capacity less the bytes of all owners but REPLICA, less the reserved fraction. */
int mgd_place_share(struct mgd_machine *m, int device, double reserved, struct mgd_share *out);
/* Decides where one operator runs, by the first rule that applies:
 *   1. two pins on different devices: PIN_CONFLICT, and *device and *other are the first two;
 *   2. the device of a backward formula's gradient; then that of a random generator;
 *   3. the pin, unless operands are written and none of them is there;
 *   4. the first written operand's device;
 *   5. the accelerator of placed operands that vote, if they are all on one;
 *   6. among operands that vote (all, if none does) the only accelerator; of
 *      several the one where copying all operands of which it keeps no copy, plus
 *      evicting what then does not fit, costs least, except that the holder of most bytes stays
 *      unless another costs less than 80 %; the host if no accelerator votes.
 * Ties go to the lower id. *other is written only on PIN_CONFLICT. n > 0. */
int mgd_place_operands(struct mgd_machine *m, const struct mgd_operand *operands, size_t n, int *device, int *other,
                       enum mgd_reason *why);

/* ---- place_plan.c: which device for each of many objects */
/* Distributes contiguous layers over devices. Minimizes the heaviest load (bytes in use / speed) of the devices that
 * take layers, then the border bytes, then takes the most devices, then the most even loads.
 * bytes[i] >= 0 for n layers; border[i] are the bytes that cross between layer i
 * and i + 1 (n - 1 of them, NULL means that every cut is free); out[i] indexes shares. NO_ROOM when
 * no contiguous plan fits. */
int mgd_place_plan_layers(struct mgd_machine *m, const int64_t *bytes, const int64_t *border, size_t n,
                          const struct mgd_share *shares, size_t devices, int *out);
/* Distributes the layers of a pipeline over devices as contiguous stages, which may be empty. Minimizes the longest
 * time of a stage or a link for one part of a batch, in ns, since the slowest of them sets the pace; then the border
 * bytes, then takes the most devices, then the least sum of squared times of stages. A stage takes the ns of its layers
 * times (the fastest device's speed / its device's speed); a link takes 2 * border / bandwidth, for activations forward
 * and gradients back, and a border that passes empty devices passes all links between.
 * If `missing` is NULL, bytes + in_flight * part_bytes of a stage are at most its device's room; NO_ROOM when no plan
 * keeps to that. Otherwise room is no limit, and *missing is the number of bytes for which the plan's devices have no
 * room, or INT64_MAX if that is less. All numbers are >= 0; out[i] indexes request->shares. After an error nothing is
 * written. */
int mgd_place_plan_stages(struct mgd_machine *m, const struct mgd_stages_request *request, int *out, int64_t *missing);
/* Places objects one by one, the largest first and equals in order, each where mgd_admit_object() would disperse it.
 * NO_ROOM: one fits nowhere. After an error nothing is written. */
int mgd_place_plan_spread(struct mgd_machine *m, const int64_t *bytes, size_t n, const struct mgd_share *shares,
                          size_t devices, int *out);

/* ---- admit.c: reservations with deadlines; decides, never sleeps */
/* Grants at once (OK), queues first come first served per device (WAIT: poll
 * with the ticket), or refuses what could never fit (NO_ROOM) and what has no
 * time to wait (DEADLINE: now >= deadline). Writes no trace event: only the
 * caller knows the object and the time. */
int mgd_admit_request(struct mgd_machine *m, int device, int64_t bytes, double reserved, int64_t now, int64_t deadline,
                      struct mgd_ticket *ticket);
/* Chooses a device and reserves in one step, so that two threads never take the same bytes. Bits of `allowed` that are
 * no accelerator are ignored. Among devices with room, `disperse` takes the one with the least in use for its speed,
 * the object included; otherwise the one with the least room wins. Ties go to the first. If the host is chosen, the
 * ticket's id is 0. Never waits: devices with waiting requests are passed over. */
int mgd_admit_object(struct mgd_machine *m, const struct mgd_object_request *request, int64_t now,
                     struct mgd_ticket *ticket, enum mgd_reason *why);
/* Polls a ticket. It looks for room once more before it gives up, so a waiter that wakes at its deadline may still get
 * OK. DEADLINE: the ticket is gone. INVALID: there is no such ticket. */
int mgd_admit_poll(struct mgd_machine *m, struct mgd_ticket *ticket, int64_t now); /* OK, WAIT or DEADLINE */
int mgd_admit_release(struct mgd_machine *m, struct mgd_ticket *ticket); /* granted or waiting; id becomes 0 */

/* ---- source.c, replica.c: which copies of a storage exist, and which are current */
/* A source is a storage that has, or may get, copies on other devices; a replica
 * is one such copy, named by a small slot under which the caller keeps the tensor.
 * A slot that the directory gives up is doomed; it is free again once reaped, and
 * may be reused at once. So the caller guards its table of tensors with a lock that
 * it holds from a find, add or reap until it has read or set the tensor of the slot. */
int mgd_source_open(struct mgd_machine *m, uint64_t *source);
int mgd_source_close(struct mgd_machine *m, uint64_t source);   /* the storage died: its replicas are doomed */
int mgd_source_written(struct mgd_machine *m, uint64_t source); /* likewise for its old contents */
/* Counts how often the source was written. Read it BEFORE copying, and pass it to mgd_replica_add() afterwards. */
int mgd_source_writes(struct mgd_machine *m, uint64_t source, uint64_t *writes);
/* Keeps a copy; `extent` tells parts and dtypes of one source apart. Dooms the least recently used replicas as the
 * device's limit and room require. NO_ROOM: larger than the limit; STALE: the source was written meanwhile. The copy is
 * then not kept, but good for this one use. */
int mgd_replica_add(struct mgd_machine *m, uint64_t source, uint64_t writes, int device, uint64_t extent, int64_t bytes,
                    int32_t *slot);
/* Finds a replica and makes it the most recently used. ABSENT: there is none. */
int mgd_replica_find(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot);
/* Looks for it without using it. */
int mgd_replica_peek(struct mgd_machine *m, uint64_t source, int device, uint64_t extent, int32_t *slot);
int mgd_replica_drop(struct mgd_machine *m, int32_t slot); /* dooms one; a doomed or free slot stays as it is */
/* Dooms the least recently used replicas until `bytes` are freed or none is left; at least one, also for 0 bytes, so
 * that a loop of calls ends. Not `all`: the most recently used ones, up to a 16th of the capacity, stay as long as
 * storages can leave. ABSENT: there was none to doom. */
int mgd_replica_make_room(struct mgd_machine *m, int device, int64_t bytes, bool all);
int mgd_replica_reap(struct mgd_machine *m, int32_t *slot); /* frees the next doomed slot; ABSENT: there is none */

/* ---- user.c: which threads use storages */
int mgd_user_join(struct mgd_machine *m,
                  struct mgd_user **user); /* call before a thread's first use; its counts stay after it has left */
void mgd_user_leave(struct mgd_machine *m, struct mgd_user *user);
/* BUSY: other threads use storages whose home is `device`, or are moving bytes away from it. `mine`: how many uses are
 * the caller's own. */
int mgd_user_others(struct mgd_machine *m, int device, int64_t mine);

/* ---- handle.c: where each storage's bytes are */
/* Initializes `h`, all but its stamp, as resident at home. NOMEM: nothing was changed. */
int mgd_handle_open(struct mgd_machine *m, struct mgd_handle *h, int home, int64_t bytes);
/* Records that a copy has begun that brings the first bytes of a storage that was just opened. The first user joins the
 * copy. INVALID: the storage is not resident, or it is in use. */
int mgd_handle_arrive(struct mgd_machine *m, struct mgd_handle *h);
/* Gives a storage that was just opened a good copy that lies in a file: `memory` counts as none of the host's, and is
 * given up when the bytes have been written. INVALID: the storage has a copy, or is not home. */
int mgd_handle_map(struct mgd_machine *m, struct mgd_handle *h, void *memory);
/* Records that the storage died. *moving: a mover has its bytes, and frees them and the handle when the move ends.
 * Otherwise the caller frees the bytes now, and *memory (the host's copy) too. In both cases the caller then calls
 * mgd_handle_put(h, MGD_ALIVE). */
int mgd_handle_close(struct mgd_machine *m, struct mgd_handle *h, bool *moving, void **memory);
/* Records that a resident storage in use by the caller got another block. *memory: the host's copy of the old block,
 * which the caller frees, or NULL. INVALID: the storage is not home. */
int mgd_handle_resize(struct mgd_machine *m, struct mgd_handle *h, int64_t bytes, void **memory);
int mgd_handle_pin(struct mgd_machine *m, struct mgd_handle *h, enum mgd_pin kind,
                   bool pin); /* counted; a spilled storage stays spilled until it is used */
bool mgd_handle_is_pinned(struct mgd_machine *m, const struct mgd_handle *h);
/* Replaces the storage's advice, flags of enum mgd_advice. INVALID: unknown flags, or two that exclude each other. */
int mgd_handle_advise(struct mgd_machine *m, struct mgd_handle *h, uint32_t advice);
/* For a child of fork(): forgets all uses by operators and all users but `user`, which may be NULL. Moves that other
 * threads had begun stay under way. */
void mgd_handle_forget_uses(struct mgd_machine *m, struct mgd_user *user);

/* ---- host.c: the host's memory for copies of storages */
/* There is no limit at first. Copies above a lowered limit stay: spares until their room is needed, copies of spilled
 * storages until these are home. */
int mgd_host_set_limit(struct mgd_machine *m, int64_t bytes);
int mgd_host_usage(struct mgd_machine *m, int64_t *used, int64_t *limit, int64_t *peak);

/* ---- residency.c */
int mgd_residency_read(struct mgd_machine *m, int device, struct mgd_residency_usage *out);

/* ---- restore.c: how bytes come back */
/* Plans how the bytes of n handles come home for one operator: all of them or none. The caller uses all of them already
 * (mgd_handle_use); one may be named twice. room[id]: free bytes of each device, negative if it holds too much.
 * OK: there are *n_actions actions, 0 if all are home: a MAKE_ROOM for each device that lacks room, then a RESTORE for
 * each storage that is away, and a JOIN for each that is arriving. RESTORE and JOIN have begun: the caller ends each
 * with mgd_restore_end(), done or not.
 * WAIT: another thread is moving one of the storages.
 * BUSY: the bytes do not fit on *device now, but may when uses or moves that are under way have ended.
 * NO_ROOM: they do not fit on *device even then. *device is written only on BUSY and NO_ROOM.
 * A storage that the caller uses and did not name counts as one that may leave later.
 * *n_actions in: the room in `actions`, at least n + MGD_MAX_DEVICES. */
int mgd_restore_begin(struct mgd_machine *m, struct mgd_handle *const *handles, size_t n, const int64_t *room,
                      struct mgd_action *actions, size_t *n_actions, int *device);
/* Ends a RESTORE or JOIN. `state` is RESIDENT: the bytes are at home; ARRIVING: a copy that brings them has begun, and
 * the first user has to join it; SPILLED: they are where they were (invalid for a JOIN). *memory: the caller frees it;
 * may be NULL. INVALID: the storage is not being restored, or cannot be in that state. */
int mgd_restore_end(struct mgd_machine *m, struct mgd_handle *h, enum mgd_residency state, void **memory);

/* ---- evict.c: which storages leave */
/* Plans which storages leave `device`, until `bytes`, plus some for replicas to come, are free or the plan is full:
 * guests of other devices first, then its own storages by the policy. They go to a peer with room (room[id]: free bytes
 * of each device; reserved ones are not given to guests; NULL: no peers) or to the host.
 * `mine`: how many uses of storages of that device are the caller's own.
 * OK: there are *n actions. SPILL and DROP have begun: the caller ends each with mgd_evict_end(). FORGET: it frees
 * `memory`. A plan may consist of FORGETs alone.
 * BUSY: none can leave now, but other threads use storages there, or did during the search: ask again later.
 * NO_ROOM: some could leave, but neither a peer nor the host has room for them. ABSENT: none can leave.
 * *n in: room in `actions`, at least 2. After each MGD_LOOKS refused storages it releases the mutex for a moment. */
int mgd_evict_begin(struct mgd_machine *m, int device, int64_t bytes, const int64_t *room, int64_t mine,
                    struct mgd_action *actions, size_t *n);
/* Works like mgd_evict_begin(), but each storage leaves with probability 1 / `odds`, as long as `actions` has room.
 * *seed is advanced. For managed.debug. */
int mgd_evict_random(struct mgd_machine *m, int device, uint32_t odds, uint64_t *seed, struct mgd_action *actions,
                     size_t *n);
int mgd_evict_veto(struct mgd_machine *m, mgd_may_leave_fn fn);               /* NULL: all may */
/* Ends a SPILL, DROP or SPARE. The bytes are on `to`, which may differ from the plan: in `memory` (the action's, if it
 * named one) if that is the host, else memory is NULL. to == -1: they stayed where they were. to == home: they stayed
 * and `memory` has a good copy, which is a spare from now on. Afterwards the caller gives back the action's use.
 * *memory_left: the caller frees it; may be NULL. INVALID: no such move is under way, or the bytes cannot be there. */
int mgd_evict_end(struct mgd_machine *m, struct mgd_handle *h, int to, void *memory, void **memory_left);

/* ---- holders.c: other allocators with memory of a device, and which of them is asked for what it keeps */
/* `name`: 31 bytes at most. `keep`: bytes that it may keep cached on each device. FULL: there are MGD_MAX_HOLDERS. */
int mgd_holders_add(struct mgd_machine *m, const char *name, int64_t keep, int *id);
int mgd_holders_remove(struct mgd_machine *m, int id);
/* Begins a round: each entry is a holder to get a report of. One that gave nothing last rests for 2, 4, ... 64 rounds.
 * ABSENT: a holder makes the request (`requester` > 0), and holders might ask each other for ever. */
int mgd_holders_begin(struct mgd_machine *m, int device, int requester, struct mgd_holder_round *round);
int mgd_holders_wake(struct mgd_machine *m, struct mgd_holder_round *round); /* goes on with those that rested */
int mgd_holders_note(struct mgd_machine *m, int id, int device, int64_t live, int64_t cached); /* outside a round */
int mgd_holders_reported(struct mgd_machine *m, struct mgd_holder_round *round, int id, int64_t live, int64_t cached);
/* Chooses the holder with most to spare that this round has not asked, and for how many bytes. ABSENT: none is left.
 * Then mgd_holders_gave() says how many bytes came free on the device. */
int mgd_holders_next(struct mgd_machine *m, struct mgd_holder_round *round, int64_t missing, int *id, int64_t *bytes);
int mgd_holders_gave(struct mgd_machine *m, const struct mgd_holder_round *round, int id, int64_t bytes);
int mgd_holders_read(struct mgd_machine *m, int device, struct mgd_holding out[MGD_MAX_HOLDERS], int *n);

/* ---- order.c: in which order storages leave */
int mgd_order_set_policy(struct mgd_machine *m, mgd_victim_fn fn, void *context); /* NULL restores the default */

/* ---- policy.c: what keeping a storage is worth; pure functions, no machine */
double mgd_policy_lru(void *unused, const struct mgd_victim *victim);          /* least recently used */
/* GreedyDual-Size (Cao and Irani, USENIX Symposium on Internet Technologies and Systems 1997): age + cost / bytes. */
double mgd_policy_greedy_dual(void *unused, const struct mgd_victim *victim);

/* ---- traffic.c: when a tensor should move instead of being copied; pure functions, no machine */
/* A round is one or more copies from home and then what comes back of them. If the home did not use the tensor in
 * 1 << min(moves, 10) rounds in a row, leaving it there costs one copy and one trip home too many in each round. */
/* Records that the tensor must be copied from home to `device`: no cached copy served. True: move it there instead. */
bool mgd_traffic_needed(struct mgd_traffic *t, int device);
/* Records that a gradient or a written copy came home. `home_idle`: nothing at home used the tensor since the return
 * before this one. An operator that runs wherever the tensor is, such as an optimizer's update, does not count. */
void mgd_traffic_returned(struct mgd_traffic *t, bool home_idle);
/* Records that the tensor moved: counting begins again. `advised`: its traffic advised the move, so the next such
 * advice needs more rounds. A move that the program requested is not a guess and leaves that number as it is. */
void mgd_traffic_moved(struct mgd_traffic *t, bool advised);

/* ---- trace.c: a ring of recent events, and totals over all events */
int mgd_trace_add(struct mgd_machine *m, const struct mgd_event *event);
/* Reads events, newest last; object 0 means all. *n in: room, out: count; *dropped: events no longer in the ring. */
int mgd_trace_read(struct mgd_machine *m, uint64_t object, struct mgd_event *out, size_t *n, uint64_t *dropped);
/* While `all` is set, the ring grows and drops nothing, as far as memory allows. Then it gets its former size again. */
int mgd_trace_keep(struct mgd_machine *m, bool all);
size_t mgd_trace_held(struct mgd_machine *m); /* events in the ring */
/* Reads all counters at one moment; with `reset` they restart at zero in the same moment, so that each event is
 * counted exactly once. The ring and its sequence go on, so that history stays readable. */
int mgd_trace_totals(struct mgd_machine *m, bool reset, struct mgd_totals *out);
uint64_t mgd_trace_new_object(struct mgd_machine *m); /* ids 1, 2, ... */

/* ---- site.c: places in the program by number */
/* Equal places get equal ids. 0: the place has neither file nor function, or is new when MGD_MAX_SITES are known. */
int mgd_site_intern(struct mgd_machine *m, const struct mgd_site *site, uint32_t *id);
int mgd_site_get(struct mgd_machine *m, uint32_t id, struct mgd_site *out); /* 0: empty strings; INVALID: unknown */

/* ---- repeat.c: one tensor that is copied again and again */
/* Sets how many copies of one object to one device a step may make before a warning; 0: never warn. Default 16. */
int mgd_repeat_set_limit(struct mgd_machine *m, int64_t limit);
int64_t mgd_repeat_limit(struct mgd_machine *m);
void mgd_repeat_begin_step(struct mgd_machine *m); /* counts restart; the set of sites with a warning is kept */
/* Counts a copy of copy->object to copy->to; object 0 means none and is not counted. Remembers the newest 2048
 * pairs of object and device: a pair may be forgotten, never counted too high. */
int mgd_repeat_add(struct mgd_machine *m, const struct mgd_event *copy, struct mgd_repeat *out);

/* ---- check.c: invariants */
int mgd_check(struct mgd_machine *m); /* OK or BROKEN; every transition calls it when built with -DMGD_DEBUG=2 */

#ifdef __cplusplus
}
#endif
#endif
