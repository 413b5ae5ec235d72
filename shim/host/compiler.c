#include "compiler.h"
#include "status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mps_compiler_fn compiler_function;
static void *compiler_user;

mps_status mps_compiler_set(mps_compiler_fn compiler, void *user) {
  MPS_TRY(mps_fork_check());
  pthread_mutex_lock(&lock);
  compiler_function = compiler;
  compiler_user = compiler != NULL ? user : NULL;
  pthread_mutex_unlock(&lock);
  return MPS_STATUS_OK;
}

mps_status mps_compile_result_set(mps_compile_result *result, const char *text, size_t length) {
  if (result == NULL) {
    return mps_fail(MPS_STATUS_INVALID_HANDLE, "mps_compile_result_set: the result is NULL");
  }
  if (text == NULL && length != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_compile_result_set: %zu bytes of NULL", length);
  }
  char *copy = malloc(length + 1);
  if (copy == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_compile_result_set: no memory for %zu bytes", length);
  }
  if (length != 0) {
    memcpy(copy, text, length);
  }
  copy[length] = '\0';
  free(result->text);
  result->text = copy;
  result->length = length;
  return MPS_STATUS_OK;
}

/* The compiler's own words, or ours if it had none. */
static mps_status pass_on(mps_status status, const mps_compile_result *result) {
  if (status < MPS_STATUS_OK || status > MPS_STATUS_INTERNAL) {
    return mps_fail(MPS_STATUS_INTERNAL, "the Metal compiler answered with the unknown status %d", (int)status);
  }
  if (result->length == 0) {
    return mps_fail(status == MPS_STATUS_OK ? MPS_STATUS_INTERNAL : status,
                    "the Metal compiler answered \"%s\" and nothing else", mps_status_text(status));
  }
  return status == MPS_STATUS_OK ? status : mps_fail_text(status, result->text, result->length);
}

mps_status host_compiler_ask(const mps_compile_request *request, host_answer *answer) {
  pthread_mutex_lock(&lock);
  mps_compiler_fn function = compiler_function;
  void *user = compiler_user;
  pthread_mutex_unlock(&lock);

  *answer = (host_answer){0};
  bool replied = true;
  mps_status status =
      function != NULL ? function(user, request, &answer->result) : host_compiler_command(request, answer, &replied);
  if (replied) {
    /* A check of a source without kernels is answered by an empty listing. */
    bool empty_listing = status == MPS_STATUS_OK && request->kernel == NULL && answer->result.text != NULL;
    status = empty_listing ? status : pass_on(status, &answer->result);
  }
  if (status != MPS_STATUS_OK) {
    host_answer_free(answer);
  }
  return status;
}
