/* The only seam: what a device has to provide. One struct of functions for each backend.
 *
 * The core has checked every argument against the header's rules before it calls one of these, so that both backends
 * refuse the same things with the same words: a backend only reports what it alone can know (no memory, a driver's
 * error). `open` fills the object's impl and the fields that object.h says a backend sets; `close` undoes it and cannot
 * fail. On a failed `open` nothing is left behind. Errors go through mps_fail. */
#ifndef MPS_CORE_BACKEND_H
#define MPS_CORE_BACKEND_H

#include "object.h"

/* A command that the core has checked, as `submit` takes them. */
typedef struct mps_work {
  uint32_t kind; /* mps_command_kind; 0 if there is nothing to run */
  union {
    struct {
      const mps_dispatch *dispatch;
      uint32_t grid[3]; /* as in encode_dispatch */
      uint32_t group[3];
    };
    mps_copy copy;
    mps_fill fill;
    const mps_matmul *matmul; /* to be completed by mps_matmul_complete */
  };
} mps_work;

/* The same product with its defaults filled in; matmul.c. */
mps_matmul mps_matmul_complete(const mps_matmul *matmul);

struct mps_backend {
  mps_device_kind kind;
  const char *name; /* "metal", "host" */

  /* device */
  uint32_t (*device_count)(void);
  const char *(*unavailable_reason)(void); /* "" when there is one */
  mps_status (*device_open)(mps_device *device);
  void (*device_close)(mps_device *device);
  uint64_t (*device_allocated_size)(mps_device *device);
  void (*device_timestamps)(mps_device *device, uint64_t *cpu, uint64_t *gpu);
  void *(*device_native)(mps_device *device);

  /* memory */
  void (*heap_size_and_align)(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align);
  mps_status (*heap_open)(mps_heap *heap);
  void (*heap_close)(mps_heap *heap);
  uint64_t (*heap_used)(mps_heap *heap);
  mps_purgeable_state (*heap_set_purgeable)(mps_heap *heap, mps_purgeable_state state);
  mps_status (*buffer_open)(mps_buffer *buffer);         /* a buffer of its own, zero-filled */
  mps_status (*buffer_open_in_heap)(mps_buffer *buffer); /* buffer->heap, heap_offset: given (placement) or chosen */
  mps_status (*buffer_open_no_copy)(mps_buffer *buffer); /* over buffer->contents */
  mps_status (*buffer_open_native)(mps_buffer *buffer, void *native); /* sets length and storage_mode too */
  void (*buffer_close)(mps_buffer *buffer);
  void *(*buffer_native)(mps_buffer *buffer);

  /* queue. The `encode` functions return before the work is done. */
  mps_status (*queue_open)(mps_queue *queue);
  void (*queue_close)(mps_queue *queue); /* nobody can encode any more; work that is under way goes on */
  mps_status (*encode_dispatch)(mps_queue *queue, const mps_dispatch *dispatch, const uint32_t grid[3],
                                const uint32_t group[3]); /* grid in threads, group resolved, neither has a 0 */
  mps_status (*encode_copy)(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                            uint64_t target_offset, uint64_t length);
  mps_status (*encode_fill)(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);
  mps_status (*submit)(mps_queue *queue, const mps_work *works, uint32_t count);  /* encode all of them, and commit */
  mps_status (*check_matmul)(const mps_device *device, const mps_matmul *matmul); /* UNSUPPORTED for what it lacks */
  mps_status (*encode_matmul)(mps_queue *queue, const mps_matmul *matmul); /* complete, no length is 0, checked so */
  mps_status (*encode_signal)(mps_queue *queue, mps_event *event, uint64_t value);
  mps_status (*encode_wait)(mps_queue *queue, mps_event *event, uint64_t value);
  mps_status (*encode_callback)(mps_queue *queue, mps_callback_fn callback, void *user);
  mps_status (*add_handler)(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user);
  mps_status (*commit)(mps_queue *queue, uint64_t *serial);
  mps_status (*queue_wait)(mps_queue *queue, uint64_t timeout); /* commits first; delivers a stored failure once */
  bool (*queue_is_idle)(mps_queue *queue);
  mps_status (*queue_command_info)(mps_queue *queue, uint64_t serial, mps_command_info *info);

  /* event */
  mps_status (*event_open)(mps_event *event);
  void (*event_close)(mps_event *event);
  mps_status (*event_signal)(mps_event *event, uint64_t value);
  mps_status (*event_wait)(mps_event *event, uint64_t value, uint64_t timeout); /* delivers a stored failure once */
  void (*event_info)(mps_event *event, mps_event_info *info);
  mps_status (*event_notify)(mps_event *event, uint64_t value, mps_callback_fn callback, void *user);

  /* library and pipeline */
  mps_status (*library_from_source)(mps_library *library, const char *source, size_t length,
                                    const mps_compile_options *options);
  mps_status (*library_from_file)(mps_library *library, const char *path);
  mps_status (*library_from_data)(mps_library *library, const void *data, size_t size);
  void (*library_close)(mps_library *library);
  mps_status (*pipeline_open)(mps_pipeline *pipeline, const mps_pipeline_desc *desc);
  void (*pipeline_close)(mps_pipeline *pipeline);

  /* capture and signpost */
  bool (*capture_supported)(mps_device *device);
  mps_status (*capture_start)(mps_device *device, const mps_capture_desc *desc);
  mps_status (*capture_stop)(mps_device *device);
  bool (*capture_active)(mps_device *device);
  void (*signpost_event)(mps_signpost_category category, const char *message);
  void (*signpost_begin)(mps_signpost_category category, const char *message, uint64_t id);
  void (*signpost_end)(mps_signpost_category category, const char *message, uint64_t id);
};

/* The backends of this build, ended by NULL; backend.c. */
extern const mps_backend *const mps_backends[];

extern const mps_backend mps_host_backend;
#ifdef MPS_WITH_METAL
extern const mps_backend mps_metal_backend;
#endif

#endif
