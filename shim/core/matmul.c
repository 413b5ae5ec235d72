#include "backend.h"
#include "check.h"
#include "command.h"
#include "command.h"

#include <inttypes.h>

/* Longer rows or columns no library of matrix products takes. */
static const uint64_t MAX_LENGTH = INT32_MAX;

/* Bytes of an element; 0 for a type that has no products. */
static uint64_t element_size(uint32_t data_type) {
  switch (data_type) {
  case MPS_DATA_FLOAT:
    return 4;
  case MPS_DATA_HALF:
  case MPS_DATA_BFLOAT:
    return 2;
  default:
    return 0;
  }
}

/* ---- one operand ---- */

static mps_status check_multiple(const char *name, const char *field, uint64_t value, uint64_t size) {
  if (value % size != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: %s.%s is %" PRIu64 ", no multiple of an element's %" PRIu64 " bytes", name,
                    field, value, size);
  }
  return MPS_STATUS_OK;
}

static mps_status check_shape(const char *name, const mps_matrix *matrix, uint64_t size) {
  if (matrix->rows > MAX_LENGTH || matrix->columns > MAX_LENGTH) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_matmul: %s has %" PRIu64 " rows and %" PRIu64 " columns, the limit is %" PRIu64, name,
                    matrix->rows, matrix->columns, MAX_LENGTH);
  }
  if (matrix->row_bytes < matrix->columns * size) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: %s.row_bytes is %" PRIu64 ", but a row of %" PRIu64 " elements takes %" PRIu64,
                    name, matrix->row_bytes, matrix->columns, matrix->columns * size);
  }
  MPS_TRY(check_multiple(name, "row_bytes", matrix->row_bytes, size));
  MPS_TRY(check_multiple(name, "matrix_bytes", matrix->matrix_bytes, size));
  return check_multiple(name, "offset", matrix->offset, size);
}

/* Bytes from the first matrix's first element to the last one's end, gaps included. */
static mps_status extent(const char *name, const mps_matrix *matrix, uint64_t count, uint64_t *bytes) {
  uint64_t steps = 0;
  *bytes = 0;
  if (count == 0 || matrix->rows == 0 || matrix->columns == 0) {
    return MPS_STATUS_OK;
  }
  if (__builtin_mul_overflow(matrix->rows, matrix->row_bytes, bytes) ||
      __builtin_mul_overflow(count - 1, matrix->matrix_bytes, &steps) || __builtin_add_overflow(*bytes, steps, bytes)) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: %" PRIu64 " matrices of %" PRIu64 " rows of %" PRIu64
                    " bytes as %s are more than any buffer holds",
                    count, matrix->rows, matrix->row_bytes, name);
  }
  return MPS_STATUS_OK;
}

static mps_status check_matrix(const mps_device *device, const char *name, const mps_matrix *matrix, uint64_t size,
                               uint64_t count, uint64_t *bytes) {
  MPS_TRY(mps_object_check(matrix->buffer, MPS_KIND_BUFFER, "mps_queue_matmul"));
  MPS_TRY(mps_check_same_device("mps_queue_matmul", device, name, matrix->buffer->device));
  if (matrix->transposed > 1 || matrix->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: %s.transposed is %" PRIu32 " and .reserved %" PRIu32
                    ", not 0 or 1, and 0: clear the struct before it is filled",
                    name, matrix->transposed, matrix->reserved);
  }
  MPS_TRY(check_shape(name, matrix, size));
  MPS_TRY(extent(name, matrix, count, bytes));
  return mps_check_range("mps_queue_matmul", name, matrix->buffer, matrix->offset, *bytes);
}

/* ---- all three ---- */

static mps_status check_lengths(const mps_matmul *matmul) {
  const mps_matrix *left = &matmul->left, *right = &matmul->right, *result = &matmul->result;
  uint64_t rows = left->transposed ? left->columns : left->rows;
  uint64_t inner = left->transposed ? left->rows : left->columns;
  uint64_t right_inner = right->transposed ? right->columns : right->rows;
  uint64_t columns = right->transposed ? right->rows : right->columns;
  if (inner != right_inner || rows != result->rows || columns != result->columns) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: a %" PRIu64 " x %" PRIu64 " matrix times a %" PRIu64 " x %" PRIu64
                    " one, transpositions done, has no %" PRIu64 " x %" PRIu64 " result",
                    rows, inner, right_inner, columns, result->rows, result->columns);
  }
  return MPS_STATUS_OK;
}

static mps_status check_result(const mps_matmul *matmul, uint64_t bytes) {
  const mps_matrix *result = &matmul->result;
  if (result->transposed != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: result.transposed is 1: exchange and transpose the operands instead");
  }
  if (matmul->count > 1 && bytes != 0 && result->matrix_bytes < result->rows * result->row_bytes) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: result.matrix_bytes is %" PRIu64 ", but each result takes %" PRIu64,
                    result->matrix_bytes, result->rows * result->row_bytes);
  }
  return MPS_STATUS_OK;
}

