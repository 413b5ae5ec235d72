/* Buffers and heaps of the host device: zero-filled, aligned, counted to the byte, and refused rather than
 * overcommitted. */
#include "expect.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 16384 };

static mps_device *device;

static uint64_t allocated(void) {
  uint64_t bytes;
  EXPECT_OK(mps_device_allocated_size(device, &bytes));
  return bytes;
}

static mps_buffer *make(uint64_t length, uint32_t storage_mode) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = length, .storage_mode = storage_mode};
  mps_buffer *buffer;
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  return buffer;
}

static uint64_t address(mps_buffer *buffer) {
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  return info.gpu_address;
}

static unsigned char *contents(mps_buffer *buffer) {
  void *pointer;
  EXPECT_OK(mps_buffer_contents(buffer, &pointer));
  return pointer;
}

static bool is_zero(const unsigned char *bytes, uint64_t length) {
  for (uint64_t i = 0; i < length; i++) {
    if (bytes[i]) {
      return false;
    }
  }
  return true;
}

/* Each length is made, dirtied, dropped and made again: the second one is zero-filled too. */
static void test_zero_and_count(void) {
  static const struct {
    uint64_t length, taken;
  } cases[] = {{1, 256},       {256, 256},     {257, 512},       {5000, 8192},
               {16384, 16384}, {16385, 32768}, {100000, 114688}, {3000000, 3014656}};
  EXPECT_EQUAL(allocated(), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int round = 0; round < 2; round++) {
      mps_buffer *buffer = make(cases[i].length, MPS_STORAGE_SHARED);
      EXPECT_EQUAL(allocated(), cases[i].taken);
      EXPECT_EQUAL(address(buffer) % (cases[i].length > PAGE ? PAGE : 256), 0);
      EXPECT(is_zero(contents(buffer), cases[i].length));
      memset(contents(buffer), 0xa5, cases[i].length);
      EXPECT_OK(mps_buffer_release(buffer));
      EXPECT_EQUAL(allocated(), 0);
    }
  }
}

/* More small buffers than a slab has places, none over another, dropped in an order that empties slabs here and
 * there. */
static void test_many_small(void) {
  enum { COUNT = 10000 };
  static mps_buffer *buffers[COUNT];
  for (uint32_t i = 0; i < COUNT; i++) {
    buffers[i] = make(16 + i % 600, MPS_STORAGE_SHARED);
    memset(contents(buffers[i]), (int)(i & 0xff), 16 + i % 600);
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    EXPECT_EQUAL(contents(buffers[i])[0], i & 0xff);
    EXPECT_EQUAL(contents(buffers[i])[15 + i % 600], i & 0xff);
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    uint32_t j = i * 7919u % COUNT; /* a prime, so that each comes once */
    EXPECT_OK(mps_buffer_release(buffers[j]));
  }
  EXPECT_EQUAL(allocated(), 0);
}

static void test_private(void) {
  mps_buffer *buffer = make(1000, MPS_STORAGE_PRIVATE);
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  EXPECT(info.contents == NULL);
  EXPECT(info.gpu_address != 0);
  EXPECT_OK(mps_buffer_release(buffer));
}

static void test_limits(void) {
  mps_device_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_device_get_info(device, &info));
  EXPECT_EQUAL(info.page_size, PAGE);
  EXPECT(info.recommended_max_working_set > 0);
  EXPECT(info.max_buffer_length <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3);
  EXPECT(info.core_count >= 1);
  EXPECT(info.name[0] != '\0');

  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = info.max_buffer_length + 1};
  EXPECT_FAIL(mps_buffer_create(device, &desc, &buffer), LIMIT_EXCEEDED, "");

  /* Three quarters of the memory fit once, not twice; nothing of it is touched. */
  desc.length = info.max_buffer_length;
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  mps_buffer *second;
  char number[32];
  snprintf(number, sizeof number, "%" PRIu64, allocated());
  EXPECT_FAIL(mps_buffer_create(device, &desc, &second), OUT_OF_MEMORY, number);
  EXPECT_OK(mps_buffer_release(buffer));

  mps_heap *heap;
  mps_heap_desc huge = {.struct_size = sizeof huge, .size = UINT64_MAX};
  EXPECT_FAIL(mps_heap_create(device, &huge, &heap), OUT_OF_MEMORY, "18446744073709551615");
  huge.size = (uint64_t)1 << 60;
  EXPECT_FAIL(mps_heap_create(device, &huge, &heap), OUT_OF_MEMORY, "1152921504606846976");
  EXPECT_EQUAL(allocated(), 0);
}

