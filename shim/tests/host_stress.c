/* Many threads on shared queues, events and buffers at once; results are checked and everything is released. */
#include "host_fixture.h"

enum { THREADS = 4, ROUNDS = 150, WORDS = 20000 };

static mps_queue *shared;
static mps_pipeline *add, *add_loop;
static mps_buffer *total; /* what all threads add to, on the shared queue alone */

/* A list that all threads submit: no command of another thread comes between its fill, its adds and its copy. */
enum { ADDS = 5, LISTED = ADDS + 2 };
static mps_buffer *scratch, *outcome;
static mps_command list[LISTED];
static mps_dispatch listed_add;
static mps_argument listed_arguments[2];
static mps_fill listed_fill;
static mps_copy listed_copy;

static void make_list(void) {
  static const uint32_t three = 3;
  scratch = make_buffer(WORDS * 4);
  outcome = make_buffer(WORDS * 4);
  listed_arguments[0] = (mps_argument){.kind = MPS_ARGUMENT_BUFFER, .buffer = scratch};
  listed_arguments[1] = (mps_argument){.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &three, .length = 4};
  listed_add = (mps_dispatch){.struct_size = sizeof listed_add,
                              .pipeline = add,
                              .arguments = listed_arguments,
                              .argument_count = 2,
                              .grid = {WORDS, 1, 1}};
  listed_fill = (mps_fill){.struct_size = sizeof listed_fill, .buffer = scratch, .length = WORDS * 4};
  listed_copy =
      (mps_copy){.struct_size = sizeof listed_copy, .source = scratch, .target = outcome, .length = WORDS * 4};
  list[0] = (mps_command){.kind = MPS_COMMAND_FILL, .u.fill = &listed_fill};
  for (int i = 1; i <= ADDS; i++) {
    list[i] = (mps_command){.kind = MPS_COMMAND_DISPATCH, .u.dispatch = &listed_add};
  }
  list[ADDS + 1] = (mps_command){.kind = MPS_COMMAND_COPY, .u.copy = &listed_copy};
}

static void count_call(void *user) {
  atomic_fetch_add((_Atomic int *)user, 1);
}

static void count_handler(void *user, const mps_command_info *info) {
  EXPECT_EQUAL(info->status, MPS_STATUS_OK);
  atomic_fetch_add((_Atomic int *)user, 1);
}

/* Work on a queue of the thread's own and on the shared one, tied together by an event. */
static void *work(void *argument) {
  uint32_t seed = (uint32_t)(uintptr_t)argument, one = 1;
  mps_queue *own = make_queue("own");
  mps_event *event = make_event();
  mps_buffer *sums = make_buffer(WORDS * 4), *copy = make_buffer(WORDS * 4);
  _Atomic int calls = 0;
  int callbacks = 0;
  for (uint64_t round = 1; round <= ROUNDS; round++) {
    seed = seed * 1664525u + 1013904223u;
    uint64_t count = seed >> 31 ? WORDS : 1 + (seed >> 8) % 1000;
    run(own, seed >> 30 & 1 ? add : add_loop, sums, &one, WORDS);
    if (seed >> 24 & 1) {
      const mps_copy command = {.struct_size = sizeof command, .source = sums, .target = copy, .length = count * 4};
      const mps_command single = {.kind = MPS_COMMAND_COPY, .u.copy = &command};
      EXPECT_OK(mps_queue_submit(own, &single, 1));
    } else {
      EXPECT_OK(mps_queue_copy(own, sums, 0, copy, 0, count * 4));
    }
    EXPECT_OK(mps_queue_signal(own, event, 2 * round));
    EXPECT_OK(mps_queue_commit(own, NULL));
    EXPECT_OK(mps_queue_wait_event(shared, event, 2 * round));
    run(shared, seed >> 29 & 1 ? add : add_loop, total, &one, seed >> 28 & 1 ? WORDS : 1);
    EXPECT_OK(mps_queue_submit(shared, list, LISTED));
    EXPECT_OK(mps_queue_signal(shared, event, 2 * round + 1));
    EXPECT_OK(mps_queue_commit(shared, NULL));
    if (seed >> 27 & 1) {
      EXPECT_OK(mps_queue_callback(own, count_call, &calls));
      callbacks++;
    }
    if (seed >> 26 & 1) {
      EXPECT_OK(mps_queue_add_handler(own, MPS_HANDLER_COMPLETED, count_handler, &calls));
      callbacks++;
    }
    if (seed >> 25 & 1) {
      EXPECT_OK(mps_event_wait(event, 2 * round + 1, 60 * SECOND));
      EXPECT_OK(mps_queue_wait(own, 60 * SECOND));
      EXPECT_EQUAL(words(copy)[0], round);
      EXPECT_EQUAL(words(copy)[count - 1], round);
    }
  }
  EXPECT_OK(mps_queue_wait(own, 60 * SECOND));
  EXPECT_EQUAL(words(sums)[WORDS - 1], ROUNDS);
  EXPECT_EQUAL(atomic_load(&calls), callbacks);
  EXPECT_OK(mps_buffer_release(sums));
  EXPECT_OK(mps_buffer_release(copy));
  EXPECT_OK(mps_event_release(event)); /* the shared queue may still signal it */
  EXPECT_OK(mps_queue_release(own));
  return NULL;
}

/* Queues that live for one command each. */
static void *short_lives(void *argument) {
  mps_buffer *buffer = argument;
  uint32_t one = 1;
  for (int i = 0; i < ROUNDS; i++) {
    mps_queue *queue = make_queue("short");
    run(queue, add_loop, buffer, &one, 1);
    if (i % 2) {
      EXPECT_OK(mps_queue_wait(queue, 60 * SECOND));
      EXPECT_OK(mps_queue_release(queue));
    } else {
      mps_event *event = make_event();
      EXPECT_OK(mps_queue_signal(queue, event, 1));
      EXPECT_OK(mps_queue_release(queue));
      EXPECT_OK(mps_event_wait(event, 1, 60 * SECOND));
      EXPECT_OK(mps_event_release(event));
    }
    EXPECT_EQUAL(words(buffer)[0], i + 1);
  }
  return NULL;
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  shared = make_queue("shared");
  add = make_pipeline("add");
  add_loop = make_pipeline("add_loop");
  total = make_buffer(WORDS * 4);
  make_list();
  mps_buffer *single = make_buffer(4);
  pthread_t threads[THREADS + 1];
  for (uintptr_t i = 0; i < THREADS; i++) {
    EXPECT_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
  }
  EXPECT_EQUAL(pthread_create(&threads[THREADS], NULL, short_lives, single), 0);
  for (int i = 0; i < THREADS + 1; i++) {
    pthread_join(threads[i], NULL);
  }
  EXPECT_OK(mps_queue_wait(shared, 60 * SECOND));
  EXPECT_EQUAL(words(total)[0], THREADS * ROUNDS);
  for (int i = 0; i < WORDS; i++) {
    EXPECT_EQUAL(words(outcome)[i], 3 * ADDS);
  }
  EXPECT_OK(mps_buffer_release(total));
  EXPECT_OK(mps_buffer_release(scratch));
  EXPECT_OK(mps_buffer_release(outcome));
  EXPECT_OK(mps_buffer_release(single));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_pipeline_release(add_loop));
  EXPECT_OK(mps_queue_release(shared));
  while (live_objects().pending_commands || live_objects().events || live_objects().pipelines) {
    sleep_ms(1);
  }
  fixture_close();
  return 0;
}
