/* calls.c: counts what this process asks of the C library. Preloaded by tests that say how often that is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

void *__libc_malloc(size_t bytes);

static _Thread_local long allocations, locks;

long calls_of_malloc(void) { return allocations; }
long calls_of_lock(void) { return locks; }

void *malloc(size_t bytes) {
  allocations++;
  return __libc_malloc(bytes);
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static int (*original)(pthread_mutex_t *);
  if (!original) *(void **)&original = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  locks++;
  return original(mutex);
}
