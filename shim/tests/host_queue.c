/* Queues: order, arguments, times, failures, handlers, and what they hold. */
#include "host_fixture.h"

#include <sys/mman.h>

/* ---- results, wherever the command runs ---- */

/* The same sum by the caller's thread (small grids), the queue's (a kernel that may loop) and the pool's (big grids).
 */
static void test_grids(void) {
  static const uint64_t sizes[] = {1, 3, 255, 256, 257, 16384, 16385, 1000003};
  static const char *const kernels[] = {"add", "add_loop", "add_heavy"};
  mps_queue *queue = make_queue("grids");
  for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
    mps_pipeline *pipeline = make_pipeline(kernels[k]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      mps_buffer *buffer = make_buffer((sizes[i] + 1) * 4);
      for (uint32_t value = 1; value <= 3; value++) {
        run(queue, pipeline, buffer, &value, sizes[i]);
      }
      EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
      for (uint64_t n = 0; n < sizes[i]; n++) {
        EXPECT_EQUAL(words(buffer)[n], 1 + 2 + 3);
      }
      EXPECT_EQUAL(words(buffer)[sizes[i]], 0);
      EXPECT_OK(mps_buffer_release(buffer));
    }
    EXPECT_OK(mps_pipeline_release(pipeline));
  }
  EXPECT_OK(mps_queue_release(queue));
}

/* Whether a launch has run when the call returns, which only the caller's thread can have done: nothing is committed.
 */
static bool runs_at_once(const char *kernel, uint64_t threads) {
  mps_queue *queue = make_queue("at once");
  mps_pipeline *pipeline = make_pipeline(kernel);
  mps_buffer *buffer = make_buffer(threads * 4);
  uint32_t one = 1;
  run(queue, pipeline, buffer, &one, threads);
  bool has_run = words(buffer)[threads - 1] == 1;
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(buffer)[threads - 1], 1);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_queue_release(queue));
  return has_run;
}

static void test_what_runs_at_once(void) {
  EXPECT(runs_at_once("add", 16384));
  EXPECT(!runs_at_once("add", 16385));
  EXPECT(!runs_at_once("add_loop", 1));
  EXPECT(runs_at_once("add_heavy", 16));
  EXPECT(!runs_at_once("add_heavy", 17));
}

/* A launch is complete when the last thread that takes part in it is, whichever that is. */
static void test_uneven_grid(void) {
  enum { GROUPS = 8 };
  mps_queue *queue = make_queue("uneven");
  mps_pipeline *pipeline = make_pipeline("uneven");
  mps_buffer *buffer = make_buffer(GROUPS * 4);
  for (int round = 0; round < 50; round++) {
    memset(words(buffer), 0, GROUPS * 4);
    run(queue, pipeline, buffer, NULL, GROUPS * 256);
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    for (int group = 0; group < GROUPS; group++) {
      EXPECT_EQUAL(words(buffer)[group], 1);
    }
  }
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_queue_release(queue));
}

/* fill, add, copy, add: each sees what the one before wrote. */
static void encode_chain(mps_queue *queue, mps_pipeline *add, mps_buffer *a, mps_buffer *b, uint64_t count) {
  uint32_t five = 5;
  EXPECT_OK(mps_queue_fill(queue, a, 0, count * 4, 1));
  run(queue, add, a, &five, count);
  EXPECT_OK(mps_queue_copy(queue, a, 0, b, 0, count * 4));
  run(queue, add, b, &five, count);
  five = 77; /* inline bytes were copied, or the command has run */
}

