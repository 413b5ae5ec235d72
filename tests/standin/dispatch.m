/* Serial queues, semaphores, times, once, data. */
#import "private.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

@implementation StandinDispatchObject
@end

void dispatch_release(id object) {
  [object release];
}

/* ---- queues: a thread that ends when there is nothing to do ---- */

typedef struct item {
  struct item *next;
  dispatch_block_t block;
} item;

@interface StandinDispatchQueue : StandinDispatchObject {
@public
  pthread_mutex_t lock;
  item *first;
  item **end;
  bool running;
}
@end

@implementation StandinDispatchQueue
- (instancetype)init {
  pthread_mutex_init(&lock, NULL);
  end = &first;
  return self;
}
- (void)dealloc {
  STANDIN_RULE(first == NULL && !running, "a dispatch queue dies with work in it");
  pthread_mutex_destroy(&lock);
  [super dealloc];
}
@end

dispatch_queue_t dispatch_queue_create(const char *label, dispatch_queue_attr_t attr) {
  STANDIN_RULE(label != NULL && attr == DISPATCH_QUEUE_SERIAL, "only serial queues with a label are known");
  return [StandinDispatchQueue new];
}

static item *next_item(StandinDispatchQueue *queue) {
  pthread_mutex_lock(&queue->lock);
  item *next = queue->first;
  if (next != NULL) {
    queue->first = next->next;
    if (queue->first == NULL) {
      queue->end = &queue->first;
    }
  } else {
    queue->running = false;
  }
  pthread_mutex_unlock(&queue->lock);
  return next;
}

/* The thread holds its queue, as libdispatch does while there is work. */
static void *run_queue(void *argument) {
  StandinDispatchQueue *queue = argument;
  for (item *next = next_item(queue); next != NULL; next = next_item(queue)) {
    next->block();
    Block_release(next->block);
    free(next);
    standin_end_work();
  }
  [queue release];
  standin_end_work();
  return NULL;
}

void dispatch_async(dispatch_queue_t queue, dispatch_block_t block) {
  item *added = malloc(sizeof *added);
  *added = (item){.block = Block_copy(block)};
  standin_begin_work();
  pthread_mutex_lock(&queue->lock);
  *queue->end = added;
  queue->end = &added->next;
  bool start = !queue->running;
  queue->running = true;
  pthread_mutex_unlock(&queue->lock);
  if (start) {
    pthread_t thread;
    standin_begin_work();
    int error = pthread_create(&thread, NULL, run_queue, [queue retain]);
    STANDIN_RULE(error == 0, "no thread: %s", strerror(error));
    pthread_detach(thread);
  }
}

void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  dispatch_async(queue, ^{
    block();
    dispatch_semaphore_signal(done);
  });
  dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  dispatch_release(done);
}

/* ---- semaphores ---- */

@interface StandinDispatchSemaphore : StandinDispatchObject {
@public
  pthread_mutex_t lock;
  pthread_cond_t raised;
  intptr_t value;
}
@end

@implementation StandinDispatchSemaphore
- (instancetype)init {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&raised, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&lock, NULL);
  return self;
}
- (void)dealloc {
  pthread_cond_destroy(&raised);
  pthread_mutex_destroy(&lock);
  [super dealloc];
}
@end

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value) {
  StandinDispatchSemaphore *semaphore = [StandinDispatchSemaphore new];
  semaphore->value = value;
  return semaphore;
}

intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout) {
  struct timespec end = {(time_t)(timeout / 1000000000u), (long)(timeout % 1000000000u)};
  int error = 0;
  pthread_mutex_lock(&semaphore->lock);
  while (semaphore->value == 0 && error != ETIMEDOUT) {
    error = timeout == DISPATCH_TIME_FOREVER ? pthread_cond_wait(&semaphore->raised, &semaphore->lock)
                                             : pthread_cond_timedwait(&semaphore->raised, &semaphore->lock, &end);
  }
  bool taken = semaphore->value > 0;
  semaphore->value -= taken;
  pthread_mutex_unlock(&semaphore->lock);
  return taken ? 0 : 1;
}

intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore) {
  pthread_mutex_lock(&semaphore->lock);
  semaphore->value++;
  pthread_cond_signal(&semaphore->raised);
  pthread_mutex_unlock(&semaphore->lock);
  return 0;
}

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t delta) {
  STANDIN_RULE(when == DISPATCH_TIME_NOW, "only times from now on are known");
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (dispatch_time_t)now.tv_sec * 1000000000u + (dispatch_time_t)now.tv_nsec + (dispatch_time_t)delta;
}

/* ---- once, data ---- */

static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;

void dispatch_once(dispatch_once_t *predicate, dispatch_block_t block) {
  pthread_mutex_lock(&once_lock);
  if (*predicate == 0) {
    block();
    *predicate = -1;
  }
  pthread_mutex_unlock(&once_lock);
}

@interface StandinDispatchData : StandinDispatchObject {
@public
  void *bytes;
  size_t size;
}
@end

@implementation StandinDispatchData
- (void)dealloc {
  free(bytes);
  [super dealloc];
}
@end

dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor) {
  STANDIN_RULE(queue == nil && destructor == DISPATCH_DATA_DESTRUCTOR_DEFAULT, "only data that is copied is known");
  StandinDispatchData *data = [StandinDispatchData new];
  data->bytes = malloc(size + 1);
  data->size = size;
  memcpy(data->bytes, buffer, size);
  return data;
}

const void *standin_data_bytes(dispatch_data_t data, size_t *size);
const void *standin_data_bytes(dispatch_data_t data, size_t *size) {
  *size = data->size;
  return data->bytes;
}
