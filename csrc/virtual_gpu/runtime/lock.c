/* lock.c: the one lock, and what needs nothing else: settings, complaints, the name of the call that a thread is in. */
#include <stdarg.h>
#include <stdio.h>

#include "virtual_gpu/runtime/internal.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Thread_local const char *current_call;

void lock(void) { (void)pthread_mutex_lock(&mutex); }
void unlock(void) { (void)pthread_mutex_unlock(&mutex); }
void wait_for_change(void) { (void)pthread_cond_wait(&changed, &mutex); }
void tell_change(void) { (void)pthread_cond_broadcast(&changed); }
void set_call_name(const char *name) { current_call = name; }
const char *call_name(void) { return current_call ? current_call : "a call"; }

uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

void complain(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)fputs("virtual GPU: ", stderr);
  (void)vfprintf(stderr, format, arguments);
  (void)fputc('\n', stderr);
  va_end(arguments);
}
