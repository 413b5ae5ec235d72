/* What a compiled kernel library and the host device's runtime know of each other.
 *
 * Read by both sides: by C11 in shim/host, and by the C++ that mslc makes of a Metal source, which sees no system
 * header. So only built-in types, and sizes that are the same everywhere the host device runs (LP64).
 *
 * A kernel library is a shared object that exports one symbol, `mslc_kernel_library`. It is made of one translation
 * unit for each kernel, and asks nothing of the process but libm: what it needs of the runtime comes through a table
 * that the loader puts into it. */
#ifndef MSLC_KERNEL_ABI_H
#define MSLC_KERNEL_ABI_H

#define MSLC_KERNEL_ABI 1
#define MSLC_LIBRARY_MAGIC 0x636c736d /* "mslc" */
#define MSLC_LIBRARY_SYMBOL "mslc_kernel_library"

#define MSLC_BUFFER_SLOTS 31
#define MSLC_SIMD_WIDTH 32
#define MSLC_MAX_GROUP_THREADS 1024
#define MSLC_THREADGROUP_BYTES 32768
#define MSLC_SCRATCH_BYTES 4194304

#ifdef __cplusplus
extern "C" {
#endif

/* One parameter that the caller binds. Numbers as in mpsshim.h: mps_argument_kind, mps_access, mps_data_base. */
typedef struct mslc_argument {
  const char *name;
  const char *type_name; /* of the element: "float4", or what the source calls it */
  unsigned kind;         /* 1 buffer, 3 threadgroup */
  unsigned index;
  unsigned access;    /* 1 read, 3 read and write; 0 if the kernel does not touch it */
  unsigned data_type; /* base | lanes << 8 */
  unsigned data_size; /* bytes of an element */
  unsigned data_align;
  unsigned is_reference; /* 1 for T& */
} mslc_argument;

/* One variable that a kernel declares in threadgroup memory. The loader gives each its place, once, before the kernel
 * runs. Volatile, lest the compiler take the initial offset for a constant. */
typedef struct mslc_threadgroup_slot {
  unsigned size;
  unsigned align;
  volatile unsigned offset; /* from the start of the arena */
  unsigned reserved;        /* the kernel's own */
} mslc_threadgroup_slot;

/* One dispatch, as all its workers see it. */
typedef struct mslc_launch {
  void *buffers[MSLC_BUFFER_SLOTS + 1];               /* address of each buffer argument, offset included */
  unsigned threadgroup_offset[MSLC_BUFFER_SLOTS + 1]; /* place in the arena of [[threadgroup(n)]] */
  unsigned grid[3];                                   /* threads */
  unsigned group[3];                                  /* threads of a full threadgroup */
  unsigned groups[3];                                 /* threadgroups, those at the edges included */
} mslc_launch;

/* Bits of mslc_kernel.flags. */
#define MSLC_KERNEL_FIBERS 1    /* uses barriers or SIMD-group functions: its threads run as fibers */
#define MSLC_KERNEL_BOUNDED 2   /* ends whatever its arguments are: no loop, no recursion, or its author says so */
#define MSLC_KERNEL_VALIDATED 4 /* asks the runtime about each access to memory */
#define MSLC_KERNEL_GANGS 8     /* beside FIBERS: a fiber is a whole SIMD-group, whose lanes are loops */

typedef struct mslc_kernel {
  const char *name; /* the name to ask for: host_name, or the function's own */
  /* Run the threadgroups [first, last) of a launch, numbered x fastest, on the calling worker. */
  void (*run)(const mslc_launch *launch, unsigned long first, unsigned long last);
  unsigned flags;
  unsigned max_total_threads; /* [[max_total_threads_per_threadgroup]], else 1024 */
  unsigned argument_count;
  unsigned work; /* with BOUNDED: as how many threads without loops one counts; 0 as 1 */
  const mslc_argument *arguments;
  mslc_threadgroup_slot *slots; /* [slots, slots_end), both NULL if there are none */
  mslc_threadgroup_slot *slots_end;
} mslc_kernel;

/* Runs one thread of a threadgroup, number `thread` counted x fastest. */
typedef void (*mslc_thread_fn)(const void *context, unsigned thread);

/* Does a collective operation for the lanes of a SIMD-group that meet in it: bit n of `mask` stands for lane n, whose
 * operand is operands[n]. It writes each lane's result into that lane's operand. */
typedef void (*mslc_collective_fn)(void *const *operands, unsigned mask);

/* Bits of mslc_site.flags. */
#define MSLC_SITE_READ 1
#define MSLC_SITE_WRITE 2
#define MSLC_SITE_ATOMIC 4
#define MSLC_SITE_ACQUIRE 8 /* may be what takes a lock */
#define MSLC_SITE_GROUP 16  /* a threadgroup_barrier: nothing is accessed */
#define MSLC_SITE_LANES 32  /* a simdgroup_barrier, likewise */

/* A place in a validated kernel that accesses memory, or waits at a barrier. Of bitcode without lines only the function
 * is known. */
typedef struct mslc_site {
  const char *file; /* NULL for code that is not the user's; without a line the function's name, "" for the kernel's */
  unsigned line;
  unsigned size; /* bytes; 0 if the call tells */
  unsigned flags;
  unsigned reserved;
} mslc_site;

/* A value that a kernel logs: its kind, the bytes of an element in memory, and up to four elements. */
enum { MSLC_VALUE_SIGNED = 1, MSLC_VALUE_UNSIGNED = 2, MSLC_VALUE_FLOAT = 3, MSLC_VALUE_POINTER = 4 };

typedef struct mslc_value {
  unsigned kind;
  unsigned size;
  unsigned lanes; /* 1 if it is no vector */
  unsigned reserved;
  union {
    long integers[4]; /* also unsigned ones */
    double floats[4];
    const void *pointer;
  };
} mslc_value;

/* A call of a logger. Levels are mps_log_level of mpsshim.h. */
typedef struct mslc_log_call {
  const char *subsystem;
  const char *category;
  const char *format;
  const mslc_value *values;
  unsigned count;
  unsigned level;
} mslc_log_call;

/* What the runtime gives to kernels. Called on the worker that runs the kernel, inside `run`. */
typedef struct mslc_runtime {
  unsigned long size; /* of this struct */
  /* Run `threads` threads as fibers, to the end of all of them. */
  void (*run_fibers)(mslc_thread_fn thread, const void *context, unsigned threads);
  /* Start of this worker's threadgroup memory: MSLC_THREADGROUP_BYTES, aligned to 256. */
  void *(*arena)(void);
  /* threadgroup_barrier: waits for all threads of the threadgroup that have not returned. In a fiber only. */
  void (*threadgroup_barrier)(void);
  /* A SIMD-group function: waits until every lane of the SIMD-group has come to some wait or returned, then runs
   * `operation` once for the lanes that wait at the same call site, which is known by the return address: of several,
   * the lowest goes first. So these calls must keep their order, and none may be merged with another or doubled. In a
   * fiber only. */
  void (*collective)(void *operand, mslc_collective_fn operation);
  /* The running fiber's lane in its SIMD-group. */
  unsigned (*lane)(void);
  /* A loop that waits for another thread should call this: lets the other fibers of the threadgroup go on. */
  void (*yield)(void);
  /* For validated kernels, whose pointers into bound and threadgroup memory are no addresses: the place that one stands
   * for, or one that does no harm if the access is a wrong one. */
  void *(*check)(void *pointer, const mslc_site *site);
  /* memmove and memset with such pointers. */
  void (*copy)(void *target, const void *source, unsigned long length, const mslc_site *site);
  void (*fill)(void *target, unsigned char value, unsigned long length, const mslc_site *site);
  /* Start of this worker's memory for what kernels without fibers keep of each thread: MSLC_SCRATCH_BYTES, aligned to
   * 256. */
  void *(*scratch)(void);
  /* os_log */
  void (*log)(const mslc_log_call *call);
  /* A fiber that is a whole SIMD-group has done one of its functions: the next SIMD-group's turn. In a fiber only. */
  void (*turn)(void);
  /* For validated kernels: the fiber waits at a barrier next, which is the one of that place. */
  void (*arrive)(const mslc_site *site);
} mslc_runtime;

typedef struct mslc_library {
  unsigned magic;
  unsigned abi;
  unsigned kernel_count;
  unsigned reserved;
  const mslc_kernel *const *kernels;
  const mslc_runtime **runtime; /* where the loader puts the table */
} mslc_library;

#ifdef __cplusplus
}
#endif

#endif
