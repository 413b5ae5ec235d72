/* The Metal device, through the public interface, over the stand-in: what no test of both devices reaches, since only
 * the stand-in can be told to fail. The kernel library of shim/tests/host_kernels.c is argv[1]. */
#include "expect.h"
#include "standin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const uint64_t SECOND = 1000000000;

static const char *kernels_path;
static char directory[] = "/tmp/mpsshim-test-XXXXXX";
static mps_device *device;

static mps_queue *make_queue(const char *label) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .label = label};
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  return queue;
}

static mps_buffer *make_buffer(uint64_t length) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = length, .label = "a buffer"};
  mps_buffer *buffer;
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  return buffer;
}

static void *contents(mps_buffer *buffer) {
  void *pointer;
  EXPECT_OK(mps_buffer_contents(buffer, &pointer));
  return pointer;
}

static mps_event *make_event(void) {
  mps_event *event;
  EXPECT_OK(mps_event_create(device, &event));
  return event;
}

static mps_library *open_kernels(void) {
  mps_library *library;
  EXPECT_OK(mps_library_create_from_file(device, kernels_path, &library));
  return library;
}

static mps_pipeline *make_pipeline(mps_library *library, const char *kernel) {
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = kernel, .label = kernel};
  mps_pipeline *pipeline;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  return pipeline;
}

/* add(buffer, value) over one thread */
static mps_status add(mps_queue *queue, mps_pipeline *pipeline, mps_buffer *buffer, uint32_t value) {
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
                              {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &value, .length = sizeof value}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = pipeline,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {1, 1, 1}};
  return mps_queue_dispatch(queue, &dispatch);
}

static mps_command_info command_info(mps_queue *queue, uint64_t serial) {
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_queue_get_command_info(queue, serial, &info));
  return info;
}

/* ---- what the device says of itself */

static void test_device(void) {
  mps_device_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_device_get_info(device, &info));
  EXPECT_EQUAL(info.kind, MPS_DEVICE_METAL);
  EXPECT_EQUAL(strcmp(info.name, "Stand-in GPU"), 0);
  EXPECT_EQUAL(info.core_count, 8);
  EXPECT_EQUAL(info.page_size, 16384);
  EXPECT_EQUAL(info.max_total_threads_per_threadgroup, 1024);
  uint64_t cpu, gpu;
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  EXPECT_OK(mps_device_timestamps(device, &cpu, &gpu));
  clock_gettime(CLOCK_MONOTONIC, &after);
  EXPECT_EQUAL(cpu, gpu);
  EXPECT(cpu >= (uint64_t)before.tv_sec * SECOND + (uint64_t)before.tv_nsec);
  EXPECT(cpu <= (uint64_t)after.tv_sec * SECOND + (uint64_t)after.tv_nsec);
  void *native;
  EXPECT_OK(mps_device_native(device, &native));
  EXPECT(native != NULL);
  uint32_t count;
  EXPECT_OK(mps_device_count(MPS_DEVICE_METAL, &count));
  EXPECT_EQUAL(count, 1);
  EXPECT_EQUAL(strcmp(mps_device_unavailable_reason(MPS_DEVICE_METAL), ""), 0);
}

/* The registry may not know the GPU, or not its cores. */
static void test_core_count(void) {
  for (int known = 0; known <= 2; known += 2) {
    EXPECT_OK(mps_device_release(device));
    standin_set("io_registry", known);
    EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
    mps_device_info info = {.struct_size = sizeof info};
    EXPECT_OK(mps_device_get_info(device, &info));
    EXPECT_EQUAL(info.core_count, 0);
  }
  standin_set("io_registry", 1);
}

/* ---- memory */

static void test_memory(void) {
  uint64_t before, during, size, used;
  EXPECT_OK(mps_device_allocated_size(device, &before));
  mps_buffer *own = make_buffer(100000);
  EXPECT_OK(mps_device_allocated_size(device, &during));
  EXPECT_EQUAL(during - before, 114688);
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(own, &info));
  EXPECT_EQUAL(info.gpu_address, (uintptr_t)contents(own));
  void *native;
  EXPECT_OK(mps_buffer_native(own, &native));
  EXPECT(native != NULL);
  EXPECT_OK(mps_buffer_release(own));

  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 100000};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 60000};
  mps_buffer *first, *second;
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &first));
  EXPECT_OK(mps_heap_get_size(heap, &size, &used));
  EXPECT_EQUAL(size, 114688);
  EXPECT_EQUAL(used, 60160);
  EXPECT_FAIL(mps_buffer_create_in_heap(heap, &desc, 0, &second), OUT_OF_MEMORY, "60160 bytes are in use");
  mps_purgeable_state previous;
  EXPECT_OK(mps_heap_set_purgeable(heap, MPS_PURGEABLE_VOLATILE, &previous));
  EXPECT_EQUAL(previous, MPS_PURGEABLE_NON_VOLATILE);
  EXPECT_OK(mps_heap_release(heap));
  EXPECT_OK(mps_buffer_release(first));

  heap_desc.type = MPS_HEAP_PLACEMENT;
  heap_desc.storage_mode = desc.storage_mode = MPS_STORAGE_PRIVATE;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &first));
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 512, &second)); /* over the first */
  EXPECT_OK(mps_buffer_get_info(second, &info));
  EXPECT_EQUAL(info.heap_offset, 512);
  EXPECT(info.contents == NULL);
  EXPECT_OK(mps_buffer_release(first));
  EXPECT_OK(mps_buffer_release(second));
  EXPECT_OK(mps_heap_release(heap));
  EXPECT_OK(mps_device_allocated_size(device, &during));
  EXPECT_EQUAL(during, before);
}