static mps_status check_apart(const char *name, const mps_matrix *matrix, uint64_t bytes, const mps_matrix *result,
                              uint64_t result_bytes) {
  bool empty = bytes == 0 || result_bytes == 0;
  if (!empty && matrix->buffer == result->buffer && matrix->offset < result->offset + result_bytes &&
      result->offset < matrix->offset + bytes) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: bytes %" PRIu64 " to %" PRIu64 " of the result's buffer are also %s",
                    matrix->offset, matrix->offset + bytes, name);
  }
  return MPS_STATUS_OK;
}

/* Check everything, of a product that is complete. */
static mps_status check(const mps_device *device, const mps_matmul *matmul) {
  uint64_t size = element_size(matmul->data_type);
  if (size == 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_matmul: data_type is %" PRIu32 ", not MPS_DATA_FLOAT (%d), _HALF (%d) or _BFLOAT (%d)",
                    matmul->data_type, MPS_DATA_FLOAT, MPS_DATA_HALF, MPS_DATA_BFLOAT);
  }
  if (matmul->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_queue_matmul: the reserved field must be 0");
  }
  uint64_t left, right, result;
  MPS_TRY(check_matrix(device, "left", &matmul->left, size, matmul->count, &left));
  MPS_TRY(check_matrix(device, "right", &matmul->right, size, matmul->count, &right));
  MPS_TRY(check_matrix(device, "result", &matmul->result, size, matmul->count, &result));
  MPS_TRY(check_lengths(matmul));
  MPS_TRY(check_result(matmul, result));
  MPS_TRY(check_apart("left", &matmul->left, left, &matmul->result, result));
  return check_apart("right", &matmul->right, right, &matmul->result, result);
}

mps_matmul mps_matmul_complete(const mps_matmul *given) {
  mps_matmul matmul = *given;
  uint64_t size = element_size(matmul.data_type);
  mps_matrix *matrices[] = {&matmul.left, &matmul.right, &matmul.result};
  for (int i = 0; i < 3; i++) {
    if (matrices[i]->row_bytes == 0) {
      matrices[i]->row_bytes = matrices[i]->columns * size;
    }
  }
  return matmul;
}

mps_status mps_matmul_check(const char *function, const mps_device *device, const mps_matmul *given, mps_work *work) {
  mps_matmul matmul;
  MPS_TRY(mps_struct_check(function, "mps_matmul", given, sizeof matmul));
  MPS_TRY(mps_struct_read(function, "mps_matmul", &matmul, sizeof matmul, given, sizeof matmul));
  matmul = mps_matmul_complete(&matmul);
  MPS_TRY(check(device, &matmul));
  const mps_matrix *result = &matmul.result;
  work->kind = 0;
  if (matmul.count == 0 || result->rows == 0 || result->columns == 0) {
    return MPS_STATUS_OK;
  }
  if ((matmul.left.transposed ? matmul.left.rows : matmul.left.columns) != 0) {
    work->kind = MPS_COMMAND_MATMUL;
    work->matmul = given;
    return device->backend->check_matmul(device, &matmul);
  }
  /* Sums of no products. */
  uint64_t row = result->columns * element_size(matmul.data_type), whole = result->rows * row;
  if (result->row_bytes == row && (matmul.count == 1 || result->matrix_bytes == whole)) {
    work->kind = MPS_COMMAND_FILL;
    work->fill = (mps_fill){.struct_size = sizeof work->fill,
                            .buffer = result->buffer,
                            .offset = result->offset,
                            .length = matmul.count * whole};
  } else {
    work->kind = MPS_MATMUL_ZEROS;
  }
  return MPS_STATUS_OK;
}

/* Row by row: what lies between the rows stays. */
static mps_status encode_zeros(mps_queue *queue, const mps_matmul *matmul) {
  const mps_matrix *result = &matmul->result;
  uint64_t row = result->columns * element_size(matmul->data_type);
  for (uint64_t i = 0; i < matmul->count; i++) {
    for (uint64_t j = 0; j < result->rows; j++) {
      uint64_t offset = result->offset + i * result->matrix_bytes + j * result->row_bytes;
      MPS_TRY(mps_queue_fill(queue, result->buffer, offset, row, 0));
    }
  }
  return MPS_STATUS_OK;
}

mps_status mps_queue_matmul(mps_queue *queue, const mps_matmul *given) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_REQUIRE(given);
  mps_work work;
  MPS_TRY(mps_matmul_check(__func__, queue->device, given, &work));
  mps_matmul matmul = mps_matmul_complete(given);
  switch (work.kind) {
  case 0:
    return MPS_STATUS_OK;
  case MPS_COMMAND_FILL:
    return mps_queue_fill(queue, work.fill.buffer, work.fill.offset, work.fill.length, 0);
  case MPS_MATMUL_ZEROS:
    return encode_zeros(queue, &matmul);
  default:
    return mps_after_encoding(queue, queue->device->backend->encode_matmul(queue, &matmul));
  }
}
