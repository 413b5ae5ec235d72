#include "object.h"

#include "status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one kind of object. Freed objects wait in a first-in first-out list, so that a released handle stays
 * recognisable for as long as possible; chunks are never given back. */
typedef struct object_pool {
  pthread_mutex_t lock;
  struct free_object *first;
  struct free_object *last;
  uint32_t free_count;
  _Atomic uint64_t live;
} object_pool;

typedef struct free_object {
  mps_object object;
  struct free_object *next;
} free_object;

/* Objects that are allocated at once, and that lie unused before one is used again. */
enum { CHUNK_OBJECTS = 32, QUARANTINE = 32 };

#define POOL {.lock = PTHREAD_MUTEX_INITIALIZER}
static object_pool pools[MPS_KIND_COUNT] = {POOL, POOL, POOL, POOL, POOL, POOL, POOL};
_Static_assert(MPS_KIND_COUNT == 7, "a kind of object has no pool or no name");

static const char *const kind_names[MPS_KIND_COUNT] = {"a device", "a heap",    "a buffer",  "a queue",
                                                       "an event", "a library", "a pipeline"};

_Atomic uint64_t mps_pending_commands;

static void pool_put(object_pool *pool, free_object *object) {
  object->next = NULL;
  if (pool->last == NULL) {
    pool->first = object;
  } else {
    pool->last->next = object;
  }
  pool->last = object;
  pool->free_count++;
}

static bool pool_grow(object_pool *pool, size_t size) {
  char *chunk = calloc(CHUNK_OBJECTS, size);
  if (chunk == NULL) {
    return false;
  }
  for (size_t i = 0; i < CHUNK_OBJECTS; i++) {
    pool_put(pool, (free_object *)(void *)(chunk + i * size));
  }
  return true;
}

void *mps_object_new(mps_kind kind, size_t size) {
  object_pool *pool = &pools[kind];
  pthread_mutex_lock(&pool->lock);
  if (pool->free_count <= QUARANTINE && !pool_grow(pool, size) && pool->first == NULL) {
    pthread_mutex_unlock(&pool->lock);
    mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for %s, an object of %zu bytes", kind_names[kind], size);
    return NULL;
  }
  free_object *found = pool->first;
  pool->first = found->next;
  if (pool->first == NULL) {
    pool->last = NULL;
  }
  pool->free_count--;
  pthread_mutex_unlock(&pool->lock);

  mps_object *object = &found->object;
  memset(object + 1, 0, size - sizeof *object);
  atomic_fetch_add_explicit(&pool->live, 1, memory_order_relaxed);
  atomic_store_explicit(&object->references, 1, memory_order_relaxed);
  atomic_store_explicit(&object->handles, 1, memory_order_relaxed);
  atomic_store_explicit(&object->magic, MPS_OBJECT_MAGIC + kind, memory_order_release);
  return object;
}

void mps_object_free(void *object, mps_kind kind) {
  object_pool *pool = &pools[kind];
  mps_object *head = object;
  atomic_store_explicit(&head->magic, 0, memory_order_relaxed);
  atomic_fetch_sub_explicit(&pool->live, 1, memory_order_relaxed);
  pthread_mutex_lock(&pool->lock);
  pool_put(pool, object);
  pthread_mutex_unlock(&pool->lock);
}

/* No object lies in the first page, or at an odd address: such a pointer is not even looked at. */
static bool could_be_object(const void *object) {
  return (uintptr_t)object >= 4096 && (uintptr_t)object % _Alignof(mps_object) == 0;
}

static MPS_PRINTF(3, 4) mps_status invalid_handle(const char *function, mps_kind kind, const char *format, ...);

static mps_status invalid_handle(const char *function, mps_kind kind, const char *format, ...) {
  char given[160];
  va_list list;
  va_start(list, format);
  vsnprintf(given, sizeof given, format, list);
  va_end(list);
  return mps_fail(MPS_STATUS_INVALID_HANDLE, "%s: expected %s, got %s", function, kind_names[kind], given);
}

mps_status mps_object_check(const void *object, mps_kind kind, const char *function) {
  if (!could_be_object(object)) {
    return object == NULL ? invalid_handle(function, kind, "NULL")
                          : invalid_handle(function, kind, "%p, which is no handle", object);
  }
  uint32_t magic = atomic_load_explicit(&((const mps_object *)object)->magic, memory_order_acquire);
  if (magic == MPS_OBJECT_MAGIC + kind) {
    return MPS_STATUS_OK;
  }
  if (magic - MPS_OBJECT_MAGIC < MPS_KIND_COUNT) {
    return invalid_handle(function, kind, "%s", kind_names[magic - MPS_OBJECT_MAGIC]);
  }
  return invalid_handle(function, kind, "%p, which was released or never was a handle", object);
}

mps_status mps_object_check_borrowed(const void *object, mps_kind kind, const char *function) {
  if (could_be_object(object) &&
      atomic_load_explicit(&((const mps_object *)object)->magic, memory_order_acquire) == MPS_OBJECT_HELD + kind) {
    return MPS_STATUS_OK;
  }
  return mps_object_check(object, kind, function);
}

void mps_object_hold(void *object) {
  atomic_fetch_add_explicit(&((mps_object *)object)->references, 1, memory_order_relaxed);
}

bool mps_object_drop(void *object) {
  return atomic_fetch_sub_explicit(&((mps_object *)object)->references, 1, memory_order_acq_rel) == 1;
}

bool mps_object_drop_shared(void *object) {
  mps_object *head = object;
  uint32_t count = atomic_load_explicit(&head->references, memory_order_relaxed);
  while (count > 1) {
    if (atomic_compare_exchange_weak_explicit(&head->references, &count, count - 1, memory_order_acq_rel,
                                              memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void mps_object_retain(void *object, mps_kind kind) {
  mps_object *head = object;
  if (atomic_fetch_add_explicit(&head->handles, 1, memory_order_relaxed) == 0) {
    mps_object_hold(object);
    atomic_store_explicit(&head->magic, MPS_OBJECT_MAGIC + kind, memory_order_release);
  }
}

bool mps_object_release(void *object, mps_kind kind) {
  mps_object *head = object;
  uint32_t count = atomic_load_explicit(&head->handles, memory_order_relaxed);
  while (count > 0) {
    if (atomic_compare_exchange_weak_explicit(&head->handles, &count, count - 1, memory_order_acq_rel,
                                              memory_order_relaxed)) {
      if (count == 1) {
        atomic_store_explicit(&head->magic, MPS_OBJECT_HELD + kind, memory_order_release);
      }
      return count == 1;
    }
  }
  return false;
}

uint64_t mps_object_live(mps_kind kind) {
  return atomic_load_explicit(&pools[kind].live, memory_order_relaxed);
}
