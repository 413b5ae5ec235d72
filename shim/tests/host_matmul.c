/* Products of matrices as commands of a queue: with a function of the program's own on the host device, by the system's
 * library on Metal. */
#include "host_fixture.h"

#include <pthread.h>
#include <unistd.h>

static _Atomic int calls;
static _Atomic int failing;

static float *first_of(mps_buffer *buffer) {
  return (float *)(void *)words(buffer);
}

/* What a program might set: plain loops, for floats. */
static mps_status multiply(void *user, const mps_matmul *m, const void *left, const void *right, void *result) {
  EXPECT(user == &calls);
  EXPECT_EQUAL(m->struct_size, sizeof *m);
  atomic_fetch_add(&calls, 1);
  if (atomic_load(&failing)) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  uint64_t inner = m->left.transposed ? m->left.rows : m->left.columns;
  for (uint64_t n = 0; n < m->count; n++) {
    const char *a = (const char *)left + n * m->left.matrix_bytes, *b = (const char *)right + n * m->right.matrix_bytes;
    char *c = (char *)result + n * m->result.matrix_bytes;
    for (uint64_t i = 0; i < m->result.rows; i++) {
      for (uint64_t j = 0; j < m->result.columns; j++) {
        float sum = 0;
        for (uint64_t k = 0; k < inner; k++) {
          const float *x = (const float *)(const void *)(a + (m->left.transposed ? k : i) * m->left.row_bytes);
          const float *y = (const float *)(const void *)(b + (m->right.transposed ? j : k) * m->right.row_bytes);
          sum += x[m->left.transposed ? i : k] * y[m->right.transposed ? k : j];
        }
        ((float *)(void *)(c + i * m->result.row_bytes))[j] = sum;
      }
    }
  }
  return MPS_STATUS_OK;
}

/* left 2 x 3 of 1 to 6; right 3 x 2, of 1 to 6 too. */
typedef struct operands {
  mps_buffer *left, *right, *result;
  mps_matmul call;
} operands;

static operands make_operands(void) {
  operands o = {.left = make_buffer(96), .right = make_buffer(96), .result = make_buffer(96)};
  for (int i = 0; i < 24; i++) {
    first_of(o.left)[i] = first_of(o.right)[i] = (float)(i + 1);
    first_of(o.result)[i] = -1;
  }
  o.call = (mps_matmul){.struct_size = sizeof o.call,
                        .data_type = MPS_DATA_FLOAT,
                        .count = 1,
                        .left = {.buffer = o.left, .rows = 2, .columns = 3},
                        .right = {.buffer = o.right, .rows = 3, .columns = 2},
                        .result = {.buffer = o.result, .rows = 2, .columns = 2}};
  return o;
}

static void free_operands(operands o) {
  EXPECT_OK(mps_buffer_release(o.left));
  EXPECT_OK(mps_buffer_release(o.right));
  EXPECT_OK(mps_buffer_release(o.result));
}

static void expect_floats(mps_buffer *buffer, int count, const float *wanted) {
  for (int i = 0; i < count; i++) {
    if (first_of(buffer)[i] != wanted[i]) {
      fprintf(stderr, "number %d is %g, expected %g\n", i, (double)first_of(buffer)[i], (double)wanted[i]);
      exit(1);
    }
  }
}

#define EXPECT_FLOATS(buffer, ...)                                                                                     \
  do {                                                                                                                 \
    const float wanted_[] = {__VA_ARGS__};                                                                             \
    expect_floats((buffer), (int)(sizeof wanted_ / sizeof *wanted_), wanted_);                                         \
  } while (0)

static void test_layouts(mps_queue *queue) {
  operands o = make_operands();
  const mps_matmul plain = o.call;
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(o.result, 22, 28, 49, 64, -1);

  /* The transpose of a 3 x 2 matrix, whose rows have a gap, times that of a 2 x 3 one; the result has gaps too. */
  o.call.left = (mps_matrix){.buffer = o.left, .offset = 4, .rows = 3, .columns = 2, .row_bytes = 12, .transposed = 1};
  o.call.right = (mps_matrix){.buffer = o.right, .rows = 2, .columns = 3, .transposed = 1};
  o.call.result.row_bytes = 12;
  first_of(o.result)[2] = -1;
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  /* (2 5 8; 3 6 9) times (1 4; 2 5; 3 6) */
  EXPECT_FLOATS(o.result, 36, 81, -1, 42, 96, -1);

  /* Three matrices, of which the left ones overlap, times one. */
  o.call = plain;
  o.call.count = 3;
  o.call.left.matrix_bytes = 4;
  o.call.result.matrix_bytes = 16;
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(o.result, 22, 28, 49, 64, 31, 40, 58, 76, 40, 52, 67, 88);

  /* Sums of no products. */
  o.call.left.columns = o.call.right.rows = 0;
  o.call.count = 2;
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(o.result, 0, 0, 0, 0, 0, 0, 0, 0, 40);
  free_operands(o);
}