static void test_order(void) {
  static const uint64_t counts[] = {16, 5000, 3000000};
  mps_queue *queue = make_queue("order");
  mps_pipeline *add = make_pipeline("add");
  for (size_t i = 0; i < 3; i++) {
    for (int gated = 0; gated < 2; gated++) {
      uint64_t count = counts[i];
      mps_buffer *a = make_buffer(count * 4), *b = make_buffer(count * 4);
      barrier_gate gate = {0};
      if (gated) {
        gate = gate_close(queue);
      }
      encode_chain(queue, add, a, b, count);
      if (gated) {
        EXPECT(in_use(a) && in_use(b));
        EXPECT_EQUAL(words(b)[0], 0);
        gate_open(gate);
      }
      EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
      EXPECT(!in_use(a) && !in_use(b));
      EXPECT_EQUAL(words(a)[count - 1], 0x01010101 + 5);
      EXPECT_EQUAL(words(b)[0], 0x01010101 + 10);
      EXPECT_EQUAL(words(b)[count / 2], 0x01010101 + 10);
      EXPECT_EQUAL(words(b)[count - 1], 0x01010101 + 10);
      EXPECT_OK(mps_buffer_release(a));
      EXPECT_OK(mps_buffer_release(b));
    }
  }
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* Copies of lengths and offsets around the size of a piece, between guard bytes. */
static void test_copy_ranges(void) {
  static const uint64_t lengths[] = {1, 63, 65537, 4 << 20, (4 << 20) + 1, 40000001};
  mps_queue *queue = make_queue("copies");
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    uint64_t length = lengths[i];
    mps_buffer *source = make_buffer(length + 7), *target = make_buffer(length + 7);
    unsigned char *from = (unsigned char *)words(source), *to = (unsigned char *)words(target);
    for (uint64_t n = 0; n < length + 7; n++) {
      from[n] = (unsigned char)(n * 31 + 1);
    }
    EXPECT_OK(mps_queue_fill(queue, target, 0, length + 7, 0xee));
    EXPECT_OK(mps_queue_copy(queue, source, 3, target, 5, length));
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_EQUAL(to[4], 0xee);
    EXPECT_EQUAL(memcmp(to + 5, from + 3, length), 0);
    EXPECT_EQUAL(to[length + 5], 0xee);
    EXPECT_OK(mps_queue_fill(queue, target, 5, length, 0x42));
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_EQUAL(to[4], 0xee);
    for (uint64_t n = 0; n < length; n++) {
      EXPECT_EQUAL(to[5 + n], 0x42);
    }
    EXPECT_EQUAL(to[length + 5], 0xee);
    EXPECT_OK(mps_buffer_release(source));
    EXPECT_OK(mps_buffer_release(target));
  }
  EXPECT_OK(mps_queue_release(queue));
}

/* ---- arguments ---- */

/* The kernel reads the first word of many bytes; `skew` takes them off their alignment. */
static void add_bytes(mps_queue *queue, mps_pipeline *add, mps_buffer *out, uint64_t length, int skew) {
  _Alignas(16) unsigned char bytes[4096 + 16] = {0};
  bytes[skew] = 3;
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = out},
                              {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = bytes + skew, .length = length}};
  mps_dispatch dispatch = {
      .struct_size = sizeof dispatch, .pipeline = add, .arguments = arguments, .argument_count = 2, .grid = {1, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  memset(bytes, 0xff, sizeof bytes);
}

static void test_bytes(void) {
  mps_queue *queue = make_queue("bytes");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *out = make_buffer(4);
  static const uint64_t lengths[] = {4, 100, 1024, 4096};
  for (size_t i = 0; i < 4; i++) {
    add_bytes(queue, add, out, lengths[i], 0);
    add_bytes(queue, add, out, lengths[i], 1);
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(out)[0], 8 * 3);
  EXPECT_OK(mps_buffer_release(out));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* A kernel that follows addresses, at once and queued; the buffers live as long as it needs them. */
static void gather(mps_queue *queue, mps_pipeline *pipeline, mps_buffer *out, uint64_t entries) {
  mps_address *table = calloc(entries, sizeof *table);
  for (uint64_t i = 0; i < entries; i++) {
    table[i].buffer = make_buffer(64);
    table[i].offset = 4 * (i % 8);
    words(table[i].buffer)[i % 8] = (uint32_t)(i + 1);
  }
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = out},
                              {.kind = MPS_ARGUMENT_ADDRESSES, .index = 1, .data = table, .length = entries}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = pipeline,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {2, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  for (uint64_t i = 0; i < entries; i++) {
    EXPECT_OK(mps_buffer_release(table[i].buffer));
  }
  free(table);
}

static void test_addresses(void) {
  mps_queue *queue = make_queue("addresses");
  mps_pipeline *pipeline = make_pipeline("gather");
  mps_buffer *out = make_buffer(8);
  uint64_t buffers = live_objects().buffers;
  static const uint64_t entries[] = {4, 1000};
  for (int i = 0; i < 2; i++) {
    words(out)[0] = words(out)[1] = 0;
    gather(queue, pipeline, out, entries[i]);
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_EQUAL(words(out)[0], 1 + 2 + 3 + 4);
    EXPECT_EQUAL(words(out)[1], 1 + 2 + 3 + 4);
    EXPECT_EQUAL(live_objects().buffers, buffers);
  }
  words(out)[1] = 0;
  barrier_gate gate = gate_close(queue);
  gather(queue, pipeline, out, 4);
  EXPECT_EQUAL(live_objects().buffers, buffers + 1 + 4);
  gate_open(gate);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(out)[1], 1 + 2 + 3 + 4);
  EXPECT_EQUAL(live_objects().buffers, buffers);
  EXPECT_OK(mps_buffer_release(out));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_queue_release(queue));
}

