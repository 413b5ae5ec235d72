#include "log.h"

#include "check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_ROOM = 1 << 20, ROOM_MIN = 1 << 10, ROOM_MAX = 1 << 30 };

/* A kept message; its four texts stand behind it, each with its end. */
typedef struct entry {
  struct entry *next;
  uint64_t bytes;
  uint32_t level;
  char texts[];
} entry;

_Atomic uint32_t mps_log_pending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for what is kept */
static entry *first, **end = &first;
static uint64_t kept, dropped;
static uint64_t room = DEFAULT_ROOM;
static _Atomic uint32_t least_level = MPS_LOG_DEBUG;

/* Held while the handler is called, so that messages keep their order and none comes after mps_log_set. */
static pthread_mutex_t delivering = PTHREAD_MUTEX_INITIALIZER;
static mps_log_fn handler;
static void *handler_user;
static _Thread_local bool is_delivering;

static const char *level_name(uint32_t level) {
  static const char *const names[] = {"", "debug", "info", "notice", "error", "fault"};
  return level <= MPS_LOG_FAULT ? names[level] : "";
}

static void print(const mps_log_message *message) {
  const char *dot = *message->subsystem || *message->category ? " " : "";
  const char *colon = *message->subsystem && *message->category ? ":" : "";
  fprintf(stderr, "mpsshim: %s%s%s%s%s%s%s%s: %s\n", level_name(message->level), dot, message->subsystem, colon,
          message->category, *message->kernel ? " of kernel '" : "", message->kernel, *message->kernel ? "'" : "",
          message->message);
}

/* ---- keeping ---- */

bool mps_log_wants(uint32_t level) {
  return level >= atomic_load_explicit(&least_level, memory_order_relaxed);
}

uint64_t mps_log_room(void) {
  pthread_mutex_lock(&lock);
  uint64_t bytes = room;
  pthread_mutex_unlock(&lock);
  return bytes;
}

static size_t text_size(const char *text) {
  return strnlen(text, MPS_LOG_TEXT - 1) + 1;
}

static char *put_text(char *to, const char *text) {
  size_t length = text_size(text) - 1;
  memcpy(to, text, length);
  to[length] = '\0';
  return to + length + 1;
}

static void drop(void) {
  pthread_mutex_lock(&lock);
  dropped++;
  atomic_store_explicit(&mps_log_pending, 1, memory_order_relaxed);
  pthread_mutex_unlock(&lock);
}

void mps_log_add(const mps_log_message *message) {
  uint64_t bytes = text_size(message->subsystem) + text_size(message->category) + text_size(message->kernel) +
                   text_size(message->message);
  entry *made = malloc(sizeof *made + bytes);
  if (made == NULL) {
    drop();
    return;
  }
  made->next = NULL;
  made->bytes = bytes;
  made->level = message->level;
  char *to = put_text(made->texts, message->subsystem);
  to = put_text(to, message->category);
  to = put_text(to, message->kernel);
  put_text(to, message->message);
  pthread_mutex_lock(&lock);
  bool fits = kept + bytes <= room;
  if (fits) {
    kept += bytes;
    *end = made;
    end = &made->next;
    made = NULL;
  } else {
    dropped++;
  }
  atomic_store_explicit(&mps_log_pending, 1, memory_order_relaxed);
  pthread_mutex_unlock(&lock);
  free(made);
}

/* ---- giving ---- */

static void give(const mps_log_message *message) {
  if (handler != NULL) {
    handler(handler_user, message);
  } else {
    print(message);
  }
}

static void give_entry(const entry *one) {
  mps_log_message message = {.struct_size = sizeof message, .level = one->level};
  message.subsystem = one->texts;
  message.category = message.subsystem + strlen(message.subsystem) + 1;
  message.kernel = message.category + strlen(message.category) + 1;
  message.message = message.kernel + strlen(message.kernel) + 1;
  give(&message);
}

static void tell_dropped(uint64_t count, uint64_t bytes) {
  char text[160];
  snprintf(text, sizeof text,
           "%" PRIu64 " messages of kernels were dropped: the log keeps %" PRIu64
           " bytes until the work is done that they are from",
           count, bytes);
  give(&(mps_log_message){.struct_size = sizeof(mps_log_message),
                          .level = MPS_LOG_ERROR,
                          .dropped = count,
                          .subsystem = "mpsshim",
                          .category = "log",
                          .kernel = "",
                          .message = text});
}

void mps_log_deliver(void) {
  if (is_delivering) {
    return; /* the handler has dispatched a kernel: what that has logged is delivered later */
  }
  pthread_mutex_lock(&delivering);
  is_delivering = true;
  pthread_mutex_lock(&lock);
  entry *taken = first;
  uint64_t lost = dropped, bytes = room;
  first = NULL;
  end = &first;
  kept = dropped = 0;
  atomic_store_explicit(&mps_log_pending, 0, memory_order_relaxed);
  pthread_mutex_unlock(&lock);
  while (taken != NULL) {
    entry *next = taken->next;
    give_entry(taken);
    free(taken);
    taken = next;
  }
  if (lost != 0) {
    tell_dropped(lost, bytes);
  }
  is_delivering = false;
  pthread_mutex_unlock(&delivering);
}

mps_status mps_log_check_wait(const char *function) {
  return is_delivering ? mps_fail(MPS_STATUS_INVALID_STATE, "%s: a handler of messages cannot wait for work", function)
                       : MPS_STATUS_OK;
}

mps_status mps_log_set(const mps_log_desc *given) {
  MPS_TRY(mps_fork_check());
  mps_log_desc desc;
  MPS_READ(mps_log_desc, buffer_size, &desc, given);
  if (desc.level > MPS_LOG_FAULT) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_log_set: level is %" PRIu32 ", expected 0 to %d", desc.level,
                    MPS_LOG_FAULT);
  }
  if (desc.reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_log_set: the reserved field must be 0");
  }
  if (desc.buffer_size != 0 && (desc.buffer_size < ROOM_MIN || desc.buffer_size > ROOM_MAX)) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_log_set: buffer_size is %" PRIu64 ", expected %d to %d bytes, or 0 for %d", desc.buffer_size,
                    ROOM_MIN, ROOM_MAX, DEFAULT_ROOM);
  }
  if (is_delivering) {
    return mps_fail(MPS_STATUS_INVALID_STATE, "mps_log_set: a handler of messages cannot change itself");
  }
  mps_log_flush(); /* what is there was for the old handler */
  pthread_mutex_lock(&delivering);
  handler = desc.handler;
  handler_user = desc.user;
  pthread_mutex_lock(&lock);
  room = desc.buffer_size != 0 ? desc.buffer_size : DEFAULT_ROOM;
  pthread_mutex_unlock(&lock);
  atomic_store_explicit(&least_level, desc.level != 0 ? desc.level : MPS_LOG_DEBUG, memory_order_relaxed);
  pthread_mutex_unlock(&delivering);
  return MPS_STATUS_OK;
}
