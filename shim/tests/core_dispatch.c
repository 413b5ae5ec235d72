/* A dispatch is checked in full before anything is encoded, and the grid and group reach the backend as they should. */
#include "expect.h"
#include "fake.h"

static mps_device *device;
static mps_queue *queue;
static mps_library *library;
static mps_pipeline *saxpy, *reduce, *gather;
static mps_buffer *x, *y; /* of 4000 bytes */
static float a = 2;
static uint32_t n = 1000;

static mps_pipeline *make_pipeline(const char *kernel) {
  mps_pipeline *pipeline;
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = kernel};
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  return pipeline;
}

static mps_buffer *make_buffer(mps_device *on, uint64_t length) {
  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = length};
  EXPECT_OK(mps_buffer_create(on, &desc, &buffer));
  return buffer;
}

typedef struct call {
  mps_dispatch dispatch;
  mps_argument arguments[8];
} call;

/* A right call, for a test to spoil. */
static void right_saxpy(call *c) {
  *c = (call){
      .dispatch = {.struct_size = sizeof(mps_dispatch), .pipeline = saxpy, .argument_count = 4, .grid = {1000, 1, 1}},
      .arguments = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = x},
                    {.kind = MPS_ARGUMENT_BUFFER, .index = 1, .buffer = y},
                    {.kind = MPS_ARGUMENT_BYTES, .index = 2, .data = &a, .length = 4},
                    {.kind = MPS_ARGUMENT_BYTES, .index = 3, .data = &n, .length = 4}}};
  c->dispatch.arguments = c->arguments;
}

static void right_reduce(call *c) {
  *c = (call){
      .dispatch = {.struct_size = sizeof(mps_dispatch), .pipeline = reduce, .argument_count = 3, .grid = {1000, 1, 1}},
      .arguments = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = x},
                    {.kind = MPS_ARGUMENT_BUFFER, .index = 5, .buffer = y},
                    {.kind = MPS_ARGUMENT_THREADGROUP, .index = 0, .length = 1024}}};
  c->dispatch.arguments = c->arguments;
}

static void expect_grid(const call *c, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t tx, uint32_t ty, uint32_t tz) {
  int before = fake.dispatches;
  EXPECT_OK(mps_queue_dispatch(queue, &c->dispatch));
  EXPECT_EQUAL(fake.dispatches, before + 1);
  EXPECT_EQUAL(fake.grid[0], gx);
  EXPECT_EQUAL(fake.grid[1], gy);
  EXPECT_EQUAL(fake.grid[2], gz);
  EXPECT_EQUAL(fake.group[0], tx);
  EXPECT_EQUAL(fake.group[1], ty);
  EXPECT_EQUAL(fake.group[2], tz);
}

/* Spoil a right call with `change`, expect the failure, and expect that the backend saw nothing. */
#define EXPECT_REFUSED(right, change, name, text)                                                                      \
  do {                                                                                                                 \
    call c;                                                                                                            \
    right(&c);                                                                                                         \
    change;                                                                                                            \
    int before = fake.dispatches;                                                                                      \
    EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), name, text);                                                   \
    EXPECT_EQUAL(fake.dispatches, before);                                                                             \
  } while (0)

static void set3(uint64_t to[3], uint64_t first, uint64_t second, uint64_t third) {
  to[0] = first;
  to[1] = second;
  to[2] = third;
}