/* ---- heaps ---- */

static mps_heap *make_heap(uint64_t size, mps_heap_type type) {
  mps_heap_desc desc = {.struct_size = sizeof desc, .size = size, .type = type};
  mps_heap *heap;
  EXPECT_OK(mps_heap_create(device, &desc, &heap));
  return heap;
}

static uint64_t used(mps_heap *heap) {
  uint64_t size, bytes;
  EXPECT_OK(mps_heap_get_size(heap, &size, &bytes));
  return bytes;
}

static mps_status cut(mps_heap *heap, uint64_t length, uint64_t offset, mps_buffer **buffer) {
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = length};
  return mps_buffer_create_in_heap(heap, &desc, offset, buffer);
}

/* Fill a heap, free every second buffer, then the rest: what was cut up must be whole again. */
static void test_automatic_heap(void) {
  enum { COUNT = 64, EACH = 1024 };
  mps_heap *heap = make_heap(COUNT * EACH, MPS_HEAP_AUTOMATIC);
  EXPECT_EQUAL(allocated(), COUNT * EACH);
  mps_buffer *buffers[COUNT], *extra;
  for (int i = 0; i < COUNT; i++) {
    EXPECT_OK(cut(heap, EACH - 100, 0, &buffers[i]));
    EXPECT_EQUAL(address(buffers[i]) % 256, 0);
  }
  EXPECT_EQUAL(used(heap), COUNT * EACH);
  EXPECT_FAIL(cut(heap, 1, 0, &extra), OUT_OF_MEMORY, "65536 are used");
  for (int i = 0; i < COUNT; i += 2) {
    EXPECT_OK(mps_buffer_release(buffers[i]));
  }
  EXPECT_EQUAL(used(heap), COUNT * EACH / 2);
  EXPECT_FAIL(cut(heap, EACH + 1, 0, &extra), OUT_OF_MEMORY, "the largest free range is 1024");
  for (int i = 1; i < COUNT; i += 2) {
    EXPECT_OK(mps_buffer_release(buffers[i]));
  }
  EXPECT_EQUAL(used(heap), 0);
  EXPECT_OK(cut(heap, COUNT * EACH, 0, &extra));
  EXPECT_EQUAL(allocated(), COUNT * EACH);
  EXPECT_OK(mps_heap_release(heap)); /* the buffer keeps it */
  memset(contents(extra), 1, COUNT * EACH);
  EXPECT_EQUAL(allocated(), COUNT * EACH);
  EXPECT_OK(mps_buffer_release(extra));
  EXPECT_EQUAL(allocated(), 0);
}

static void test_placement_heap(void) {
  mps_heap *heap = make_heap(PAGE, MPS_HEAP_PLACEMENT);
  mps_buffer *low, *high, *over;
  EXPECT_OK(cut(heap, 4096, 0, &low));
  EXPECT_OK(cut(heap, 4096, PAGE - 4096, &high));
  EXPECT_OK(cut(heap, PAGE, 0, &over));
  EXPECT_EQUAL(address(high) - address(low), PAGE - 4096);
  EXPECT_EQUAL(address(over), address(low));
  contents(over)[PAGE - 1] = 77;
  EXPECT_EQUAL(contents(high)[4095], 77);
  EXPECT_EQUAL(used(heap), 4096 + 4096 + PAGE);
  EXPECT_FAIL(cut(heap, 4096, PAGE - 2048, &over), INVALID_ARGUMENT, "");
  EXPECT_OK(mps_buffer_release(low));
  EXPECT_OK(mps_buffer_release(high));
  EXPECT_OK(mps_buffer_release(over));
  EXPECT_EQUAL(used(heap), 0);
  EXPECT_OK(mps_heap_release(heap));
}

