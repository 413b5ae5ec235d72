/* Handles: what is released, foreign or NULL is refused; objects keep what they need; counts are exact. */
#include "expect.h"
#include "fake.h"

static mps_device *open_device(uint32_t index) {
  mps_device *device;
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, index, &device));
  return device;
}

static void wrong_handles_are_refused(void) {
  mps_device *device = open_device(0);
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  mps_device_info info = {.struct_size = sizeof info};
  EXPECT_FAIL(mps_device_get_info(NULL, &info), INVALID_HANDLE, "mps_device_get_info: expected a device, got NULL");
  EXPECT_FAIL(mps_device_get_info((mps_device *)(void *)queue, &info), INVALID_HANDLE, "got a queue");
  EXPECT_FAIL(mps_queue_wait((mps_queue *)(void *)device, 1), INVALID_HANDLE, "expected a queue, got a device");
  EXPECT_FAIL(mps_queue_wait((mps_queue *)(uintptr_t)17, 1), INVALID_HANDLE, "no handle");
  EXPECT_FAIL(mps_queue_wait((mps_queue *)(void *)((char *)queue + 1), 1), INVALID_HANDLE, "no handle");
  static char foreign[256];
  EXPECT_FAIL(mps_queue_wait((mps_queue *)(void *)foreign, 1), INVALID_HANDLE, "never was a handle");
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_FAIL(mps_queue_wait(queue, 1), INVALID_HANDLE, "released");
  EXPECT_FAIL(mps_queue_release(queue), INVALID_HANDLE, "mps_queue_release");
  EXPECT_FAIL(mps_queue_retain(queue), INVALID_HANDLE, "mps_queue_retain");
  EXPECT_OK(mps_device_release(device));
  EXPECT_FAIL(mps_device_get_info(device, &info), INVALID_HANDLE, "released");
  expect_nothing_lives();
}

static void releasing_null_does_nothing(void) {
  EXPECT_OK(mps_device_release(NULL));
  EXPECT_OK(mps_heap_release(NULL));
  EXPECT_OK(mps_buffer_release(NULL));
  EXPECT_OK(mps_queue_release(NULL));
  EXPECT_OK(mps_event_release(NULL));
  EXPECT_OK(mps_library_release(NULL));
  EXPECT_OK(mps_pipeline_release(NULL));
}

static void a_released_handle_is_known_for_a_while(void) {
  mps_device *device = open_device(0);
  mps_event *old, *events[30];
  EXPECT_OK(mps_event_create(device, &old));
  EXPECT_OK(mps_event_release(old));
  for (int i = 0; i < 30; i++) {
    EXPECT_OK(mps_event_create(device, &events[i]));
    EXPECT(events[i] != old);
  }
  EXPECT_FAIL(mps_event_signal(old, 1), INVALID_HANDLE, "released");
  for (int i = 0; i < 30; i++) {
    EXPECT_OK(mps_event_release(events[i]));
  }
  EXPECT_OK(mps_device_release(device));
}

static void retain_and_release_count(void) {
  mps_device *device = open_device(0);
  mps_event *event;
  EXPECT_OK(mps_event_create(device, &event));
  EXPECT_OK(mps_event_retain(event));
  EXPECT_OK(mps_event_release(event));
  EXPECT_OK(mps_event_signal(event, 1));
  EXPECT_EQUAL(live_objects().events, 1);
  EXPECT_OK(mps_event_release(event));
  EXPECT_EQUAL(live_objects().events, 0);
  EXPECT_OK(mps_device_release(device));
}

static void a_device_is_opened_once(void) {
  mps_device *first = open_device(0), *again = open_device(0), *second = open_device(1);
  EXPECT(first == again);
  EXPECT(first != second);
  EXPECT_EQUAL(atomic_load(&fake.opened), 2);
  EXPECT_OK(mps_device_release(first));
  mps_device_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_device_get_info(again, &info));
  EXPECT(strcmp(info.name, "first") == 0);
  EXPECT_OK(mps_device_release(again));
  EXPECT_OK(mps_device_release(second));
  EXPECT_EQUAL(atomic_load(&fake.opened), 0);
}

/* The device lives on in its queue; who opens it again gets the same one, with a handle that counts again. */
static void a_device_that_is_held_can_be_opened_again(void) {
  mps_device *device = open_device(0);
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  EXPECT_OK(mps_device_release(device));
  EXPECT_EQUAL(live_objects().devices, 1);
  mps_device_info info = {.struct_size = sizeof info};
  EXPECT_FAIL(mps_device_get_info(device, &info), INVALID_HANDLE, "released");
  EXPECT_OK(mps_queue_wait(queue, 1));
  EXPECT(open_device(0) == device);
  EXPECT_OK(mps_device_get_info(device, &info));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_device_get_info(device, &info));
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
}