static void grids_and_groups_reach_the_backend(void) {
  call c;
  right_saxpy(&c);
  set3(c.dispatch.group, 64, 1, 1);
  expect_grid(&c, 1000, 1, 1, 64, 1, 1);
  set3(c.dispatch.group, 1, 1, 64);
  expect_grid(&c, 1000, 1, 1, 1, 1, 64);
  set3(c.dispatch.group, 1, 1024, 1);
  expect_grid(&c, 1000, 1, 1, 1, 1024, 1);
  c.dispatch.grid_kind = MPS_GRID_THREADGROUPS;
  set3(c.dispatch.grid, 3, 5, 7);
  set3(c.dispatch.group, 8, 4, 2);
  expect_grid(&c, 24, 20, 14, 8, 4, 2);
  set3(c.dispatch.grid, UINT32_MAX / 1024, 1, 1);
  set3(c.dispatch.group, 1024, 1, 1);
  expect_grid(&c, UINT32_MAX / 1024 * 1024, 1, 1, 1024, 1, 1);
  c.dispatch.grid_kind = MPS_GRID_THREADS;
  set3(c.dispatch.grid, UINT32_MAX, UINT32_MAX, 1);
  set3(c.dispatch.group, 1, 1, 1);
  expect_grid(&c, UINT32_MAX, UINT32_MAX, 1, 1, 1, 1);
}

static void the_library_chooses_groups(void) {
  call c;
  right_saxpy(&c);
  expect_grid(&c, 1000, 1, 1, 1000, 1, 1);
  set3(c.dispatch.grid, 5000, 1, 1);
  expect_grid(&c, 5000, 1, 1, 1024, 1, 1);
  set3(c.dispatch.grid, 1, 1, 1);
  expect_grid(&c, 1, 1, 1, 1, 1, 1);
  set3(c.dispatch.grid, 100, 100, 1);
  expect_grid(&c, 100, 100, 1, 100, 10, 1);
  set3(c.dispatch.grid, 5000, 100, 1);
  expect_grid(&c, 5000, 100, 1, 1024, 1, 1);
  set3(c.dispatch.grid, 3, 5, 1000);
  expect_grid(&c, 3, 5, 1000, 3, 5, 64); /* 64: the device's limit along z; 3 * 5 * 64 = 960 */
  set3(c.dispatch.grid, 1, 2000, 1);
  expect_grid(&c, 1, 2000, 1, 1, 1024, 1);
  right_reduce(&c);
  set3(c.dispatch.grid, 1000, 1, 1);
  expect_grid(&c, 1000, 1, 1, 256, 1, 1); /* the kernel takes no more */
}

/* Any size up to 2^32 - 1, small ones as often as large ones. */
static uint64_t random_size(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  uint64_t bits = *state % 32 + 1;
  return (*state >> 32 & ((UINT64_C(1) << bits) - 1)) | UINT64_C(1) << (bits - 1);
}

static void chosen_groups_suit_any_grid(void) {
  uint64_t state = 88172645463325252u;
  for (int i = 0; i < 20000; i++) {
    call c;
    (i % 2 == 0 ? right_saxpy : right_reduce)(&c);
    uint64_t most = i % 2 == 0 ? 1024 : 256;
    set3(c.dispatch.grid, random_size(&state), random_size(&state) % 5000 + 1, random_size(&state) % 100 + 1);
    EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
    uint64_t threads = (uint64_t)fake.group[0] * fake.group[1] * fake.group[2];
    EXPECT(threads >= 1 && threads <= most);
    for (int k = 0; k < 3; k++) {
      EXPECT_EQUAL(fake.grid[k], c.dispatch.grid[k]);
      EXPECT(fake.group[k] >= 1 && fake.group[k] <= fake.grid[k]);
    }
    EXPECT(fake.group[0] == fake.grid[0] || fake.group[0] % 32 == 0);
    /* No further row, and no further plane, would fit. */
    EXPECT(fake.group[1] == fake.grid[1] || (uint64_t)fake.group[0] * (fake.group[1] + 1) > most);
    EXPECT(fake.group[2] == fake.grid[2] || fake.group[2] == 64 ||
           (uint64_t)fake.group[0] * fake.group[1] * (fake.group[2] + 1) > most);
  }
}

