/* The trace: its ring, its names, its refusals, and many threads that write while one reads. */
#include "expect.h"
#include "fake.h"
#include "trace.h"

#include <pthread.h>

enum { THREADS = 4, EACH = 5000 };

static mps_device *device;

static void start(uint32_t capacity, uint32_t flags) {
  mps_trace_desc desc = {.struct_size = sizeof desc, .capacity = capacity, .flags = flags};
  EXPECT_OK(mps_trace_start(&desc));
}

static uint32_t read_some(mps_trace_record *records, uint32_t capacity, uint64_t *dropped) {
  uint32_t count;
  EXPECT_OK(mps_trace_read(records, sizeof *records, capacity, &count, dropped));
  return count;
}

static void mark(const char *text) {
  EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS, text));
}

static void refusals(void) {
  uint32_t count;
  mps_trace_record record;
  mps_trace_desc desc = {.struct_size = sizeof desc, .flags = 0x80000000u};
  EXPECT_FAIL(mps_trace_start(&desc), INVALID_ARGUMENT, "flags is 0x80000000");
  desc = (mps_trace_desc){.struct_size = sizeof desc, .capacity = (1u << 24) + 1};
  EXPECT_FAIL(mps_trace_start(&desc), LIMIT_EXCEEDED, "16777217");
  desc = (mps_trace_desc){.struct_size = 3};
  EXPECT_FAIL(mps_trace_start(&desc), INVALID_ARGUMENT, "struct_size is 3");
  EXPECT_FAIL(mps_trace_stop(), INVALID_STATE, "no trace is running");
  EXPECT_EQUAL(mps_trace_flags(), 0);
  EXPECT_OK(mps_trace_start(NULL));
  EXPECT_FAIL(mps_trace_start(NULL), INVALID_STATE, "stop it first");
  EXPECT_FAIL(mps_trace_read(&record, 8, 1, &count, NULL), INVALID_ARGUMENT, "record_size is 8");
  EXPECT_FAIL(mps_trace_read(NULL, sizeof record, 1, &count, NULL), INVALID_ARGUMENT, "records is NULL");
  EXPECT_FAIL(mps_trace_read(&record, sizeof record, 1, NULL, NULL), INVALID_ARGUMENT, "out_count");
  EXPECT_OK(mps_trace_stop());
  EXPECT_FAIL(mps_trace_stop(), INVALID_STATE, "no trace is running");
}

/* What there is no room for is counted, and a ring that was read has room again, around its end too. */
static void ring_overflows_and_turns(void) {
  mps_trace_record records[4];
  uint64_t dropped;
  start(3, 0);
  for (int round = 0; round < 5; round++) {
    mark("a");
    mark("b");
    mark("c");
    mark("d");
    EXPECT_EQUAL(read_some(records, 2, &dropped), 2);
    EXPECT_EQUAL(dropped, 1);
    EXPECT_EQUAL(strcmp(records[0].name, "a"), 0);
    EXPECT_EQUAL(strcmp(records[1].name, "b"), 0);
    EXPECT_EQUAL(read_some(records, 4, &dropped), 1);
    EXPECT_EQUAL(dropped, 0);
    EXPECT_EQUAL(strcmp(records[0].name, "c"), 0);
  }
  mark("old");
  EXPECT_OK(mps_trace_stop());
  mark("nobody sees this");
  start(3, 0);
  EXPECT_EQUAL(read_some(records, 4, &dropped), 0);
  EXPECT_EQUAL(dropped, 0);
  EXPECT_OK(mps_trace_stop());
}

/* A caller of a longer record gets zeros in what is not known here. */
static void records_fit_the_caller(void) {
  struct {
    mps_trace_record record;
    uint64_t later;
  } longer[2];
  memset(longer, 0x55, sizeof longer);
  uint32_t count;
  start(8, 0);
  mark("one");
  mark("two");
  EXPECT_OK(mps_trace_read(longer, sizeof *longer, 2, &count, NULL));
  EXPECT_EQUAL(count, 2);
  EXPECT_EQUAL(longer[1].record.kind, MPS_TRACE_MARK);
  EXPECT_EQUAL(strcmp(longer[1].record.name, "two"), 0);
  EXPECT_EQUAL(longer[0].later, 0);
  EXPECT_EQUAL(longer[1].later, 0);
  EXPECT_OK(mps_trace_stop());
}

