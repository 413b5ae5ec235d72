/* What is behind the public handles. The core fills and checks these; a backend keeps its own part behind `impl`. */
#ifndef MPS_CORE_OBJECT_H
#define MPS_CORE_OBJECT_H

#include "mpsshim.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct mps_backend mps_backend;

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

/* Every object begins with this. The magic is wiped on the last release, so that a released handle is mostly found. */
typedef struct mps_object {
  uint32_t magic; /* MPS_OBJECT_MAGIC + kind while alive */
  _Atomic uint32_t references;
} mps_object;

#define MPS_OBJECT_MAGIC 0x4d505300u

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
  /* Memory taken over without a copy: the core calls this after the backend has closed the buffer. */
  mps_release_fn release;
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
};

struct mps_event {
  mps_object object;
  mps_device *device;
  void *impl;
};

/* Names and constants are owned by the library; the backend fills them when it opens one. */
struct mps_library {
  mps_object object;
  mps_device *device;
  void *impl;
  uint32_t kernel_count;
  char **kernel_names;
  uint32_t constant_count;
  mps_constant_info *constants; /* their name pointers are owned too */
};

struct mps_pipeline {
  mps_object object;
  mps_library *library; /* retained */
  void *impl;
  char *kernel; /* owned */
  char *label;  /* owned */
  mps_pipeline_info info;
  mps_argument_info *arguments; /* info.argument_count of them, array and texts owned */
  uint32_t buffer_slots;        /* bit n: the kernel has a buffer argument in slot n */
  uint32_t threadgroup_slots;   /* the same for threadgroup memory */
  uint32_t reference_slots;     /* bit n: buffer slot n is a T&, read by one element */
  uint8_t slot_argument[32];    /* number of the buffer argument in slot n */
};

/* ---- object.c ---- */

/* Zeroed memory for an object of `size` bytes with one reference, counted as live; NULL when there is none. */
void *mps_object_new(mps_kind kind, size_t size);

/* Uncount and free the object itself; what it owned is the caller's business. */
void mps_object_free(void *object, mps_kind kind);

/* OK, or INVALID_HANDLE with a message that names `function` and the expected kind. */
mps_status mps_object_check(const void *object, mps_kind kind, const char *function);

void mps_object_retain(void *object);

/* true when that was the last reference: the object is already marked dead then. */
bool mps_object_drop(void *object);

uint64_t mps_object_live(mps_kind kind);

/* Work encoded and not complete, over all queues: backends keep it. */
extern _Atomic uint64_t mps_pending_commands;

/* A command begins or ends to use a buffer: holds a reference and counts `uses`. */
void mps_buffer_begin_use(mps_buffer *buffer);
void mps_buffer_end_use(mps_buffer *buffer);

/* The core's own retain and release of the other kinds, unchecked; for use by backends too. */
void mps_pipeline_hold(mps_pipeline *pipeline);
void mps_pipeline_drop(mps_pipeline *pipeline);
void mps_event_hold(mps_event *event);
void mps_event_drop(mps_event *event);
void mps_queue_hold(mps_queue *queue);
void mps_queue_drop(mps_queue *queue);

#endif
