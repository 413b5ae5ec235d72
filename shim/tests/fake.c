#include "fake.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

fake_state fake;

static mps_status open_one(void) {
  if (fake.fail_open != MPS_STATUS_OK) {
    mps_status status = fake.fail_open;
    fake.fail_open = MPS_STATUS_OK;
    return mps_fail(status, "made to fail");
  }
  fake.opened++;
  return MPS_STATUS_OK;
}

static uint32_t device_count(void) {
  return 2;
}

static const char *unavailable_reason(void) {
  return "";
}

static mps_status device_open(mps_device *device) {
  device->info = (mps_device_info){
      .kind = MPS_DEVICE_HOST,
      .core_count = 1,
      .registry_id = device->index,
      .recommended_max_working_set = FAKE_WORKING_MAX,
      .max_buffer_length = FAKE_WORKING_MAX,
      .max_threads_per_threadgroup = {1024, 1024, 64},
      .max_total_threads_per_threadgroup = 1024,
      .max_threadgroup_memory = 32768,
      .thread_execution_width = 32,
      .max_buffer_slots = 31,
      .max_inline_bytes = 4096,
      .page_size = FAKE_PAGE,
      .has_unified_memory = 1,
  };
  strcpy(device->info.name, device->index == 0 ? "first" : "second");
  return open_one();
}

static void device_close(mps_device *device) {
  (void)device;
  fake.opened--;
}

static uint64_t device_allocated_size(mps_device *device) {
  (void)device;
  return 12345;
}

static void device_timestamps(mps_device *device, uint64_t *cpu, uint64_t *gpu) {
  (void)device;
  *cpu = 1;
  *gpu = 2;
}

static void *device_native(mps_device *device) {
  (void)device;
  return NULL;
}

static void heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align) {
  (void)device;
  *align = 256;
  *size = (desc->length + 255) / 256 * 256;
}

static mps_status heap_open(mps_heap *heap) {
  (void)heap;
  return open_one();
}

static void heap_close(mps_heap *heap) {
  (void)heap;
  fake.opened--;
}

static uint64_t heap_used(mps_heap *heap) {
  return heap->size / 2;
}

static mps_purgeable_state heap_set_purgeable(mps_heap *heap, mps_purgeable_state state) {
  (void)heap;
  (void)state;
  return MPS_PURGEABLE_NON_VOLATILE;
}

static mps_status buffer_open(mps_buffer *buffer) {
  (void)buffer;
  return open_one();
}

static mps_status buffer_open_native(mps_buffer *buffer, void *native) {
  MPS_TRY(open_one());
  buffer->length = FAKE_PAGE;
  buffer->contents = native;
  return MPS_STATUS_OK;
}

static void buffer_close(mps_buffer *buffer) {
  (void)buffer;
  fake.opened--;
}

static void *buffer_native(mps_buffer *buffer) {
  (void)buffer;
  return NULL;
}

static mps_status queue_open(mps_queue *queue) {
  (void)queue;
  return open_one();
}

static void queue_close(mps_queue *queue) {
  fake.closed_queue = queue;
  fake.opened--;
}

static mps_status encode_dispatch(mps_queue *queue, const mps_dispatch *dispatch, const uint32_t grid[3],
                                  const uint32_t group[3]) {
  (void)queue;
  (void)dispatch;
  fake.dispatches++;
  memcpy(fake.grid, grid, sizeof fake.grid);
  memcpy(fake.group, group, sizeof fake.group);
  return MPS_STATUS_OK;
}

static mps_status encode_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                              uint64_t target_offset, uint64_t length) {
  (void)queue;
  (void)source;
  (void)source_offset;
  (void)target;
  (void)target_offset;
  (void)length;
  fake.copies++;
  return MPS_STATUS_OK;
}

static mps_status encode_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  (void)queue;
  (void)buffer;
  (void)offset;
  (void)length;
  (void)value;
  fake.fills++;
  return MPS_STATUS_OK;
}

