#include "backend.h"

#include "event.h"
#include "metal.h"
#include "queue.h"

const mps_backend mps_metal_backend = {
    .kind = MPS_DEVICE_METAL,
    .name = "metal",

    .device_count = metal_device_count,
    .unavailable_reason = metal_device_unavailable_reason,
    .device_open = metal_device_open,
    .device_close = metal_device_close,
    .device_allocated_size = metal_device_allocated_size,
    .device_timestamps = metal_device_timestamps,
    .device_native = metal_device_native,

    .heap_size_and_align = metal_heap_size_and_align,
    .heap_open = metal_heap_open,
    .heap_close = metal_heap_close,
    .heap_used = metal_heap_used,
    .heap_set_purgeable = metal_heap_set_purgeable,
    .buffer_open = metal_buffer_open,
    .buffer_open_in_heap = metal_buffer_open_in_heap,
    .buffer_open_no_copy = metal_buffer_open_no_copy,
    .buffer_open_native = metal_buffer_open_native,
    .buffer_close = metal_buffer_close,
    .buffer_native = metal_buffer_native,

    .queue_open = metal_queue_open,
    .queue_close = metal_queue_close,
    .encode_dispatch = metal_encode_dispatch,
    .encode_copy = metal_encode_copy,
    .encode_fill = metal_encode_fill,
    .submit = metal_submit,
    .check_matmul = metal_check_matmul,
    .encode_matmul = metal_encode_matmul,
    .encode_signal = metal_encode_signal,
    .encode_wait = metal_encode_wait,
    .encode_callback = metal_encode_callback,
    .add_handler = metal_add_handler,
    .commit = metal_commit,
    .queue_wait = metal_queue_wait,
    .queue_is_idle = metal_queue_is_idle,
    .queue_command_info = metal_queue_command_info,

    .event_open = metal_event_open,
    .event_close = metal_event_close,
    .event_signal = metal_event_signal,
    .event_wait = metal_event_wait,
    .event_info = metal_event_info,
    .event_notify = metal_event_notify,

    .library_from_source = metal_library_from_source,
    .library_from_file = metal_library_from_file,
    .library_from_data = metal_library_from_data,
    .library_close = metal_library_close,
    .pipeline_open = metal_pipeline_open,
    .pipeline_close = metal_pipeline_close,

    .capture_supported = metal_capture_supported,
    .capture_start = metal_capture_start,
    .capture_stop = metal_capture_stop,
    .capture_active = metal_capture_active,
    .signpost_event = metal_signpost_event,
    .signpost_begin = metal_signpost_begin,
    .signpost_end = metal_signpost_end,
};
