#include "notifier.h"

#include "thread.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static host_notification *pending;
static host_notification **pending_end = &pending;
static bool started;

static void *notifier_run(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (!pending) {
      pthread_cond_wait(&posted, &lock);
    }
    host_notification *notification = pending;
    pending = notification->next;
    if (!pending) {
      pending_end = &pending;
    }
    pthread_mutex_unlock(&lock);
    notification->callback(notification->user);
    free(notification);
  }
  return NULL;
}

int host_notifier_start(void) {
  pthread_mutex_lock(&lock);
  int error = started ? 0 : host_thread_start("mps-notifier", notifier_run, NULL);
  started = error == 0;
  pthread_mutex_unlock(&lock);
  return error;
}

void host_notifier_post(host_notification *first) {
  pthread_mutex_lock(&lock);
  *pending_end = first;
  while (*pending_end) {
    pending_end = &(*pending_end)->next;
  }
  pthread_cond_signal(&posted);
  pthread_mutex_unlock(&lock);
}