/* Threadgroup memory comes behind the kernel's own 40 bytes, each length from a multiple of 16 on. */
static void test_threadgroup_memory(void) {
  mps_queue *queue = make_queue("threadgroup memory");
  mps_pipeline *pipeline = make_pipeline("places");
  mps_buffer *out = make_buffer(12);
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_THREADGROUP, .index = 0, .length = 80},
                              {.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = out},
                              {.kind = MPS_ARGUMENT_THREADGROUP, .index = 1, .length = 16}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = pipeline,
                           .arguments = arguments,
                           .argument_count = 3,
                           .grid = {1, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  uint32_t first = words(out)[0], second = words(out)[1], own = words(out)[2];
  EXPECT(first >= own + 40);
  EXPECT_EQUAL(first % 16, 0);
  EXPECT_EQUAL(second, first + 80);
  EXPECT_OK(mps_buffer_release(out));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_queue_release(queue));
}

/* ---- command buffers ---- */

static mps_command_info command_info(mps_queue *queue, uint64_t serial) {
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_queue_get_command_info(queue, serial, &info));
  return info;
}

static uint64_t commit(mps_queue *queue) {
  uint64_t serial;
  EXPECT_OK(mps_queue_commit(queue, &serial));
  return serial;
}

static void test_command_info(void) {
  mps_queue *queue = make_queue("info");
  mps_pipeline *pipelines[] = {make_pipeline("add"), make_pipeline("add_loop")};
  mps_buffer *buffer = make_buffer(4);
  mps_command_info info = {.struct_size = sizeof info};
  uint32_t one = 1;
  EXPECT_EQUAL(commit(queue), 0);
  EXPECT(is_idle(queue));
  EXPECT_FAIL(mps_queue_get_command_info(queue, 0, &info), NOT_FOUND, "info");
  EXPECT_FAIL(mps_queue_get_command_info(queue, 1, &info), NOT_FOUND, "1");
  for (uint64_t serial = 1; serial <= 100; serial++) {
    uint64_t before = device_time();
    run(queue, pipelines[serial % 2], buffer, &one, 1);
    EXPECT(!is_idle(queue));
    EXPECT_EQUAL(commit(queue), serial);
    EXPECT_EQUAL(commit(queue), serial); /* nothing was encoded */
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT(is_idle(queue));
    info = command_info(queue, serial);
    EXPECT_EQUAL(info.serial, serial);
    EXPECT_EQUAL(info.status, MPS_STATUS_OK);
    EXPECT_EQUAL(info.scheduled, 1);
    EXPECT(info.message == NULL);
    EXPECT(before <= info.start && info.start <= info.end && info.end <= device_time());
  }
  EXPECT_EQUAL(words(buffer)[0], 100);
  EXPECT_EQUAL(command_info(queue, 37).serial, 37);
  EXPECT_FAIL(mps_queue_get_command_info(queue, 36, &info), NOT_FOUND, "36");
  EXPECT_FAIL(mps_queue_get_command_info(queue, 101, &info), NOT_FOUND, "101");

  barrier_gate gate = gate_close(queue);
  run(queue, pipelines[0], buffer, &one, 1);
  EXPECT_EQUAL(commit(queue), 102);
  info = command_info(queue, 102);
  EXPECT_EQUAL(info.start, 0);
  EXPECT_EQUAL(info.end, 0);
  EXPECT_EQUAL(info.scheduled, 0);
  EXPECT(!is_idle(queue));
  EXPECT_EQUAL(live_objects().pending_commands, 2);
  gate_open(gate);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(live_objects().pending_commands, 0);
  EXPECT(command_info(queue, 101).end <= command_info(queue, 102).start);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(pipelines[0]));
  EXPECT_OK(mps_pipeline_release(pipelines[1]));
  EXPECT_OK(mps_queue_release(queue));
}

