/* Who has touched memory during a launch: the notes from which races are told. One launch on one thread. */
#ifndef MPS_HOST_SHADOW_H
#define MPS_HOST_SHADOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One access: by whom and when. Accesses of a threadgroup's threads are ordered by its barriers, and those of a
 * SIMD-group's lanes by its collectives too. */
typedef struct host_stamp {
  uint32_t group; /* number of the threadgroup + 1; 0 if there was no access */
  uint32_t barriers;
  uint32_t collectives;
  int32_t site; /* what tells it from others */
  uint16_t thread;
  uint8_t bytes; /* mask, of the cell's four */
  bool is_atomic;
} host_stamp;

/* What is known of four bytes. Of threads that read, two that are not ordered are enough: a write races with one of
 * them unless both are its own. */
typedef struct host_cell {
  host_stamp writer;
  host_stamp readers[2];
} host_cell;

typedef struct host_shadow_page host_shadow_page;

typedef struct host_shadow {
  host_shadow_page **pages; /* by their addresses' hash; NULL before the first */
  size_t capacity, count;
  uint64_t budget; /* bytes that it may yet take */
  host_shadow_page *last;
} host_shadow;

void host_shadow_open(host_shadow *shadow, uint64_t budget);
void host_shadow_close(host_shadow *shadow);

/* The cell of an address, which is a multiple of 4; NULL when there is no memory. */
host_cell *host_shadow_cell(host_shadow *shadow, uintptr_t address);

/* What an access has to be ordered with. */
typedef struct host_access {
  host_stamp stamp;
  bool writes;
  bool is_shared;      /* in threadgroup memory, which is another one in each threadgroup */
  bool trusts_groups;  /* ordered with the other threadgroups */
  bool trusts_threads; /* ordered with the threads of its own */
} host_access;

/* Note an access to a cell; true, with the other one, if there was one before that it races with. */
bool host_shadow_note(host_cell *cell, const host_access *access, host_stamp *other, bool *other_writes);

#endif
