/* What the tests of the Metal device share: what no test of both devices reaches, since only the stand-in can be told
 * to fail. The kernel library of shim/tests/host_kernels.c is argv[1]. */
#ifndef MPS_TESTS_METAL_FIXTURE_H
#define MPS_TESTS_METAL_FIXTURE_H

#include "host_fixture.h"
#include "standin.h"

#include <unistd.h>

static char directory[] = "/tmp/mpsshim-test-XXXXXX"; /* for the test's files */
static const char *kernels_path;

/* Made anew for each test, as the device and the library are. */
static mps_queue *queue;   /* "first" */
static mps_buffer *buffer; /* of 4096 bytes, which are zero */

static inline unsigned char *bytes(mps_buffer *of) {
  return (unsigned char *)words(of);
}

/* add(target, value) over one thread */
static inline mps_status add(mps_pipeline *kernel, mps_buffer *target, uint32_t value) {
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = target},
                              {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &value, .length = sizeof value}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = kernel,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {1, 1, 1}};
  return mps_queue_dispatch(queue, &dispatch);
}

static inline mps_command_info command_info(uint64_t serial) {
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_queue_get_command_info(queue, serial, &info));
  return info;
}

static inline void open_device(void) {
  EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
  EXPECT_OK(mps_library_create_from_file(device, kernels_path, &library));
  queue = make_queue("first");
  buffer = make_buffer(4096);
}

static inline void close_device(void) {
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_library_release(library));
  standin_settle();
  EXPECT_OK(mps_device_release(device));
  standin_settle();
}

static inline void ignore(void *user) {
  (void)user;
}

/* The list of GPUs, and the queue of events' callbacks, which the first of them makes. */
static inline long make_what_stays(void) {
  open_device();
  mps_event *event = make_event();
  EXPECT_OK(mps_event_notify(event, 1, ignore, NULL));
  EXPECT_OK(mps_event_signal(event, 1));
  EXPECT_OK(mps_event_release(event));
  close_device();
  EXPECT_EQUAL(standin_live_objects(), 2);
  return 2;
}

/* Each test has a device of its own, and nothing is left of either. */
static inline int run_tests(int argc, char **argv, void (*const tests[])(void), size_t count) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s KERNEL_LIBRARY\n", argv[0]);
    return 2;
  }
  kernels_path = argv[1];
  EXPECT(mkdtemp(directory) != NULL);
  setenv("MPSCFFI_CACHE_DIR", "/proc/none", 1);
  long objects = make_what_stays();
  for (size_t i = 0; i < count; i++) {
    open_device();
    tests[i]();
    close_device();
    EXPECT_EQUAL(standin_live_objects(), objects);
    expect_nothing_lives();
  }
  char command[200];
  snprintf(command, sizeof command, "rm -rf '%s'", directory);
  return system(command) == 0 ? 0 : 1;
}

#endif
