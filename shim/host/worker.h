/* What a thread needs to run kernels: threadgroup memory, fibers, and a way out of a kernel that faults. Made when the
 * thread runs its first kernel, unmade when the thread ends. Any thread can be one, a caller's own as well. */
#ifndef MPS_HOST_WORKER_H
#define MPS_HOST_WORKER_H

#include "kernel.h"

#define HOST_LOG_BYTES 1024 /* of a message, as in Metal */

/* Bit n of each mask stands for lane n. A lane that has not returned is in exactly one of ready, waiting, arrived and
 * yielded. */
typedef struct host_simdgroup {
  unsigned first;       /* thread's number in lane 0 */
  uint32_t ready;       /* can go on, the running one included */
  uint32_t fresh;       /* of these, have not begun */
  uint32_t waiting;     /* in a collective */
  uint32_t arrived;     /* at the threadgroup's barrier */
  uint32_t yielded;     /* in yield */
  uint32_t collectives; /* done so far: what orders its lanes */
  bool mixed;           /* lanes may be waiting in more than one collective */
  void *saved[MSLC_SIMD_WIDTH];
  void *operands[MSLC_SIMD_WIDTH];
  uintptr_t sites[MSLC_SIMD_WIDTH];
  mslc_collective_fn operations[MSLC_SIMD_WIDTH];
} host_simdgroup;

/* What stopped a kernel. */
typedef enum host_stop {
  HOST_STOP_SIGNAL,     /* a fault of the processor; the other fields of host_trap tell which */
  HOST_STOP_NO_STACKS,  /* there was no memory for fiber stacks */
  HOST_STOP_NO_SCRATCH, /* nor for what a kernel without fibers keeps of each thread */
  HOST_STOP_NO_FIBERS,  /* it wanted to wait for other threads, which only those of a kernel with fibers can */
  HOST_STOP_VALIDATOR,  /* which tells why itself */
} host_stop;

typedef enum host_trap_access {
  HOST_ACCESS_UNKNOWN,
  HOST_ACCESS_READ,
  HOST_ACCESS_WRITE,
  HOST_ACCESS_EXECUTE
} host_trap_access;

typedef struct host_trap {
  host_stop stop;
  int signal;
  int code; /* si_code */
  host_trap_access access;
  uintptr_t address;
  uintptr_t stack_pointer;
} host_trap;

typedef struct host_worker {
  void *recover; /* context to go back to if the kernel faults; not NULL while one runs, and only then */
  host_trap trap;
  const char *kernel; /* the name of the one that runs, or ran last */
  char *arena;
  struct host_validator *validator; /* of the launch that runs; NULL if it is not validated */

  /* the threadgroup that runs as fibers; live is 0 if none does */
  unsigned threads;      /* all of them */
  unsigned live;         /* those that have not returned */
  unsigned arrived;      /* of these, are at the barrier */
  host_simdgroup *group; /* of the running thread */
  unsigned lane;         /* and its place there */
  unsigned yields;
  uint32_t barriers; /* opened so far: what orders all threads */
  host_simdgroup *groups_end;
  mslc_thread_fn thread;
  const void *context;
  void *caller; /* context of host_run_fibers */
  host_simdgroup groups[MSLC_MAX_GROUP_THREADS / MSLC_SIMD_WIDTH];

  /* fiber stacks, number n for the thread of that number */
  char *stacks;     /* NULL before the first is needed */
  unsigned guarded; /* how many have their guard page */
  /* where the thread's own stack lies, known while fibers run; for AddressSanitizer */
  const void *own_stack;
  size_t own_stack_size;
  void *own_fake_stack;

  char message[HOST_LOG_BYTES]; /* that is being made: a fiber's stack is small */

  char *mapping; /* holds this struct, the arena and the signal stack */
  char *scratch; /* with a page at either end that cannot be touched; NULL before it is first needed */
  char *signal_stack;
  bool signal_stack_installed;
} host_worker;

/* This thread's worker, NULL before host_worker_open. A single pointer, for whose place every libc that can load a
 * library of initial-exec storage has room; elsewhere the usual way. */
#if defined(__GLIBC__)
#define HOST_TLS __attribute__((visibility("hidden"), tls_model("initial-exec")))
#else
#define HOST_TLS __attribute__((visibility("hidden")))
#endif
extern _Thread_local host_worker *host_self HOST_TLS;

/* Make this thread's worker, if it has none; NULL when there is no memory. worker.c. */
host_worker *host_worker_open(void);

/* mslc_runtime.scratch. worker.c. */
void *host_worker_scratch(void);

/* ---- fault.c ---- */

/* Handle the faults of this process's kernels from here on; once. */
void host_fault_handlers_install(void);

/* Say what stopped the kernel that this worker ran. */
void host_fault_describe(const host_worker *worker, host_fault *fault);

#endif