static void an_empty_grid_runs_nothing_but_is_checked(void) {
  for (int i = 0; i < 3; i++) {
    call c;
    right_saxpy(&c);
    c.dispatch.grid[i] = 0;
    int before = fake.dispatches;
    EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
    EXPECT_EQUAL(fake.dispatches, before);
    c.arguments[0].buffer = NULL;
    EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), INVALID_HANDLE, "expected a buffer, got NULL");
  }
  EXPECT_REFUSED(right_saxpy, (set3(c.dispatch.grid, 0, 1, 1), set3(c.dispatch.group, 2048, 1, 1)), LIMIT_EXCEEDED,
                 "2048");
}

static void bad_grids_and_groups_are_refused(void) {
  EXPECT_REFUSED(right_saxpy, c.dispatch.grid_kind = 2, INVALID_ARGUMENT, "grid_kind is 2");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.group, 32, 0, 1), INVALID_ARGUMENT, "(32, 0, 1)");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.group, 1025, 1, 1), LIMIT_EXCEEDED, "(1024, 1024, 64)");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.group, 1, 1, 65), LIMIT_EXCEEDED, "(1, 1, 65)");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.group, 33, 32, 1), LIMIT_EXCEEDED, "1056 threads");
  EXPECT_REFUSED(right_reduce, set3(c.dispatch.group, 257, 1, 1), LIMIT_EXCEEDED, "at most 256");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.group, UINT64_MAX, UINT64_MAX, UINT64_MAX), LIMIT_EXCEEDED, "exceeds");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.grid, UINT64_C(1) << 32, 1, 1), LIMIT_EXCEEDED, "4294967296");
  EXPECT_REFUSED(right_saxpy, set3(c.dispatch.grid, 1, UINT64_MAX, 1), LIMIT_EXCEEDED, "2^32 - 1");
  EXPECT_REFUSED(right_saxpy, c.dispatch.grid_kind = MPS_GRID_THREADGROUPS, INVALID_ARGUMENT, "needs their size");
  EXPECT_REFUSED(right_saxpy,
                 (c.dispatch.grid_kind = MPS_GRID_THREADGROUPS, set3(c.dispatch.grid, UINT32_MAX / 1024 + 1, 1, 1),
                  set3(c.dispatch.group, 1024, 1, 1)),
                 LIMIT_EXCEEDED, "(4194304, 1, 1) of threadgroups");
  EXPECT_REFUSED(right_saxpy,
                 (set3(c.dispatch.grid, UINT32_MAX, UINT32_MAX, UINT32_MAX), set3(c.dispatch.group, 1, 1, 1)),
                 LIMIT_EXCEEDED, "2^64 - 1 threadgroups");
}

static void slots_are_checked(void) {
  EXPECT_REFUSED(right_saxpy, c.dispatch.argument_count = 3, INVALID_ARGUMENT,
                 "slot 3 of kernel 'saxpy' (argument 'n')");
  EXPECT_REFUSED(right_saxpy, c.dispatch.argument_count = 0, INVALID_ARGUMENT, "slot 0");
  EXPECT_REFUSED(right_saxpy, c.dispatch.arguments = NULL, INVALID_ARGUMENT, "argument_count is 4");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].index = 1, INVALID_ARGUMENT, "a second time");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].index = 4, INVALID_ARGUMENT, "its buffer slots: 0 x, 1 y, 2 a, 3 n");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].index = 31, LIMIT_EXCEEDED, "0 to 30");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].index = UINT32_MAX, LIMIT_EXCEEDED, "4294967295");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].kind = 0, INVALID_ARGUMENT, "arguments[3] is 0");
  EXPECT_REFUSED(right_saxpy, c.arguments[3].kind = 5, INVALID_ARGUMENT, "arguments[3] is 5");
  EXPECT_REFUSED(right_saxpy,
                 (c.arguments[4] = (mps_argument){.kind = MPS_ARGUMENT_THREADGROUP, .index = 0, .length = 16},
                  c.dispatch.argument_count = 5),
                 INVALID_ARGUMENT, "its threadgroup slots: none");
  EXPECT_REFUSED(right_reduce, c.dispatch.argument_count = 2, INVALID_ARGUMENT, "threadgroup slot 0");
  call c; /* slot 7 is not used by the kernel: may be bound or not */
  right_reduce(&c);
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
  c.arguments[3] = (mps_argument){.kind = MPS_ARGUMENT_BUFFER, .index = 7, .buffer = x};
  c.dispatch.argument_count = 4;
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
}