static atomic_int given_back;

static void count_release(void *user, void *native, uint64_t length) {
  EXPECT(user == &given_back);
  EXPECT(native != NULL);
  EXPECT_EQUAL(length, 1000);
  given_back++;
}

/* A buffer of somebody else's making, of which there is no other kind here than those of this library. */
static void test_foreign_buffers(void) {
  mps_queue *queue = make_queue("foreign");
  mps_buffer *maker = make_buffer(1000), *buffer = NULL;
  char *memory = contents(maker);
  void *native, *gpu;
  EXPECT_OK(mps_buffer_native(maker, &native));
  EXPECT_OK(mps_device_native(device, &gpu));
  long before = standin_live_objects();
  EXPECT_OK(mps_buffer_create_from_native(device, native, count_release, &given_back, &buffer));
  EXPECT_EQUAL(standin_live_objects(), before);
  void *again;
  EXPECT_OK(mps_buffer_native(buffer, &again));
  EXPECT(again == native);
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  EXPECT_EQUAL(info.length, 1000);
  EXPECT_EQUAL(info.storage_mode, MPS_STORAGE_SHARED);
  EXPECT(info.contents == memory && info.heap == NULL);

  /* Its maker lets go of it first, then its user, and then the work is done. */
  mps_event *gate = make_event();
  EXPECT_OK(mps_queue_wait_event(queue, gate, 1));
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 1000, 42));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_buffer_release(maker));
  EXPECT_OK(mps_buffer_retain(buffer));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_event_signal(gate, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(memory[0] + memory[999], 84);
  EXPECT_EQUAL(given_back, 0);
  EXPECT_OK(mps_event_signal(gate, 2));
  EXPECT_OK(mps_queue_wait_event(queue, gate, 3));
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 1000, 43));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_EQUAL(given_back, 0);
  EXPECT_OK(mps_event_signal(gate, 3));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  standin_settle();
  EXPECT_EQUAL(given_back, 1);
  EXPECT_OK(mps_event_release(gate));

  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 1000, .storage_mode = MPS_STORAGE_PRIVATE};
  EXPECT_OK(mps_buffer_create(device, &desc, &maker));
  EXPECT_OK(mps_buffer_native(maker, &native));
  EXPECT_OK(mps_buffer_create_from_native(device, native, NULL, NULL, &buffer));
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  EXPECT(info.storage_mode == MPS_STORAGE_PRIVATE && info.contents == NULL);
  EXPECT_OK(mps_buffer_release(buffer));

  EXPECT_FAIL(mps_buffer_create_from_native(device, (char *)native + 4, count_release, &given_back, &buffer),
              INVALID_ARGUMENT, "no address of an object, expected an id<MTLBuffer>");
  EXPECT_FAIL(mps_buffer_create_from_native(device, gpu, count_release, &given_back, &buffer), INVALID_ARGUMENT,
              "an object of another kind, expected an id<MTLBuffer>");
  standin_set("other_gpu", 1);
  EXPECT_FAIL(mps_buffer_create_from_native(device, native, count_release, &given_back, &buffer), INVALID_ARGUMENT,
              "the GPU 'Other GPU' (registry id 4712), expected one of 'Stand-in GPU' (4711)");
  standin_set("other_gpu", 0);
  standin_set("managed_buffers", 1);
  EXPECT_FAIL(mps_buffer_create_from_native(device, native, count_release, &given_back, &buffer), UNSUPPORTED,
              "storage mode 1, expected shared (0) or private (2)");
  standin_set("managed_buffers", 0);
  EXPECT_EQUAL(given_back, 1);
  EXPECT_OK(mps_buffer_release(maker));
  EXPECT_OK(mps_queue_release(queue));
}

static void test_no_memory(void) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 16384};
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 16384};
  mps_buffer *buffer;
  mps_heap *heap;
  mps_event *event;
  mps_queue *queue;
  char *page = mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  standin_set("fail_buffers", 2);
  EXPECT_FAIL(mps_buffer_create(device, &desc, &buffer), OUT_OF_MEMORY, "16384 bytes on 'Stand-in GPU'");
  EXPECT_FAIL(mps_buffer_create_no_copy(device, page + (-(uintptr_t)page & 16383), &desc, NULL, NULL, &buffer),
              OUT_OF_MEMORY, "cannot take over");
  standin_set("fail_heaps", 1);
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), OUT_OF_MEMORY, "a heap of 16384 bytes");
  standin_set("fail_events", 1);
  EXPECT_FAIL(mps_event_create(device, &event), OUT_OF_MEMORY, "no memory for an event");
  standin_set("fail_queues", 1);
  EXPECT_FAIL(mps_queue_create(device, NULL, &queue), OUT_OF_MEMORY, "gives no queue");
  munmap(page, 32768);
}