/* More command buffers than may be in flight, behind one that does not end: the caller gets through all the same. */
static void test_crowd(void) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .max_command_buffers = 4};
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(4);
  uint32_t one = 1;
  barrier_gate gate = gate_close(queue);
  for (int i = 0; i < 50; i++) {
    run(queue, add, buffer, &one, 1);
    commit(queue);
  }
  gate_open(gate);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(buffer)[0], 50);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* A loop that never waits does not pile up command buffers: it is held back to the speed of the queue. */
static void test_back_pressure(void) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .max_command_buffers = 4};
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  mps_pipeline *uneven = make_pipeline("uneven");
  mps_buffer *buffer = make_buffer(32);
  for (int i = 0; i < 30; i++) {
    run(queue, uneven, buffer, NULL, 8 * 256);
    commit(queue);
    EXPECT(live_objects().pending_commands <= 4);
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(uneven));
  EXPECT_OK(mps_queue_release(queue));
}

/* ---- handlers and callbacks ---- */

typedef struct journal {
  mps_queue *queue;
  pthread_t caller;
  _Atomic int count;
  char order[64];
  mps_command_info last;
  char message[256];
} journal;

static void note(journal *journal, char mark) {
  EXPECT(!pthread_equal(pthread_self(), journal->caller));
  int number = atomic_load(&journal->count); /* calls of a queue come one after the other */
  journal->order[number] = mark;
  atomic_store(&journal->count, number + 1);
}

static void on_scheduled(void *user, const mps_command_info *info) {
  EXPECT_EQUAL(info->end, 0);
  note(user, 's');
}

static void on_completed(void *user, const mps_command_info *info) {
  journal *journal = user;
  journal->last = *info;
  snprintf(journal->message, sizeof journal->message, "%s", info->message);
  note(journal, 'c');
}

static void on_callback(void *user) {
  journal *journal = user;
  note(journal, 'k');
  EXPECT_FAIL(mps_queue_wait(journal->queue, MPS_FOREVER), INVALID_STATE, "its own handlers");
}

