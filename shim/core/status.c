#include "status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The key's value is the thread's text, which the thread owns, or the constant below. */
static pthread_once_t text_once = PTHREAD_ONCE_INIT;
static pthread_key_t text_key;
static bool text_key_made;
static char no_memory_text[] = "no memory for the text of an error";

static void free_text(void *text) {
  if (text != no_memory_text) {
    free(text);
  }
}

static void make_text_key(void) {
  text_key_made = pthread_key_create(&text_key, free_text) == 0;
}

/* Takes `text` over. The old one goes last: it may be among what the new one was made from. */
static void set_text(char *text) {
  pthread_once(&text_once, make_text_key);
  if (!text_key_made) {
    free(text);
    return;
  }
  void *old = pthread_getspecific(text_key);
  if (pthread_setspecific(text_key, text != NULL ? text : no_memory_text) == 0) {
    free_text(old);
  } else {
    free(text);
  }
}

void mps_error_set(const char *format, ...) {
  va_list list;
  va_start(list, format);
  int length = vsnprintf(NULL, 0, format, list);
  va_end(list);
  char *text = length < 0 ? NULL : malloc((size_t)length + 1);
  if (text != NULL) {
    va_start(list, format);
    vsnprintf(text, (size_t)length + 1, format, list);
    va_end(list);
  }
  set_text(text);
}

mps_status mps_fail_text(mps_status status, const char *text, size_t length) {
  char *copy = malloc(length + 1);
  if (copy != NULL) {
    memcpy(copy, text, length);
    copy[length] = '\0';
  }
  set_text(copy);
  return status;
}

const char *mps_error_message(void) {
  pthread_once(&text_once, make_text_key);
  const char *text = text_key_made ? pthread_getspecific(text_key) : no_memory_text;
  return text != NULL ? text : "";
}

const char *mps_status_text(mps_status status) {
  switch (status) {
  case MPS_STATUS_OK:
    return "ok";
  case MPS_STATUS_INVALID_ARGUMENT:
    return "invalid argument";
  case MPS_STATUS_INVALID_HANDLE:
    return "invalid handle";
  case MPS_STATUS_OUT_OF_MEMORY:
    return "out of memory";
  case MPS_STATUS_UNAVAILABLE:
    return "unavailable";
  case MPS_STATUS_UNSUPPORTED:
    return "unsupported";
  case MPS_STATUS_NOT_FOUND:
    return "not found";
  case MPS_STATUS_COMPILE_FAILED:
    return "compile failed";
  case MPS_STATUS_LIMIT_EXCEEDED:
    return "limit exceeded";
  case MPS_STATUS_TIMEOUT:
    return "timeout";
  case MPS_STATUS_EXECUTION_FAILED:
    return "execution failed";
  case MPS_STATUS_INVALID_STATE:
    return "invalid state";
  case MPS_STATUS_FORKED:
    return "forked";
  case MPS_STATUS_IO:
    return "input or output failed";
  case MPS_STATUS_INTERNAL:
    return "internal fault";
  }
  return "unknown status";
}

char *mps_text_copy(const char *text) {
  return text != NULL ? strdup(text) : NULL;
}
