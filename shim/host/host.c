/* The host device's side of the backend seam. */
#include "capture.h"
#include "device.h"
#include "event.h"
#include "kernel.h"
#include "matmul.h"
#include "queue.h"

const mps_backend mps_host_backend = {
    .kind = MPS_DEVICE_HOST,
    .name = "host",

    .device_count = host_device_count,
    .unavailable_reason = host_device_unavailable_reason,
    .device_open = host_device_open,
    .device_close = host_device_close,
    .device_allocated_size = host_device_allocated_size,
    .device_timestamps = host_device_timestamps,
    .device_native = host_device_native,

    .heap_size_and_align = host_heap_size_and_align,
    .heap_open = host_heap_open,
    .heap_close = host_heap_close,
    .heap_used = host_heap_used,
    .heap_set_purgeable = host_heap_set_purgeable,
    .buffer_open = host_buffer_open,
    .buffer_open_in_heap = host_buffer_open_in_heap,
    .buffer_open_no_copy = host_buffer_open_no_copy,
    .buffer_open_native = host_buffer_open_native,
    .buffer_close = host_buffer_close,
    .buffer_native = host_buffer_native,

    .queue_open = host_queue_open,
    .queue_close = host_queue_close,
    .encode_dispatch = host_encode_dispatch,
    .encode_copy = host_encode_copy,
    .encode_fill = host_encode_fill,
    .submit = host_submit,
    .check_matmul = host_matmul_check,
    .encode_matmul = host_encode_matmul,
    .encode_signal = host_encode_signal,
    .encode_wait = host_encode_wait,
    .encode_callback = host_encode_callback,
    .add_handler = host_add_handler,
    .commit = host_commit,
    .queue_wait = host_queue_wait,
    .queue_is_idle = host_queue_is_idle,
    .queue_command_info = host_queue_command_info,

    .event_open = host_event_open,
    .event_close = host_event_close,
    .event_signal = host_event_signal,
    .event_wait = host_event_wait,
    .event_info = host_event_info,
    .event_notify = host_event_notify,

    .library_from_source = host_library_from_source,
    .library_from_file = host_library_from_file,
    .library_from_data = host_library_from_data,
    .library_close = host_library_close,
    .pipeline_open = host_pipeline_open,
    .pipeline_close = host_pipeline_close,

    .capture_supported = host_capture_supported,
    .capture_start = host_capture_start,
    .capture_stop = host_capture_stop,
    .capture_active = host_capture_active,
    .signpost_event = host_signpost_event,
    .signpost_begin = host_signpost_begin,
    .signpost_end = host_signpost_end,
};