static void test_handlers(void) {
  mps_queue *queue = make_queue("handlers");
  mps_pipeline *add = make_pipeline("add"), *wild = make_pipeline("wild");
  mps_buffer *buffer = make_buffer(4);
  uint32_t one = 1;
  journal journal = {.queue = queue, .caller = pthread_self()};
  run(queue, add, buffer, &one, 1); /* runs at once; the handlers are of its command buffer */
  EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, on_completed, &journal));
  EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_SCHEDULED, on_scheduled, &journal));
  run(queue, add, buffer, &one, 1);
  EXPECT_OK(mps_queue_callback(queue, on_callback, &journal));
  run(queue, add, buffer, &one, 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(strcmp(journal.order, "skc"), 0);
  EXPECT_EQUAL(words(buffer)[0], 3);
  EXPECT_EQUAL(journal.last.serial, 1);
  EXPECT_EQUAL(journal.last.status, MPS_STATUS_OK);
  EXPECT_EQUAL(strcmp(journal.message, ""), 0);
  EXPECT(journal.last.start && journal.last.start <= journal.last.end);

  run(queue, wild, NULL, NULL, 1);
  EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, on_completed, &journal));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "wild");
  EXPECT_EQUAL(journal.last.serial, 3);
  EXPECT_EQUAL(journal.last.status, MPS_STATUS_EXECUTION_FAILED);
  EXPECT(strstr(journal.message, "kernel 'wild' failed") != NULL);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_pipeline_release(wild));
  EXPECT_OK(mps_queue_release(queue));
}

/* A handler may encode, commit, and drop the last reference of its own queue. */
static void encode_more(void *user, const mps_command_info *info) {
  journal *journal = user;
  if (info->serial < 10) {
    EXPECT_OK(mps_queue_add_handler(journal->queue, MPS_HANDLER_COMPLETED, encode_more, journal));
    EXPECT_OK(mps_queue_commit(journal->queue, NULL));
  } else {
    EXPECT_OK(mps_queue_release(journal->queue));
  }
  note(journal, 'h');
}

static void test_handler_chain(void) {
  uint64_t queues = live_objects().queues;
  journal journal = {.queue = make_queue("chain"), .caller = pthread_self()};
  EXPECT_OK(mps_queue_add_handler(journal.queue, MPS_HANDLER_COMPLETED, encode_more, &journal));
  EXPECT_OK(mps_queue_commit(journal.queue, NULL));
  while (atomic_load(&journal.count) < 10) {
    sleep_ms(1);
  }
  EXPECT_EQUAL(live_objects().queues, queues);
}

/* After a failure, and of a queue that nobody holds any more: each is called, and once. */
static void test_calls_after_the_end(void) {
  journal journal = {.queue = make_queue("released"), .caller = pthread_self()};
  mps_pipeline *wild = make_pipeline("wild");
  run(journal.queue, wild, NULL, NULL, 1);
  EXPECT_OK(mps_queue_add_handler(journal.queue, MPS_HANDLER_COMPLETED, on_completed, &journal));
  EXPECT_OK(mps_queue_commit(journal.queue, NULL));
  EXPECT_OK(mps_queue_add_handler(journal.queue, MPS_HANDLER_COMPLETED, on_completed, &journal)); /* of nothing else */
  EXPECT_OK(mps_queue_release(journal.queue));
  while (atomic_load(&journal.count) < 2) {
    sleep_ms(1);
  }
  sleep_ms(10);
  EXPECT_EQUAL(strcmp(journal.order, "cc"), 0);
  EXPECT_EQUAL(journal.last.serial, 2);
  EXPECT_EQUAL(journal.last.status, MPS_STATUS_OK);
  EXPECT_OK(mps_pipeline_release(wild));
}

/* ---- failures ---- */

