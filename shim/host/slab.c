#include "slab.h"

#include "device.h"

#include <pthread.h>
#include <stdlib.h>

#define SLAB_BYTES (1u << 20)
#define CLASSES 7 /* places of 256, 512, ... 16384 bytes */

/* Slabs of a class that have a free place are in its list; full ones are known only to their buffers. */
struct host_slab {
  host_slab *next;
  host_slab *previous;
  char *pages;
  uint32_t class;
  uint32_t places;
  uint32_t free_count;
  uint16_t free[]; /* numbers of the free places, a stack */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static host_slab *lists[CLASSES];

static uint32_t class_of(uint64_t length) {
  uint32_t class = 0;
  while ((uint64_t)HOST_BUFFER_ALIGN << class < length) {
    class ++;
  }
  return class;
}

uint64_t host_slab_size(uint64_t length) {
  return (uint64_t)HOST_BUFFER_ALIGN << class_of(length);
}

static void list_add(host_slab *slab) {
  slab->previous = NULL;
  slab->next = lists[slab->class];
  if (slab->next) {
    slab->next->previous = slab;
  }
  lists[slab->class] = slab;
}

static void list_remove(host_slab *slab) {
  if (slab->previous) {
    slab->previous->next = slab->next;
  } else {
    lists[slab->class] = slab->next;
  }
  if (slab->next) {
    slab->next->previous = slab->previous;
  }
}

static host_slab *slab_new(uint32_t class) {
  uint32_t places = SLAB_BYTES / (HOST_BUFFER_ALIGN << class);
  host_slab *slab = malloc(sizeof *slab + places * sizeof slab->free[0]);
  if (!slab) {
    return NULL;
  }
  slab->pages = host_pages_map(SLAB_BYTES);
  if (!slab->pages) {
    free(slab);
    return NULL;
  }
  slab->class = class;
  slab->places = slab->free_count = places;
  for (uint32_t i = 0; i < places; i++) {
    slab->free[i] = (uint16_t)(places - 1 - i); /* so that low places go first */
  }
  return slab;
}

void *host_slab_take(uint64_t length, host_slab **out_slab) {
  uint32_t class = class_of(length);
  pthread_mutex_lock(&lock);
  host_slab *slab = lists[class];
  if (!slab) {
    slab = slab_new(class);
    if (!slab) {
      pthread_mutex_unlock(&lock);
      return NULL;
    }
    list_add(slab);
  }
  uint32_t place = slab->free[--slab->free_count];
  if (slab->free_count == 0) {
    list_remove(slab);
  }
  pthread_mutex_unlock(&lock);
  *out_slab = slab;
  return slab->pages + place * ((size_t)HOST_BUFFER_ALIGN << class);
}

void host_slab_give(host_slab *slab, void *place) {
  size_t offset = (size_t)((char *)place - slab->pages);
  pthread_mutex_lock(&lock);
  if (slab->free_count == 0) {
    list_add(slab);
  }
  slab->free[slab->free_count++] = (uint16_t)(offset / (HOST_BUFFER_ALIGN << slab->class));
  /* The last slab of its class stays, so that one buffer made and dropped again and again costs no system call. */
  bool drop = slab->free_count == slab->places && (slab->next || slab->previous);
  if (drop) {
    list_remove(slab);
  }
  pthread_mutex_unlock(&lock);
  if (drop) {
    host_pages_unmap(slab->pages, SLAB_BYTES);
    free(slab);
  }
}
