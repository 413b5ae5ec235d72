/* No address space left: errors, nothing half done, and everything works again once there is some. */
#include "host_fixture.h"

#include <sys/resource.h>
#include <unistd.h>

enum { SKIP = 77 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* Leave the process so much more than it has now; 0 for as much as it likes. */
static void limit_address_space(uint64_t more) {
  struct rlimit limit;
  EXPECT_EQUAL(getrlimit(RLIMIT_AS, &limit), 0);
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%lu", &pages) != 1) {
    exit(SKIP);
  }
  fclose(file);
  limit.rlim_cur = more ? pages * (uint64_t)sysconf(_SC_PAGESIZE) + more : limit.rlim_max;
  EXPECT_EQUAL(setrlimit(RLIMIT_AS, &limit), 0);
}

static void count_call(void *user) {
  atomic_fetch_add((_Atomic int *)user, 1);
}

int main(int argc, char **argv) {
  if (SANITIZED) {
    return SKIP; /* the sanitizer's own memory would be what is missing */
  }
  fixture_open(argc, argv);
  mps_queue *queue = make_queue("scarce");
  mps_pipeline *add_loop = make_pipeline("add_loop"), *add = make_pipeline("add");
  mps_event *event = make_event();
  mps_buffer *buffer = make_buffer(4), *none;
  uint64_t before, after, buffers = live_objects().buffers;
  uint32_t one = 1;
  _Atomic int calls = 0;
  EXPECT_OK(mps_device_allocated_size(device, &before));
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
                              {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &one, .length = 4}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = add_loop,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {1, 1, 1}};

  limit_address_space(4 << 20);
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 64 << 20};
  EXPECT_FAIL(mps_buffer_create(device, &desc, &none), OUT_OF_MEMORY, "67108864");
  mps_heap *heap;
  mps_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .size = 64 << 20};
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), OUT_OF_MEMORY, "67108864");
  EXPECT_FAIL(mps_queue_dispatch(queue, &dispatch), OUT_OF_MEMORY, "cannot start a thread for queue 'scarce'");
  EXPECT_FAIL(mps_queue_callback(queue, count_call, &calls), OUT_OF_MEMORY, "cannot start a thread");
  EXPECT_FAIL(mps_event_notify(event, 1, count_call, &calls), OUT_OF_MEMORY, "cannot start the thread");
  EXPECT(is_idle(queue));
  EXPECT_EQUAL(live_objects().pending_commands, 0);
  EXPECT(!in_use(buffer));
  run(queue, add, buffer, &one, 1); /* needs no thread */
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  limit_address_space(0);

  EXPECT_OK(mps_device_allocated_size(device, &after));
  EXPECT_EQUAL(after, before);
  EXPECT_EQUAL(live_objects().buffers, buffers);
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  EXPECT_OK(mps_queue_callback(queue, count_call, &calls));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(words(buffer)[0], 2);
  EXPECT_OK(mps_event_notify(event, 1, count_call, &calls));
  EXPECT_OK(mps_event_signal(event, 1));
  while (atomic_load(&calls) < 2) {
    sleep_ms(1);
  }
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_pipeline_release(add_loop));
  EXPECT_OK(mps_queue_release(queue));
  fixture_close();
  return 0;
}
