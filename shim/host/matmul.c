#include "matmul.h"

#include "status.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mps_matmul_fn matmul_function;
static void *matmul_user;
static uint32_t matmul_flags;

#define NO_FUNCTION "the host device has no function for products of matrices: set one by mps_matmul_set"
#define FUNCTION_GONE                                                                                                  \
  "the function for products of matrices was taken away before this one ran: wait for the work before that; in "       \
  "Python, call mpscffi.synchronize() before the program ends"

mps_status mps_matmul_set(mps_matmul_fn function, void *user, uint32_t flags) {
  MPS_TRY(mps_fork_check());
  if ((flags & ~(uint32_t)MPS_MATMUL_ANY_THREAD) != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_matmul_set: flags are 0x%" PRIx32 ", of which only MPS_MATMUL_ANY_THREAD (1) is known", flags);
  }
  pthread_mutex_lock(&lock);
  matmul_function = function;
  matmul_user = function != NULL ? user : NULL;
  matmul_flags = function != NULL ? flags : 0;
  pthread_mutex_unlock(&lock);
  return MPS_STATUS_OK;
}

static mps_matmul_fn get_function(void **user) {
  pthread_mutex_lock(&lock);
  mps_matmul_fn function = matmul_function;
  *user = matmul_user;
  pthread_mutex_unlock(&lock);
  return function;
}

mps_status host_matmul_check(const mps_device *device, const mps_matmul *matmul) {
  (void)device;
  (void)matmul;
  void *user;
  return get_function(&user) != NULL ? MPS_STATUS_OK
                                     : mps_fail(MPS_STATUS_UNSUPPORTED, "mps_queue_matmul: " NO_FUNCTION);
}

/* Any BLAS, and plain loops too, multiply and add more than once in a nanosecond. */
uint64_t host_matmul_cost(const mps_matmul *matmul) {
  pthread_mutex_lock(&lock);
  bool any_thread = (matmul_flags & MPS_MATMUL_ANY_THREAD) != 0;
  pthread_mutex_unlock(&lock);
  const mps_matrix *left = &matmul->left;
  uint64_t inner = left->transposed ? left->rows : left->columns, cost = matmul->count;
  bool is_huge = __builtin_mul_overflow(cost, inner, &cost) ||
                 __builtin_mul_overflow(cost, matmul->result.rows, &cost) ||
                 __builtin_mul_overflow(cost, matmul->result.columns, &cost);
  return any_thread && !is_huge ? cost : UINT64_MAX;
}

/* The host device's addresses are pointers. */
static void *first_element(const mps_matrix *matrix) {
  return (void *)(uintptr_t)(matrix->buffer->gpu_address + matrix->offset);
}

bool host_matmul_run(const mps_matmul *matmul, char *failure, size_t size) {
  void *user;
  mps_matmul_fn function = get_function(&user);
  if (function == NULL) {
    snprintf(failure, size, "%s", FUNCTION_GONE);
    return false;
  }
  mps_status status = function(user, matmul, first_element(&matmul->left), first_element(&matmul->right),
                               first_element(&matmul->result));
  if (status != MPS_STATUS_OK) {
    snprintf(failure, size, "the function for products of matrices answered \"%s\"", mps_status_text(status));
  }
  return status == MPS_STATUS_OK;
}

void host_matmul_describe(const mps_matmul *matmul, char *text, size_t size) {
  const mps_matrix *left = &matmul->left, *result = &matmul->result;
  uint64_t inner = left->transposed ? left->rows : left->columns;
  const char *type = matmul->data_type == MPS_DATA_FLOAT  ? "float"
                     : matmul->data_type == MPS_DATA_HALF ? "half"
                                                          : "bfloat";
  int used = snprintf(text, size, "matmul of %" PRIu64 " x %" PRIu64 " by %" PRIu64 " x %" PRIu64 ", %s", result->rows,
                      inner, inner, result->columns, type);
  if (matmul->count > 1 && used > 0 && (size_t)used < size) {
    snprintf(text + used, size - (size_t)used, ", %" PRIu64 " times", matmul->count);
  }
}