static mps_status submit(mps_queue *queue, const mps_work *works, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    switch (works[i].kind) {
    case MPS_COMMAND_DISPATCH:
      encode_dispatch(queue, works[i].dispatch, works[i].grid, works[i].group);
      break;
    case MPS_COMMAND_COPY:
      fake.copies++;
      break;
    case MPS_COMMAND_MATMUL:
      fake.matmuls++;
      fake.matmul = mps_matmul_complete(works[i].matmul);
      break;
    default:
      fake.fills++;
      break;
    }
  }
  fake.commits++;
  return MPS_STATUS_OK;
}

static mps_status check_matmul(const mps_device *device, const mps_matmul *matmul) {
  (void)device;
  return fake.lacks_half && matmul->data_type == MPS_DATA_HALF ? mps_fail(MPS_STATUS_UNSUPPORTED, "made to lack halves")
                                                               : MPS_STATUS_OK;
}

static mps_status encode_matmul(mps_queue *queue, const mps_matmul *matmul) {
  (void)queue;
  fake.matmuls++;
  fake.matmul = *matmul;
  return MPS_STATUS_OK;
}

static mps_status encode_event(mps_queue *queue, mps_event *event, uint64_t value) {
  (void)queue;
  (void)event;
  (void)value;
  return MPS_STATUS_OK;
}

static mps_status encode_callback(mps_queue *queue, mps_callback_fn callback, void *user) {
  (void)queue;
  callback(user);
  return MPS_STATUS_OK;
}

static mps_status add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user) {
  (void)queue;
  (void)kind;
  (void)handler;
  (void)user;
  return MPS_STATUS_OK;
}

static mps_status commit(mps_queue *queue, uint64_t *serial) {
  (void)queue;
  *serial = (uint64_t)++fake.commits;
  return MPS_STATUS_OK;
}

static mps_status queue_wait(mps_queue *queue, uint64_t timeout) {
  (void)queue;
  fake.waits++;
  if (fake.fail_wait != MPS_STATUS_OK) {
    mps_status status = fake.fail_wait;
    fake.fail_wait = MPS_STATUS_OK;
    return mps_fail(status, "made to fail");
  }
  return timeout == 0 ? mps_fail(MPS_STATUS_TIMEOUT, "made to time out") : MPS_STATUS_OK;
}

static bool queue_is_idle(mps_queue *queue) {
  (void)queue;
  return true;
}

static mps_status queue_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info) {
  (void)queue;
  info->serial = serial;
  info->start = 10;
  info->end = 20;
  info->message = "only during a handler";
  return MPS_STATUS_OK;
}

static mps_status event_open(mps_event *event) {
  (void)event;
  return open_one();
}

static void event_close(mps_event *event) {
  (void)event;
  fake.opened--;
}

static mps_status event_signal(mps_event *event, uint64_t value) {
  (void)event;
  (void)value;
  return MPS_STATUS_OK;
}

static mps_status event_wait(mps_event *event, uint64_t value, uint64_t timeout) {
  (void)event;
  (void)value;
  (void)timeout;
  return MPS_STATUS_OK;
}

static void event_info(mps_event *event, mps_event_info *info) {
  (void)event;
  info->value = 3;
  info->time = 4;
}

static mps_status event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user) {
  (void)event;
  (void)value;
  callback(user);
  return MPS_STATUS_OK;
}

static const char *const kernels[] = {FAKE_KERNELS};
enum { KERNEL_COUNT = sizeof kernels / sizeof *kernels };

static mps_status open_library(mps_library *library) {
  mps_status status = open_one();
  if (status != MPS_STATUS_OK) {
    return status;
  }
  library->kernel_count = KERNEL_COUNT;
  library->kernel_names = calloc(KERNEL_COUNT, sizeof(char *));
  for (int i = 0; i < KERNEL_COUNT; i++) {
    library->kernel_names[i] = strdup(kernels[i]);
  }
  library->constant_count = 1;
  library->constants = calloc(1, sizeof *library->constants);
  library->constants[0] = (mps_constant_info){.struct_size = sizeof *library->constants,
                                              .name = strdup("scale"),
                                              .index = 4,
                                              .data_type = MPS_DATA_FLOAT | 1 << 8,
                                              .required = 1};
  return MPS_STATUS_OK;
}

