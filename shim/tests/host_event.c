/* Events: between queues, to and from the CPU, times, and callbacks. */
#include "host_fixture.h"

static void test_values_and_times(void) {
  mps_event *event = make_event();
  mps_queue *queue = make_queue("signals");
  EXPECT_EQUAL(event_info(event).value, 0);
  EXPECT_EQUAL(event_info(event).time, 0);
  EXPECT_OK(mps_event_wait(event, 0, 0));
  EXPECT_FAIL(mps_event_wait(event, 1, 0), TIMEOUT, "has not reached 1");

  uint64_t before = device_time();
  EXPECT_OK(mps_queue_signal(queue, event, 5));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  mps_event_info info = event_info(event);
  EXPECT_EQUAL(info.value, 5);
  EXPECT(before <= info.time && info.time <= device_time());
  EXPECT_OK(mps_event_wait(event, 4, 0));
  EXPECT_OK(mps_event_wait(event, 5, 0));

  EXPECT_OK(mps_queue_signal(queue, event, 3)); /* goes back: no effect */
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(event_info(event).value, 5);
  EXPECT_EQUAL(event_info(event).time, info.time);

  EXPECT_OK(mps_event_signal(event, 6));
  EXPECT_EQUAL(event_info(event).value, 6);
  EXPECT_EQUAL(event_info(event).time, 0);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_queue_release(queue));
}

/* Two events around a kernel of known length: the times are as far apart, and the second is the later one. */
static void test_elapsed(void) {
  mps_queue *queue = make_queue("elapsed");
  mps_event *start = make_event(), *end = make_event();
  EXPECT_OK(mps_queue_signal(queue, start, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  uint64_t opened = device_time();
  barrier_gate gate = gate_close(queue);
  EXPECT_OK(mps_queue_signal(queue, end, 1));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  sleep_ms(20);
  EXPECT_EQUAL(event_info(end).value, 0);
  gate_open(gate);
  EXPECT_OK(mps_event_wait(end, 1, 60 * SECOND));
  uint64_t closed = device_time();
  uint64_t elapsed = event_info(end).time - event_info(start).time;
  EXPECT(elapsed >= SECOND / 50);
  EXPECT(event_info(start).time <= opened && event_info(end).time <= closed);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));

  for (uint64_t i = 2; i < 2000; i++) { /* back to back, by the caller's thread */
    EXPECT_OK(mps_queue_signal(queue, start, i));
    EXPECT_OK(mps_queue_signal(queue, end, i));
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT(event_info(start).time <= event_info(end).time);
  }
  EXPECT_OK(mps_event_release(start));
  EXPECT_OK(mps_event_release(end));
  EXPECT_OK(mps_queue_release(queue));
}

/* A queue that waits holds up nobody else, and goes on with what the other one wrote. */
static void test_between_queues(void) {
  mps_queue *first = make_queue("first"), *second = make_queue("second"), *third = make_queue("third");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *a = make_buffer(4000000), *b = make_buffer(4000000), *c = make_buffer(4000000);
  mps_event *event = make_event();
  uint32_t seven = 7;
  EXPECT_OK(mps_queue_wait_event(second, event, 1));
  EXPECT_OK(mps_queue_copy(second, a, 0, b, 0, 4000000));
  EXPECT_OK(mps_queue_signal(second, event, 2));
  EXPECT_OK(mps_queue_commit(second, NULL));

  run(third, add, c, &seven, 1000000); /* with the pool's help */
  EXPECT_OK(mps_queue_wait(third, 60 * SECOND));
  EXPECT_EQUAL(words(c)[999999], 7);
  EXPECT(!is_idle(second));

  run(first, add, a, &seven, 1000000);
  EXPECT_OK(mps_queue_signal(first, event, 1));
  EXPECT_OK(mps_queue_commit(first, NULL));
  EXPECT_OK(mps_event_wait(event, 2, 60 * SECOND));
  EXPECT_EQUAL(words(b)[0], 7);
  EXPECT_EQUAL(words(b)[999999], 7);
  EXPECT_OK(mps_queue_wait(first, MPS_FOREVER));
  EXPECT_OK(mps_queue_wait(second, MPS_FOREVER));

  EXPECT_OK(mps_queue_wait_event(first, event, 2)); /* reached: costs the host device nothing */
  EXPECT_OK(mps_queue_wait(first, on_metal ? MPS_FOREVER : 0));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
  EXPECT_OK(mps_buffer_release(c));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(first));
  EXPECT_OK(mps_queue_release(second));
  EXPECT_OK(mps_queue_release(third));
}

