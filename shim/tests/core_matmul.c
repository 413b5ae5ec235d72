/* Products of matrices are checked in full before anything is encoded, and reach the backend with their defaults. */
#include "expect.h"
#include "fake.h"

static mps_device *device;
static mps_queue *queue;
static mps_buffer *a, *b, *c; /* of 4000 bytes */

static mps_buffer *make_buffer(mps_device *on) {
  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 4000};
  EXPECT_OK(mps_buffer_create(on, &desc, &buffer));
  return buffer;
}

/* Two products of a 3 x 4 and a 4 x 5 matrix, the second one stored transposed, for a test to spoil. */
static mps_matmul right_call(void) {
  return (mps_matmul){.struct_size = sizeof(mps_matmul),
                      .data_type = MPS_DATA_FLOAT,
                      .count = 2,
                      .left = {.buffer = a, .offset = 8, .rows = 3, .columns = 4, .matrix_bytes = 48},
                      .right = {.buffer = b, .rows = 5, .columns = 4, .row_bytes = 20, .transposed = 1},
                      .result = {.buffer = c, .rows = 3, .columns = 5, .matrix_bytes = 60}};
}

static void test_right_calls(void) {
  mps_matmul call = right_call();
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_EQUAL(fake.matmuls, 1);
  EXPECT_EQUAL(fake.matmul.left.row_bytes, 16);
  EXPECT_EQUAL(fake.matmul.right.row_bytes, 20);
  EXPECT_EQUAL(fake.matmul.result.row_bytes, 20);
  EXPECT_EQUAL(call.left.row_bytes, 0);
  call.data_type = MPS_DATA_BFLOAT;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_EQUAL(fake.matmul.left.row_bytes, 8);
  EXPECT_EQUAL(fake.matmuls, 2);

  /* The last matrix ends with the buffer. */
  call = right_call();
  call.left.offset = 4000 - 2 * 48;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  /* In one buffer, side by side. */
  call.left = (mps_matrix){.buffer = c, .offset = 120, .rows = 3, .columns = 4, .matrix_bytes = 48};
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_EQUAL(fake.matmuls, 4);
}

static void test_nothing_to_do(void) {
  int before = fake.matmuls;
  mps_matmul call = right_call();
  call.count = 0;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  call = right_call();
  call.left.rows = call.result.rows = 0;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  call = right_call();
  call.right.rows = call.result.columns = 0;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_EQUAL(fake.fills, 0);

  call = right_call(); /* sums of nothing */
  call.left.columns = call.right.columns = 0;
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_EQUAL(fake.fills, 1);
  call.result.row_bytes = 24;
  call.result.matrix_bytes = 72;
  EXPECT_OK(mps_queue_matmul(queue, &call)); /* row by row */
  EXPECT_EQUAL(fake.fills, 7);
  EXPECT_EQUAL(fake.matmuls, before);
}

/* Spoil a right call with `change`, expect the failure, and expect that the backend saw nothing. */
#define EXPECT_REFUSED(change, name, text)                                                                             \
  do {                                                                                                                 \
    mps_matmul call = right_call();                                                                                    \
    change;                                                                                                            \
    int before = fake.matmuls + fake.fills;                                                                            \
    EXPECT_FAIL(mps_queue_matmul(queue, &call), name, text);                                                           \
    EXPECT_EQUAL(fake.matmuls + fake.fills, before);                                                                   \
  } while (0)

