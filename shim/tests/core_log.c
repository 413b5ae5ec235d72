/* Messages of kernels: kept, delivered in order, counted when there is no room. */
#include "expect.h"
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int calls;
static uint64_t dropped;
static char texts[8][64];
static mps_status inner;

static void keep(void *user, const mps_log_message *message) {
  EXPECT(user == texts);
  EXPECT_EQUAL(message->struct_size, sizeof *message);
  if (message->dropped != 0) {
    dropped += message->dropped;
    EXPECT_EQUAL(message->level, MPS_LOG_ERROR);
  } else if (calls < 8) {
    snprintf(texts[calls], sizeof texts[calls], "%u %s %s %s %s", message->level, message->subsystem, message->category,
             message->kernel, message->message);
  }
  calls++;
}

static void nested(void *user, const mps_log_message *message) {
  (void)message;
  mps_log_flush();
  inner = mps_log_set(NULL);
  EXPECT(mps_log_check_wait("test") == MPS_STATUS_INVALID_STATE);
  *(int *)user += 1;
}

static void add(uint32_t level, const char *text) {
  mps_log_add(&(mps_log_message){.level = level, .subsystem = "s", .category = "c", .kernel = "k", .message = text});
}

static void set(mps_log_fn handler, void *user, uint32_t level, uint64_t size) {
  mps_log_desc desc = {
      .struct_size = sizeof desc, .handler = handler, .user = user, .level = level, .buffer_size = size};
  EXPECT_OK(mps_log_set(&desc));
}

static void messages_are_kept_and_delivered_in_order(void) {
  set(keep, texts, 0, 0);
  add(MPS_LOG_NOTICE, "one");
  add(MPS_LOG_FAULT, "two");
  EXPECT_EQUAL(calls, 0);
  mps_log_flush();
  mps_log_flush();
  EXPECT_EQUAL(calls, 2);
  EXPECT(strcmp(texts[0], "3 s c k one") == 0);
  EXPECT(strcmp(texts[1], "5 s c k two") == 0);
}

static void what_has_no_room_is_counted(void) {
  set(keep, texts, 0, 1024);
  calls = 0;
  for (int i = 0; i < 1000; i++) {
    add(MPS_LOG_INFO, "x");
  }
  mps_log_flush();
  EXPECT_EQUAL(calls - 1, 1024 / 8); /* of 2 bytes each text */
  EXPECT_EQUAL(dropped, 1000u - 1024 / 8);
  EXPECT_EQUAL(mps_log_room(), 1024);
}

static void long_texts_are_cut(void) {
  char text[3000];
  memset(text, 'y', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  set(keep, texts, MPS_LOG_ERROR, 0);
  EXPECT(!mps_log_wants(MPS_LOG_NOTICE));
  EXPECT(mps_log_wants(MPS_LOG_ERROR));
  calls = 0;
  add(MPS_LOG_ERROR, text);
  mps_log_flush();
  EXPECT_EQUAL(calls, 1);
}

static void a_handler_cannot_change_itself(void) {
  int count = 0;
  set(nested, &count, 0, 0);
  add(MPS_LOG_DEBUG, "a");
  add(MPS_LOG_DEBUG, "b");
  mps_log_flush();
  EXPECT_EQUAL(count, 2);
  EXPECT(inner == MPS_STATUS_INVALID_STATE);
}

static void *add_many(void *unused) {
  (void)unused;
  for (int i = 0; i < 1000; i++) {
    add(MPS_LOG_INFO, "t");
    mps_log_flush();
  }
  return NULL;
}

static void threads_may_log_at_once(void) {
  set(keep, texts, 0, 0);
  calls = 0;
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    EXPECT(pthread_create(&threads[i], NULL, add_many, NULL) == 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  mps_log_flush();
  EXPECT_EQUAL(calls, 4000);
}

static void bad_descriptors_change_nothing(void) {
  int count = 0;
  set(nested, &count, 0, 0);
  mps_log_desc desc = {.struct_size = sizeof desc, .level = 6};
  EXPECT_FAIL(mps_log_set(&desc), INVALID_ARGUMENT, "level is 6");
  desc = (mps_log_desc){.struct_size = sizeof desc, .buffer_size = 1023};
  EXPECT_FAIL(mps_log_set(&desc), INVALID_ARGUMENT, "buffer_size is 1023");
  desc = (mps_log_desc){.struct_size = sizeof desc, .reserved = 1};
  EXPECT_FAIL(mps_log_set(&desc), INVALID_ARGUMENT, "reserved");
  desc = (mps_log_desc){.struct_size = 8};
  EXPECT_FAIL(mps_log_set(&desc), INVALID_ARGUMENT, "struct_size");
  add(MPS_LOG_INFO, "still");
  mps_log_flush();
  EXPECT_EQUAL(count, 1);
  EXPECT_OK(mps_log_set(NULL));
}

int main(void) {
  messages_are_kept_and_delivered_in_order();
  what_has_no_room_is_counted();
  long_texts_are_cut();
  a_handler_cannot_change_itself();
  threads_may_log_at_once();
  bad_descriptors_change_nothing();
  return 0;
}
