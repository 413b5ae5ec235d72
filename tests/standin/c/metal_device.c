/* The Metal device: what it says of itself, single bytes of GPUs that blit words only, capture. */
#include "metal_fixture.h"

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
    close_device();
    standin_set("io_registry", known);
    open_device();
    mps_device_info info = {.struct_size = sizeof info};
    EXPECT_OK(mps_device_get_info(device, &info));
    EXPECT_EQUAL(info.core_count, 0);
  }
  standin_set("io_registry", 1);
}

/* Without a compiler for the kernels that they need: an error, and nothing is done. */
static void test_bytes_of_other_gpus(void) {
  setenv("MPSSHIM_MSLC", "/nowhere/at all", 1);
  close_device();
  standin_set("apple_family", 0);
  open_device();
  EXPECT_FAIL(mps_queue_fill(queue, buffer, 1, 3, 7), COMPILE_FAILED, "copy and fill single bytes");
  EXPECT_OK(mps_queue_fill(queue, buffer, 4, 4, 7));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(memcmp(bytes(buffer), "\0\0\0\0\7\7\7\7\0", 9), 0);
  standin_set("apple_family", 1);
}

static void test_capture(void) {
  char path[4096], file[4200], text[1000] = "";
  mps_queue *other = make_queue("unrecorded");
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
  EXPECT_EQUAL(strcmp(text, "first: copy or fill\n"), 0);
  EXPECT_OK(mps_queue_release(other));
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {test_device, test_core_count, test_bytes_of_other_gpus, test_capture};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
