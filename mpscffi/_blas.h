/* Products of matrices by a cblas_sgemm that the process has: no interpreter is asked, so that they run on any thread
 * and beside Python. */
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef void (*sgemm_32)(int order, int left, int right, int rows, int columns, int inner, float alpha, const float *a,
                         int a_row, const float *b, int b_row, float beta, float *c, int c_row);
typedef void (*sgemm_64)(int order, int left, int right, int64_t rows, int64_t columns, int64_t inner, float alpha,
                         const float *a, int64_t a_row, const float *b, int64_t b_row, float beta, float *c,
                         int64_t c_row);
typedef void (*sgemv_32)(int order, int transposed, int rows, int columns, float alpha, const float *a, int a_row,
                         const float *x, int x_step, float beta, float *y, int y_step);
typedef void (*sgemv_64)(int order, int transposed, int64_t rows, int64_t columns, float alpha, const float *a,
                         int64_t a_row, const float *x, int64_t x_step, float beta, float *y, int64_t y_step);

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

/* Set once, before the first product. */
static uintptr_t blas_sgemm, blas_sgemv;
static int blas_is_64;
static atomic_int blas_active;

static void mpscffi_blas_use(uintptr_t sgemm, uintptr_t sgemv, int is_64) {
  blas_sgemm = sgemm;
  blas_sgemv = sgemv;
  blas_is_64 = is_64;
}

/* Threads that compute a product now. */
static int mpscffi_blas_active(void) {
  return atomic_load(&blas_active);
}

/* A matrix of floats, in rows. */
typedef struct {
  float *at;
  int64_t rows, columns, row; /* row: floats from one to the next */
  int transposed;
} blas_matrix;

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int fits(const blas_matrix *m) {
  return m->rows <= INT_MAX && m->columns <= INT_MAX && m->row <= INT_MAX;
}

/* y = matrix x, which is quicker than a product with a matrix of one column. */
static void multiply_column(const blas_matrix *m, int transposed, const float *x, int64_t x_step, float *y,
                            int64_t y_step) {
  int how = transposed ? TRANSPOSE : NO_TRANSPOSE;
  if (blas_is_64) {
    ((sgemv_64)blas_sgemv)(ROW_MAJOR, how, m->rows, m->columns, 1, m->at, m->row, x, x_step, 0, y, y_step);
  } else {
    ((sgemv_32)blas_sgemv)(ROW_MAJOR, how, (int)m->rows, (int)m->columns, 1, m->at, (int)m->row, x, (int)x_step, 0, y,
                           (int)y_step);
  }
}

static void multiply_floats(const blas_matrix *a, const blas_matrix *b, const blas_matrix *c) {
  if (c->columns == 1) {
    multiply_column(a, a->transposed, b->at, b->transposed ? 1 : b->row, c->at, c->row);
    return;
  }
  if (c->rows == 1) {
    multiply_column(b, !b->transposed, a->at, a->transposed ? a->row : 1, c->at, 1);
    return;
  }
  int64_t inner = a->transposed ? a->rows : a->columns;
  int left = a->transposed ? TRANSPOSE : NO_TRANSPOSE, right = b->transposed ? TRANSPOSE : NO_TRANSPOSE;
  if (blas_is_64) {
    ((sgemm_64)blas_sgemm)(ROW_MAJOR, left, right, c->rows, c->columns, inner, 1, a->at, a->row, b->at, b->row, 0,
                           c->at, c->row);
  } else {
    ((sgemm_32)blas_sgemm)(ROW_MAJOR, left, right, (int)c->rows, (int)c->columns, (int)inner, 1, a->at, (int)a->row,
                           b->at, (int)b->row, 0, c->at, (int)c->row);
  }
}

/* ---- elements of 16 bits ---- */

static float from_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static float from_bfloat(uint16_t given) {
  return from_bits((uint32_t)given << 16);
}

