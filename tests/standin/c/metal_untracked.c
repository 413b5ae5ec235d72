/* The Metal device: memory of heaps, which Metal does not track, and products of matrices in it. */
#include "metal_fixture.h"

/* Two buffers of 256 bytes in a heap, which they keep. */
static void make_in_heap(mps_buffer **a, mps_buffer **b) {
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 65536};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 256};
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, a));
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, b));
  EXPECT_OK(mps_heap_release(heap));
}

/* Untracked memory of a heap, used by compute and blits in turn: the stand-in aborts unless a fence is waited for. */
static void test_untracked_memory(void) {
  mps_pipeline *kernel = make_pipeline("add");
  mps_buffer *a, *b;
  make_in_heap(&a, &b);
  EXPECT_OK(mps_queue_fill(queue, a, 0, 256, 0));
  for (uint32_t i = 1; i <= 200; i++) {
    EXPECT_OK(add(kernel, a, i));
    EXPECT_OK(mps_queue_copy(queue, a, 0, b, 0, 256));
    if (i % 7 == 0) {
      EXPECT_OK(mps_queue_commit(queue, NULL));
    }
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(b)[0], 200 * 201 / 2);
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
  EXPECT_OK(mps_pipeline_release(kernel));
}

/* One matrix of halves on the left of 4; the second lies anywhere, transposed. */
static mps_matmul products(mps_buffer *a, mps_buffer *b) {
  return (mps_matmul){.struct_size = sizeof(mps_matmul),
                      .data_type = MPS_DATA_HALF,
                      .count = 4,
                      .left = {.buffer = a, .rows = 2, .columns = 3},
                      .right = {.buffer = a, .offset = 16, .rows = 3, .columns = 3, .matrix_bytes = 2, .transposed = 1},
                      .result = {.buffer = b, .rows = 2, .columns = 3, .matrix_bytes = 12}};
}

static void test_products(void) {
  mps_buffer *a, *b;
  make_in_heap(&a, &b);
  mps_matmul call = products(a, b);
  for (int round = 0; round < 40; round++) {
    EXPECT_OK(mps_queue_fill(queue, a, 0, 256, 0x3c)); /* each half is 1.059 */
    EXPECT_OK(mps_queue_matmul(queue, &call));
    EXPECT_OK(mps_queue_copy(queue, b, 0, a, 128, 48));
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  for (int i = 0; i < 24; i++) {
    EXPECT_EQUAL(((uint16_t *)words(a))[64 + i], 0x42b9); /* 3 times 1.059 squared, as a half */
  }
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
}

/* Products that are refused, and that fail to encode. */
static void test_failing_products(void) {
  mps_buffer *a, *b;
  make_in_heap(&a, &b);
  mps_matmul call = products(a, b);
  call.data_type = MPS_DATA_BFLOAT;
  EXPECT_FAIL(mps_queue_matmul(queue, &call), UNSUPPORTED, "no matrices of MPS_DATA_BFLOAT");
  call.data_type = MPS_DATA_HALF;
  standin_set("matrices", 0);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), UNSUPPORTED, "do not support 'Stand-in GPU'");
  standin_set("matrices", 1);
  standin_set("fail_products", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "give no product of matrices");
  standin_set("fail_matrices", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "give no matrix");
  standin_set("raise_products", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), INTERNAL, "while encoding a product of matrices: told to raise");
  standin_set("fail_command_buffers", 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {test_untracked_memory, test_products, test_failing_products};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
