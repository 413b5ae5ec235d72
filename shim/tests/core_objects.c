/* Heaps, buffers, libraries, pipelines, events, captures and signposts: what the core checks of each. */
#include "expect.h"
#include "fake.h"

#include <unistd.h>

static mps_device *device;

static mps_buffer_desc buffer_of(uint64_t length) {
  return (mps_buffer_desc){.struct_size = sizeof(mps_buffer_desc), .length = length};
}

static mps_heap_desc heap_of(uint64_t size) {
  return (mps_heap_desc){.struct_size = sizeof(mps_heap_desc), .size = size};
}

static void results_fit_the_callers_struct(void) {
  struct {
    mps_event_info info;
    uint64_t later;
  } longer = {.info.struct_size = sizeof longer, .later = 55};
  mps_event *event;
  EXPECT_OK(mps_event_create(device, &event));
  EXPECT_OK(mps_event_get_info(event, &longer.info));
  EXPECT_EQUAL(longer.info.struct_size, sizeof longer);
  EXPECT_EQUAL(longer.info.value, 3);
  EXPECT_EQUAL(longer.info.time, 4);
  EXPECT_EQUAL(longer.later, 0);
  mps_event_info info = {.struct_size = 8, .value = 66};
  EXPECT_FAIL(mps_event_get_info(event, &info), INVALID_ARGUMENT, "struct_size is 8, at least 24");
  EXPECT_EQUAL(info.value, 66);
  EXPECT_FAIL(mps_event_get_info(event, NULL), INVALID_ARGUMENT, "mps_event_info must not be NULL");
  EXPECT_OK(mps_event_release(event));
}

static void descriptors_are_checked(void) {
  mps_heap *heap = NULL;
  mps_buffer *buffer = NULL;
  mps_heap_desc heap_desc = heap_of(0);
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), INVALID_ARGUMENT, "at least 1 byte");
  EXPECT_FAIL(mps_heap_create(device, NULL, &heap), INVALID_ARGUMENT, "at least 1 byte");
  heap_desc = heap_of(1);
  heap_desc.type = 2;
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), INVALID_ARGUMENT, "type is 2");
  heap_desc = heap_of(1);
  heap_desc.storage_mode = 1; /* Metal's managed mode, which unified memory does not have */
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), INVALID_ARGUMENT, "storage_mode is 1");
  heap_desc = heap_of(1);
  heap_desc.cache_mode = 2;
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), INVALID_ARGUMENT, "cache_mode is 2");
  heap_desc = heap_of(1);
  heap_desc.hazard_mode = 3;
  EXPECT_FAIL(mps_heap_create(device, &heap_desc, &heap), INVALID_ARGUMENT, "hazard_mode is 3");
  mps_buffer_desc desc = buffer_of(0);
  EXPECT_FAIL(mps_buffer_create(device, &desc, &buffer), INVALID_ARGUMENT, "length must be at least 1");
  desc = buffer_of((uint64_t)FAKE_WORKING_MAX + 1);
  EXPECT_FAIL(mps_buffer_create(device, &desc, &buffer), LIMIT_EXCEEDED, "1073741825 bytes exceeds the limit");
  desc = buffer_of(FAKE_WORKING_MAX);
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  EXPECT_OK(mps_buffer_release(buffer));
  buffer = NULL;
  desc = buffer_of(1);
  desc.reserved = 1;
  EXPECT_FAIL(mps_buffer_create(device, &desc, &buffer), INVALID_ARGUMENT, "reserved");
  desc = buffer_of(1);
  EXPECT_FAIL(mps_buffer_create(device, &desc, NULL), INVALID_ARGUMENT, "out_buffer must not be NULL");
  EXPECT(heap == NULL && buffer == NULL);
}