static void unknown_devices_are_refused(void) {
  mps_device *device = (mps_device *)(void *)&device;
  uint32_t count = 77;
  EXPECT_OK(mps_device_count(MPS_DEVICE_HOST, &count));
  EXPECT_EQUAL(count, 2);
  EXPECT_OK(mps_device_count(MPS_DEVICE_METAL, &count));
  EXPECT_EQUAL(count, 0);
  EXPECT(strstr(mps_device_unavailable_reason(MPS_DEVICE_METAL), "Metal") != NULL);
  EXPECT(strcmp(mps_device_unavailable_reason(MPS_DEVICE_HOST), "") == 0);
  EXPECT_FAIL(mps_device_create(MPS_DEVICE_METAL, 0, &device), UNAVAILABLE, "Metal");
  EXPECT_FAIL(mps_device_create(MPS_DEVICE_HOST, 2, &device), UNAVAILABLE, "device 2, only 2");
  EXPECT_FAIL(mps_device_create((mps_device_kind)9, 0, &device), INVALID_ARGUMENT, "kind is 9");
  EXPECT_FAIL(mps_device_count((mps_device_kind)0, &count), INVALID_ARGUMENT, "kind is 0");
  EXPECT_FAIL(mps_device_create(MPS_DEVICE_HOST, 0, NULL), INVALID_ARGUMENT, "out_device");
  EXPECT(device == (mps_device *)(void *)&device); /* results are written on success only */
}

static void a_failed_open_leaves_nothing(void) {
  fake.fail_open = MPS_STATUS_UNAVAILABLE;
  mps_device *device = NULL;
  EXPECT_FAIL(mps_device_create(MPS_DEVICE_HOST, 0, &device), UNAVAILABLE, "made to fail");
  expect_nothing_lives();
  device = open_device(0);
  mps_queue *queue = NULL;
  mps_heap *heap = NULL;
  mps_buffer *buffer = NULL;
  mps_event *event = NULL;
  mps_library *library = NULL;
  fake.fail_open = MPS_STATUS_OUT_OF_MEMORY;
  EXPECT_FAIL(mps_queue_create(device, NULL, &queue), OUT_OF_MEMORY, "made to fail");
  fake.fail_open = MPS_STATUS_OUT_OF_MEMORY;
  EXPECT_FAIL(mps_heap_create(device, &(mps_heap_desc){.struct_size = sizeof(mps_heap_desc), .size = 1}, &heap),
              OUT_OF_MEMORY, "made to fail");
  fake.fail_open = MPS_STATUS_OUT_OF_MEMORY;
  EXPECT_FAIL(
      mps_buffer_create(
          device, &(mps_buffer_desc){.struct_size = sizeof(mps_buffer_desc), .length = 1, .label = "label"}, &buffer),
      OUT_OF_MEMORY, "made to fail");
  fake.fail_open = MPS_STATUS_OUT_OF_MEMORY;
  EXPECT_FAIL(mps_event_create(device, &event), OUT_OF_MEMORY, "made to fail");
  fake.fail_open = MPS_STATUS_COMPILE_FAILED;
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, NULL, &library), COMPILE_FAILED, "made to fail");
  EXPECT(queue == NULL && heap == NULL && buffer == NULL && event == NULL && library == NULL);
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  EXPECT_EQUAL(atomic_load(&fake.opened), 0);
}

static void objects_keep_what_they_were_made_from(void) {
  mps_device *device = open_device(0);
  mps_library *library;
  mps_pipeline *pipeline;
  EXPECT_OK(mps_library_create_from_source(device, "", 0, NULL, &library));
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "saxpy"};
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  EXPECT_OK(mps_device_release(device));
  EXPECT_OK(mps_library_release(library));
  mps_live_objects counts = live_objects();
  EXPECT_EQUAL(counts.devices, 1);
  EXPECT_EQUAL(counts.libraries, 1);
  mps_pipeline_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_pipeline_get_info(pipeline, &info));
  EXPECT(strcmp(info.kernel, "saxpy") == 0);
  EXPECT_OK(mps_pipeline_release(pipeline));
  expect_nothing_lives();
  EXPECT_EQUAL(atomic_load(&fake.opened), 0);
}

static void queued_work_keeps_a_buffer_whose_handle_is_gone(void) {
  mps_device *device = open_device(0);
  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = 16};
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  mps_buffer_begin_use(buffer);
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  EXPECT_EQUAL(info.in_use, 1);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_EQUAL(live_objects().buffers, 1);
  EXPECT_FAIL(mps_buffer_get_info(buffer, &info), INVALID_HANDLE, "released");
  EXPECT_FAIL(mps_buffer_release(buffer), INVALID_HANDLE, "released");
  EXPECT_EQUAL(live_objects().buffers, 1);
  mps_buffer_end_use(buffer);
  EXPECT_EQUAL(live_objects().buffers, 0);
  EXPECT_OK(mps_device_release(device));
}

static void the_last_release_commits_and_closes(void) {
  mps_device *device = open_device(0);
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  int commits = fake.commits;
  EXPECT_OK(mps_queue_retain(queue));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_EQUAL(fake.commits, commits);
  mps_queue_hold(queue); /* as work of another queue does that waits for this one */
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_EQUAL(fake.commits, commits + 1);
  EXPECT(fake.closed_queue != queue);
  mps_queue_drop(queue);
  EXPECT(fake.closed_queue == queue);
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
}

int main(void) {
  wrong_handles_are_refused();
  releasing_null_does_nothing();
  a_released_handle_is_known_for_a_while();
  retain_and_release_count();
  a_device_is_opened_once();
  a_device_that_is_held_can_be_opened_again();
  unknown_devices_are_refused();
  a_failed_open_leaves_nothing();
  objects_keep_what_they_were_made_from();
  queued_work_keeps_a_buffer_whose_handle_is_gone();
  the_last_release_commits_and_closes();
  return 0;
}
