/* Runs of validated kernels: each access to memory is checked against what the launch was given, and against the
 * accesses of other threads.
 *
 * Pointers into such memory are no addresses. Each buffer, and each variable in threadgroup memory, has a range of its
 * own in a part of the address space that no processor has, far from all others: so a pointer tells what it was made
 * from however far it has gone astray, and an access that was not checked faults. host_validate_check gives the address
 * that a pointer stands for. */
#ifndef MPS_HOST_VALIDATE_H
#define MPS_HOST_VALIDATE_H

#include "command.h"
#include "shadow.h"
#include "worker.h"

/* One thread runs all threadgroups, in order: so what is found is the same each time. false and `fault`, which has the
 * first error and the number of the others, if there was any; all threadgroups are run even so. */
bool host_validate_run(const host_work *work, host_fault *fault);

/* mslc_threadgroup_slot.offset of variable `number`. */
uint64_t host_validate_place(uint64_t number);

/* Entries of mslc_runtime. */
void *host_validate_check(void *pointer, const mslc_site *site);
void host_validate_copy(void *target, const void *source, unsigned long length, const mslc_site *site);
void host_validate_fill(void *target, unsigned char value, unsigned long length, const mslc_site *site);

void host_validate_arrive(const mslc_site *site);

/* ---- barriers: validate_barrier.c; called for validated launches only ---- */

/* All threads that have not returned are at the threadgroup's barrier: is it the same for all, and did none return? */
void host_validate_group(host_worker *worker);

/* `lanes` are about to leave a collective. If it is a simdgroup_barrier, are all lanes of the SIMD-group in it? */
void host_validate_lanes(host_worker *worker, const host_simdgroup *group, uint32_t lanes);

/* The waiting lanes that may go on first: none at a simdgroup_barrier, while others do SIMD-group functions on their
 * way there. */
uint32_t host_validate_candidates(const host_worker *worker, const host_simdgroup *group);

/* ---- what the parts of validation share ---- */

typedef enum host_error_kind {
  HOST_ERROR_BOUNDS,  /* outside of what the pointer was made from */
  HOST_ERROR_ADDRESS, /* an address that is of nothing the kernel was given */
  HOST_ERROR_UNSET,   /* threadgroup memory that was read before it was written */
  HOST_ERROR_RACE,
  HOST_ERROR_BARRIER /* which not all threads reach */
} host_error_kind;

/* Memory that the kernel was given. */
typedef struct host_extent {
  char *memory;
  uint64_t length;
  int slot;       /* of the buffer or threadgroup argument; -1 for a variable of the kernel's */
  unsigned entry; /* in the table of addresses, or the variable's number */
  bool in_table;  /* reached through a table of addresses in `slot` */
  bool is_shared; /* in threadgroup memory */
} host_extent;

typedef struct host_error {
  host_error_kind kind;
  const mslc_site *site;
  bool writes;
  uint64_t length;
  const host_extent *extent; /* NULL for HOST_ERROR_ADDRESS */
  int64_t offset;            /* in the extent, or the address */
  uint64_t group;
  bool has_thread;
  unsigned thread; /* in the threadgroup */
  host_stamp other;
  bool other_writes;
  const mslc_site *other_barrier; /* NULL if the other thread has returned */
} host_error;

typedef struct host_validator {
  const host_work *work;
  mslc_launch launch; /* with pointers in place of addresses */
  host_extent *buffers;
  uint64_t buffer_count;
  host_extent *shared; /* by place in the arena, 0 unused */
  uint64_t shared_count;
  char *arena;
  host_shadow shadow;
  const char *library, *library_end; /* the kernel's own memory */
  uint64_t group;                    /* that runs */
  bool group_failed;
  bool group_acquired; /* has read something atomically in device memory: other threadgroups may have let it */
  uint64_t errors;
  host_error first;
  const char *stopped;                               /* why the launch was ended early, or NULL */
  const mslc_site *barriers[MSLC_MAX_GROUP_THREADS]; /* where each thread waits, or is about to */
  bool group_returned;                               /* it was told that some of its threads miss a barrier */
  uint32_t acquired[MSLC_MAX_GROUP_THREADS];         /* barriers + 1 at the thread's last MSLC_SITE_ACQUIRE */
  unsigned char is_set[MSLC_THREADGROUP_BYTES];      /* byte of the arena has been written */
  _Alignas(64) char harmless[4096];                  /* where accesses that failed go */
} host_validator;

/* Note an error of one thread of the threadgroup that runs. */
void host_validate_add(host_worker *worker, unsigned thread, host_error error);

/* The first error in words, and how many followed. */
void host_validate_describe(const host_validator *validator, host_fault *fault);

#endif