static mps_status library_from_source(mps_library *library, const char *source, size_t length,
                                      const mps_compile_options *options) {
  (void)source;
  (void)length;
  (void)options;
  return open_library(library);
}

static mps_status library_from_file(mps_library *library, const char *path) {
  (void)path;
  return open_library(library);
}

static mps_status library_from_data(mps_library *library, const void *data, size_t size) {
  (void)data;
  (void)size;
  return open_library(library);
}

static void library_close(mps_library *library) {
  (void)library;
  fake.opened--;
}

#define SLOT(name_, kind_, index_, access_, type_, size_, align_, reference_, used_)                                   \
  {.struct_size = sizeof(mps_argument_info),                                                                           \
   .name = name_,                                                                                                      \
   .type_name = "",                                                                                                    \
   .kind = kind_,                                                                                                      \
   .index = index_,                                                                                                    \
   .access = access_,                                                                                                  \
   .data_type = type_,                                                                                                 \
   .data_size = size_,                                                                                                 \
   .data_align = align_,                                                                                               \
   .is_reference = reference_,                                                                                         \
   .is_used = used_}

static const mps_argument_info saxpy[] = {
    SLOT("x", MPS_ARGUMENT_BUFFER, 0, MPS_ACCESS_READ, MPS_DATA_FLOAT | 1 << 8, 4, 4, 0, 1),
    SLOT("y", MPS_ARGUMENT_BUFFER, 1, MPS_ACCESS_READ_WRITE, MPS_DATA_FLOAT | 1 << 8, 4, 4, 0, 1),
    SLOT("a", MPS_ARGUMENT_BUFFER, 2, MPS_ACCESS_READ, MPS_DATA_FLOAT | 1 << 8, 4, 4, 1, 1),
    SLOT("n", MPS_ARGUMENT_BUFFER, 3, MPS_ACCESS_READ, MPS_DATA_UINT | 1 << 8, 4, 4, 1, 1),
};

static const mps_argument_info reduce[] = {
    SLOT("x", MPS_ARGUMENT_BUFFER, 0, MPS_ACCESS_READ, MPS_DATA_FLOAT | 4 << 8, 16, 16, 0, 1),
    SLOT("out", MPS_ARGUMENT_BUFFER, 5, MPS_ACCESS_READ_WRITE, 0, 0, 0, 0, 1),
    SLOT("shared", MPS_ARGUMENT_THREADGROUP, 0, MPS_ACCESS_READ_WRITE, 0, 4, 4, 0, 1),
    SLOT("spare", MPS_ARGUMENT_BUFFER, 7, MPS_ACCESS_NONE, 0, 0, 0, 0, 0),
};

static const mps_argument_info gather[] = {
    SLOT("table", MPS_ARGUMENT_BUFFER, 2, MPS_ACCESS_READ, MPS_DATA_STRUCT, 24, 8, 1, 1),
};

static void set_arguments(mps_pipeline *pipeline, const mps_argument_info *arguments, uint32_t count) {
  pipeline->info.argument_count = count;
  pipeline->arguments = calloc(count, sizeof *arguments);
  for (uint32_t i = 0; i < count; i++) {
    pipeline->arguments[i] = arguments[i];
    pipeline->arguments[i].name = strdup(arguments[i].name);
    pipeline->arguments[i].type_name = strdup(arguments[i].type_name);
    uint32_t bit = UINT32_C(1) << arguments[i].index;
    if (arguments[i].kind == MPS_ARGUMENT_THREADGROUP) {
      pipeline->threadgroup_slots |= bit;
      continue;
    }
    pipeline->buffer_slots |= bit;
    pipeline->reference_slots |= arguments[i].is_reference ? bit : 0;
    pipeline->slot_argument[arguments[i].index] = (uint8_t)i;
  }
}

