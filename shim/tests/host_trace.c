/* Traces of the host device: what ran at once, what the queue's thread ran, failures, callbacks, memory. */
#include "host_fixture.h"

enum { ROOM = 256 };

static mps_trace_record records[ROOM];

static void start(uint32_t flags) {
  mps_trace_desc desc = {.struct_size = sizeof desc, .flags = flags};
  EXPECT_OK(mps_trace_start(&desc));
}

/* Stop and read; how many. */
static uint32_t finish(void) {
  uint32_t count;
  uint64_t dropped;
  EXPECT_OK(mps_trace_stop());
  EXPECT_OK(mps_trace_read(records, sizeof *records, ROOM, &count, &dropped));
  EXPECT_EQUAL(dropped, 0);
  return count;
}

static uint32_t count_of(uint32_t count, mps_trace_kind kind) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; i++) {
    found += records[i].kind == kind;
  }
  return found;
}

static const mps_trace_record *find(uint32_t count, mps_trace_kind kind, const char *name) {
  for (uint32_t i = 0; i < count; i++) {
    if (records[i].kind == kind && strcmp(records[i].name, name) == 0) {
      return &records[i];
    }
  }
  fprintf(stderr, "no record of kind %d named '%s'\n", (int)kind, name);
  exit(1);
}

static void expect_times(const mps_trace_record *record, uint64_t before, uint64_t after) {
  EXPECT(before <= record->encoded);
  EXPECT(record->encoded <= record->start);
  EXPECT(record->start <= record->end);
  EXPECT(record->end <= after);
}

static void test_at_once(void) {
  mps_queue *queue = make_queue("traced");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(1000 * 4);
  uint32_t one = 1;
  run(queue, add, buffer, &one, 1000);
  uint64_t before = device_time();
  start(0);
  run(queue, add, buffer, &one, 1000);
  EXPECT_OK(mps_queue_copy(queue, buffer, 0, buffer, 2000, 100));
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 50, 7));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  uint64_t after = device_time();
  uint32_t count = finish();
  run(queue, add, buffer, &one, 1000);
  EXPECT_EQUAL(count, 4);
  const mps_trace_record *dispatch = find(count, MPS_TRACE_DISPATCH, "add");
  expect_times(dispatch, before, after);
  EXPECT_EQUAL(dispatch->grid[0], 1000);
  EXPECT_EQUAL(dispatch->group[0], 256);
  EXPECT_EQUAL(dispatch->together, 1);
  EXPECT_EQUAL(strcmp(dispatch->queue_name, "traced"), 0);
  EXPECT_EQUAL(find(count, MPS_TRACE_COPY, "copy")->bytes, 100);
  const mps_trace_record *fill = find(count, MPS_TRACE_FILL, "fill");
  EXPECT_EQUAL(fill->bytes, 50);
  EXPECT_EQUAL(fill->queue, dispatch->queue);
  EXPECT(dispatch->id < fill->id && dispatch->end <= fill->start);
  const mps_trace_record *whole = find(count, MPS_TRACE_COMMAND_BUFFER, "command buffer");
  EXPECT_EQUAL(whole->serial, 1);
  EXPECT(whole->end >= fill->end);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

static void nothing(void *user) {
  (void)user;
}

/* What was encoded while the trace ran is in it, though it ends after the trace. */
static void test_later(void) {
  mps_queue *queue = make_queue("later");
  mps_pipeline *add = make_pipeline("add_loop");
  mps_buffer *buffer = make_buffer(4000);
  mps_event *event = make_event();
  uint32_t one = 1;
  barrier_gate gate = gate_close(queue);
  start(MPS_TRACE_BUFFERS);
  run(queue, add, buffer, &one, 1000);
  EXPECT_OK(mps_queue_signal(queue, event, 5));
  EXPECT_OK(mps_queue_wait_event(queue, event, 5));
  EXPECT_OK(mps_queue_callback(queue, nothing, NULL));
  EXPECT_OK(mps_trace_stop());
  run(queue, add, buffer, &one, 1000);
  uint64_t opened = device_time();
  gate_open(gate);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  uint32_t count;
  EXPECT_OK(mps_trace_read(records, sizeof *records, ROOM, &count, NULL));
  EXPECT_EQUAL(count, 6);
  const mps_trace_record *dispatch = find(count, MPS_TRACE_DISPATCH, "add_loop");
  EXPECT(dispatch->encoded < opened && opened <= dispatch->start);
  EXPECT_EQUAL(find(count, MPS_TRACE_SIGNAL, "signal")->bytes, 5);
  EXPECT(find(count, MPS_TRACE_SIGNAL, "signal")->end <= find(count, MPS_TRACE_WAIT, "wait")->end);
  EXPECT(find(count, MPS_TRACE_CALLBACK, "callback")->start >= dispatch->end);
  const mps_trace_record *argument = find(count, MPS_TRACE_ARGUMENT, "");
  EXPECT_EQUAL(argument->id, dispatch->id);
  EXPECT_EQUAL(argument->bytes, 4000);
  EXPECT_EQUAL(argument->serial, 0);
  EXPECT_EQUAL(argument->object, (uintptr_t)buffer);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* The command that failed and those that were skipped for it are marked. */
static void test_failure(void) {
  static const char *const kernels[] = {"wild", "wild_loop"};
  for (int i = 0; i < 2; i++) {
    mps_queue *queue = make_queue("failing");
    mps_pipeline *wild = make_pipeline(kernels[i]), *add = make_pipeline("add");
    mps_buffer *buffer = make_buffer(400);
    uint32_t one = 1;
    start(0);
    run(queue, wild, NULL, NULL, 1);
    run(queue, add, buffer, &one, 100);
    EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "wild");
    uint32_t count = finish();
    EXPECT_EQUAL(find(count, MPS_TRACE_DISPATCH, kernels[i])->status, MPS_STATUS_EXECUTION_FAILED);
    const mps_trace_record *skipped = find(count, MPS_TRACE_DISPATCH, "add");
    EXPECT_EQUAL(skipped->status, MPS_STATUS_EXECUTION_FAILED);
    EXPECT_EQUAL(skipped->start, skipped->end);
    EXPECT_OK(mps_buffer_release(buffer));
    EXPECT_OK(mps_pipeline_release(wild));
    EXPECT_OK(mps_pipeline_release(add));
    EXPECT_OK(mps_queue_release(queue));
  }
}