static void placement_is_checked(void) {
  mps_heap *placement, *automatic;
  mps_buffer *buffer = NULL;
  mps_heap_desc heap_desc = heap_of(1024);
  EXPECT_OK(mps_heap_create(device, &heap_desc, &automatic));
  heap_desc.type = MPS_HEAP_PLACEMENT;
  EXPECT_OK(mps_heap_create(device, &heap_desc, &placement));
  mps_buffer_desc desc = buffer_of(300); /* takes 512 bytes */
  EXPECT_FAIL(mps_buffer_create_in_heap(automatic, &desc, 256, &buffer), INVALID_ARGUMENT, "automatic heap");
  EXPECT_FAIL(mps_buffer_create_in_heap(placement, &desc, 100, &buffer), INVALID_ARGUMENT, "alignment, 256");
  EXPECT_FAIL(mps_buffer_create_in_heap(placement, &desc, 768, &buffer), INVALID_ARGUMENT, "512 bytes at offset 768");
  EXPECT_FAIL(mps_buffer_create_in_heap(placement, &desc, UINT64_MAX - 255, &buffer), INVALID_ARGUMENT, "do not fit");
  desc.storage_mode = MPS_STORAGE_PRIVATE;
  EXPECT_FAIL(mps_buffer_create_in_heap(placement, &desc, 0, &buffer), INVALID_ARGUMENT, "storage mode 2");
  desc.storage_mode = MPS_STORAGE_SHARED;
  EXPECT_OK(mps_buffer_create_in_heap(placement, &desc, 512, &buffer));
  mps_buffer_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_buffer_get_info(buffer, &info));
  EXPECT(info.heap == placement);
  EXPECT_EQUAL(info.heap_offset, 512);
  EXPECT_EQUAL(info.length, 300);

  /* The buffer keeps its heap; the borrowed pointer can be made a handle again. */
  EXPECT_OK(mps_heap_release(placement));
  uint64_t size, used;
  EXPECT_FAIL(mps_heap_get_size(info.heap, &size, &used), INVALID_HANDLE, "released");
  EXPECT_OK(mps_heap_retain(info.heap));
  EXPECT_OK(mps_heap_get_size(info.heap, &size, &used));
  EXPECT_EQUAL(size, 1024);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_heap_release(info.heap));
  EXPECT_FAIL(mps_heap_retain(info.heap), INVALID_HANDLE, "released");
  mps_purgeable_state before;
  EXPECT_OK(mps_heap_set_purgeable(automatic, MPS_PURGEABLE_VOLATILE, &before));
  EXPECT_FAIL(mps_heap_set_purgeable(automatic, (mps_purgeable_state)5, &before), INVALID_ARGUMENT, "state is 5");
  EXPECT_OK(mps_heap_release(automatic));
}

static int releases;

static void count_release(void *user, void *pointer, uint64_t length) {
  EXPECT(user == &releases);
  EXPECT(pointer != NULL);
  EXPECT_EQUAL(length, FAKE_PAGE);
  releases++;
}

static void memory_is_taken_over_without_a_copy(void) {
  static _Alignas(16384) char memory[2 * FAKE_PAGE];
  mps_buffer *buffer = NULL;
  mps_buffer_desc desc = buffer_of(FAKE_PAGE);
  EXPECT_FAIL(mps_buffer_create_no_copy(device, memory + 64, &desc, count_release, &releases, &buffer),
              INVALID_ARGUMENT, "page size, 16384");
  desc = buffer_of(FAKE_PAGE + 1);
  EXPECT_FAIL(mps_buffer_create_no_copy(device, memory, &desc, count_release, &releases, &buffer), INVALID_ARGUMENT,
              "length 16385");
  desc = buffer_of(FAKE_PAGE);
  EXPECT_FAIL(mps_buffer_create_no_copy(device, NULL, &desc, count_release, &releases, &buffer), INVALID_ARGUMENT,
              "pointer must not be NULL");
  desc.storage_mode = MPS_STORAGE_PRIVATE;
  EXPECT_FAIL(mps_buffer_create_no_copy(device, memory, &desc, count_release, &releases, &buffer), INVALID_ARGUMENT,
              "MPS_STORAGE_SHARED");
  desc.storage_mode = MPS_STORAGE_SHARED;
  fake.fail_open = MPS_STATUS_OUT_OF_MEMORY;
  EXPECT_FAIL(mps_buffer_create_no_copy(device, memory, &desc, count_release, &releases, &buffer), OUT_OF_MEMORY, "");
  EXPECT_EQUAL(releases, 0);
  EXPECT_OK(mps_buffer_create_no_copy(device, memory, &desc, count_release, &releases, &buffer));
  void *contents;
  EXPECT_OK(mps_buffer_contents(buffer, &contents));
  EXPECT(contents == memory);
  mps_buffer_begin_use(buffer);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_EQUAL(releases, 0);
  mps_buffer_end_use(buffer);
  EXPECT_EQUAL(releases, 1);
}

