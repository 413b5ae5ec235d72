#pragma once
#pragma clang system_header
#include <stddef.h>

typedef struct {
  long opaque[8];
} pthread_mutex_t;
typedef struct {
  long opaque[2];
} pthread_once_t;
#define PTHREAD_ONCE_INIT {{0}}
int pthread_once(pthread_once_t *once, void (*function)(void));
int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes);
int pthread_mutex_destroy(pthread_mutex_t *mutex);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
