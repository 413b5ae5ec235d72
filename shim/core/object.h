/* What is behind the public handles. The core fills and checks these; a backend keeps its own part behind `impl`. */
#ifndef MPS_CORE_OBJECT_H
#define MPS_CORE_OBJECT_H

#include "mpsshim.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct mps_backend mps_backend;
typedef struct mps_trace_name mps_trace_name;

typedef enum mps_kind {
  MPS_KIND_DEVICE,
  MPS_KIND_HEAP,
  MPS_KIND_BUFFER,
  MPS_KIND_QUEUE,
  MPS_KIND_EVENT,
  MPS_KIND_LIBRARY,
  MPS_KIND_PIPELINE,
  MPS_KIND_COUNT
} mps_kind;

/* Every object begins with this. The caller's references and the library's own are counted apart: when the caller drops
 * the last of its handles, the magic is wiped at once, so that a released handle is found even while queued work still
 * keeps the object alive. The memory of objects is reused for objects of the same kind only and never unmapped, oldest
 * first, so that looking at a released handle is harmless. */
typedef struct mps_object {
  _Atomic uint32_t magic;      /* MPS_OBJECT_MAGIC + kind while the caller has a handle */
  _Atomic uint32_t references; /* holds by the library itself, and one for all handles together */
  _Atomic uint32_t handles;    /* references of the caller */
} mps_object;

#define MPS_OBJECT_MAGIC 0x4d505300u
#define MPS_OBJECT_HELD 0x4d505380u /* + kind: no handle is left, but something holds the object */

struct mps_device {
  mps_object object;
  const mps_backend *backend;
  void *impl;
  uint32_t index;
  mps_device_info info;
};

struct mps_heap {
  mps_object object;
  mps_device *device; /* retained, as every `device` below */
  void *impl;
  uint64_t size;
  uint32_t type;
  uint32_t storage_mode;
  uint32_t cache_mode;
  uint32_t hazard_mode;
};

struct mps_buffer {
  mps_object object;
  mps_device *device;
  mps_heap *heap; /* retained, or NULL */
  void *impl;
  void *contents;       /* NULL for private storage; set by the backend */
  uint64_t gpu_address; /* set by the backend; the host device's is the address itself, for private storage too */
  uint64_t length;
  uint64_t heap_offset;
  uint32_t storage_mode;
  uint32_t cache_mode;
  uint32_t hazard_mode;
  char *label; /* owned, or NULL */
  /* Memory, or a buffer of the device's own, taken over without a copy: the core calls this with it after the backend
   * has closed the buffer. */
  mps_release_fn release;
  void *taken;
  void *release_user;
  /* Commands that use the buffer and are not complete. Backends count it up when they encode and down when a command is
   * done, through mps_buffer_begin_use and mps_buffer_end_use, which also hold a reference. */
  _Atomic uint32_t uses;
};

struct mps_queue {
  mps_object object;
  mps_device *device;
  void *impl;
  char *label; /* owned, never NULL */
  uint32_t max_command_buffers;
  uint64_t number;                      /* counted from 1 */
  _Atomic(mps_trace_name *) trace_name; /* of the label; NULL before a trace has asked */
};

struct mps_event {
  mps_object object;
  mps_device *device;
  void *impl;
};

/* Names and constants are owned by the library: the backend allocates them when it opens one, each text and both arrays
 * with malloc, and the core frees them after library_close. After an open that failed, the backend has freed them. */
struct mps_library {
  mps_object object;
  mps_device *device;
  void *impl;
  uint32_t kernel_count;
  char **kernel_names;
  uint32_t constant_count;
  mps_constant_info *constants; /* their name pointers are owned too */
};

/* The core fills in the library, the kernel's name and the label, the backend the rest of `info`, the arguments and the
 * masks. The core frees the arguments, the array and each text allocated with malloc, after pipeline_close; after an
 * open that failed, the backend has freed them. */
struct mps_pipeline {
  mps_object object;
  mps_library *library; /* retained */
  void *impl;
  char *kernel;                         /* owned */
  char *label;                          /* owned */
  _Atomic(mps_trace_name *) trace_name; /* as the queue's */
  mps_pipeline_info info;
  mps_argument_info *arguments; /* info.argument_count of them, array and texts owned */
  uint32_t buffer_slots;        /* bit n: the kernel has a buffer argument in slot n */
  uint32_t threadgroup_slots;   /* the same for threadgroup memory */
  uint32_t reference_slots;     /* bit n: buffer slot n is a T&, read by one element */
  uint8_t slot_argument[32];    /* number of the buffer argument in slot n */
};

/* ---- object.c ---- */

/* Zeroed memory for an object of `size` bytes with one handle, counted as live; NULL when there is none. */
void *mps_object_new(mps_kind kind, size_t size);

/* Uncount the object and give its memory back; what it owned is the caller's business. */
void mps_object_free(void *object, mps_kind kind);

/* OK, or INVALID_HANDLE with a message that names `function` and the expected kind. */
mps_status mps_object_check(const void *object, mps_kind kind, const char *function);

/* The same for a borrowed pointer to an object that something holds, whether or not a handle is left. */
mps_status mps_object_check_borrowed(const void *object, mps_kind kind, const char *function);

/* One more reference of the library's own. */
void mps_object_hold(void *object);

/* One reference less; true when it was the last one. */
bool mps_object_drop(void *object);

/* The same unless it is the last reference: then false, and nothing is changed. */
bool mps_object_drop_shared(void *object);

/* One more handle for the caller, also for a live object whose handles were all released. */
void mps_object_retain(void *object, mps_kind kind);

/* One handle less. true when it was the last one: the handle is invalid from here on, and the reference that stood for
 * all handles is now the function's own, to be dropped. */
bool mps_object_release(void *object, mps_kind kind);

uint64_t mps_object_live(mps_kind kind);

/* Work encoded and not complete, over all queues: backends keep it. */
extern _Atomic uint64_t mps_pending_commands;

/* The constant of a library that a value is for, or NULL. In a library made of several sources, their constants may
 * share names and indices: then one of the value's type, if there is any. */
const mps_constant_info *mps_library_find_constant(const mps_library *library, const mps_constant_value *value);

/* OK if each value is for a constant of the library, of its type, and no other value is. */
mps_status mps_library_check_constants(const mps_library *library, const mps_constant_value *values, uint32_t count);

/* A command begins or ends to use a buffer: holds a reference and counts `uses`. */
void mps_buffer_begin_use(mps_buffer *buffer);
void mps_buffer_end_use(mps_buffer *buffer);

/* References of the library's own, unchecked; for use by backends too. The last drop closes the object. */
void mps_device_hold(mps_device *device);
void mps_device_drop(mps_device *device);
void mps_heap_hold(mps_heap *heap);
void mps_heap_drop(mps_heap *heap);
void mps_buffer_hold(mps_buffer *buffer);
void mps_buffer_drop(mps_buffer *buffer);
void mps_queue_hold(mps_queue *queue);
void mps_queue_drop(mps_queue *queue);
void mps_event_hold(mps_event *event);
void mps_event_drop(mps_event *event);
void mps_library_hold(mps_library *library);
void mps_library_drop(mps_library *library);
void mps_pipeline_hold(mps_pipeline *pipeline);
void mps_pipeline_drop(mps_pipeline *pipeline);

#endif
