/* The Metal device: buffers and heaps, and who keeps them alive. */
#include "metal_fixture.h"

#include <sys/mman.h>

/* Buffers are let go of while commands that use them are queued: they stay, and go when the commands are complete. */
static void test_buffers_in_use(void) {
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
}

static void test_buffers(void) {
  uint64_t before, during;
  EXPECT_OK(mps_device_allocated_size(device, &before));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 100000, .label = "a buffer"};
  mps_buffer *own;
  EXPECT_OK(mps_buffer_create(device, &desc, &own));
  EXPECT_OK(mps_device_allocated_size(device, &during));
  EXPECT_EQUAL(during - before, 114688);
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(own, &info));
  EXPECT_EQUAL(info.gpu_address, (uintptr_t)bytes(own));
  void *native;
  EXPECT_OK(mps_buffer_native(own, &native));
  EXPECT(native != NULL);
  EXPECT_OK(mps_buffer_release(own));
  EXPECT_OK(mps_device_allocated_size(device, &during));
  EXPECT_EQUAL(during, before);
}

static void test_heaps(void) {
  uint64_t before, after, size, used;
  EXPECT_OK(mps_device_allocated_size(device, &before));
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 100000};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &heap));
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 60000};
  mps_buffer *first, *second;
  mps_buffer_info info = {.struct_size = sizeof info};
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
  EXPECT_OK(mps_device_allocated_size(device, &after));
  EXPECT_EQUAL(after, before);
}

static atomic_int given_back;

static void count_release(void *user, void *native, uint64_t length) {
  EXPECT(user == &given_back);
  EXPECT(native != NULL);
  EXPECT_EQUAL(length, 1000);
  given_back++;
}

static void *native_of(mps_buffer *maker) {
  void *native;
  EXPECT_OK(mps_buffer_native(maker, &native));
  return native;
}

/* The buffer as somebody else's making, of which there is no other kind here than those of this library. */
static mps_buffer *wrap(mps_buffer *maker) {
  mps_buffer *foreign = NULL;
  given_back = 0;
  EXPECT_OK(mps_buffer_create_from_native(device, native_of(maker), count_release, &given_back, &foreign));
  return foreign;
}

static void test_foreign_buffers(void) {
  mps_buffer *maker = make_buffer(1000);
  long before = standin_live_objects();
  mps_buffer *foreign = wrap(maker);
  EXPECT_EQUAL(standin_live_objects(), before);
  EXPECT(native_of(foreign) == native_of(maker));
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(foreign, &info));
  EXPECT_EQUAL(info.length, 1000);
  EXPECT_EQUAL(info.storage_mode, MPS_STORAGE_SHARED);
  EXPECT(info.contents == bytes(maker) && info.heap == NULL);
  EXPECT_OK(mps_buffer_release(foreign));
  EXPECT_EQUAL(given_back, 1);
  EXPECT_OK(mps_buffer_release(maker));

  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 1000, .storage_mode = MPS_STORAGE_PRIVATE};
  EXPECT_OK(mps_buffer_create(device, &desc, &maker));
  EXPECT_OK(mps_buffer_create_from_native(device, native_of(maker), NULL, NULL, &foreign));
  EXPECT_OK(mps_buffer_get_info(foreign, &info));
  EXPECT(info.storage_mode == MPS_STORAGE_PRIVATE && info.contents == NULL);
  EXPECT_OK(mps_buffer_release(foreign));
  EXPECT_OK(mps_buffer_release(maker));
}

/* Its maker lets go of it first, then its user, and then the work is done. */
static void test_released_foreign_buffers(void) {
  mps_buffer *maker = make_buffer(1000), *foreign = wrap(maker);
  unsigned char *memory = bytes(maker);
  mps_event *gate = make_event();
  EXPECT_OK(mps_queue_wait_event(queue, gate, 1));
  EXPECT_OK(mps_queue_fill(queue, foreign, 0, 1000, 42));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_buffer_release(maker));
  EXPECT_OK(mps_buffer_retain(foreign));
  EXPECT_OK(mps_buffer_release(foreign));
  EXPECT_OK(mps_event_signal(gate, 1));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(memory[0] + memory[999], 84);
  EXPECT_EQUAL(given_back, 0);
  EXPECT_OK(mps_event_signal(gate, 2));
  EXPECT_OK(mps_queue_wait_event(queue, gate, 3));
  EXPECT_OK(mps_queue_fill(queue, foreign, 0, 1000, 43));
  EXPECT_OK(mps_queue_commit(queue, NULL));
  EXPECT_OK(mps_buffer_release(foreign));
  EXPECT_EQUAL(given_back, 0);
  EXPECT_OK(mps_event_signal(gate, 3));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  standin_settle();
  EXPECT_EQUAL(given_back, 1);
  EXPECT_OK(mps_event_release(gate));
}

static void test_refused_foreign_buffers(void) {
  mps_buffer *foreign = NULL;
  void *gpu, *native = native_of(buffer);
  EXPECT_OK(mps_device_native(device, &gpu));
  given_back = 0;
  EXPECT_FAIL(mps_buffer_create_from_native(device, (char *)native + 4, count_release, &given_back, &foreign),
              INVALID_ARGUMENT, "no address of an object, expected an id<MTLBuffer>");
  EXPECT_FAIL(mps_buffer_create_from_native(device, gpu, count_release, &given_back, &foreign), INVALID_ARGUMENT,
              "an object of another kind, expected an id<MTLBuffer>");
  standin_set("other_gpu", 1);
  EXPECT_FAIL(mps_buffer_create_from_native(device, native, count_release, &given_back, &foreign), INVALID_ARGUMENT,
              "the GPU 'Other GPU' (registry id 4712), expected one of 'Stand-in GPU' (4711)");
  standin_set("other_gpu", 0);
  standin_set("managed_buffers", 1);
  EXPECT_FAIL(mps_buffer_create_from_native(device, native, count_release, &given_back, &foreign), UNSUPPORTED,
              "storage mode 1, expected shared (0) or private (2)");
  standin_set("managed_buffers", 0);
  EXPECT_EQUAL(given_back, 0);
}

static void test_no_memory(void) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 16384};
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 16384};
  mps_buffer *no_buffer;
  mps_heap *no_heap;
  mps_event *no_event;
  mps_queue *no_queue;
  char *page = mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  standin_set("fail_buffers", 2);
  EXPECT_FAIL(mps_buffer_create(device, &desc, &no_buffer), OUT_OF_MEMORY, "16384 bytes on 'Stand-in GPU'");
  EXPECT_FAIL(mps_buffer_create_no_copy(device, page + (-(uintptr_t)page & 16383), &desc, NULL, NULL, &no_buffer),
              OUT_OF_MEMORY, "cannot take over");
  standin_set("fail_heaps", 1);
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &no_heap), OUT_OF_MEMORY, "a heap of 16384 bytes");
  standin_set("fail_events", 1);
  EXPECT_FAIL(mps_event_create(device, &no_event), OUT_OF_MEMORY, "no memory for an event");
  standin_set("fail_queues", 1);
  EXPECT_FAIL(mps_queue_create(device, NULL, &no_queue), OUT_OF_MEMORY, "gives no queue");
  munmap(page, 32768);
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {
      test_buffers,         test_buffers_in_use,           test_heaps,
      test_foreign_buffers, test_released_foreign_buffers, test_refused_foreign_buffers,
      test_no_memory,
  };
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
