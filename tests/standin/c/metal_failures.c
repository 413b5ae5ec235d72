/* The Metal device: commands that fail, and commands that cannot be encoded. */
#include "metal_fixture.h"

/* The signal behind a command that fails is not signalled by the GPU: whoever waits for it must not wait for ever. */
static void test_failure_before_signal(void) {
  mps_queue *next = make_queue("next");
  mps_event *event = make_event();
  standin_set("fail_commands", 1);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_signal(queue, event, 1));
  EXPECT_OK(mps_queue_wait_event(next, event, 1));
  EXPECT_OK(mps_queue_fill(next, buffer, 0, 4, 2));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_FAIL(mps_event_wait(event, 1, 5 * SECOND), EXECUTION_FAILED, "the stand-in was told to fail");
  EXPECT_OK(mps_event_wait(event, 1, 0));
  EXPECT_OK(mps_queue_wait(next, 5 * SECOND));
  EXPECT_EQUAL(bytes(buffer)[0], 2);
  EXPECT_EQUAL(command_info(1).status, MPS_STATUS_EXECUTION_FAILED);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_queue_release(next));
}

/* More kernels than an encoder's label has room for: it gets no more of them than it can list. */
static void expect_many_kernels(const mps_dispatch *fault) {
  enum { KERNELS = 20 };
  mps_pipeline *kernels[KERNELS];
  mps_buffer *counter = make_buffer(4);
  for (int i = 0; i < KERNELS; i++) {
    char label[32];
    snprintf(label, sizeof label, "a kernel with the number %d", i);
    mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "add", .label = label};
    EXPECT_OK(mps_pipeline_create(library, &desc, &kernels[i]));
    EXPECT_OK(add(kernels[i], counter, 1));
  }
  EXPECT_OK(mps_queue_dispatch(queue, fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
              "one of the kernels 'a kernel with the number 17, a kernel with the number 18, a kernel with the "
              "number 19, wild' failed");
  EXPECT_EQUAL(*words(counter), KERNELS);
  for (int i = 0; i < KERNELS; i++) {
    EXPECT_OK(mps_pipeline_release(kernels[i]));
  }
  EXPECT_OK(mps_buffer_release(counter));
}

/* Each name for what failed that Metal's error lets us know. */
static void test_failure_texts(void) {
  mps_pipeline *wild = make_pipeline("wild"), *kernel = make_pipeline("add");
  mps_dispatch fault = {.struct_size = sizeof fault, .pipeline = wild, .grid = {1, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "kernel 'wild' failed: wrote to");
  EXPECT_OK(add(kernel, buffer, 1));
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_OK(add(kernel, buffer, 1));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "one of the kernels 'add, wild' failed: wrote to");
  EXPECT_EQUAL(*words(buffer), 1);
  expect_many_kernels(&fault);
  standin_set("silent_errors", 1);
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "a command buffer failed: wrote to");
  standin_set("silent_errors", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_pipeline_release(kernel));
  EXPECT_OK(mps_pipeline_release(wild));
}

/* A command that cannot be encoded leaves the queue as it was. */
static void test_failures_to_encode(void) {
  mps_pipeline *kernel = make_pipeline("add"), *gather = make_pipeline("gather");
  mps_event *event = make_event();
  standin_set("fail_command_buffers", 6);
  EXPECT_FAIL(add(kernel, buffer, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 0, 8, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_copy(queue, buffer, 0, buffer, 4, 4), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_signal(queue, event, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_wait_event(queue, event, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_callback(queue, ignore, NULL), OUT_OF_MEMORY, "gives no command buffer");
  standin_set("fail_encoders", 3);
  EXPECT_FAIL(add(kernel, buffer, 1), OUT_OF_MEMORY, "gives no compute encoder");
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 0, 8, 1), OUT_OF_MEMORY, "gives no blit encoder");
  EXPECT_FAIL(mps_queue_copy(queue, buffer, 0, buffer, 4, 4), OUT_OF_MEMORY, "gives no blit encoder");
  standin_set("raise_dispatch", 1);
  EXPECT_FAIL(add(kernel, buffer, 1), INTERNAL, "raised StandinException while encoding a dispatch: told to raise");
  standin_set("fail_buffers", 1);
  mps_address table[] = {{.buffer = buffer}};
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
                              {.kind = MPS_ARGUMENT_ADDRESSES, .index = 1, .data = table, .length = 1}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = gather,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {1, 1, 1}};
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), OUT_OF_MEMORY, "a table of 1 addresses");
  uint32_t idle;
  EXPECT_OK(mps_queue_is_idle(queue, &idle));
  EXPECT_EQUAL(idle, 1);
  EXPECT_OK(add(kernel, buffer, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(*words(buffer), 1);

  standin_set("raise_commit", 1);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 8, 1));
  EXPECT_FAIL(mps_queue_wait(queue, 5 * SECOND), EXECUTION_FAILED, "could not be submitted: told to raise");
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_pipeline_release(gather));
  EXPECT_OK(mps_pipeline_release(kernel));
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {test_failure_before_signal, test_failure_texts, test_failures_to_encode};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