static void buffers_are_checked(void) {
  EXPECT_REFUSED(right_saxpy, c.arguments[0].buffer = (mps_buffer *)(void *)queue, INVALID_HANDLE, "got a queue");
  EXPECT_REFUSED(right_saxpy, c.arguments[0].offset = 4000, INVALID_ARGUMENT, "offset 4000 for argument 'x'");
  EXPECT_REFUSED(right_saxpy, c.arguments[0].offset = UINT64_MAX - 3, INVALID_ARGUMENT, "not inside the buffer");
  EXPECT_REFUSED(right_saxpy, c.arguments[0].offset = 2, INVALID_ARGUMENT, "alignment, 4 bytes");
  EXPECT_REFUSED(right_reduce, c.arguments[0].offset = 8, INVALID_ARGUMENT, "alignment, 16 bytes");
  EXPECT_REFUSED(right_reduce, c.arguments[1].offset = 6, INVALID_ARGUMENT, "alignment, 4 bytes");
  call c;
  right_saxpy(&c);
  c.arguments[0].offset = 3996;
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
  mps_buffer *small = make_buffer(device, 6);
  c.arguments[2] = (mps_argument){.kind = MPS_ARGUMENT_BUFFER, .index = 2, .buffer = small};
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
  c.arguments[2].offset = 4;
  EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), INVALID_ARGUMENT, "reads 4 bytes, but only 2");
  EXPECT_OK(mps_buffer_release(small));
  EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), INVALID_HANDLE, "released");
}

static void inline_bytes_are_checked(void) {
  static char large[4096];
  EXPECT_REFUSED(right_saxpy, c.arguments[2].length = 0, INVALID_ARGUMENT, "0 inline bytes");
  EXPECT_REFUSED(right_saxpy, c.arguments[2].length = 3, INVALID_ARGUMENT, "reads 4 bytes, but only 3");
  EXPECT_REFUSED(right_saxpy, c.arguments[2].length = 4097, LIMIT_EXCEEDED, "limit is 4096");
  EXPECT_REFUSED(right_saxpy, c.arguments[2].length = UINT64_MAX, LIMIT_EXCEEDED, "limit is 4096");
  EXPECT_REFUSED(right_saxpy, c.arguments[2].data = NULL, INVALID_ARGUMENT, "must not be NULL");
  EXPECT_REFUSED(right_saxpy,
                 (c.arguments[1].kind = MPS_ARGUMENT_BYTES, c.arguments[1].data = large, c.arguments[1].length = 16),
                 INVALID_ARGUMENT, "can write to argument 'y'");
  call c;
  right_saxpy(&c);
  c.arguments[0] = (mps_argument){.kind = MPS_ARGUMENT_BYTES, .index = 0, .data = large, .length = 4096};
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
}

static void tables_are_checked(void) {
  mps_address entries[3] = {{.buffer = x}, {.buffer = y, .offset = 3999}, {.buffer = x, .offset = 1}};
  mps_argument table = {.kind = MPS_ARGUMENT_ADDRESSES, .index = 2, .data = entries, .length = 3};
  mps_dispatch dispatch = {
      .struct_size = sizeof dispatch, .pipeline = gather, .arguments = &table, .argument_count = 1, .grid = {1, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  table.length = 2;
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), INVALID_ARGUMENT, "reads 24 bytes, but only 16");
  table.length = 0;
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), INVALID_ARGUMENT, "no entry");
  table.length = 65537;
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), LIMIT_EXCEEDED, "65537 entries");
  table.length = 3;
  entries[1].offset = 4000;
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), INVALID_ARGUMENT, "not inside");
  entries[1].offset = 0;
  entries[2].buffer = NULL;
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), INVALID_HANDLE, "got NULL");
}