/* ---- queues */

/* Untracked memory of a heap, used by compute and blits in turn: the stand-in aborts unless a fence is waited for. */
static void test_untracked_memory(void) {
  mps_library *library = open_kernels();
  mps_pipeline *kernel = make_pipeline(library, "add");
  mps_queue *queue = make_queue("untracked");
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 65536};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 256};
  mps_buffer *a, *b;
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &a));
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &b));
  EXPECT_OK(mps_queue_fill(queue, a, 0, 256, 0));
  for (uint32_t i = 1; i <= 200; i++) {
    EXPECT_OK(add(queue, kernel, a, i));
    EXPECT_OK(mps_queue_copy(queue, a, 0, b, 0, 256));
    if (i % 7 == 0) {
      EXPECT_OK(mps_queue_commit(queue, NULL));
    }
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(((uint32_t *)contents(b))[0], 200 * 201 / 2);
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
  EXPECT_OK(mps_heap_release(heap));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_pipeline_release(kernel));
  EXPECT_OK(mps_library_release(library));
}

/* Products of matrices: in memory that Metal does not track, refused, and failing to encode. */
static void test_products(void) {
  mps_queue *queue = make_queue("products");
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 65536};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 256};
  mps_buffer *a, *b;
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &a));
  EXPECT_OK(mps_buffer_create_in_heap(heap, &desc, 0, &b));
  /* One matrix of halves on the left of 4; the second buffer lies anywhere, transposed. */
  mps_matmul call = {.struct_size = sizeof call,
                     .data_type = MPS_DATA_HALF,
                     .count = 4,
                     .left = {.buffer = a, .rows = 2, .columns = 3},
                     .right = {.buffer = a, .offset = 16, .rows = 3, .columns = 3, .matrix_bytes = 2, .transposed = 1},
                     .result = {.buffer = b, .rows = 2, .columns = 3, .matrix_bytes = 12}};
  for (int round = 0; round < 40; round++) {
    EXPECT_OK(mps_queue_fill(queue, a, 0, 256, 0x3c)); /* each half is 1.059 */
    EXPECT_OK(mps_queue_matmul(queue, &call));
    EXPECT_OK(mps_queue_copy(queue, b, 0, a, 128, 48));
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  for (int i = 0; i < 24; i++) {
    EXPECT_EQUAL(((uint16_t *)contents(a))[64 + i], 0x42b9); /* 3 times 1.059 squared, as a half */
  }

  call.data_type = MPS_DATA_BFLOAT;
  EXPECT_FAIL(mps_queue_matmul(queue, &call), UNSUPPORTED, "no matrices of MPS_DATA_BFLOAT");
  call.data_type = MPS_DATA_HALF;
  standin_set("matrices", 0);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), UNSUPPORTED, "do not support 'Stand-in GPU'");
  standin_set("matrices", 1);
  standin_set("fail_products", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "give no product of matrices");
  standin_set("fail_matrices", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "give no matrix");
  standin_set("raise_products", 1);
  EXPECT_FAIL(mps_queue_matmul(queue, &call), INTERNAL, "while encoding a product of matrices: told to raise");
  standin_set("fail_command_buffers", 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FAIL(mps_queue_matmul(queue, &call), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_OK(mps_queue_matmul(queue, &call));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_buffer_release(a));
  EXPECT_OK(mps_buffer_release(b));
  EXPECT_OK(mps_heap_release(heap));
  EXPECT_OK(mps_queue_release(queue));
}

/* The GPU starts before the caller commits, and yet all is one command buffer. */
static void test_early_start(void) {
  mps_queue *queue = make_queue("early");
  mps_buffer *buffer = make_buffer(4096);
  for (int i = 0; i < 1000; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4096, (uint8_t)(i + 1)));
  }
  while (live_objects().pending_commands == 1000) {
    usleep(100);
  }
  uint64_t serial;
  EXPECT_OK(mps_queue_commit(queue, &serial));
  EXPECT_EQUAL(serial, 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(((unsigned char *)contents(buffer))[4095], 1000 & 255);
  mps_command_info info = command_info(queue, 1);
  EXPECT(info.start != 0 && info.start < info.end && info.scheduled == 1);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

static void test_remembered_commands(void) {
  mps_queue *queue = make_queue("remembered");
  mps_buffer *buffer = make_buffer(4);
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_FAIL(mps_queue_get_command_info(queue, 1, &info), NOT_FOUND, "its last one is 0");
  for (int i = 0; i < 70; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 1));
    EXPECT_OK(mps_queue_commit(queue, NULL));
  }
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FAIL(mps_queue_get_command_info(queue, 6, &info), NOT_FOUND, "it remembers 64");
  EXPECT(command_info(queue, 7).end <= command_info(queue, 70).start);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

