#include "thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

/* As much as a main thread mostly has: kernels keep their private arrays on it. Only what is touched takes memory. */
#define STACK_BYTES (8u << 20)

typedef struct thread_start {
  void *(*run)(void *);
  void *argument;
} thread_start;

static void pin_library(void) {
  static const char here;
  Dl_info info;
  if (dladdr(&here, &info) && info.dli_fname) {
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

void host_pin_library(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, pin_library);
}

/* Everything but what the processor raises for a fault of the thread itself, which cannot be put off. */
static void block_signals(sigset_t *previous) {
  static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  sigset_t blocked;
  sigfillset(&blocked);
  for (unsigned i = 0; i < sizeof synchronous / sizeof *synchronous; i++) {
    sigdelset(&blocked, synchronous[i]);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, previous);
}

int host_thread_start(const char *name, void *(*run)(void *), void *argument) {
  host_pin_library();
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error) {
    return error;
  }
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigset_t previous;
  block_signals(&previous);
  pthread_t thread;
  error = pthread_create(&thread, &attributes, run, argument);
  pthread_sigmask(SIG_SETMASK, &previous, NULL);
  pthread_attr_destroy(&attributes);
#ifdef __linux__
  if (!error) {
    pthread_setname_np(thread, name);
  }
#else
  (void)name;
#endif
  return error;
}