static void a_foreign_buffer_is_given_back(void) {
  static int native;
  mps_buffer *buffer = NULL;
  EXPECT_FAIL(mps_buffer_create_from_native(device, NULL, count_release, &releases, &buffer), INVALID_ARGUMENT,
              "native must not be NULL");
  EXPECT_FAIL(mps_buffer_create_from_native(device, &native, count_release, &releases, NULL), INVALID_ARGUMENT,
              "out_buffer must not be NULL");
  EXPECT_FAIL(mps_buffer_create_from_native(NULL, &native, count_release, &releases, &buffer), INVALID_HANDLE, "");
  releases = 0;
  fake.fail_open = MPS_STATUS_UNSUPPORTED;
  EXPECT_FAIL(mps_buffer_create_from_native(device, &native, count_release, &releases, &buffer), UNSUPPORTED, "");
  EXPECT_EQUAL(releases, 0);
  EXPECT_OK(mps_buffer_create_from_native(device, &native, count_release, &releases, &buffer));
  mps_buffer_begin_use(buffer);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_EQUAL(releases, 0);
  mps_buffer_end_use(buffer);
  EXPECT_EQUAL(releases, 1);
  EXPECT_OK(mps_buffer_create_from_native(device, &native, NULL, NULL, &buffer));
  EXPECT_OK(mps_buffer_release(buffer));
}

static void private_storage_has_no_contents(void) {
  mps_buffer *buffer;
  mps_buffer_desc desc = buffer_of(16);
  desc.storage_mode = MPS_STORAGE_PRIVATE;
  EXPECT_OK(mps_buffer_create(device, &desc, &buffer));
  void *contents;
  EXPECT_FAIL(mps_buffer_contents(buffer, &contents), UNSUPPORTED, "private");
  EXPECT_OK(mps_buffer_release(buffer));
}

static void compile_options_are_checked(void) {
  mps_library *library = NULL;
  const char *defines[] = {"GOOD", "_ALSO=1", "BAD-NAME"};
  const char *dirs[] = {"include", NULL};
  mps_compile_options options = {.struct_size = sizeof options, .defines = defines, .define_count = 3};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT,
              "defines[2] is 'BAD-NAME'");
  options.defines = NULL;
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT, "defines is NULL");
  options = (mps_compile_options){.struct_size = sizeof options, .include_dirs = dirs, .include_dir_count = 2};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT, "include_dirs[1]");
  options = (mps_compile_options){.struct_size = sizeof options, .math_mode = 3};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT, "math_mode is 3");
  options = (mps_compile_options){.struct_size = sizeof options, .flags = 4};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &library), INVALID_ARGUMENT, "flags is 0x4");
  EXPECT_FAIL(mps_library_create_from_source(device, NULL, 0, NULL, &library), INVALID_ARGUMENT,
              "source must not be NULL");
  EXPECT_FAIL(mps_library_create_from_file(device, NULL, &library), INVALID_ARGUMENT, "path must not be NULL");
  EXPECT_FAIL(mps_library_create_from_data(device, NULL, 0, &library), INVALID_ARGUMENT, "data must not be NULL");
  EXPECT(library == NULL);
  EXPECT_OK(mps_library_create_from_file(device, "a.metallib", &library));
  EXPECT_OK(mps_library_release(library));
  EXPECT_OK(mps_library_create_from_data(device, "MTLB", 4, &library));
  EXPECT_OK(mps_library_retain(library));
  EXPECT_OK(mps_library_release(library));
  EXPECT_OK(mps_library_release(library));
  options = (mps_compile_options){.struct_size = sizeof options, .defines = defines, .define_count = 2};
  EXPECT_OK(mps_library_create_from_source(device, "", 0, &options, &library));
  EXPECT_OK(mps_library_release(library));
}