/* Twice as many as may be in flight are committed, and none runs: commits get slow, but do not hang. */
static void test_full_queue(void) {
  mps_queue_desc desc = {.struct_size = sizeof desc, .max_command_buffers = 2};
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  mps_buffer *buffer = make_buffer(4);
  standin_set("kept_commands", 1);
  for (int i = 0; i < 4; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, (uint8_t)i));
    EXPECT_OK(mps_queue_commit(queue, NULL));
  }
  EXPECT_FAIL(mps_queue_wait(queue, SECOND / 100), TIMEOUT, "command buffer 4");
  EXPECT_FAIL(mps_queue_wait(queue, 0), TIMEOUT, "command buffer 4");
  EXPECT_EQUAL(live_objects().pending_commands, 4);
  standin_set("kept_commands", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(live_objects().pending_commands, 0);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

/* A queue of 200 fills is let go of: they still run. */
static void test_release_with_work(void) {
  mps_queue *queue = make_queue("released");
  mps_buffer *buffer = make_buffer(4);
  for (int i = 0; i < 200; i++) {
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, (uint8_t)i));
  }
  EXPECT_OK(mps_queue_release(queue));
  standin_settle();
  EXPECT_EQUAL(((unsigned char *)contents(buffer))[3], 199);
  EXPECT_OK(mps_buffer_release(buffer));
}

/* Buffers are let go of while commands that use them are queued: they stay, and go when the commands are complete. */
static void test_buffers_in_use(void) {
  mps_queue *queue = make_queue("in use");
  uint64_t before, after;
  EXPECT_OK(mps_device_allocated_size(device, &before));
  mps_buffer *source = make_buffer(16384), *target = make_buffer(16384), *filled = make_buffer(16384);
  mps_buffer_info info = {.struct_size = sizeof info};
  standin_set("kept_commands", 1);
  EXPECT_OK(mps_queue_fill(queue, filled, 0, 16384, 1));
  EXPECT_OK(mps_queue_copy(queue, source, 0, target, 0, 16384));
  EXPECT_OK(mps_buffer_get_info(target, &info));
  EXPECT_EQUAL(info.in_use, 1);
  EXPECT_OK(mps_buffer_release(source));
  EXPECT_OK(mps_buffer_release(target));
  EXPECT_OK(mps_buffer_release(filled));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_device_allocated_size(device, &after));
  EXPECT_EQUAL(after - before, 3 * 16384);
  standin_set("kept_commands", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_device_allocated_size(device, &after));
  EXPECT_EQUAL(after, before);
  EXPECT_OK(mps_queue_release(queue));
}

/* ---- events */

/* A signal that is lower than what is signalled changes nothing, also for a queue that waits. */
static void test_backward_signal(void) {
  mps_queue *queue = make_queue("backward"), *other = make_queue("waits");
  mps_buffer *buffer = make_buffer(4);
  mps_event *event = make_event();
  mps_event_info info = {.struct_size = sizeof info};
  standin_set("kept_commands", 1);
  EXPECT_OK(mps_queue_signal(queue, event, 3)); /* when this runs, the event is at 9 */
  EXPECT_OK(mps_event_signal(event, 9));
  EXPECT_OK(mps_queue_signal(queue, event, 5)); /* known to be late when it is encoded */
  EXPECT_OK(mps_queue_fill(other, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_wait_event(other, event, 8));
  EXPECT_OK(mps_queue_fill(other, buffer, 0, 4, 7));
  EXPECT_OK(mps_queue_commit(other, NULL));
  standin_set("kept_commands", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_queue_wait(other, 5 * SECOND));
  EXPECT_OK(mps_event_get_info(event, &info));
  EXPECT_EQUAL(info.value, 9);
  EXPECT_EQUAL(info.time, 0);
  EXPECT_EQUAL(((unsigned char *)contents(buffer))[0], 7);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_queue_release(other));
}

static void count_up(void *user) {
  atomic_fetch_add((_Atomic int *)user, 1);
}

static void test_notifications(void) {
  mps_event *event = make_event(), *never = make_event();
  _Atomic int calls = 0;
  EXPECT_OK(mps_event_notify(event, 2, count_up, &calls));
  EXPECT_OK(mps_event_notify(event, 3, count_up, &calls));
  EXPECT_OK(mps_event_notify(never, 1, count_up, &calls)); /* dropped with its event */
  EXPECT_OK(mps_event_signal(event, 1));
  EXPECT_FAIL(mps_event_wait(event, 2, SECOND / 100), TIMEOUT, "it is at 1");
  EXPECT_FAIL(mps_event_wait(event, 2, 0), TIMEOUT, "it is at 1");
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 0);
  EXPECT_OK(mps_event_signal(event, 2));
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 1);
  EXPECT_OK(mps_event_signal(event, 7));
  standin_settle();
  EXPECT_EQUAL(atomic_load(&calls), 2);
  EXPECT_OK(mps_event_notify(event, 7, count_up, &calls)); /* at once */
  EXPECT_EQUAL(atomic_load(&calls), 3);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_event_release(never));
}

/* ---- failures */

