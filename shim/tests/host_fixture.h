/* What the tests of queues and events share. The kernel library of host_kernels.c is argv[1], the device argv[2]. */
#ifndef MPS_TESTS_HOST_FIXTURE_H
#define MPS_TESTS_HOST_FIXTURE_H

#include "expect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

static const uint64_t SECOND = 1000000000;

static mps_device *device;
static mps_library *library;
static bool on_metal; /* else on the host device */

static inline void fixture_open(int argc, char **argv) {
  if (argc != 3 || (strcmp(argv[2], "host") != 0 && strcmp(argv[2], "metal") != 0)) {
    fprintf(stderr, "usage: %s KERNEL_LIBRARY host|metal\n", argv[0]);
    exit(2);
  }
  on_metal = strcmp(argv[2], "metal") == 0;
  EXPECT_OK(mps_device_create(on_metal ? MPS_DEVICE_METAL : MPS_DEVICE_HOST, 0, &device));
  EXPECT_OK(mps_library_create_from_file(device, argv[1], &library));
}

/* Queues and what they used are released by their threads, shortly after the last wait. */
static inline void fixture_close(void) {
  EXPECT_OK(mps_library_release(library));
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
}

static inline mps_queue *make_queue(const char *label) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .label = label};
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  return queue;
}

static inline mps_event *make_event(void) {
  mps_event *event;
  EXPECT_OK(mps_event_create(device, &event));
  return event;
}

static inline mps_pipeline *make_pipeline(const char *kernel) {
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = kernel};
  mps_pipeline *pipeline;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  return pipeline;
}

static inline mps_buffer *make_buffer(uint64_t length) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = length};
  mps_buffer *buffer;
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  return buffer;
}

static inline uint32_t *words(mps_buffer *buffer) {
  void *pointer;
  EXPECT_OK(mps_buffer_contents(buffer, &pointer));
  return pointer;
}

static inline bool in_use(mps_buffer *buffer) {
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  return info.in_use;
}

static inline bool is_idle(mps_queue *queue) {
  uint32_t idle;
  EXPECT_OK(mps_queue_is_idle(queue, &idle));
  return idle;
}

static inline mps_event_info event_info(mps_event *event) {
  mps_event_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_event_get_info(event, &info));
  return info;
}

static inline uint64_t device_time(void) {
  uint64_t cpu, gpu;
  EXPECT_OK(mps_device_timestamps(device, &cpu, &gpu));
  return gpu;
}

static inline void sleep_ms(int milliseconds) {
  struct timespec time = {0, milliseconds * 1000000L};
  nanosleep(&time, NULL);
}

/* Encode kernel(buffer, value...) over `threads` threads; `value` goes inline unless it is NULL. */
static inline void run(mps_queue *queue, mps_pipeline *pipeline, mps_buffer *buffer, const uint32_t *value,
                       uint64_t threads) {
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
                              {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = value, .length = sizeof *value}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = pipeline,
                           .arguments = arguments,
                           .argument_count = buffer ? (value ? 2 : 1) : 0,
                           .grid = {threads, 1, 1},
                           .group = {threads < 256 ? threads : 256, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
}

/* A queue that is at work until opened: what is encoded after it cannot run at once. */
typedef struct barrier_gate {
  mps_pipeline *pipeline;
  mps_buffer *buffer;
} barrier_gate;

static inline barrier_gate gate_close(mps_queue *queue) {
  barrier_gate gate = {make_pipeline("gate"), make_buffer(4)};
  run(queue, gate.pipeline, gate.buffer, NULL, 1);
  EXPECT_OK(mps_queue_commit(queue, NULL));
  return gate;
}

static inline void gate_open(barrier_gate gate) {
  __atomic_store_n(words(gate.buffer), 1, __ATOMIC_RELEASE);
  EXPECT_OK(mps_buffer_release(gate.buffer));
  EXPECT_OK(mps_pipeline_release(gate.pipeline));
}

#endif
