/* A program that opens the library at run time may close it while threads of the library run, and threads of its own
 * have error texts of the library's: nothing of it may vanish under them. */
#include "mpsshim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef mps_status (*device_create_fn)(mps_device_kind kind, uint32_t index, mps_device **out_device);
typedef mps_status (*queue_create_fn)(mps_device *device, const mps_queue_desc *desc, mps_queue **out_queue);
typedef mps_status (*queue_callback_fn)(mps_queue *queue, mps_callback_fn callback, void *user);

static void need(int holds, const char *what) {
  if (!holds) {
    fprintf(stderr, "library_unload: %s\n", what);
    exit(1);
  }
}

/* POSIX lets dlsym's pointer stand for a function; ISO C wants the way over memory. */
static void find(void *library, const char *name, void *out_function) {
  *(void **)out_function = dlsym(library, name);
  need(*(void **)out_function != NULL, name);
}

static void *close_with_an_error_text(void *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  need(library != NULL, "the library does not open");
  device_create_fn device_create;
  find(library, "mps_device_create", &device_create);
  need(device_create(MPS_DEVICE_HOST, 0, NULL) == MPS_STATUS_INVALID_ARGUMENT, "NULL is no place for a result");
  need(dlclose(library) == 0, "the library does not close");
  return NULL; /* the text is freed now, by a function of the library */
}

static pthread_barrier_t called_back, may_return;

static void block(void *unused) {
  (void)unused;
  pthread_barrier_wait(&called_back);
  pthread_barrier_wait(&may_return);
}

static void *close_with_a_running_queue(void *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  need(library != NULL, "the library does not open");
  device_create_fn device_create;
  queue_create_fn queue_create;
  queue_callback_fn queue_callback;
  find(library, "mps_device_create", &device_create);
  find(library, "mps_queue_create", &queue_create);
  find(library, "mps_queue_callback", &queue_callback);
  mps_device *device;
  mps_queue *queue;
  need(device_create(MPS_DEVICE_HOST, 0, &device) == MPS_STATUS_OK, "no device");
  need(queue_create(device, NULL, &queue) == MPS_STATUS_OK, "no queue");
  need(queue_callback(queue, block, NULL) == MPS_STATUS_OK, "no callback");
  pthread_barrier_wait(&called_back);
  need(dlclose(library) == 0, "the library does not close");
  return NULL;
}

static void run(void *(*body)(void *), char *path) {
  pthread_t thread;
  need(pthread_create(&thread, NULL, body, path) == 0, "no thread");
  pthread_join(thread, NULL);
}

int main(int count, char **arguments) {
  need(count == 2, "usage: library_unload LIBRARY");
  pthread_barrier_init(&called_back, NULL, 2);
  pthread_barrier_init(&may_return, NULL, 2);
  for (int i = 0; i < 2; i++) {
    run(close_with_an_error_text, arguments[1]);
    run(close_with_a_running_queue, arguments[1]);
    pthread_barrier_wait(&may_return); /* the queue's own thread goes on in the library */
  }
  return 0;
}