/* A product comes between what was encoded before and after it, and keeps its buffers. */
static void test_order(mps_queue *queue) {
  operands o = make_operands();
  mps_buffer *seen = make_buffer(32);
  mps_pipeline *pipeline = make_pipeline("add");
  for (int round = 0; round < 50; round++) {
    EXPECT_OK(mps_queue_fill(queue, o.left, 0, 24, 0));
    EXPECT_OK(mps_queue_matmul(queue, &o.call));
    EXPECT_OK(mps_queue_copy(queue, o.result, 0, seen, 0, 16));
    uint32_t one = 0x3f800000; /* added to 0.0f, it makes 1.0f of it */
    run(queue, pipeline, o.left, &one, 6);
    EXPECT_OK(mps_queue_matmul(queue, &o.call));
    EXPECT_OK(mps_queue_copy(queue, o.result, 0, seen, 16, 16));
  }
  barrier_gate gate = gate_close(queue);
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_EQUAL(in_use(o.left) && in_use(o.right) && in_use(o.result), true);
  mps_buffer *result = o.result;
  EXPECT_OK(mps_buffer_retain(result));
  free_operands(o);
  gate_open(gate);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(seen, 0, 0, 0, 0, 9, 12, 9, 12);
  EXPECT_FLOATS(result, 9, 12, 9, 12);
  EXPECT_OK(mps_buffer_release(result));
  EXPECT_OK(mps_buffer_release(seen));
  EXPECT_OK(mps_pipeline_release(pipeline));
}

/* In a list, between a fill and a copy. */
static void test_list(mps_queue *queue) {
  operands o = make_operands();
  mps_buffer *seen = make_buffer(16);
  mps_fill fill = {.struct_size = sizeof fill, .buffer = o.left, .offset = 12, .length = 12};
  mps_copy copy = {.struct_size = sizeof copy, .source = o.result, .target = seen, .length = 16};
  mps_command list[] = {{.kind = MPS_COMMAND_FILL, .u.fill = &fill},
                        {.kind = MPS_COMMAND_MATMUL, .u.matmul = &o.call},
                        {.kind = MPS_COMMAND_COPY, .u.copy = &copy}};
  EXPECT_OK(mps_queue_submit(queue, list, 3));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(seen, 22, 28, 0, 0);
  EXPECT_OK(mps_buffer_release(seen));
  free_operands(o);
}

static void test_functions(mps_queue *queue) {
  operands o = make_operands();
  EXPECT_OK(mps_matmul_set(NULL, NULL, 0));
  EXPECT_FAIL(mps_queue_matmul(queue, &o.call), UNSUPPORTED, "set one by mps_matmul_set");
  EXPECT_EQUAL(is_idle(queue), true);
  EXPECT_OK(mps_matmul_set(multiply, &calls, 0));
  int before = atomic_load(&calls);
  atomic_store(&failing, 1);
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_matmul(queue, &o.call)); /* not run after the failure */
  EXPECT_FAIL(
      mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
      "matmul of 2 x 3 by 3 x 2, float failed: the function for products of matrices answered \"out of memory\"");
  atomic_store(&failing, 0);
  EXPECT_EQUAL(atomic_load(&calls), before + 1);
  EXPECT_FLOATS(o.result, -1, -1);

  barrier_gate gate = gate_close(queue);
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_matmul_set(NULL, NULL, 0));
  gate_open(gate);
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "was taken away before this one ran");
  EXPECT_OK(mps_matmul_set(multiply, &calls, 0));
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FLOATS(o.result, 22, 28, 49, 64);
  free_operands(o);
}

/* ---- on whose thread ---- */

static pthread_t asking, ran_on;
static mps_queue *asked;
static operands meanwhile;

static void *encode_meanwhile(void *queue) {
  EXPECT_OK(mps_queue_copy(queue, meanwhile.result, 0, meanwhile.left, 48, 4));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  return NULL;
}

/* Runs while another thread gives the queue a copy of the result, which must wait for it. */
static mps_status multiply_slowly(void *user, const mps_matmul *m, const void *left, const void *right, void *result) {
  ran_on = pthread_self();
  if (asked) {
    mps_queue *queue = asked;
    asked = NULL;
    pthread_t thread;
    EXPECT_EQUAL(pthread_create(&thread, NULL, encode_meanwhile, queue), 0);
    EXPECT_EQUAL(pthread_join(thread, NULL), 0);
    EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), INVALID_STATE, "one of its own handlers or callbacks");
    usleep(20000);
  }
  return multiply(user, m, left, right, result);
}

/* A function that may be called anywhere runs on the thread that waits, if that has the time. */
static void test_threads(mps_queue *queue) {
  operands o = meanwhile = make_operands();
  asking = pthread_self();
  for (int any = 0; any < 2; any++) {
    EXPECT_OK(mps_matmul_set(multiply_slowly, &calls, any ? MPS_MATMUL_ANY_THREAD : 0));
    asked = queue;
    first_of(o.left)[12] = -1;
    EXPECT_OK(mps_queue_matmul(queue, &o.call));
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_EQUAL(pthread_equal(ran_on, asking) != 0, any == 1);
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_FLOATS(o.result, 22, 28, 49, 64);
    expect_floats(o.left, 13, (const float[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 22});
    EXPECT_EQUAL(is_idle(queue), true);
  }
  /* Twelve products and sums do not surely end within so few nanoseconds. */
  EXPECT_OK(mps_queue_matmul(queue, &o.call));
  mps_status status = mps_queue_wait(queue, 11);
  EXPECT_EQUAL(status == MPS_STATUS_OK || status == MPS_STATUS_TIMEOUT, true);
  while (!is_idle(queue)) {
    usleep(100);
  }
  EXPECT_EQUAL(pthread_equal(ran_on, asking), 0);
  EXPECT_FAIL(mps_matmul_set(multiply, &calls, 6), INVALID_ARGUMENT, "flags are 0x6");
  EXPECT_OK(mps_matmul_set(multiply, &calls, 0));
  free_operands(o);
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  EXPECT_OK(mps_matmul_set(multiply, &calls, 0));
  mps_queue *queue = make_queue("products");
  test_layouts(queue);
  test_order(queue);
  test_list(queue);
  if (!on_metal) {
    test_functions(queue);
    test_threads(queue);
  }
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_matmul_set(NULL, NULL, 0));
  fixture_close();
  return 0;
}