/* The signal behind a command that fails is not signalled by the GPU: whoever waits for it must not wait for ever. */
static void test_failure_before_signal(void) {
  mps_queue *queue = make_queue("fails"), *next = make_queue("next");
  mps_buffer *buffer = make_buffer(4);
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
  EXPECT_EQUAL(((unsigned char *)contents(buffer))[0], 2);
  EXPECT_EQUAL(command_info(queue, 1).status, MPS_STATUS_EXECUTION_FAILED);
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_queue_release(next));
}

/* Each name for what failed that Metal's error lets us know. */
/* More kernels than an encoder's label has room for: it gets no more of them than it can list. */
static void test_many_kernels(mps_queue *queue, mps_library *library, const mps_dispatch *fault) {
  enum { KERNELS = 20 };
  mps_pipeline *kernels[KERNELS];
  mps_buffer *buffer = make_buffer(4);
  for (int i = 0; i < KERNELS; i++) {
    char label[32];
    snprintf(label, sizeof label, "a kernel with the number %d", i);
    mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "add", .label = label};
    EXPECT_OK(mps_pipeline_create(library, &desc, &kernels[i]));
    EXPECT_OK(add(queue, kernels[i], buffer, 1));
  }
  EXPECT_OK(mps_queue_dispatch(queue, fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED,
              "one of the kernels 'a kernel with the number 17, a kernel with the number 18, a kernel with the "
              "number 19, wild' failed");
  EXPECT_EQUAL(*(uint32_t *)contents(buffer), KERNELS);
  for (int i = 0; i < KERNELS; i++) {
    EXPECT_OK(mps_pipeline_release(kernels[i]));
  }
  EXPECT_OK(mps_buffer_release(buffer));
}

static void test_failure_texts(void) {
  mps_library *library = open_kernels();
  mps_pipeline *wild = make_pipeline(library, "wild"), *kernel = make_pipeline(library, "add");
  mps_dispatch fault = {.struct_size = sizeof fault, .pipeline = wild, .grid = {1, 1, 1}};
  mps_queue *queue = make_queue("texts");
  mps_buffer *buffer = make_buffer(4);
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "kernel 'wild' failed: wrote to");
  EXPECT_OK(add(queue, kernel, buffer, 1));
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_OK(add(queue, kernel, buffer, 1));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "one of the kernels 'add, wild' failed: wrote to");
  EXPECT_EQUAL(*(uint32_t *)contents(buffer), 1);
  test_many_kernels(queue, library, &fault);
  standin_set("silent_errors", 1);
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_queue_dispatch(queue, &fault));
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "a command buffer failed: wrote to");
  standin_set("silent_errors", 0);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_pipeline_release(kernel));
  EXPECT_OK(mps_pipeline_release(wild));
  EXPECT_OK(mps_library_release(library));
}

/* A command that cannot be encoded leaves the queue as it was. */
static void test_failures_to_encode(void) {
  mps_library *library = open_kernels();
  mps_pipeline *kernel = make_pipeline(library, "add"), *gather = make_pipeline(library, "gather");
  mps_queue *queue = make_queue("encoding");
  mps_buffer *buffer = make_buffer(8);
  mps_event *event = make_event();
  standin_set("fail_command_buffers", 6);
  EXPECT_FAIL(add(queue, kernel, buffer, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 0, 8, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_copy(queue, buffer, 0, buffer, 4, 4), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_signal(queue, event, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_wait_event(queue, event, 1), OUT_OF_MEMORY, "gives no command buffer");
  EXPECT_FAIL(mps_queue_callback(queue, count_up, NULL), OUT_OF_MEMORY, "gives no command buffer");
  standin_set("fail_encoders", 3);
  EXPECT_FAIL(add(queue, kernel, buffer, 1), OUT_OF_MEMORY, "gives no compute encoder");
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 0, 8, 1), OUT_OF_MEMORY, "gives no blit encoder");
  EXPECT_FAIL(mps_queue_copy(queue, buffer, 0, buffer, 4, 4), OUT_OF_MEMORY, "gives no blit encoder");
  standin_set("raise_dispatch", 1);
  EXPECT_FAIL(add(queue, kernel, buffer, 1), INTERNAL,
              "raised StandinException while encoding a dispatch: told to raise");
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
  EXPECT_OK(add(queue, kernel, buffer, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(*(uint32_t *)contents(buffer), 1);

  standin_set("raise_commit", 1);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 8, 1));
  EXPECT_FAIL(mps_queue_wait(queue, 5 * SECOND), EXECUTION_FAILED, "could not be submitted: told to raise");
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_pipeline_release(gather));
  EXPECT_OK(mps_pipeline_release(kernel));
  EXPECT_OK(mps_library_release(library));
}

/* ---- handlers */

typedef struct hearing {
  mps_queue *queue;
  _Atomic int scheduled, completed, waited;
  mps_status status;
} hearing;

static void on_scheduled(void *user, const mps_command_info *info) {
  hearing *heard = user;
  EXPECT_EQUAL(info->scheduled, 1);
  EXPECT_EQUAL(info->end, 0);
  EXPECT_EQUAL(atomic_load(&heard->completed), 0);
  atomic_fetch_add(&heard->scheduled, 1);
}