static void ranges_and_names(void) {
  mps_trace_record records[8];
  uint64_t outer, inner, fallback;
  start(8, 0);
  char text[] = "outer";
  EXPECT_OK(mps_signpost_begin(MPS_SIGNPOST_INTERVALS, text, &outer));
  text[0] = 'X'; /* it was copied */
  EXPECT_OK(mps_signpost_begin(MPS_SIGNPOST_INTERVALS, "inner", &inner));
  EXPECT_OK(
      mps_signpost_begin((mps_signpost_category)(MPS_SIGNPOST_INTERVALS | MPS_SIGNPOST_FALLBACKS), "cpu", &fallback));
  EXPECT_OK(mps_signpost_end(fallback, ""));
  EXPECT_OK(mps_signpost_end(inner, ""));
  EXPECT_OK(mps_signpost_end(outer, ""));
  EXPECT_EQUAL(read_some(records, 8, NULL), 3);
  EXPECT_EQUAL(records[0].kind, MPS_TRACE_FALLBACK);
  EXPECT_EQUAL(records[1].kind, MPS_TRACE_RANGE);
  EXPECT_EQUAL(strcmp(records[1].name, "inner"), 0);
  EXPECT_EQUAL(strcmp(records[2].name, "outer"), 0);
  EXPECT(records[2].start <= records[1].start && records[1].start <= records[1].end &&
         records[1].end <= records[2].end);
  EXPECT(records[2].thread != 0 && records[2].thread == records[1].thread);
  EXPECT_OK(mps_trace_stop());
  EXPECT(mps_trace_name_of("inner")->text == records[1].name);
  EXPECT(mps_trace_name_of("inner") != mps_trace_name_of("outer"));
}

/* Unlike the caller's own intervals, which are marked whether or not a trace runs. */
static void fallbacks_are_marked_as_asked(void) {
  enum {
    INTERVAL = MPS_SIGNPOST_INTERVALS | MPS_SIGNPOST_FALLBACKS,
    EVENT = MPS_SIGNPOST_EVENTS | MPS_SIGNPOST_FALLBACKS
  };
  static const struct {
    uint32_t flags, at_begin, at_end;
  } cases[] = {
      {0, 0, 0},
      {MPS_TRACE_SIGNPOST_INTERVALS | MPS_TRACE_SIGNPOST_KERNELS | MPS_TRACE_SIGNPOST_COPIES, 0, 0},
      {MPS_TRACE_SIGNPOST_INTERVALS | MPS_TRACE_SIGNPOST_FALLBACKS, INTERVAL, INTERVAL},
      {MPS_TRACE_SIGNPOST_EVENTS | MPS_TRACE_SIGNPOST_FALLBACKS, 0, EVENT},
  };
  for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
    bool traced = i < sizeof cases / sizeof *cases;
    uint64_t id;
    if (traced) {
      start(8, cases[i].flags);
    }
    fake.signpost_category = 0;
    EXPECT_OK(mps_signpost_begin((mps_signpost_category)INTERVAL, "sort", &id));
    EXPECT_EQUAL(fake.signpost_category, traced ? cases[i].at_begin : 0);
    fake.signpost_category = 0;
    EXPECT_OK(mps_signpost_end(id, ""));
    EXPECT_EQUAL(fake.signpost_category, traced ? cases[i].at_end : 0);
    if (traced) {
      mps_trace_record record;
      EXPECT_EQUAL(read_some(&record, 1, NULL), 1);
      EXPECT_EQUAL(record.kind, MPS_TRACE_FALLBACK);
      EXPECT_OK(mps_trace_stop());
    }
  }
}