/* The buffers of a copy and of a fill come before these. */
static void test_buffers(void) {
  mps_queue *queue = make_queue("buffers");
  mps_buffer *source = make_buffer(64), *target = make_buffer(32);
  start(MPS_TRACE_BUFFERS);
  EXPECT_OK(mps_queue_copy(queue, source, 0, target, 0, 32));
  EXPECT_OK(mps_queue_fill(queue, source, 0, 64, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(finish(), 6);
  const mps_buffer *buffers[] = {source, target, source};
  static const int places[] = {0, 1, 3}, commands[] = {2, 2, 4};
  for (int i = 0; i < 3; i++) {
    EXPECT_EQUAL(records[places[i]].kind, MPS_TRACE_ARGUMENT);
    EXPECT_EQUAL(records[places[i]].object, (uintptr_t)buffers[i]);
    EXPECT_EQUAL(records[places[i]].serial, i % 2);
    EXPECT_EQUAL(records[places[i]].id, records[commands[i]].id);
  }
  EXPECT_EQUAL(records[2].kind, MPS_TRACE_COPY);
  EXPECT_EQUAL(records[4].kind, MPS_TRACE_FILL);
  EXPECT_OK(mps_buffer_release(source));
  EXPECT_OK(mps_buffer_release(target));
  EXPECT_OK(mps_queue_release(queue));
}

/* Each command twice: as it is encoded, and as it ends. */
static void test_encoded(void) {
  mps_queue *queue = make_queue("twice");
  mps_buffer *buffer = make_buffer(64);
  start(MPS_TRACE_ENCODED | MPS_TRACE_WAITS);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 64, 1));
  uint32_t count = finish();
  EXPECT_EQUAL(count, 3);
  EXPECT_EQUAL(count_of(count, MPS_TRACE_FILL), 2);
  EXPECT_EQUAL(records[0].end, 0);
  EXPECT(records[1].end != 0);
  EXPECT_EQUAL(records[0].id, records[1].id);
  EXPECT_EQUAL(count_of(count, MPS_TRACE_COMMAND_BUFFER), 1);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

enum { WRITERS = 4, LAUNCHES = 2000 };

static void *launch(void *argument) {
  mps_pipeline *add = argument;
  mps_queue *queue = make_queue("writer");
  mps_buffer *buffer = make_buffer(4);
  uint32_t one = 1;
  for (int i = 0; i < LAUNCHES; i++) {
    run(queue, add, buffer, &one, 1);
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(buffer)[0], LAUNCHES);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  return NULL;
}

/* Traces that start and stop while commands run see whole records, and each command once at most. */
static void test_threads(void) {
  mps_pipeline *add = make_pipeline("add");
  pthread_t threads[WRITERS];
  for (int i = 0; i < WRITERS; i++) {
    pthread_create(&threads[i], NULL, launch, add);
  }
  uint64_t seen = 0;
  for (int round = 0; round < 50; round++) {
    uint32_t count;
    start(round % 2 == 0 ? 0 : MPS_TRACE_BUFFERS);
    sleep_ms(1);
    EXPECT_OK(mps_trace_stop());
    do {
      EXPECT_OK(mps_trace_read(records, sizeof *records, ROOM, &count, NULL));
      for (uint32_t i = 0; i < count; i++) {
        EXPECT(records[i].kind != 0 && records[i].name != NULL && records[i].start <= records[i].end);
        seen += records[i].kind == MPS_TRACE_DISPATCH;
      }
    } while (count > 0);
  }
  for (int i = 0; i < WRITERS; i++) {
    pthread_join(threads[i], NULL);
  }
  EXPECT(seen <= WRITERS * LAUNCHES);
  EXPECT_OK(mps_pipeline_release(add));
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  test_at_once();
  test_later();
  test_failure();
  test_buffers();
  test_encoded();
  test_threads();
  fixture_close();
  return 0;
}