static mps_status pipeline_open(mps_pipeline *pipeline, const mps_pipeline_desc *desc) {
  mps_status status = open_one();
  if (status != MPS_STATUS_OK) {
    return status;
  }
  pipeline->info.max_total_threads_per_threadgroup = 1024;
  pipeline->info.thread_execution_width = 32;
  if (strcmp(desc->kernel, "saxpy") == 0) {
    set_arguments(pipeline, saxpy, 4);
  } else if (strcmp(desc->kernel, "reduce") == 0) {
    pipeline->info.max_total_threads_per_threadgroup = 256;
    pipeline->info.static_threadgroup_memory = 1024;
    set_arguments(pipeline, reduce, 4);
  } else if (strcmp(desc->kernel, "gather") == 0) {
    set_arguments(pipeline, gather, 1);
  } else {
    pipeline->info.static_threadgroup_memory = 40000;
  }
  return MPS_STATUS_OK;
}

static void pipeline_close(mps_pipeline *pipeline) {
  (void)pipeline;
  fake.opened--;
}

static bool capture_supported(mps_device *device) {
  return device->index == 0;
}

static mps_status capture_start(mps_device *device, const mps_capture_desc *desc) {
  (void)device;
  (void)desc;
  fake.capturing = true;
  return MPS_STATUS_OK;
}

static mps_status capture_stop(mps_device *device) {
  (void)device;
  fake.capturing = false;
  return MPS_STATUS_OK;
}

static bool capture_active(mps_device *device) {
  (void)device;
  return fake.capturing;
}

static void signpost_event(mps_signpost_category category, const char *message) {
  (void)message;
  fake.signpost_category = category;
}

static void signpost_interval(mps_signpost_category category, const char *message, uint64_t id) {
  (void)message;
  fake.signpost_category = category;
  fake.signpost_id = id;
}

/* In the place of the host device: backend.c lists it under that name. */
const mps_backend mps_host_backend = {
    .kind = MPS_DEVICE_HOST,
    .name = "fake",
    .device_count = device_count,
    .unavailable_reason = unavailable_reason,
    .device_open = device_open,
    .device_close = device_close,
    .device_allocated_size = device_allocated_size,
    .device_timestamps = device_timestamps,
    .device_native = device_native,
    .heap_size_and_align = heap_size_and_align,
    .heap_open = heap_open,
    .heap_close = heap_close,
    .heap_used = heap_used,
    .heap_set_purgeable = heap_set_purgeable,
    .buffer_open = buffer_open,
    .buffer_open_in_heap = buffer_open,
    .buffer_open_no_copy = buffer_open,
    .buffer_open_native = buffer_open_native,
    .buffer_close = buffer_close,
    .buffer_native = buffer_native,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .encode_dispatch = encode_dispatch,
    .encode_copy = encode_copy,
    .encode_fill = encode_fill,
    .submit = submit,
    .check_matmul = check_matmul,
    .encode_matmul = encode_matmul,
    .encode_signal = encode_event,
    .encode_wait = encode_event,
    .encode_callback = encode_callback,
    .add_handler = add_handler,
    .commit = commit,
    .queue_wait = queue_wait,
    .queue_is_idle = queue_is_idle,
    .queue_command_info = queue_command_info,
    .event_open = event_open,
    .event_close = event_close,
    .event_signal = event_signal,
    .event_wait = event_wait,
    .event_info = event_info,
    .event_notify = event_notify,
    .library_from_source = library_from_source,
    .library_from_file = library_from_file,
    .library_from_data = library_from_data,
    .library_close = library_close,
    .pipeline_open = pipeline_open,
    .pipeline_close = pipeline_close,
    .capture_supported = capture_supported,
    .capture_start = capture_start,
    .capture_stop = capture_stop,
    .capture_active = capture_active,
    .signpost_event = signpost_event,
    .signpost_begin = signpost_interval,
    .signpost_end = signpost_interval,
};