static void threadgroup_memory_is_checked(void) {
  EXPECT_REFUSED(right_reduce, c.arguments[2].length = 24, INVALID_ARGUMENT, "24 bytes");
  EXPECT_REFUSED(right_reduce, c.arguments[2].length = 31760, LIMIT_EXCEEDED,
                 "limit of 32768 bytes: 1024 bytes of its own");
  EXPECT_REFUSED(right_reduce, c.arguments[2].length = UINT64_MAX - 15, LIMIT_EXCEEDED, "limit of 32768");
  call c;
  right_reduce(&c);
  c.arguments[2].length = 32768 - 1024;
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
}

static void no_bytes_of_threadgroup_memory_are_for_any_slot(void) {
  call c;
  right_reduce(&c);
  c.arguments[3] = (mps_argument){.kind = MPS_ARGUMENT_THREADGROUP, .index = 30};
  c.dispatch.argument_count = 4;
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
  c.arguments[2].length = 0;
  EXPECT_OK(mps_queue_dispatch(queue, &c.dispatch));
  c.arguments[3].index = 0;
  EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), INVALID_ARGUMENT, "a second time");
  c.arguments[3].index = 31;
  EXPECT_FAIL(mps_queue_dispatch(queue, &c.dispatch), LIMIT_EXCEEDED, "0 to 30");
}

static void devices_do_not_mix(void) {
  mps_device *second;
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 1, &second));
  mps_buffer *other = make_buffer(second, 64);
  mps_queue *other_queue;
  EXPECT_OK(mps_queue_create(second, NULL, &other_queue));
  EXPECT_REFUSED(right_saxpy, c.arguments[1].buffer = other, INVALID_ARGUMENT,
                 "belongs to device 'second', not to 'first'");
  call c;
  right_saxpy(&c);
  EXPECT_FAIL(mps_queue_dispatch(other_queue, &c.dispatch), INVALID_ARGUMENT, "the pipeline belongs");
  EXPECT_FAIL(mps_queue_copy(queue, x, 0, other, 0, 4), INVALID_ARGUMENT, "the target belongs");
  EXPECT_FAIL(mps_queue_copy(queue, other, 0, x, 0, 4), INVALID_ARGUMENT, "the source belongs");
  EXPECT_FAIL(mps_queue_fill(queue, other, 0, 4, 0), INVALID_ARGUMENT, "the buffer belongs");
  mps_event *event;
  EXPECT_OK(mps_event_create(second, &event));
  EXPECT_FAIL(mps_queue_signal(queue, event, 1), INVALID_ARGUMENT, "the event belongs");
  EXPECT_FAIL(mps_queue_wait_event(queue, event, 1), INVALID_ARGUMENT, "the event belongs");
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(other));
  EXPECT_OK(mps_queue_release(other_queue));
  EXPECT_OK(mps_device_release(second));
}

static void the_struct_may_have_another_size(void) {
  struct {
    mps_dispatch dispatch;
    uint64_t later;
  } longer = {.later = 0};
  call c;
  right_saxpy(&c);
  longer.dispatch = c.dispatch;
  longer.dispatch.struct_size = sizeof longer;
  EXPECT_OK(mps_queue_dispatch(queue, &longer.dispatch));
  longer.later = 1;
  EXPECT_FAIL(mps_queue_dispatch(queue, &longer.dispatch), UNSUPPORTED, "mps_dispatch");
  EXPECT_REFUSED(right_saxpy, c.dispatch.struct_size = 0, INVALID_ARGUMENT, "sizeof(mps_dispatch)");
  EXPECT_REFUSED(right_saxpy, c.dispatch.struct_size = SIZE_MAX, INVALID_ARGUMENT, "sizeof(mps_dispatch)");
  EXPECT_REFUSED(right_saxpy, c.dispatch.pipeline = NULL, INVALID_HANDLE, "expected a pipeline, got NULL");
  EXPECT_FAIL(mps_queue_dispatch(queue, NULL), INVALID_ARGUMENT, "dispatch must not be NULL");
}

