/* api.h: what the simulator offers to its Python module, in C.
 *
 * Functions that return int return 0, or -1 with a Python exception set; those of
 * type PyObject * return a new reference or NULL. All are called with the GIL.
 */
#ifndef MGD_SIM_API_H
#define MGD_SIM_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "clock/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MGD_SIM_MAX_DEVICES 16

struct mgd_sim_config {
  int devices;
  size_t capacity[MGD_SIM_MAX_DEVICES]; /* bytes */
  struct mgd_speed speed;
  struct mgd_link host, peer; /* between a device and the host; between two devices */
  int devices_per_switch;     /* these share one link to the host */
  int peers_over_host;        /* devices have no links of their own */
  double all_bytes_per_ns;    /* all copies of the machine share it; 0: no limit */
  int repeatable;             /* see timeline_create() */
  int values;                 /* see values.h */
  int unknown_is_error;       /* see unknown.h */
};

/* What torch.sim reports of one device, in bytes and ns of virtual time. */
struct mgd_sim_usage {
  size_t capacity, used, peak, foreign;
  int64_t time;
};

/* Registers the backend, once a process. Raises RuntimeError, with nothing registered, after a
 * first backward, if PrivateUse1 belongs to another library, or the second time. */
int mgd_sim_create(const struct mgd_sim_config *config);
void *mgd_sim_bridge(void);
int mgd_sim_device_count(void);
int mgd_sim_current_device(void);
int mgd_sim_set_device(int device);
int mgd_sim_report(int device, struct mgd_sim_usage *out);
int mgd_sim_set_capacity(int device, size_t bytes);
int mgd_sim_reset_peak(int device);
/* See raw.h. A call without room, or for 0 bytes, gives NULL. */
int mgd_sim_raw_alloc(int device, size_t bytes, void **out);
int mgd_sim_raw_free(void *address);
int mgd_sim_caching_alloc(int device, size_t bytes, int stream, void **out);
int mgd_sim_caching_delete(void *address);
/* For tests: makes the first to the last allocation (`kind` 0) or copy (1) fail, counted from 1 and with *seen counted
 * already; none fails if *first is 0. Leaves the previous setting in the arguments. */
void mgd_sim_exchange_faults(int kind, int64_t *first, int64_t *last, int64_t *seen);
int mgd_sim_host_time(int64_t *out); /* ns, of the calling thread */
int mgd_sim_elapsed(int64_t *out);   /* ns until all that was issued has ended */
int mgd_sim_busy(int from, int to, int64_t *out); /* ns; -1 is the host; from == to: a device's operators */
/* From now on each operator of this thread takes so many ns; -1: the time of its work. Returns the previous setting. */
int64_t mgd_sim_exchange_duration(int64_t ns);
/* Log all that happens on the clock. The caller frees the spans with mgd_clock_profile_free(). */
int mgd_sim_start_log(void);
int mgd_sim_stop_log(struct mgd_span **spans, size_t *count);
/* For tests: start begins to record; check finds the most that the device held at one virtual time since then, and
 * raises RuntimeError if the device has less. */
int mgd_sim_start_audit(void);
int mgd_sim_check_audit(int device, int64_t *out);
/* Whether all of a tensor's values are known. Always true for tensors that are not simulated, or have values. */
int mgd_sim_is_known(PyObject *tensor, int *out);
void mgd_sim_know_nothing(int yes); /* for tests */
PyObject *mgd_sim_generator(int device); /* the default torch.Generator of the device */
/* Waits until the engine's device threads are idle; to be called when the interpreter begins to exit. */
void mgd_sim_park(void);

#ifdef __cplusplus
}
#endif
#endif