/* At once and queued: the rest of the command buffer is skipped, its signals are not, and the next one runs. */
static void test_failure(void) {
  static const char *const kernels[] = {"wild", "wild_loop"};
  mps_queue *queue = make_queue("failures");
  mps_pipeline *add = make_pipeline("add");
  mps_event *event = make_event();
  uint32_t one = 1;
  for (uint64_t i = 0; i < 2; i++) {
    mps_pipeline *wild = make_pipeline(kernels[i]);
    mps_buffer *buffer = make_buffer(8);
    run(queue, add, buffer, &one, 1);
    run(queue, wild, NULL, NULL, 100000 * i + 1);
    run(queue, add, buffer, &one, 2);
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 9));
    EXPECT_OK(mps_queue_signal(queue, event, i + 1));
    uint64_t serial = commit(queue);
    run(queue, add, buffer, &one, 1);
    char name[64]; /* Metal tells of an encoder, and not which of its kernels it was, nor its grid */
    snprintf(name, sizeof name,
             on_metal ? "one of the kernels 'add, %s' failed: " : "kernel '%s' failed: ", kernels[i]);
    const char *grid = on_metal ? ""
                       : i == 0 ? "grid 1 x 1 x 1, group 1 x 1 x 1"
                                : "grid 100001 x 1 x 1, group 256 x 1 x 1";
    if (i == 0) {
      EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, name);
    } else {
      commit(queue);
      EXPECT_FAIL(mps_event_wait(event, i + 1, MPS_FOREVER), EXECUTION_FAILED, name);
    }
    EXPECT(strstr(mps_error_message(), grid) != NULL);
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_OK(mps_event_wait(event, i + 1, 0));
    EXPECT_EQUAL(command_info(queue, serial).status, MPS_STATUS_EXECUTION_FAILED);
    EXPECT_EQUAL(command_info(queue, serial + 1).status, MPS_STATUS_OK);
    EXPECT_EQUAL(words(buffer)[0], 2);
    EXPECT_EQUAL(words(buffer)[1], 0);
    EXPECT_OK(mps_buffer_release(buffer));
    EXPECT_OK(mps_pipeline_release(wild));
  }
  mps_pipeline *wild = make_pipeline("wild");
  for (int i = 0; i < 3; i++) {
    run(queue, wild, NULL, NULL, 1);
    commit(queue);
  }
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "the first of 3 failed commands");
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_pipeline_release(wild));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

/* Memory that its owner took away too early: copies from it and into it fail like kernels, at once and queued. */
static void test_copy_failure(void) {
  enum { PAGE = 16384, PAGES = 1024 };
  mps_queue *queue = make_queue("copies that fail");
  char *memory = mmap(NULL, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *page = memory + (-(uintptr_t)memory & (PAGE - 1));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = PAGES * PAGE};
  mps_buffer *taken, *own = make_buffer(PAGES * PAGE);
  EXPECT_OK(mps_buffer_create_no_copy(device, page, &desc, NULL, NULL, &taken));
  EXPECT_EQUAL(mprotect(page + PAGE, (PAGES - 1) * PAGE, PROT_NONE), 0);
  EXPECT_OK(mps_queue_copy(queue, taken, 0, own, 0, PAGE));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_queue_copy(queue, taken, 0, own, 0, PAGE + 1));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
              on_metal ? "a copy or fill failed: " : "copy of 16385 bytes failed: ");
  EXPECT_OK(mps_queue_copy(queue, own, 0, taken, 0, PAGES * PAGE));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
              on_metal ? "a copy or fill failed: " : "copy of 16777216 bytes failed: ");
  EXPECT_OK(mps_queue_fill(queue, taken, PAGE, 100, 1));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
              on_metal ? "a copy or fill failed: " : "fill of 100 bytes failed: ");
  EXPECT_OK(mps_buffer_release(taken));
  EXPECT_OK(mps_buffer_release(own));
  EXPECT_OK(mps_queue_release(queue));
  munmap(memory, (PAGES + 1) * PAGE);
}

/* ---- life ---- */

static void set_flag(void *flag) {
  atomic_store((_Atomic int *)flag, 1);
}

static void test_release_with_work(void) {
  _Atomic int done = 0;
  mps_queue *queue = make_queue("left alone");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(4);
  uint32_t one = 1;
  barrier_gate gate = gate_close(queue);
  run(queue, add, buffer, &one, 1);
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_callback(queue, set_flag, &done));
  run(queue, gate.pipeline, gate.buffer, NULL, 1);
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_EQUAL(words(buffer)[0], 0);
  gate_open(gate);
  while (!atomic_load(&done)) {
    sleep_ms(1);
  }
  EXPECT_EQUAL(words(buffer)[0], 1);
  EXPECT_OK(mps_buffer_release(buffer));
  while (live_objects().pending_commands || live_objects().buffers || live_objects().pipelines) {
    sleep_ms(1);
  }
}