static void libraries_and_pipelines_tell_what_they_have(void) {
  mps_library *library;
  mps_pipeline *pipeline = NULL;
  EXPECT_OK(mps_library_create_from_source(device, "", 0, NULL, &library));
  uint32_t count;
  EXPECT_OK(mps_library_kernel_count(library, &count));
  EXPECT_EQUAL(count, 4);
  const char *name;
  EXPECT_OK(mps_library_kernel_name(library, 1, &name));
  EXPECT(strcmp(name, "reduce") == 0);
  EXPECT_FAIL(mps_library_kernel_name(library, 4, &name), INVALID_ARGUMENT, "there are 4 kernels");
  EXPECT_OK(mps_library_constant_count(library, &count));
  EXPECT_EQUAL(count, 1);
  mps_constant_info constant = {.struct_size = sizeof constant};
  EXPECT_OK(mps_library_constant(library, 0, &constant));
  EXPECT(strcmp(constant.name, "scale") == 0);
  EXPECT_EQUAL(constant.index, 4);
  EXPECT_EQUAL(constant.data_type, MPS_DATA_FLOAT | 1 << 8);
  EXPECT_FAIL(mps_library_constant(library, 1, &constant), INVALID_ARGUMENT, "there are 1 constants");

  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "none"};
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), NOT_FOUND,
              "no kernel 'none' in the library, which has saxpy, reduce, gather, greedy");
  desc.kernel = NULL;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "kernel must not be NULL");
  EXPECT_FAIL(mps_pipeline_create(library, NULL, &pipeline), INVALID_ARGUMENT, "kernel must not be NULL");
  desc.kernel = "greedy";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), LIMIT_EXCEEDED, "40000 bytes of threadgroup memory");
  desc.kernel = "saxpy";
  float value = 1;
  mps_constant_value values[] = {{.index = 4, .data_type = MPS_DATA_FLOAT | 1 << 8, .value = &value},
                                 {.index = 5, .data_type = MPS_DATA_FLOAT | 5 << 8, .value = &value}};
  desc.constants = values;
  desc.constant_count = 2;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "constants[1]");
  values[1] = (mps_constant_value){.index = 5, .data_type = MPS_DATA_INT | 1 << 8};
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "constants[1] is NULL");
  EXPECT(pipeline == NULL);
  desc.constant_count = 1;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  mps_pipeline_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_pipeline_get_info(pipeline, &info));
  EXPECT_EQUAL(info.argument_count, 4);
  mps_argument_info argument = {.struct_size = sizeof argument};
  EXPECT_OK(mps_pipeline_argument(pipeline, 3, &argument));
  EXPECT(strcmp(argument.name, "n") == 0);
  EXPECT_EQUAL(argument.is_reference, 1);
  EXPECT_FAIL(mps_pipeline_argument(pipeline, 4, &argument), INVALID_ARGUMENT, "has 4 arguments");
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

static void call_nothing(void *user) {
  (void)user;
}

static void handle_nothing(void *user, const mps_command_info *info) {
  (void)user;
  (void)info;
}

static void queues_and_events_check_their_arguments(void) {
  mps_queue *queue;
  mps_queue_desc desc = {.struct_size = sizeof desc, .label = "mine", .reserved = 1};
  EXPECT_FAIL(mps_queue_create(device, &desc, &queue), INVALID_ARGUMENT, "reserved");
  desc.reserved = 0;
  desc.max_command_buffers = 3;
  EXPECT_OK(mps_queue_create(device, &desc, &queue));
  EXPECT_EQUAL(queue->max_command_buffers, 3);
  EXPECT(strcmp(queue->label, "mine") == 0);
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  EXPECT_EQUAL(queue->max_command_buffers, 64);
  EXPECT_FAIL(mps_queue_add_handler(queue, (mps_handler_kind)3, handle_nothing, NULL), INVALID_ARGUMENT, "kind is 3");
  EXPECT_FAIL(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, NULL, NULL), INVALID_ARGUMENT, "handler");
  EXPECT_OK(mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, handle_nothing, NULL));
  EXPECT_FAIL(mps_queue_callback(queue, NULL, NULL), INVALID_ARGUMENT, "callback");
  EXPECT_OK(mps_queue_callback(queue, call_nothing, NULL));
  uint64_t serial = 0;
  EXPECT_OK(mps_queue_commit(queue, &serial));
  EXPECT(serial > 0);
  EXPECT_OK(mps_queue_commit(queue, NULL));
  mps_command_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_queue_get_command_info(queue, 6, &info));
  EXPECT_EQUAL(info.serial, 6);
  EXPECT_EQUAL(info.end, 20);
  EXPECT(info.message == NULL); /* a text is there during a handler only */
  uint32_t idle = 9;
  EXPECT_OK(mps_queue_is_idle(queue, &idle));
  EXPECT_EQUAL(idle, 1);
  EXPECT_FAIL(mps_queue_wait(queue, 0), TIMEOUT, "made to time out");
  mps_event *event;
  EXPECT_OK(mps_event_create(device, &event));
  EXPECT_FAIL(mps_event_notify(event, 1, NULL, NULL), INVALID_ARGUMENT, "callback");
  EXPECT_OK(mps_event_notify(event, 1, call_nothing, NULL));
  EXPECT_FAIL(mps_queue_signal(queue, NULL, 1), INVALID_HANDLE, "expected an event, got NULL");
  EXPECT_OK(mps_event_release(event));
  EXPECT_FAIL(mps_queue_signal(queue, event, 1), INVALID_HANDLE, "released");
  EXPECT_FAIL(mps_queue_wait_event(queue, event, 1), INVALID_HANDLE, "released");
  EXPECT_OK(mps_queue_release(queue));
}

