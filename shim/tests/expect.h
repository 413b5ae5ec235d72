/* Checks for the test programs: the first that fails prints what it saw and ends the program. */
#ifndef MPS_TESTS_EXPECT_H
#define MPS_TESTS_EXPECT_H

#include "mpsshim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                                         \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define EXPECT_EQUAL(given, wanted)                                                                                    \
  do {                                                                                                                 \
    uint64_t given_ = (uint64_t)(given), wanted_ = (uint64_t)(wanted);                                                 \
    if (given_ != wanted_) {                                                                                           \
      fprintf(stderr, "%s:%d: %s is %" PRIu64 ", expected %" PRIu64 "\n", __FILE__, __LINE__, #given, given_,          \
              wanted_);                                                                                                \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* The call succeeds. */
#define EXPECT_OK(call) expect_status((call), MPS_STATUS_OK, "", __FILE__, __LINE__, #call)

/* The call fails with MPS_STATUS_<name>, and its message contains the text. */
#define EXPECT_FAIL(call, name, text) expect_status((call), MPS_STATUS_##name, (text), __FILE__, __LINE__, #call)

static inline void expect_status(mps_status given, mps_status wanted, const char *text, const char *file, int line,
                                 const char *call) {
  if (given != wanted) {
    fprintf(stderr, "%s:%d: %s\n  gave %d (%s), expected %d (%s)\n  message: %s\n", file, line, call, (int)given,
            mps_status_text(given), (int)wanted, mps_status_text(wanted), mps_error_message());
    exit(1);
  }
  if (given != MPS_STATUS_OK && strstr(mps_error_message(), text) == NULL) {
    fprintf(stderr, "%s:%d: %s\n  message: %s\n  lacks: %s\n", file, line, call, mps_error_message(), text);
    exit(1);
  }
}

static inline mps_live_objects live_objects(void) {
  mps_live_objects counts = {.struct_size = sizeof counts};
  EXPECT_OK(mps_get_live_objects(&counts));
  return counts;
}

/* Nothing exists any more, and nothing is under way. */
static inline void expect_nothing_lives(void) {
  mps_live_objects counts = live_objects();
  EXPECT_EQUAL(counts.devices, 0);
  EXPECT_EQUAL(counts.heaps, 0);
  EXPECT_EQUAL(counts.buffers, 0);
  EXPECT_EQUAL(counts.queues, 0);
  EXPECT_EQUAL(counts.events, 0);
  EXPECT_EQUAL(counts.libraries, 0);
  EXPECT_EQUAL(counts.pipelines, 0);
  EXPECT_EQUAL(counts.pending_commands, 0);
}

#endif
