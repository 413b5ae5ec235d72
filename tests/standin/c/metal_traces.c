/* The Metal device: traces and signposts. */
#include "metal_fixture.h"

static void test_signposts(void) {
  uint64_t id;
  long before = standin_get("signposts");
  EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS, "a 100 % mark"));
  EXPECT(strstr(standin_last_signpost(), "event PyTorchMPS/Events ") == standin_last_signpost());
  EXPECT(strstr(standin_last_signpost(), ": a 100 % mark") != NULL);
  EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS | MPS_SIGNPOST_FALLBACKS, "sort"));
  EXPECT(strstr(standin_last_signpost(), " PyTorchCPUFallbacksEvents: sort") != NULL);
  before++;
  EXPECT_OK(mps_signpost_begin(MPS_SIGNPOST_INTERVALS, "work", &id));
  char wanted[100];
  snprintf(wanted, sizeof wanted, "begin PyTorchMPS/Intervals %" PRIu64 " interval: work", id);
  EXPECT_EQUAL(strcmp(standin_last_signpost(), wanted), 0);
  EXPECT_OK(mps_signpost_end(id, "done"));
  snprintf(wanted, sizeof wanted, "end PyTorchMPS/Intervals %" PRIu64 " interval: done", id);
  EXPECT_EQUAL(strcmp(standin_last_signpost(), wanted), 0);
  EXPECT_EQUAL(standin_get("signposts"), before + 3);
}

/* Records of a trace that is over, of one kind, in order. */
static uint32_t read_trace(mps_trace_kind kind, mps_trace_record *found, uint32_t room) {
  static mps_trace_record records[256];
  uint32_t count, kept = 0;
  EXPECT_OK(mps_trace_read(records, sizeof *records, 256, &count, NULL));
  for (uint32_t i = 0; i < count && kept < room; i++) {
    if (records[i].kind == kind) {
      found[kept++] = records[i];
    }
  }
  return kept;
}

static uint32_t trace_adds(mps_pipeline *pipeline, uint32_t flags, int count, mps_trace_record *found, uint32_t room) {
  mps_trace_desc desc = {.struct_size = sizeof desc, .flags = flags};
  EXPECT_OK(mps_trace_start(&desc));
  for (int i = 0; i < count; i++) {
    EXPECT_OK(add(pipeline, buffer, 1));
  }
  EXPECT_OK(mps_queue_fill(queue, buffer, 4, 4, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_trace_stop());
  return read_trace(MPS_TRACE_DISPATCH, found, room);
}

/* Commands of one command buffer share its times, unless each has a command buffer of its own. */
static void test_traced_times(void) {
  mps_pipeline *pipeline = make_pipeline("add");
  mps_trace_record found[8];
  EXPECT_EQUAL(trace_adds(pipeline, 0, 3, found, 8), 3);
  EXPECT_EQUAL(found[0].together, 4);
  EXPECT_EQUAL(found[0].start, found[2].start);
  EXPECT_EQUAL(found[0].end, found[2].end);
  EXPECT_EQUAL(strcmp(found[0].name, "add"), 0);
  EXPECT_EQUAL(strcmp(found[0].queue_name, "first"), 0);
  EXPECT_EQUAL(trace_adds(pipeline, MPS_TRACE_COMMANDS, 3, found, 8), 3);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQUAL(found[i].together, 1);
    EXPECT(found[i].encoded <= found[i].end && found[i].start <= found[i].end);
    EXPECT(i == 0 || found[i - 1].end <= found[i].start);
  }
  EXPECT_EQUAL(*words(buffer), 6);
  EXPECT_OK(mps_pipeline_release(pipeline));
}

/* Signals and waits take no time: a signal is at the end of its command buffer, a wait at the beginning. */
static void test_traced_events(void) {
  mps_event *event = make_event();
  mps_trace_record records[32], found[MPS_TRACE_WAIT + 1] = {{0}};
  uint32_t count;
  mps_trace_desc desc = {.struct_size = sizeof desc};
  EXPECT_OK(mps_trace_start(&desc));
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_signal(queue, event, 1));
  EXPECT_OK(mps_queue_wait_event(queue, event, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_trace_stop());
  EXPECT_OK(mps_trace_read(records, sizeof *records, 32, &count, NULL));
  for (uint32_t i = 0; i < count; i++) {
    if (records[i].kind <= MPS_TRACE_WAIT) {
      found[records[i].kind] = records[i];
    }
  }
  const mps_trace_record *signal = &found[MPS_TRACE_SIGNAL], *wait = &found[MPS_TRACE_WAIT];
  EXPECT(signal->start != 0 && signal->start == found[MPS_TRACE_FILL].end && signal->end == signal->start);
  EXPECT(wait->start >= signal->end && wait->end == wait->start);
  EXPECT_OK(mps_event_release(event));
}

/* Each kernel has an interval, under the name that tools look for. */
static void test_traced_signposts(void) {
  mps_pipeline *pipeline = make_pipeline("add");
  mps_trace_record found[8];
  long before = standin_get("signposts");
  EXPECT_EQUAL(trace_adds(pipeline, MPS_TRACE_SIGNPOST_INTERVALS | MPS_TRACE_SIGNPOST_KERNELS, 2, found, 8), 2);
  EXPECT_EQUAL(standin_get("signposts"), before + 4);
  char wanted[100];
  snprintf(wanted, sizeof wanted, "end PyTorchMPS/Intervals %" PRIu64 " PyTorchOperationIntervals: mps::add:[1, 1, 1]",
           found[1].id);
  EXPECT(strstr(standin_last_signpost(), wanted) == standin_last_signpost());
  trace_adds(pipeline, MPS_TRACE_SIGNPOST_EVENTS | MPS_TRACE_SIGNPOST_COPIES, 2, found, 8);
  EXPECT_EQUAL(standin_get("signposts"), before + 5);
  EXPECT(strstr(standin_last_signpost(), "event PyTorchMPS/Events ") == standin_last_signpost());
  EXPECT(strstr(standin_last_signpost(), " PyTorchCopyEvents: Blit: fill, length=4") != NULL);
  mps_trace_desc desc = {.struct_size = sizeof desc,
                         .flags = MPS_TRACE_SIGNPOST_INTERVALS | MPS_TRACE_SIGNPOST_FALLBACKS};
  uint64_t id;
  EXPECT_OK(mps_trace_start(&desc));
  EXPECT_OK(mps_signpost_begin((mps_signpost_category)(MPS_SIGNPOST_INTERVALS | MPS_SIGNPOST_FALLBACKS), "sort", &id));
  EXPECT(strstr(standin_last_signpost(), " PyTorchCPUFallbackIntervals: mps::sort (id=C") != NULL);
  EXPECT_OK(mps_signpost_end(id, "sort"));
  EXPECT(strstr(standin_last_signpost(), "end PyTorchMPS/Intervals ") == standin_last_signpost());
  EXPECT(strstr(standin_last_signpost(), ", run=1), cpu=") != NULL);
  EXPECT_OK(mps_trace_stop());
  EXPECT_OK(mps_pipeline_release(pipeline));
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {test_signposts, test_traced_times, test_traced_events, test_traced_signposts};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