static void on_completed(void *user, const mps_command_info *info) {
  hearing *heard = user;
  EXPECT_EQUAL(atomic_load(&heard->scheduled), 1);
  EXPECT(info->end >= info->start);
  EXPECT_EQUAL(info->message[0] != '\0', info->status == MPS_STATUS_EXECUTION_FAILED);
  heard->status = mps_queue_wait(heard->queue, MPS_FOREVER); /* which cannot be */
  atomic_fetch_add(&heard->completed, 1);
}

/* Handlers of an empty command buffer, of one that was on its way before its commit, and of both when they fail. */
static void test_handlers(void) {
  mps_queue *queue = make_queue("handlers");
  mps_buffer *buffer = make_buffer(4);
  for (int kind = 0; kind < 4; kind++) {
    hearing heard = {.queue = queue};
    standin_set("fail_commands", kind >= 2);
    if (kind % 2 == 1) {
      for (int i = 0; i < 64; i++) {
        EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, (uint8_t)i));
      }
    }
    EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_SCHEDULED, on_scheduled, &heard));
    EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, on_completed, &heard));
    uint64_t serial;
    EXPECT_OK(mps_queue_commit(queue, &serial));
    EXPECT_EQUAL(serial, (uint64_t)kind + 1);
    mps_status status = mps_queue_wait(queue, MPS_FOREVER);
    EXPECT_EQUAL(status, kind >= 2 ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK);
    EXPECT_EQUAL(heard.scheduled, 1);
    EXPECT_EQUAL(heard.completed, 1);
    EXPECT_EQUAL(heard.status, MPS_STATUS_INVALID_STATE);
  }
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

/* ---- libraries and pipelines */

static void test_libraries(void) {
  mps_library *library;
  mps_compile_options options = {.struct_size = sizeof options, .flags = MPS_COMPILE_VALIDATE};
  const char *folders[] = {"/tmp"};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), UNSUPPORTED, "MTL_SHADER_VALIDATION");
  options = (mps_compile_options){.struct_size = sizeof options, .include_dirs = folders, .include_dir_count = 1};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), UNSUPPORTED, "include_dirs");
  EXPECT_FAIL(mps_library_create_from_source(device, "\xff", 1, NULL, &library), INVALID_ARGUMENT, "no UTF-8");
  const char *defines[] = {"A=\xff"};
  options = (mps_compile_options){.struct_size = sizeof options, .defines = defines, .define_count = 1};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT, "defines[0]");
  char path[4096];
  snprintf(path, sizeof path, "%s/\xff", directory);
  FILE *file = fopen(path, "w");
  EXPECT(file != NULL && fclose(file) == 0);
  EXPECT_FAIL(mps_library_create_from_file(device, path, &library), INVALID_ARGUMENT, "no UTF-8");
  EXPECT_FAIL(mps_library_create_from_file(device, directory, &library), INVALID_ARGUMENT, "is a directory");
  EXPECT_FAIL(mps_library_create_from_file(device, "/nowhere/at all", &library), NOT_FOUND, "/nowhere/at all");
  snprintf(path, sizeof path, "%s/loop", directory);
  EXPECT_EQUAL(symlink("loop", path), 0);
  EXPECT_FAIL(mps_library_create_from_file(device, path, &library), IO, "loop");
  EXPECT_FAIL(mps_library_create_from_file(device, "/proc/self/status", &library), INVALID_ARGUMENT, "no library");
  EXPECT_FAIL(mps_library_create_from_data(device, "abc", 3, &library), INVALID_ARGUMENT, "these 3 bytes");
}

static void test_pipelines(void) {
  mps_library *library = open_kernels();
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "add"};
  mps_pipeline *pipeline;
  standin_set("missing_argument", 1);
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), UNSUPPORTED, "argument 'image' of kernel 'add'");
  standin_set("missing_argument", 0);
  standin_set("fail_functions", 1);
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), NOT_FOUND, "'add'");
  uint32_t value = 1;
  mps_constant_value constants[] = {{.index = 3, .data_type = MPS_DATA_UINT | 1 << 8, .value = &value}};
  desc.constants = constants;
  desc.constant_count = 1;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant with index 3");
  constants[0].name = "size";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant 'size'");
  EXPECT_OK(mps_library_release(library));
}

/* ---- single bytes, where blits take words only */

/* Without a compiler for the kernels that they need: an error, and nothing is done. */
static void test_bytes_of_other_gpus(void) {
  setenv("MPSSHIM_MSLC", "/nowhere/at all", 1);
  standin_set("apple_family", 0);
  EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
  mps_queue *queue = make_queue("bytes");
  mps_buffer *buffer = make_buffer(8);
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 1, 3, 7), COMPILE_FAILED, "copy and fill single bytes");
  EXPECT_OK(mps_queue_fill(queue, buffer, 4, 4, 7));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(memcmp(contents(buffer), "\0\0\0\0\7\7\7\7", 8), 0);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  standin_settle();
  EXPECT_OK(mps_device_release(device));
  standin_set("apple_family", 1);
}

/* ---- the cache of pipelines */