static void copies_and_fills_are_checked(void) {
  EXPECT_OK(mps_queue_copy(queue, x, 0, y, 0, 4000));
  EXPECT_OK(mps_queue_copy(queue, x, 0, x, 2000, 2000));
  EXPECT_EQUAL(fake.copies, 2);
  EXPECT_OK(mps_queue_copy(queue, x, 4000, y, 4000, 0));
  EXPECT_EQUAL(fake.copies, 2);
  EXPECT_FAIL(mps_queue_copy(queue, x, 0, x, 1999, 2000), INVALID_ARGUMENT, "overlap");
  EXPECT_FAIL(mps_queue_copy(queue, x, 1999, x, 0, 2000), INVALID_ARGUMENT, "overlap");
  EXPECT_FAIL(mps_queue_copy(queue, x, 1, y, 0, 4000), INVALID_ARGUMENT, "source of 4000 bytes");
  EXPECT_FAIL(mps_queue_copy(queue, x, 0, y, UINT64_MAX, 2), INVALID_ARGUMENT, "target of 4000 bytes");
  EXPECT_FAIL(mps_queue_copy(queue, x, 0, NULL, 0, 2), INVALID_HANDLE, "got NULL");
  EXPECT_EQUAL(fake.copies, 2);
  EXPECT_OK(mps_queue_fill(queue, x, 1, 3999, 7));
  EXPECT_OK(mps_queue_fill(queue, x, 4000, 0, 7));
  EXPECT_EQUAL(fake.fills, 1);
  EXPECT_FAIL(mps_queue_fill(queue, x, 1, 4000, 7), INVALID_ARGUMENT, "from offset 1");
  EXPECT_FAIL(mps_queue_fill(queue, x, 1, UINT64_MAX, 7), INVALID_ARGUMENT, "buffer of 4000 bytes");
}

static void expect_message(const char *text) {
  if (strstr(mps_error_message(), text) == NULL) {
    fprintf(stderr, "message: %s\n  lacks: %s\n", mps_error_message(), text);
    exit(1);
  }
}