static void test_purgeable(void) {
  mps_heap *heap = make_heap(PAGE, MPS_HEAP_AUTOMATIC);
  mps_buffer *buffer;
  EXPECT_OK(cut(heap, PAGE, 0, &buffer));
  memset(contents(buffer), 9, PAGE);
  mps_purgeable_state previous;
  EXPECT_OK(mps_heap_set_purgeable(heap, MPS_PURGEABLE_VOLATILE, &previous));
  EXPECT_EQUAL(previous, MPS_PURGEABLE_NON_VOLATILE);
  EXPECT_EQUAL(contents(buffer)[5], 9);
  EXPECT_OK(mps_heap_set_purgeable(heap, MPS_PURGEABLE_EMPTY, &previous));
  EXPECT_EQUAL(previous, MPS_PURGEABLE_VOLATILE);
  EXPECT(is_zero(contents(buffer), PAGE));
  EXPECT_OK(mps_heap_set_purgeable(heap, MPS_PURGEABLE_KEEP_CURRENT, &previous));
  EXPECT_EQUAL(previous, MPS_PURGEABLE_EMPTY);
  EXPECT_OK(mps_heap_set_purgeable(heap, MPS_PURGEABLE_NON_VOLATILE, &previous));
  EXPECT_EQUAL(previous, MPS_PURGEABLE_EMPTY);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_heap_release(heap));
}

static int released;

static void count_release(void *user, void *pointer, uint64_t length) {
  EXPECT(user == &released);
  EXPECT_EQUAL(length, PAGE);
  EXPECT_EQUAL(*(unsigned char *)pointer, 42); /* still the caller's, and as the caller left it */
  released++;
}

static void test_no_copy(void) {
  char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *page = memory + (-(uintptr_t)memory & (PAGE - 1));
  *page = 42;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = PAGE};
  mps_buffer *buffer;
  EXPECT_OK(mps_buffer_create_no_copy(device, page, &desc, count_release, &released, &buffer));
  EXPECT(contents(buffer) == (unsigned char *)page);
  EXPECT_EQUAL(address(buffer), (uintptr_t)page);
  EXPECT_EQUAL(allocated(), 0); /* it is not the device's memory */
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_EQUAL(released, 1);
  EXPECT_FAIL(mps_buffer_create_from_native(device, page, count_release, &released, &buffer), UNSUPPORTED,
              "only a Metal device takes an id<MTLBuffer>");
  EXPECT_EQUAL(released, 1);
  munmap(memory, 2 * PAGE);
}

/* ---- from many threads ---- */

static void *churn(void *argument) {
  uint32_t seed = (uint32_t)(uintptr_t)argument;
  mps_buffer *held[16] = {NULL};
  for (int i = 0; i < 3000; i++) {
    seed = seed * 1664525u + 1013904223u;
    mps_buffer **slot = &held[seed >> 28];
    if (*slot) {
      EXPECT_OK(mps_buffer_release(*slot));
      *slot = NULL;
    } else {
      uint64_t length = 1 + (seed >> 8 & 0x7fff);
      *slot = make(length, MPS_STORAGE_SHARED);
      EXPECT(is_zero(contents(*slot), length));
      memset(contents(*slot), 0xff, length);
    }
  }
  for (int i = 0; i < 16; i++) {
    EXPECT_OK(mps_buffer_release(held[i]));
  }
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++) {
    EXPECT_EQUAL(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  EXPECT_EQUAL(allocated(), 0);
}

int main(void) {
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  test_zero_and_count();
  test_many_small();
  test_private();
  test_limits();
  test_automatic_heap();
  test_placement_heap();
  test_purgeable();
  test_no_copy();
  test_threads();
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  return 0;
}