static long cached_pipelines(void) {
  char path[4096], line[2048];
  snprintf(path, sizeof path, "%s/cache/of/metal-Stand-in_GPU-Version_15.0__Build_24A000_.binarchive", directory);
  FILE *file = fopen(path, "r");
  long lines = -1;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    lines++;
  }
  if (file != NULL) {
    fclose(file);
  }
  return lines;
}

static void reopen_device(void) {
  EXPECT_OK(mps_device_release(device));
  EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
}

static void use_kernel(const char *kernel) {
  mps_library *library = open_kernels();
  EXPECT_OK(mps_pipeline_release(make_pipeline(library, kernel)));
  EXPECT_OK(mps_library_release(library));
}

static void test_cache(void) {
  char path[4096], file_path[4096];
  snprintf(path, sizeof path, "%s/cache/of", directory);
  setenv("MPSCFFI_CACHE_DIR", path, 1);
  reopen_device();
  use_kernel("add");
  standin_settle();
  EXPECT_EQUAL(cached_pipelines(), 1);
  reopen_device(); /* which finds it */
  use_kernel("add");
  standin_settle();
  EXPECT_EQUAL(cached_pipelines(), 1);
  use_kernel("gather");
  standin_settle();
  EXPECT_EQUAL(cached_pipelines(), 2);

  standin_set("fail_archives", 1); /* the cache is off from here on */
  use_kernel("wild");
  use_kernel("wild_loop");
  standin_settle();
  EXPECT_EQUAL(cached_pipelines(), 2);

  snprintf(file_path, sizeof file_path, "%s/metal-Stand-in_GPU-Version_15.0__Build_24A000_.binarchive", path);
  FILE *file = fopen(file_path, "w");
  EXPECT(file != NULL && fputs("damaged", file) > 0 && fclose(file) == 0);
  reopen_device(); /* which begins it anew */
  use_kernel("add");
  standin_settle();
  EXPECT_EQUAL(cached_pipelines(), 1);

  EXPECT_EQUAL(unlink(file_path), 0);
  EXPECT_EQUAL(mkdir(file_path, 0777), 0); /* it cannot be written */
  snprintf(file_path, sizeof file_path, "%s/metal-Stand-in_GPU-Version_15.0__Build_24A000_.binarchive/x", path);
  file = fopen(file_path, "w");
  EXPECT(file != NULL && fclose(file) == 0);
  reopen_device();
  use_kernel("add");
  standin_settle();

  setenv("MPSCFFI_CACHE_DIR", "/proc/nowhere/at/all", 1);
  reopen_device();
  use_kernel("add");
  setenv("MPSCFFI_CACHE_DIR", "", 1); /* as if it were not set */
  setenv("HOME", directory, 1);
  reopen_device();
  use_kernel("add");
  standin_settle();
  snprintf(file_path, sizeof file_path, "%s/Library/Caches/mpscffi", directory);
  EXPECT_EQUAL(access(file_path, F_OK), 0);
  unsetenv("HOME");
  reopen_device();
  use_kernel("add");
}

/* ---- capture and signposts */

static void test_capture(void) {
  char path[4096], file[4200], text[1000] = "";
  mps_queue *queue = make_queue("recorded"), *other = make_queue("unrecorded");
  mps_buffer *buffer = make_buffer(4);
  mps_capture_desc desc = {.struct_size = sizeof desc, .path = path, .queue = queue};
  uint32_t flag;
  unsetenv("MTL_CAPTURE_ENABLED");
  EXPECT_OK(mps_capture_is_supported(device, &flag));
  EXPECT_EQUAL(flag, 0);
  setenv("MTL_CAPTURE_ENABLED", "1", 1);
  EXPECT_OK(mps_capture_is_supported(device, &flag));
  EXPECT_EQUAL(flag, 1);
  snprintf(path, sizeof path, "%s/\xff.gputrace", directory);
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_ARGUMENT, "no UTF-8");
  snprintf(path, sizeof path, "%s/none/x.gputrace", directory);
  EXPECT_FAIL(mps_capture_start(device, &desc), IO, "none/x.gputrace");
  snprintf(path, sizeof path, "%s/x.gputrace", directory);
  EXPECT_OK(mps_capture_start(device, &desc));
  EXPECT_OK(mps_capture_is_active(device, &flag));
  EXPECT_EQUAL(flag, 1);
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_fill(other, buffer, 0, 4, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_queue_wait(other, MPS_FOREVER));
  standin_settle();
  EXPECT_OK(mps_capture_stop(device));
  EXPECT_FAIL(mps_capture_stop(device), INVALID_STATE, "no capture");
  snprintf(file, sizeof file, "%s/commands", path);
  FILE *stream = fopen(file, "r");
  EXPECT(stream != NULL && fread(text, 1, sizeof text - 1, stream) > 0);
  fclose(stream);
  EXPECT_EQUAL(strcmp(text, "recorded: copy or fill\n"), 0);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_queue_release(other));
}

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

/* ---- all of it */

/* ---- traces */

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

