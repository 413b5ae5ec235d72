/* Error texts belong to their thread; objects are made and released on any thread; a forked child is told so. */
#include "expect.h"
#include "fake.h"
#include "status.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void every_status_has_a_text(void) {
  for (int i = MPS_STATUS_OK; i <= MPS_STATUS_INTERNAL; i++) {
    EXPECT(strcmp(mps_status_text((mps_status)i), "unknown status") != 0);
    for (int j = 0; j < i; j++) {
      EXPECT(strcmp(mps_status_text((mps_status)i), mps_status_text((mps_status)j)) != 0);
    }
  }
  EXPECT(strcmp(mps_status_text((mps_status)15), "unknown status") == 0);
  EXPECT(strcmp(mps_status_text((mps_status)-1), "unknown status") == 0);
}

static void a_text_may_be_long_and_may_quote_the_last_one(void) {
  enum { LENGTH = 1000000 };
  char *log = malloc(LENGTH + 1);
  memset(log, 'e', LENGTH);
  log[LENGTH] = '\0';
  EXPECT_EQUAL(mps_fail_text(MPS_STATUS_COMPILE_FAILED, log, LENGTH), MPS_STATUS_COMPILE_FAILED);
  EXPECT(strcmp(mps_error_message(), log) == 0);
  mps_fail(MPS_STATUS_COMPILE_FAILED, "again: %s", mps_error_message());
  EXPECT_EQUAL(strlen(mps_error_message()), LENGTH + 7);
  mps_fail_text(MPS_STATUS_IO, "abcdef", 3);
  EXPECT(strcmp(mps_error_message(), "abc") == 0);
  free(log);
}

static mps_device *device;

static void *work(void *number) {
  EXPECT(strcmp(mps_error_message(), "") == 0);
  for (int i = 0; i < 2000; i++) {
    char text[32];
    snprintf(text, sizeof text, "thread %d, %d", *(int *)number, i);
    mps_fail(MPS_STATUS_IO, "%s", text);
    mps_buffer *buffer;
    mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 16, .label = text};
    EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
    EXPECT_OK(mps_buffer_retain(buffer));
    mps_device *same;
    EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &same));
    EXPECT(same == device);
    EXPECT_OK(mps_buffer_release(buffer));
    EXPECT_OK(mps_device_release(same));
    EXPECT_OK(mps_buffer_release(buffer));
    EXPECT(strcmp(mps_error_message(), text) == 0);
  }
  return NULL;
}

/* A device that is opened and closed all the time by several threads: each finds it open, or opens it. */
static void *open_and_close(void *unused) {
  (void)unused;
  for (int i = 0; i < 2000; i++) {
    mps_device *second;
    mps_event *event;
    EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 1, &second));
    EXPECT_OK(mps_event_create(second, &event));
    EXPECT_OK(mps_device_release(second));
    EXPECT_OK(mps_event_release(event));
  }
  return NULL;
}

static void run_threads(void *(*body)(void *)) {
  pthread_t threads[4];
  int numbers[4];
  for (int i = 0; i < 4; i++) {
    numbers[i] = i;
    EXPECT(pthread_create(&threads[i], NULL, body, &numbers[i]) == 0);
  }
  for (int i = 0; i < 4; i++) {
    EXPECT(pthread_join(threads[i], NULL) == 0);
  }
}

static int run_child(int (*body)(void)) {
  pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    _exit(body());
  }
  int status;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static int use_a_device(void) {
  mps_device *fresh;
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &fresh));
  EXPECT_OK(mps_device_release(fresh));
  return 42;
}

static int everything_says_forked(void) {
  uint32_t count;
  uint64_t id;
  EXPECT_FAIL(mps_device_count(MPS_DEVICE_HOST, &count), FORKED, "spawn");
  mps_device *again;
  EXPECT_FAIL(mps_device_create(MPS_DEVICE_HOST, 0, &again), FORKED, "spawn");
  EXPECT_FAIL(mps_device_release(device), FORKED, "spawn");
  EXPECT_FAIL(mps_queue_wait(NULL, 0), FORKED, "spawn");
  EXPECT_FAIL(mps_signpost_event(MPS_SIGNPOST_EVENTS, "x"), FORKED, "spawn");
  EXPECT_FAIL(mps_signpost_begin(MPS_SIGNPOST_EVENTS, "x", &id), FORKED, "spawn");
  EXPECT_FAIL(mps_signpost_end(1, "x"), FORKED, "spawn");
  EXPECT_FAIL(mps_trace_start(NULL), FORKED, "spawn");
  EXPECT_FAIL(mps_trace_stop(), FORKED, "spawn");
  EXPECT_FAIL(mps_trace_read(NULL, sizeof(mps_trace_record), 0, &count, NULL), FORKED, "spawn");
  EXPECT_EQUAL(live_objects().devices, 1);
  EXPECT_EQUAL(mps_abi_version(), MPS_ABI_VERSION);
  return 43;
}

static int everything_says_forked_to_a_grandchild(void) {
  return run_child(everything_says_forked);
}

int main(void) {
  EXPECT(strcmp(mps_error_message(), "") == 0);
  every_status_has_a_text();
  a_text_may_be_long_and_may_quote_the_last_one();
  EXPECT_EQUAL(run_child(use_a_device), 42); /* nothing was opened so far: a child may begin */

  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  run_threads(work);
  run_threads(open_and_close);
  EXPECT_EQUAL(live_objects().devices, 1);
  EXPECT_EQUAL(run_child(everything_says_forked), 43);
  EXPECT_EQUAL(run_child(everything_says_forked_to_a_grandchild), 43);
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  EXPECT_EQUAL(atomic_load(&fake.opened), 0);
  return 0;
}