static void captures_are_checked(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/core-objects-%d.gputrace", (int)getpid());
  mps_capture_desc desc = {.struct_size = sizeof desc, .path = path};
  EXPECT_FAIL(mps_capture_stop(device), INVALID_STATE, "no capture");
  EXPECT_OK(mps_capture_start(device, &desc));
  uint32_t active;
  EXPECT_OK(mps_capture_is_active(device, &active));
  EXPECT_EQUAL(active, 1);
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_STATE, "is running");
  EXPECT_OK(mps_capture_stop(device));
  desc.path = "/tmp/trace.txt";
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_ARGUMENT, "does not end in \".gputrace\"");
  desc.path = ".gputrace";
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_ARGUMENT, "does not end");
  desc.path = NULL;
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_ARGUMENT, "path must not be NULL");
  desc.path = "/dev/null/x.gputrace";
  EXPECT_FAIL(mps_capture_start(device, &desc), IO, "cannot be written");
  FILE *there = fopen(path, "w");
  EXPECT(there != NULL);
  fclose(there);
  desc.path = path;
  EXPECT_FAIL(mps_capture_start(device, &desc), IO, "exists already");
  unlink(path);
  mps_device *second;
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 1, &second));
  EXPECT_FAIL(mps_capture_start(second, &desc), UNSUPPORTED, "MTL_CAPTURE_ENABLED=1");
  mps_queue *queue;
  EXPECT_OK(mps_queue_create(second, NULL, &queue));
  desc.queue = queue;
  EXPECT_FAIL(mps_capture_start(device, &desc), INVALID_ARGUMENT, "the queue belongs");
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_device_release(second));
}

static void signposts_are_matched(void) {
  uint64_t ids[100];
  for (int i = 0; i < 100; i++) {
    EXPECT_OK(mps_signpost_begin(i % 2 == 0 ? MPS_SIGNPOST_INTERVALS : MPS_SIGNPOST_EVENTS, "work", &ids[i]));
    EXPECT(ids[i] != 0 && (i == 0 || ids[i] != ids[i - 1]));
  }
  EXPECT_OK(mps_signpost_end(ids[50], "done"));
  EXPECT_EQUAL(fake.signpost_id, ids[50]);
  EXPECT_EQUAL(fake.signpost_category, MPS_SIGNPOST_INTERVALS);
  EXPECT_FAIL(mps_signpost_end(ids[50], "done"), NOT_FOUND, "no open interval");
  EXPECT_OK(mps_signpost_end(ids[1], "done"));
  EXPECT_EQUAL(fake.signpost_category, MPS_SIGNPOST_EVENTS);
  for (int i = 99; i >= 0; i--) {
    if (i != 50 && i != 1) {
      EXPECT_OK(mps_signpost_end(ids[i], "done"));
    }
  }
  EXPECT_FAIL(mps_signpost_end(0, "done"), NOT_FOUND, "0 is no open interval");
  EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS, "mark"));
  EXPECT_FAIL(mps_signpost_event((mps_signpost_category)3, "mark"), INVALID_ARGUMENT, "category is 3");
  EXPECT_FAIL(mps_signpost_event(MPS_SIGNPOST_EVENTS, NULL), INVALID_ARGUMENT, "message");
  EXPECT_FAIL(mps_signpost_begin(MPS_SIGNPOST_EVENTS, "x", NULL), INVALID_ARGUMENT, "out_id");
}

int main(void) {
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  results_fit_the_callers_struct();
  descriptors_are_checked();
  placement_is_checked();
  memory_is_taken_over_without_a_copy();
  a_foreign_buffer_is_given_back();
  private_storage_has_no_contents();
  compile_options_are_checked();
  libraries_and_pipelines_tell_what_they_have();
  queues_and_events_check_their_arguments();
  captures_are_checked();
  signposts_are_matched();
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  EXPECT_EQUAL(atomic_load(&fake.opened), 0);
  return 0;
}
