/* The Metal device: command buffers, their handlers, and events. */
#include "metal_fixture.h"

/* The GPU starts before the caller commits, and yet all is one command buffer. */
static void test_early_start(void) {
  for (int i = 0; i < 1000; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4096, (uint8_t)(i + 1)));
  }
  while (live_objects().pending_commands == 1000) {
    usleep(100);
  }
  uint64_t serial;
  EXPECT_OK(mps_queue_commit(queue, &serial));
  EXPECT_EQUAL(serial, 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(bytes(buffer)[4095], 1000 & 255);
  mps_command_info info = command_info(1);
  EXPECT(info.start != 0 && info.start < info.end && info.scheduled == 1);
}

static void test_remembered_commands(void) {
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_FAIL(mps_queue_get_command_info(queue, 1, &info), NOT_FOUND, "its last one is 0");
  for (int i = 0; i < 70; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 1));
    EXPECT_OK(mps_queue_commit(queue, NULL));
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FAIL(mps_queue_get_command_info(queue, 6, &info), NOT_FOUND, "it remembers 64");
  EXPECT(command_info(7).end <= command_info(70).start);
}

/* Twice as many as may be in flight are committed, and none runs: commits get slow, but do not hang. */
static void test_full_queue(void) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .max_command_buffers = 2};
  mps_queue *narrow;
  EXPECT_OK(mps_queue_create(device, &desc, &narrow));
  standin_set("kept_commands", 1);
  for (int i = 0; i < 4; i++) {
    EXPECT_OK(mps_queue_fill(narrow, buffer, 0, 4, (uint8_t)i));
    EXPECT_OK(mps_queue_commit(narrow, NULL));
  }
  EXPECT_FAIL(mps_queue_wait(narrow, SECOND / 100), TIMEOUT, "command buffer 4");
  EXPECT_FAIL(mps_queue_wait(narrow, 0), TIMEOUT, "command buffer 4");
  EXPECT_EQUAL(live_objects().pending_commands, 4);
  standin_set("kept_commands", 0);
  EXPECT_OK(mps_queue_wait(narrow, MPS_FOREVER));
  EXPECT_EQUAL(live_objects().pending_commands, 0);
  EXPECT_OK(mps_queue_release(narrow));
}

/* A queue of 200 fills is let go of: they still run. */
static void test_release_with_work(void) {
  mps_queue *released = make_queue("released");
  for (int i = 0; i < 200; i++) {
    EXPECT_OK(mps_queue_fill(released, buffer, 0, 4, (uint8_t)i));
  }
  EXPECT_OK(mps_queue_release(released));
  standin_settle();
  EXPECT_EQUAL(bytes(buffer)[3], 199);
}

typedef struct hearing {
  _Atomic int scheduled, completed, waited;
  mps_status status;
} hearing;

static void on_scheduled(void *user, const mps_command_info *info) {
  hearing *heard = user;
  EXPECT_EQUAL(info->scheduled, 1);
  EXPECT_EQUAL(info->end, 0);
  EXPECT_EQUAL(atomic_load(&heard->completed), 0);
  atomic_fetch_add(&heard->scheduled, 1);
}

static void on_completed(void *user, const mps_command_info *info) {
  hearing *heard = user;
  EXPECT_EQUAL(atomic_load(&heard->scheduled), 1);
  EXPECT(info->end >= info->start);
  EXPECT_EQUAL(info->message[0] != '\0', info->status == MPS_STATUS_EXECUTION_FAILED);
  heard->status = mps_queue_wait(queue, MPS_FOREVER); /* which cannot be */
  atomic_fetch_add(&heard->completed, 1);
}

/* Handlers of an empty command buffer, of one that was on its way before its commit, and of both when they fail. */
static void test_handlers(void) {
  for (int kind = 0; kind < 4; kind++) {
    hearing heard = {0};
    standin_set("fail_commands", kind >= 2);
    if (kind % 2 == 1) {
      for (int i = 0; i < 64; i++) {
        EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, (uint8_t)i));
      }
    }
    EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_SCHEDULED, on_scheduled, &heard));
    EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, on_completed, &heard));
    uint64_t serial;
    EXPECT_OK(mps_queue_commit(queue, &serial));
    EXPECT_EQUAL(serial, (uint64_t)kind + 1);
    mps_status status = mps_queue_wait(queue, MPS_FOREVER);
    EXPECT_EQUAL(status, kind >= 2 ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK);
    EXPECT_EQUAL(heard.scheduled, 1);
    EXPECT_EQUAL(heard.completed, 1);
    EXPECT_EQUAL(heard.status, MPS_STATUS_INVALID_STATE);
  }
}

/* A signal that is lower than what is signalled changes nothing, also for a queue that waits. */
static void test_backward_signal(void) {
  mps_queue *other = make_queue("waits");
  mps_event *event = make_event();
  mps_event_info info = {.struct_size = sizeof info};
  standin_set("kept_commands", 1);
  EXPECT_OK(mps_queue_signal(queue, event, 3)); /* when this runs, the event is at 9 */
  EXPECT_OK(mps_event_signal(event, 9));
  EXPECT_OK(mps_queue_signal(queue, event, 5)); /* known to be late when it is encoded */
  EXPECT_OK(mps_queue_fill(other, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_wait_event(other, event, 8));
  EXPECT_OK(mps_queue_fill(other, buffer, 0, 4, 7));
  EXPECT_OK(mps_queue_commit(other, NULL));
  standin_set("kept_commands", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_queue_wait(other, 5 * SECOND));
  EXPECT_OK(mps_event_get_info(event, &info));
  EXPECT_EQUAL(info.value, 9);
  EXPECT_EQUAL(info.time, 0);
  EXPECT_EQUAL(bytes(buffer)[0], 7);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_queue_release(other));
}

static void count_up(void *user) {
  atomic_fetch_add((_Atomic int *)user, 1);
}

static void test_notifications(void) {
  mps_event *event = make_event(), *never = make_event();
  _Atomic int calls = 0;
  EXPECT_OK(mps_event_notify(event, 2, count_up, &calls));
  EXPECT_OK(mps_event_notify(event, 3, count_up, &calls));
  EXPECT_OK(mps_event_notify(never, 1, count_up, &calls)); /* dropped with its event */
  EXPECT_OK(mps_event_signal(event, 1));
  EXPECT_FAIL(mps_event_wait(event, 2, SECOND / 100), TIMEOUT, "it is at 1");
  EXPECT_FAIL(mps_event_wait(event, 2, 0), TIMEOUT, "it is at 1");
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 0);
  EXPECT_OK(mps_event_signal(event, 2));
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 1);
  EXPECT_OK(mps_event_signal(event, 7));
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 2);
  EXPECT_OK(mps_event_notify(event, 7, count_up, &calls)); /* at once */
  EXPECT_EQUAL(atomic_load(&calls), 3);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_event_release(never));
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {
      test_early_start, test_remembered_commands, test_full_queue,   test_release_with_work,
      test_handlers,    test_backward_signal,     test_notifications};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