static void memory_and_libraries(void) {
  mps_trace_record records[16];
  start(16, 0);
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 4096};
  mps_buffer_desc buffer_desc = {.struct_size = sizeof buffer_desc, .length = 100, .label = "weights"};
  mps_pipeline_desc pipeline_desc = {.struct_size = sizeof pipeline_desc, .kernel = "saxpy"};
  mps_heap *heap;
  mps_buffer *buffer;
  mps_library *library;
  mps_pipeline *pipeline;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  EXPECT_OK(mps_buffer_create(device, &buffer_desc, &buffer));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_heap_release(heap));
  EXPECT_OK(mps_library_create_from_source(device, "x", 1, NULL, &library));
  EXPECT_OK(mps_pipeline_create(library, &pipeline_desc, &pipeline));
  fake.fail_open = MPS_STATUS_COMPILE_FAILED;
  mps_pipeline *none;
  EXPECT_FAIL(mps_pipeline_create(library, &pipeline_desc, &none), COMPILE_FAILED, "made to fail");
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
  EXPECT_OK(mps_trace_stop());
  static const uint32_t kinds[] = {MPS_TRACE_HEAP_CREATE,  MPS_TRACE_BUFFER_CREATE, MPS_TRACE_BUFFER_RELEASE,
                                   MPS_TRACE_HEAP_RELEASE, MPS_TRACE_LIBRARY,       MPS_TRACE_PIPELINE,
                                   MPS_TRACE_PIPELINE};
  EXPECT_EQUAL(read_some(records, 16, NULL), 7);
  for (size_t i = 0; i < 7; i++) {
    EXPECT_EQUAL(records[i].kind, kinds[i]);
  }
  EXPECT_EQUAL(records[0].bytes, 4096);
  EXPECT_EQUAL(records[1].bytes, 100);
  EXPECT_EQUAL(strcmp(records[1].name, "weights"), 0);
  EXPECT_EQUAL(records[1].object, records[2].object);
  EXPECT_EQUAL(strcmp(records[5].name, "saxpy"), 0);
  EXPECT_EQUAL(records[5].status, MPS_STATUS_OK);
  EXPECT_EQUAL(records[6].status, MPS_STATUS_COMPILE_FAILED);
}

/* A trace that waits after each command lets a queue that cannot be done in time go on. */
static void waiting_trace(void) {
  mps_queue *queue;
  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 64};
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  int fills = fake.fills, waits = fake.waits;
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 64, 1));
  EXPECT_EQUAL(fake.waits, waits);
  start(8, MPS_TRACE_WAITS);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 64, 1));
  EXPECT_EQUAL(fake.waits, waits + 1);
  fake.fail_wait = MPS_STATUS_TIMEOUT;
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 64, 1));
  fake.fail_wait = MPS_STATUS_EXECUTION_FAILED;
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 0, 64, 1), EXECUTION_FAILED, "made to fail");
  EXPECT_OK(mps_trace_stop());
  EXPECT_EQUAL(fake.fills, fills + 4);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

static void *write_marks(void *argument) {
  char name[16];
  snprintf(name, sizeof name, "thread %d", *(int *)argument);
  for (int i = 0; i < EACH; i++) {
    mark(name);
  }
  return NULL;
}

/* Nothing is lost without being counted, and what one thread wrote comes in its order. */
static void many_threads(void) {
  static mps_trace_record records[512];
  pthread_t threads[THREADS];
  int numbers[THREADS];
  uint64_t seen = 0, lost = 0, last[THREADS] = {0};
  start(1024, 0);
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    pthread_create(&threads[i], NULL, write_marks, &numbers[i]);
  }
  while (seen + lost < THREADS * EACH) {
    uint64_t dropped;
    uint32_t count = read_some(records, 512, &dropped);
    for (uint32_t i = 0; i < count; i++) {
      int thread = records[i].name[strlen("thread ")] - '0';
      EXPECT(records[i].id > last[thread]);
      last[thread] = records[i].id;
    }
    seen += count;
    lost += dropped;
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  EXPECT_EQUAL(seen + lost, THREADS * EACH);
  EXPECT_OK(mps_trace_stop());
}

int main(void) {
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  refusals();
  ring_overflows_and_turns();
  records_fit_the_caller();
  ranges_and_names();
  fallbacks_are_marked_as_asked();
  memory_and_libraries();
  waiting_trace();
  many_threads();
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  return 0;
}