/* To the nearest, of two the even one; a NaN stays one. */
static uint16_t to_bfloat(float number) {
  uint32_t bits = bits_of(number);
  int is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return (uint16_t)(is_nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Its exponent is 112 less than a float's; infinities and NaN keep the greatest one. */
static float from_half(uint16_t given) {
  uint32_t sign = (uint32_t)(given & 0x8000u) << 16;
  float number = from_bits((uint32_t)(given & 0x7fffu) << 13) * 0x1p112f;
  uint32_t special = number >= 0x1p16f ? 0x7f800000u : 0;
  return from_bits(bits_of(number) | special | sign);
}

static uint16_t to_half(float number) {
  uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000u, half;
  bits &= 0x7fffffffu;
  if (bits >= 0x477ff000u) { /* 65520 and more round to infinity */
    half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (bits < 0x38800000u) { /* below 2^-14 they are multiples of 2^-24, the last place of a half */
    half = bits_of(from_bits(bits) + 0.5f) - 0x3f000000u;
  } else {
    half = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13;
  }
  return (uint16_t)(half | sign);
}

static void widen(const mps_matrix *given, const char *from, int is_half, float *to) {
  for (uint64_t i = 0; i < given->rows; i++, from += given->row_bytes, to += given->columns) {
    const uint16_t *row = (const uint16_t *)(const void *)from;
    for (uint64_t j = 0; j < given->columns; j++) {
      to[j] = is_half ? from_half(row[j]) : from_bfloat(row[j]);
    }
  }
}

static void narrow(const float *from, int is_half, const mps_matrix *given, char *to) {
  for (uint64_t i = 0; i < given->rows; i++, to += given->row_bytes, from += given->columns) {
    uint16_t *row = (uint16_t *)(void *)to;
    for (uint64_t j = 0; j < given->columns; j++) {
      row[j] = is_half ? to_half(from[j]) : to_bfloat(from[j]);
    }
  }
}

/* ---- products ---- */

/* Where a matrix's floats are: in its own place, or at `wide` if its elements are not floats. */
static blas_matrix floats_of(const mps_matrix *given, const char *at, float *wide) {
  int64_t columns = (int64_t)given->columns, row = wide ? columns : (int64_t)(given->row_bytes / sizeof(float));
  return (blas_matrix){wide ? wide : (float *)(uintptr_t)at, (int64_t)given->rows, columns, max_of(row, columns),
                       given->transposed != 0};
}

static mps_status multiply_all(const mps_matmul *m, const char *left, const char *right, char *result, float *wide) {
  int is_half = m->data_type == MPS_DATA_HALF;
  float *wide_right = wide ? wide + m->left.rows * m->left.columns : NULL;
  float *wide_result = wide ? wide_right + m->right.rows * m->right.columns : NULL;
  for (uint64_t i = 0; i < m->count; i++) {
    const char *a_at = left + i * m->left.matrix_bytes, *b_at = right + i * m->right.matrix_bytes;
    char *c_at = result + i * m->result.matrix_bytes;
    blas_matrix a = floats_of(&m->left, a_at, wide), b = floats_of(&m->right, b_at, wide_right);
    blas_matrix c = floats_of(&m->result, c_at, wide_result);
    if (!blas_is_64 && !(fits(&a) && fits(&b) && fits(&c))) {
      return MPS_STATUS_LIMIT_EXCEEDED;
    }
    if (wide) {
      widen(&m->left, a_at, is_half, wide);
      widen(&m->right, b_at, is_half, wide_right);
    }
    multiply_floats(&a, &b, &c);
    if (wide) {
      narrow(wide_result, is_half, &m->result, c_at);
    }
  }
  return MPS_STATUS_OK;
}

/* An mps_matmul_fn. */
static mps_status mpscffi_blas_multiply(void *user, const mps_matmul *matmul, const void *left, const void *right,
                                        void *result) {
  (void)user;
  float *wide = NULL;
  if (matmul->data_type != MPS_DATA_FLOAT) {
    uint64_t floats = matmul->left.rows * matmul->left.columns + matmul->right.rows * matmul->right.columns +
                      matmul->result.rows * matmul->result.columns;
    wide = malloc(floats * sizeof *wide);
    if (wide == NULL) {
      return MPS_STATUS_OUT_OF_MEMORY;
    }
  }
  atomic_fetch_add(&blas_active, 1);
  mps_status status = multiply_all(matmul, left, right, result, wide);
  atomic_fetch_sub(&blas_active, 1);
  free(wide);
  return status;
}