static void test_nothing_to_wait_for(void) {
  mps_queue *queue = make_queue("empty");
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_queue_wait(queue, 0));
  EXPECT_OK(mps_queue_release(queue));
}

/* The chain of test_order as a list, many times over: in one call, and one command buffer each time. */
static void test_list(void) {
  enum { TIMES = 300 }; /* 1200 commands: more than the caller's thread runs of one list */
  static const uint64_t counts[] = {16, 5000, 300000};
  mps_queue *queue = make_queue("list");
  mps_pipeline *add = make_pipeline("add");
  const uint32_t five = 5;
  uint64_t serial = 0;
  for (size_t i = 0; i < 3; i++) {
    uint64_t size = counts[i] * 4;
    uint32_t times = i == 2 ? 3 : TIMES;
    mps_buffer *a = make_buffer(size), *b = make_buffer(size);
    const mps_argument first[] = {{.kind = MPS_ARGUMENT_BUFFER, .buffer = a},
                                  {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &five, .length = 4}};
    const mps_argument second[] = {{.kind = MPS_ARGUMENT_BUFFER, .buffer = b},
                                   {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &five, .length = 4}};
    mps_dispatch on_a = {.struct_size = sizeof on_a, .pipeline = add, .arguments = first, .argument_count = 2};
    on_a.grid[0] = counts[i];
    on_a.grid[1] = on_a.grid[2] = 1;
    mps_dispatch on_b = on_a;
    on_b.arguments = second;
    const mps_fill fill = {.struct_size = sizeof fill, .buffer = a, .length = size, .value = 1};
    const mps_copy copy = {.struct_size = sizeof copy, .source = a, .target = b, .length = size};
    mps_command list[4 * TIMES];
    for (uint32_t n = 0; n < times; n++) {
      list[4 * n] = (mps_command){.kind = MPS_COMMAND_FILL, .u.fill = &fill};
      list[4 * n + 1] = (mps_command){.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &on_a};
      list[4 * n + 2] = (mps_command){.kind = MPS_COMMAND_COPY, .u.copy = &copy};
      list[4 * n + 3] = (mps_command){.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &on_b};
    }
    for (int gated = 0; gated < 2; gated++) {
      memset(words(b), 0, size);
      barrier_gate gate = {0};
      if (gated) {
        gate = gate_close(queue);
        serial++;
      }
      EXPECT_OK(mps_queue_submit(queue, list, 4 * times));
      uint64_t committed;
      EXPECT_OK(mps_queue_commit(queue, &committed));
      EXPECT_EQUAL(committed, ++serial);
      if (gated) {
        EXPECT(in_use(a) && in_use(b));
        EXPECT_EQUAL(words(b)[0], 0);
        gate_open(gate);
      }
      EXPECT_OK(mps_queue_wait(queue, 60 * SECOND));
      EXPECT(!in_use(a) && !in_use(b));
      EXPECT_EQUAL(words(b)[0], 0x01010101 + 10);
      EXPECT_EQUAL(words(b)[counts[i] - 1], 0x01010101 + 10);
      mps_command_info info = {.struct_size = sizeof info};
      EXPECT_OK(mps_queue_get_command_info(queue, serial, &info));
      EXPECT(info.start != 0 && info.start <= info.end && info.status == MPS_STATUS_OK);
    }
    EXPECT_OK(mps_buffer_release(a));
    EXPECT_OK(mps_buffer_release(b));
  }
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  test_nothing_to_wait_for();
  test_grids();
  if (!on_metal) {
    test_what_runs_at_once();
  }
  test_uneven_grid();
  test_order();
  test_list();
  test_copy_ranges();
  test_bytes();
  test_addresses();
  test_threadgroup_memory();
  test_command_info();
  test_crowd();
  test_back_pressure();
  test_handlers();
  test_handler_chain();
  test_calls_after_the_end();
  test_failure();
  test_copy_failure();
  test_release_with_work();
  fixture_close();
  return 0;
}