/* A wait takes part in the order: what comes after it does not run before the CPU signals. */
static void test_wait_for_cpu(void) {
  mps_queue *queue = make_queue("waits for the CPU");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(4);
  mps_event *event = make_event();
  uint32_t one = 1;
  EXPECT_OK(mps_queue_wait_event(queue, event, 1));
  run(queue, add, buffer, &one, 1);
  EXPECT_FAIL(mps_queue_wait(queue, SECOND / 50), TIMEOUT, "");
  EXPECT_EQUAL(words(buffer)[0], 0);
  EXPECT_OK(mps_event_signal(event, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(buffer)[0], 1);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* Two queues that signal one event: a wait for it reports the failure of either. */
static void test_failure_of_second_source(void) {
  mps_queue *good = make_queue("good"), *bad = make_queue("bad");
  mps_pipeline *wild = make_pipeline("wild");
  mps_event *event = make_event();
  EXPECT_OK(mps_queue_signal(good, event, 1));
  EXPECT_OK(mps_queue_commit(good, NULL));
  run(bad, wild, NULL, NULL, 1);
  EXPECT_OK(mps_queue_signal(bad, event, 2));
  EXPECT_OK(mps_queue_release(bad)); /* its failure is still known */
  EXPECT_FAIL(mps_event_wait(event, 2, MPS_FOREVER), EXECUTION_FAILED, "kernel 'wild' failed");
  EXPECT_OK(mps_event_wait(event, 2, MPS_FOREVER));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_pipeline_release(wild));
  EXPECT_OK(mps_queue_release(good));
}

/* ---- callbacks ---- */

typedef struct calls {
  pthread_t thread; /* of the last call */
  _Atomic int count;
  char order[16];
} calls;

typedef struct call {
  calls *calls;
  char mark;
} call;

static void on_reached(void *user) {
  call *call = user;
  call->calls->thread = pthread_self();
  int number = atomic_load(&call->calls->count);
  call->calls->order[number] = call->mark;
  atomic_store(&call->calls->count, number + 1);
}

static void await_calls(calls *calls, int count) {
  while (atomic_load(&calls->count) < count) {
    sleep_ms(1);
  }
}

static void test_notify(void) {
  calls calls = {.count = 0};
  call a = {&calls, 'a'}, b = {&calls, 'b'}, c = {&calls, 'c'}, d = {&calls, 'd'}, never = {&calls, 'x'};
  mps_event *event = make_event();
  mps_queue *queue = make_queue("notifies");
  EXPECT_OK(mps_event_notify(event, 0, on_reached, &a)); /* reached: at once, here */
  EXPECT_EQUAL(calls.count, 1);
  EXPECT(pthread_equal(calls.thread, pthread_self()));
  EXPECT_OK(mps_event_notify(event, 3, on_reached, &d));
  EXPECT_OK(mps_event_notify(event, 1, on_reached, &b));
  EXPECT_OK(mps_event_notify(event, 2, on_reached, &c));
  EXPECT_OK(mps_event_notify(event, 9, on_reached, &never));
  EXPECT_OK(mps_event_signal(event, 1));
  await_calls(&calls, 2);
  EXPECT(!pthread_equal(calls.thread, pthread_self()));
  EXPECT_OK(mps_queue_signal(queue, event, 8));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  await_calls(&calls, 4);
  EXPECT_EQUAL(strcmp(calls.order, "abcd"), 0);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_EQUAL(calls.count, 4);
}

/* ---- many threads on one event ---- */

enum { WAITERS = 4, STEPS = 200 };

static mps_event *relay;

/* Waiter n signals the values n + 1, n + 1 + WAITERS, ... each once the value before is there. */
static void *relay_run(void *argument) {
  for (uint64_t value = (uintptr_t)argument + 1; value <= STEPS; value += WAITERS) {
    EXPECT_OK(mps_event_wait(relay, value - 1, 60 * SECOND));
    EXPECT_EQUAL(event_info(relay).value, value - 1);
    EXPECT_OK(mps_event_signal(relay, value));
  }
  return NULL;
}

static void test_relay(void) {
  pthread_t threads[WAITERS];
  relay = make_event();
  for (uintptr_t i = 0; i < WAITERS; i++) {
    EXPECT_EQUAL(pthread_create(&threads[i], NULL, relay_run, (void *)i), 0);
  }
  EXPECT_OK(mps_event_wait(relay, STEPS, 60 * SECOND));
  for (int i = 0; i < WAITERS; i++) {
    pthread_join(threads[i], NULL);
  }
  EXPECT_OK(mps_event_release(relay));
}

/* Value and time belong together, whoever reads while queues signal. */
static void *watch(void *argument) {
  mps_event *event = argument;
  for (mps_event_info last = {0}, info; last.value < 3000; last = info) {
    info = event_info(event);
    EXPECT(info.value >= last.value);
    EXPECT(info.value == last.value ? info.time == last.time : info.time >= last.time);
  }
  return NULL;
}

static void test_consistent_reads(void) {
  mps_event *event = make_event();
  mps_queue *queue = make_queue("watched");
  pthread_t thread;
  EXPECT_EQUAL(pthread_create(&thread, NULL, watch, event), 0);
  for (uint64_t i = 1; i <= 3000; i++) {
    EXPECT_OK(mps_queue_signal(queue, event, i));
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  pthread_join(thread, NULL);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_queue_release(queue));
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  test_values_and_times();
  test_elapsed();
  test_between_queues();
  test_wait_for_cpu();
  test_failure_of_second_source();
  test_notify();
  test_relay();
  test_consistent_reads();
  while (live_objects().events || live_objects().queues) {
    sleep_ms(1);
  }
  fixture_close();
  return 0;
}