static void lists_are_checked_as_a_whole(void) {
  call c;
  right_saxpy(&c);
  const mps_copy copy = {.struct_size = sizeof copy, .source = x, .target = y, .length = 4000};
  const mps_fill fill = {.struct_size = sizeof fill, .buffer = x, .length = 4000, .value = 255};
  mps_command list[100] = {{.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &c.dispatch},
                           {.kind = MPS_COMMAND_COPY, .u.copy = &copy},
                           {.kind = MPS_COMMAND_FILL, .u.fill = &fill}};
  for (int i = 3; i < 100; i++) {
    list[i] = list[i % 3];
  }
  int dispatches = fake.dispatches, copies = fake.copies, fills = fake.fills, commits = fake.commits;
  EXPECT_OK(mps_queue_submit(queue, list, 3));
  EXPECT_OK(mps_queue_submit(queue, list, 99));
  EXPECT_OK(mps_queue_submit(queue, NULL, 0));
  EXPECT_EQUAL(fake.dispatches, dispatches + 34);
  EXPECT_EQUAL(fake.copies, copies + 34);
  EXPECT_EQUAL(fake.fills, fills + 34);
  EXPECT_EQUAL(fake.commits, commits + 3);
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(mps_command_check(device, &list[i]));
  }

  const mps_copy outside = {.struct_size = sizeof copy, .source = x, .target = y, .length = 4001};
  const mps_fill no_byte = {.struct_size = sizeof fill, .buffer = x, .length = 4, .value = 256};
  const mps_fill reserved = {.struct_size = sizeof fill, .buffer = x, .length = 4, .reserved = 1};
  const mps_fill unset = {.buffer = x, .length = 4};
  call wrong;
  right_saxpy(&wrong);
  wrong.dispatch.argument_count = 3;
  call old;
  right_saxpy(&old);
  old.dispatch.struct_size -= 8;
  const struct {
    mps_command command;
    mps_status status;
    const char *text;
  } refused[] = {
      {{.kind = MPS_COMMAND_COPY, .u.copy = &outside}, MPS_STATUS_INVALID_ARGUMENT, "source of 4000 bytes"},
      {{.kind = MPS_COMMAND_COPY}, MPS_STATUS_INVALID_ARGUMENT, "the pointer to mps_copy must not be NULL"},
      {{.kind = MPS_COMMAND_FILL, .u.fill = &no_byte}, MPS_STATUS_INVALID_ARGUMENT, "value is 256"},
      {{.kind = MPS_COMMAND_FILL, .u.fill = &reserved}, MPS_STATUS_INVALID_ARGUMENT, "reserved field of a fill"},
      {{.kind = MPS_COMMAND_FILL, .u.fill = &unset}, MPS_STATUS_INVALID_ARGUMENT, "sizeof(mps_fill)"},
      {{.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &wrong.dispatch}, MPS_STATUS_INVALID_ARGUMENT, "'n'"},
      {{.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &old.dispatch},
       MPS_STATUS_INVALID_ARGUMENT,
       "sizeof(mps_dispatch)"},
      {{.kind = MPS_COMMAND_DISPATCH}, MPS_STATUS_INVALID_ARGUMENT, "mps_dispatch must not be NULL"},
      {{.kind = 0}, MPS_STATUS_INVALID_ARGUMENT, "the kind of a command is 0"},
      {{.kind = 3, .reserved = 1, .u.fill = &fill}, MPS_STATUS_INVALID_ARGUMENT, "reserved field of a command"},
  };
  commits = fake.commits;
  dispatches = fake.dispatches;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    list[98] = refused[i].command;
    EXPECT_EQUAL(mps_command_check(device, &list[98]), refused[i].status);
    expect_message(refused[i].text);
    EXPECT_EQUAL(mps_queue_submit(queue, list, 99), refused[i].status);
    expect_message(refused[i].text);
    expect_message("commands[98]: ");
  }
  EXPECT_FAIL(mps_queue_submit(queue, NULL, 1), INVALID_ARGUMENT, "commands must not be NULL");
  EXPECT_FAIL(mps_command_check(device, NULL), INVALID_ARGUMENT, "command must not be NULL");
  EXPECT_EQUAL(fake.dispatches, dispatches);
  EXPECT_EQUAL(fake.commits, commits);
}

int main(void) {
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  EXPECT_OK(mps_library_create_from_source(device, "", 0, NULL, &library));
  saxpy = make_pipeline("saxpy");
  reduce = make_pipeline("reduce");
  gather = make_pipeline("gather");
  x = make_buffer(device, 4000);
  y = make_buffer(device, 4000);

  grids_and_groups_reach_the_backend();
  the_library_chooses_groups();
  chosen_groups_suit_any_grid();
  an_empty_grid_runs_nothing_but_is_checked();
  bad_grids_and_groups_are_refused();
  slots_are_checked();
  buffers_are_checked();
  inline_bytes_are_checked();
  tables_are_checked();
  threadgroup_memory_is_checked();
  no_bytes_of_threadgroup_memory_are_for_any_slot();
  devices_do_not_mix();
  the_struct_may_have_another_size();
  copies_and_fills_are_checked();
  lists_are_checked_as_a_whole();

  EXPECT_OK(mps_buffer_release(x));
  EXPECT_OK(mps_buffer_release(y));
  EXPECT_OK(mps_pipeline_release(saxpy));
  EXPECT_OK(mps_pipeline_release(reduce));
  EXPECT_OK(mps_pipeline_release(gather));
  EXPECT_OK(mps_library_release(library));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  return 0;
}