static uint32_t trace_adds(mps_queue *queue, mps_pipeline *pipeline, mps_buffer *buffer, uint32_t flags, int count,
                           mps_trace_record *found, uint32_t room) {
  mps_trace_desc desc = {.struct_size = sizeof desc, .flags = flags};
  EXPECT_OK(mps_trace_start(&desc));
  for (int i = 0; i < count; i++) {
    EXPECT_OK(add(queue, pipeline, buffer, 1));
  }
  EXPECT_OK(mps_queue_fill(queue, buffer, 4, 4, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_trace_stop());
  return read_trace(MPS_TRACE_DISPATCH, found, room);
}

/* Commands of one command buffer share its times, unless each has a command buffer of its own. */
static void test_traced_times(void) {
  mps_library *library = open_kernels();
  mps_pipeline *pipeline = make_pipeline(library, "add");
  mps_queue *queue = make_queue("traced");
  mps_buffer *buffer = make_buffer(64);
  mps_trace_record found[8];
  EXPECT_EQUAL(trace_adds(queue, pipeline, buffer, 0, 3, found, 8), 3);
  EXPECT_EQUAL(found[0].together, 4);
  EXPECT_EQUAL(found[0].start, found[2].start);
  EXPECT_EQUAL(found[0].end, found[2].end);
  EXPECT_EQUAL(strcmp(found[0].name, "add"), 0);
  EXPECT_EQUAL(strcmp(found[0].queue_name, "traced"), 0);
  EXPECT_EQUAL(trace_adds(queue, pipeline, buffer, MPS_TRACE_COMMANDS, 3, found, 8), 3);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQUAL(found[i].together, 1);
    EXPECT(found[i].encoded <= found[i].end && found[i].start <= found[i].end);
    EXPECT(i == 0 || found[i - 1].end <= found[i].start);
  }
  EXPECT_EQUAL(*(uint32_t *)contents(buffer), 6);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

/* Signals and waits take no time: a signal is at the end of its command buffer, a wait at the beginning. */
static void test_traced_events(void) {
  mps_queue *queue = make_queue("traced");
  mps_buffer *buffer = make_buffer(4);
  mps_event *event;
  mps_trace_record records[32], found[MPS_TRACE_WAIT + 1] = {{0}};
  uint32_t count;
  mps_trace_desc desc = {.struct_size = sizeof desc};
  EXPECT_OK(mps_event_create(device, &event));
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
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

/* Each kernel has an interval, under the name that tools look for. */
static void test_traced_signposts(void) {
  mps_library *library = open_kernels();
  mps_pipeline *pipeline = make_pipeline(library, "add");
  mps_queue *queue = make_queue("traced");
  mps_buffer *buffer = make_buffer(64);
  mps_trace_record found[8];
  long before = standin_get("signposts");
  EXPECT_EQUAL(
      trace_adds(queue, pipeline, buffer, MPS_TRACE_SIGNPOST_INTERVALS | MPS_TRACE_SIGNPOST_KERNELS, 2, found, 8), 2);
  EXPECT_EQUAL(standin_get("signposts"), before + 4);
  char wanted[100];
  snprintf(wanted, sizeof wanted, "end PyTorchMPS/Intervals %" PRIu64 " PyTorchOperationIntervals: mps::add:[1, 1, 1]",
           found[1].id);
  EXPECT(strstr(standin_last_signpost(), wanted) == standin_last_signpost());
  trace_adds(queue, pipeline, buffer, MPS_TRACE_SIGNPOST_EVENTS | MPS_TRACE_SIGNPOST_COPIES, 2, found, 8);
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
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s KERNEL_LIBRARY\n", argv[0]);
    return 2;
  }
  kernels_path = argv[1];
  EXPECT(mkdtemp(directory) != NULL);
  setenv("MPSCFFI_CACHE_DIR", "/proc/none", 1);
  EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
  test_device();
  test_core_count();
  test_notifications(); /* which makes the one dispatch queue that stays */
  standin_settle();
  long objects = standin_live_objects();
  static void (*const tests[])(void) = {
      test_buffers_in_use,
      test_memory,
      test_foreign_buffers,
      test_no_memory,
      test_untracked_memory,
      test_early_start,
      test_full_queue,
      test_backward_signal,
      test_failure_before_signal,
      test_failure_texts,
      test_remembered_commands,
      test_release_with_work,
      test_failures_to_encode,
      test_handlers,
      test_libraries,
      test_pipelines,
      test_capture,
      test_signposts,
      test_products,
      test_traced_times,
      test_traced_signposts,
      test_traced_events,
  };
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    tests[i]();
    standin_settle();
    EXPECT_EQUAL(standin_live_objects(), objects);
  }
  EXPECT_OK(mps_device_release(device)); /* the next ones are about how it is made */
  test_bytes_of_other_gpus();
  EXPECT_OK(mps_device_create(MPS_DEVICE_METAL, 0, &device));
  test_cache();
  EXPECT_OK(mps_device_release(device));
  standin_settle();
  EXPECT_EQUAL(standin_live_objects(), 2); /* the list of GPUs, and the queue of callbacks */
  expect_nothing_lives();
  char command[200];
  snprintf(command, sizeof command, "rm -rf '%s'", directory);
  return system(command) == 0 ? 0 : 1;
}
