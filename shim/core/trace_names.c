/* The names in records: kept once for each text, so that a record is a pointer and the reader needs no copies. */
#include "trace.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of all names together: a program that makes up a name for each step must not fill the memory. */
enum { BUCKETS = 4096, MOST_BYTES = 16 << 20 };

static mps_trace_name unknown = {.text = "?"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mps_trace_name *buckets[BUCKETS];
static size_t used;
static uint32_t count;

/* FNV-1a. */
static uint64_t hash_of(const char *text) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
    hash = (hash ^ *c) * UINT64_C(0x100000001b3);
  }
  return hash;
}

/* With the lock held. */
static mps_trace_name *add(const char *text, uint64_t hash) {
  size_t length = strlen(text);
  mps_trace_name *name = NULL;
  if (length < MOST_BYTES - used) {
    name = malloc(sizeof *name + length + 1); /* the text behind it */
  }
  if (name == NULL) {
    return &unknown;
  }
  used += sizeof *name + length + 1;
  char *copy = (char *)(name + 1);
  memcpy(copy, text, length + 1);
  *name = (mps_trace_name){.next = buckets[hash % BUCKETS], .hash = hash, .number = ++count, .text = copy};
  buckets[hash % BUCKETS] = name;
  return name;
}

mps_trace_name *mps_trace_name_of(const char *text) {
  uint64_t hash = hash_of(text);
  pthread_mutex_lock(&lock);
  mps_trace_name *name = buckets[hash % BUCKETS];
  while (name != NULL && (name->hash != hash || strcmp(name->text, text) != 0)) {
    name = name->next;
  }
  if (name == NULL) {
    name = add(text, hash);
  }
  pthread_mutex_unlock(&lock);
  return name;
}

mps_trace_name *mps_trace_name_kept(_Atomic(mps_trace_name *) *kept, const char *text) {
  mps_trace_name *name = atomic_load_explicit(kept, memory_order_acquire);
  if (name == NULL) {
    name = mps_trace_name_of(text);
    atomic_store_explicit(kept, name, memory_order_release);
  }
  return name;
}