static void test_refusals(mps_buffer *foreign) {
  EXPECT_FAIL(mps_queue_matmul(queue, NULL), INVALID_ARGUMENT, "must not be NULL");
  EXPECT_REFUSED(call.struct_size = 8, INVALID_ARGUMENT, "set it to sizeof(mps_matmul)");
  EXPECT_REFUSED(call.data_type = MPS_DATA_INT, INVALID_ARGUMENT, "data_type is 6, not MPS_DATA_FLOAT (12)");
  EXPECT_REFUSED(call.data_type = MPS_DATA_FLOAT | 1 << 8, INVALID_ARGUMENT, "data_type is 268");
  EXPECT_REFUSED(call.reserved = 1, INVALID_ARGUMENT, "reserved field must be 0");
  EXPECT_REFUSED(call.left.buffer = NULL, INVALID_HANDLE, "mps_queue_matmul");
  EXPECT_REFUSED(call.right.buffer = foreign, INVALID_ARGUMENT, "the right belongs to device");
  EXPECT_REFUSED(call.left.transposed = 2, INVALID_ARGUMENT, "left.transposed is 2");
  EXPECT_REFUSED(call.right.reserved = 7, INVALID_ARGUMENT, ".reserved 7");
  EXPECT_REFUSED(call.result.transposed = 1, INVALID_ARGUMENT, "exchange and transpose the operands");
  EXPECT_REFUSED(call.left.row_bytes = 12, INVALID_ARGUMENT, "left.row_bytes is 12, but a row of 4 elements takes 16");
  EXPECT_REFUSED(call.left.row_bytes = 18, INVALID_ARGUMENT, "left.row_bytes is 18, no multiple");
  EXPECT_REFUSED(call.left.offset = 2, INVALID_ARGUMENT, "left.offset is 2, no multiple of an element's 4 bytes");
  EXPECT_REFUSED(call.left.matrix_bytes = 49, INVALID_ARGUMENT, "left.matrix_bytes is 49, no multiple");
  EXPECT_REFUSED(call.left.offset = 3908, INVALID_ARGUMENT,
                 "96 bytes from offset 3908 on do not lie in the left of 4000 bytes");
  EXPECT_REFUSED(call.left.row_bytes = 2000, INVALID_ARGUMENT, "do not lie in the left");
  EXPECT_REFUSED(call.left.row_bytes = UINT64_MAX - 3, INVALID_ARGUMENT, "more than any buffer holds");
  EXPECT_REFUSED(call.left.matrix_bytes = UINT64_MAX - 3, INVALID_ARGUMENT, "more than any buffer holds");
  EXPECT_REFUSED((call.left.matrix_bytes = 1 << 10, call.count = UINT64_MAX), INVALID_ARGUMENT,
                 "more than any buffer holds");
  EXPECT_REFUSED(call.left.rows = UINT64_C(1) << 31, LIMIT_EXCEEDED, "2147483648 rows and 4 columns");
  EXPECT_REFUSED(call.left.columns = UINT64_MAX / 4, LIMIT_EXCEEDED, "the limit is 2147483647");
  EXPECT_REFUSED(call.right.transposed = 0, INVALID_ARGUMENT,
                 "a 3 x 4 matrix times a 5 x 4 one, transpositions done, has no 3 x 5 result");
  EXPECT_REFUSED(call.result.columns = 4, INVALID_ARGUMENT, "has no 3 x 4 result");
  EXPECT_REFUSED(call.result.matrix_bytes = 56, INVALID_ARGUMENT,
                 "result.matrix_bytes is 56, but each result takes 60");
  EXPECT_REFUSED((call.left.buffer = c, call.left.offset = 116), INVALID_ARGUMENT,
                 "bytes 116 to 212 of the result's buffer are also left");
  EXPECT_REFUSED((call.right.buffer = c, call.right.offset = 0), INVALID_ARGUMENT, "are also right");
}

static void test_lists(void) {
  mps_matmul calls[] = {right_call(), right_call(), right_call(), right_call()};
  calls[1].count = 0;
  calls[2].left.columns = calls[2].right.columns = 0;
  mps_command list[] = {{.kind = MPS_COMMAND_MATMUL, .u.matmul = &calls[0]},
                        {.kind = MPS_COMMAND_MATMUL, .u.matmul = &calls[1]},
                        {.kind = MPS_COMMAND_MATMUL, .u.matmul = &calls[2]},
                        {.kind = MPS_COMMAND_MATMUL, .u.matmul = &calls[3]}};
  int matmuls = fake.matmuls, fills = fake.fills;
  EXPECT_OK(mps_queue_submit(queue, list, 4));
  EXPECT_EQUAL(fake.matmuls, matmuls + 2);
  EXPECT_EQUAL(fake.fills, fills + 1);
  EXPECT_EQUAL(fake.matmul.left.row_bytes, 16);

  calls[3].left.columns = 5;
  EXPECT_FAIL(mps_queue_submit(queue, list, 4), INVALID_ARGUMENT, "commands[3]: mps_queue_matmul: a 3 x 5 matrix");
  calls[3].left.columns = 4;
  calls[3].data_type = MPS_DATA_HALF;
  fake.lacks_half = true;
  EXPECT_FAIL(mps_command_check(device, &list[3]), UNSUPPORTED, "made to lack halves");
  EXPECT_FAIL(mps_queue_submit(queue, list, 4), UNSUPPORTED, "commands[3]: made to lack halves");
  fake.lacks_half = false;
  calls[2].result.matrix_bytes = 64;
  EXPECT_FAIL(mps_queue_submit(queue, list, 4), UNSUPPORTED, "commands[2]: mps_queue_submit: zeros between gaps");
  list[3].u.matmul = NULL;
  EXPECT_FAIL(mps_command_check(device, &list[3]), INVALID_ARGUMENT, "the pointer to mps_matmul must not be NULL");
  EXPECT_EQUAL(fake.matmuls, matmuls + 2);
}

int main(void) {
  mps_device *other;
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 1, &other));
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  a = make_buffer(device);
  b = make_buffer(device);
  c = make_buffer(device);
  mps_buffer *foreign = make_buffer(other);
  test_right_calls();
  test_nothing_to_do();
  test_refusals(foreign);
  test_lists();
  EXPECT_OK(mps_buffer_release(foreign));
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
  EXPECT_OK(mps_buffer_release(c));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_device_release(other));
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  EXPECT_EQUAL(fake.opened, 0);
  return 0;
}
