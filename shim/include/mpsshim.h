/* libmpsshim: Apple's Metal compute stack behind one plain C interface.
 *
 * Two devices implement it: "metal", the GPU of a Mac, and "host", the CPU of any machine, which compiles and runs the
 * same Metal kernels. A program that is right on one is right on the other: they enforce the same limits.
 *
 * Conventions
 *   - Every function returns an mps_status; results come through the last parameters, which are written only on
 * success.
 *   - After a failure, mps_error_message() gives the calling thread the whole story in one text.
 *   - Handles are opaque and counted: create gives one reference, retain adds one, release drops one, and releasing
 * NULL does nothing. An object keeps what it was made from alive, and work that is queued keeps what it uses alive.
 *   - Descriptors start with struct_size, which the caller sets to sizeof the struct; a zero field means the default,
 * and a NULL descriptor means all defaults. Fields are only ever added at the end.
 *   - Structs without struct_size stand in arrays, and never change their size. What an argument or a descriptor points
 * to is needed until the function returns, no longer; memory taken over without a copy is the exception.
 *   - Texts are UTF-8, end in a zero, and belong to the library when it returns them.
 *   - Enums are 32 bits wide, also in structs, where they stand as uint32_t. A newer library may return values that are
 * not listed here.
 *   - Sizes and offsets are bytes; times are nanoseconds of one monotonic clock, unless a comment says otherwise.
 *   - Every function may be called from any thread at any time, and never calls back into the caller unless it says so.
 * The functions that it calls get `user` as it was given, and must return: no exception may leave them.
 *   - After a fork, the child gets MPS_STATUS_FORKED from every function if the parent had opened a device.
 *
 * Errors that every function can return and that its comment does not repeat: INVALID_ARGUMENT for a NULL result
 * pointer or a struct_size smaller than the first released one, INVALID_HANDLE for a NULL or released handle, FORKED.
 */
#ifndef MPSSHIM_H
#define MPSSHIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MPS_API __attribute__((visibility("default")))
#else
#define MPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin (the Python binding reads what stands between these two marks) */

/* ---------------------------------------------------------------- version and status */

/* Grows by one with every incompatible change of this header. */
#define MPS_ABI_VERSION 1

typedef enum mps_status {
  MPS_STATUS_OK = 0,
  MPS_STATUS_INVALID_ARGUMENT = 1, /* a value is out of its domain */
  MPS_STATUS_INVALID_HANDLE = 2,   /* NULL, released, or of another kind */
  MPS_STATUS_OUT_OF_MEMORY = 3,
  MPS_STATUS_UNAVAILABLE = 4,    /* no such device on this machine */
  MPS_STATUS_UNSUPPORTED = 5,    /* the device, or this version, cannot do that */
  MPS_STATUS_NOT_FOUND = 6,      /* no kernel, constant or file of that name */
  MPS_STATUS_COMPILE_FAILED = 7, /* the message is the compiler's whole log */
  MPS_STATUS_LIMIT_EXCEEDED = 8, /* the message names the limit and its value */
  MPS_STATUS_TIMEOUT = 9,
  MPS_STATUS_EXECUTION_FAILED = 10, /* a queued command failed; the message names its kernel */
  MPS_STATUS_INVALID_STATE = 11,    /* not now: a capture is already running, ... */
  MPS_STATUS_FORKED = 12,           /* this process was forked from one that uses a device */
  MPS_STATUS_IO = 13,               /* a file could not be read or written */
  MPS_STATUS_INTERNAL = 14          /* a fault of this library: please report it */
} mps_status;

/* For a timeout: wait as long as it takes. 2^64 - 1. */
#define MPS_FOREVER UINT64_MAX

typedef struct mps_device mps_device;
typedef struct mps_heap mps_heap;
typedef struct mps_buffer mps_buffer;
typedef struct mps_queue mps_queue;
typedef struct mps_event mps_event;
typedef struct mps_library mps_library;
typedef struct mps_pipeline mps_pipeline;

/* The MPS_ABI_VERSION that the library was built with: compare it before anything else. Since 1. */
MPS_API uint32_t mps_abi_version(void);

/* The library's release, as "0.1.0". A static string. Since 1. */
MPS_API const char *mps_version(void);

/* A short English name of a status, as "out of memory". A static string, also for an unknown status. Since 1. */
MPS_API const char *mps_status_text(mps_status status);

/* The calling thread's last error in full; "" before the first one. Valid until this thread's next failing call.
 * Another thread has another text: ask on the thread that made the call, before a runtime of tasks moves on to another
 * one. Since 1. */
MPS_API const char *mps_error_message(void);

/* ---------------------------------------------------------------- device */

typedef enum mps_device_kind {
  MPS_DEVICE_METAL = 1, /* a GPU with unified memory, through Metal */
  MPS_DEVICE_HOST = 2   /* the CPU */
} mps_device_kind;

typedef struct mps_device_info {
  size_t struct_size;
  uint32_t kind;                        /* mps_device_kind */
  uint32_t core_count;                  /* GPU cores, or the CPU's that this process may use */
  char name[128];                       /* UTF-8, as the system calls it, cut to fit; ends in a zero */
  uint64_t registry_id;                 /* tells devices apart within this boot */
  uint64_t recommended_max_working_set; /* bytes that can be used without hurting the system */
  uint64_t max_buffer_length;           /* bytes */
  uint32_t max_threads_per_threadgroup[3];
  uint32_t max_total_threads_per_threadgroup;
  uint32_t max_threadgroup_memory; /* bytes, static and dynamic together */
  uint32_t thread_execution_width; /* threads in a SIMD-group */
  uint32_t max_buffer_slots;       /* buffer arguments of a kernel: 31 */
  uint32_t max_inline_bytes;       /* of one MPS_ARGUMENT_BYTES: 4096 */
  uint32_t page_size;              /* alignment of address and length of memory taken over without a copy */
  uint32_t has_unified_memory;     /* 0 or 1 */
} mps_device_info;

/* How many devices of a kind there are; 0 is no error. Thread-safe, opens nothing. Since 1. */
MPS_API mps_status mps_device_count(mps_device_kind kind, uint32_t *out_count);

/* Why there is no device of that kind, in a sentence; "" if there is one. A static string. Since 1. */
MPS_API const char *mps_device_unavailable_reason(mps_device_kind kind);

/* Open device number `index` of a kind. The same device always gives the same handle, retained once more.
 * Errors: UNAVAILABLE with the reason, INVALID_ARGUMENT for an unknown kind. Since 1. */
MPS_API mps_status mps_device_create(mps_device_kind kind, uint32_t index, mps_device **out_device);
MPS_API mps_status mps_device_retain(mps_device *device);
MPS_API mps_status mps_device_release(mps_device *device);

/* Fill `info`, whose struct_size the caller has set. Since 1. */
MPS_API mps_status mps_device_get_info(mps_device *device, mps_device_info *info);

/* Bytes that the device holds for this process at this moment, in heaps and buffers, by whomever allocated. Since 1. */
MPS_API mps_status mps_device_allocated_size(mps_device *device, uint64_t *out_bytes);

/* The same moment on the CPU's clock and on the clock of the device's times, both in nanoseconds. Since 1. */
MPS_API mps_status mps_device_timestamps(mps_device *device, uint64_t *out_cpu, uint64_t *out_device);

/* The device's own object, as id<MTLDevice> on Metal; NULL on the host device. Borrowed. Since 1. */
MPS_API mps_status mps_device_native(mps_device *device, void **out_native);

/* ---------------------------------------------------------------- memory: heap and buffer */

typedef enum mps_storage_mode {
  MPS_STORAGE_SHARED = 0, /* one memory, seen by CPU and device */
  MPS_STORAGE_PRIVATE = 2 /* the device's alone: no contents pointer, only copies */
} mps_storage_mode;

typedef enum mps_cache_mode { MPS_CACHE_DEFAULT = 0, MPS_CACHE_WRITE_COMBINED = 1 } mps_cache_mode;

typedef enum mps_hazard_mode {
  MPS_HAZARD_DEFAULT = 0,   /* tracked for buffers of their own, untracked in heaps, as in Metal */
  MPS_HAZARD_UNTRACKED = 1, /* the caller orders the work on one queue that may touch the same bytes */
  MPS_HAZARD_TRACKED = 2
} mps_hazard_mode;

typedef enum mps_heap_type {
  MPS_HEAP_AUTOMATIC = 0, /* the device chooses where a buffer lies */
  MPS_HEAP_PLACEMENT = 1  /* the caller chooses: buffers may overlap */
} mps_heap_type;

typedef enum mps_purgeable_state {
  MPS_PURGEABLE_KEEP_CURRENT = 1,
  MPS_PURGEABLE_NON_VOLATILE = 2,
  MPS_PURGEABLE_VOLATILE = 3,
  MPS_PURGEABLE_EMPTY = 4
} mps_purgeable_state;

typedef struct mps_heap_desc {
  size_t struct_size;
  uint64_t size;         /* bytes, required */
  uint32_t type;         /* mps_heap_type */
  uint32_t storage_mode; /* mps_storage_mode; shared by default */
  uint32_t cache_mode;   /* mps_cache_mode */
  uint32_t hazard_mode;  /* mps_hazard_mode */
} mps_heap_desc;

typedef struct mps_buffer_desc {
  size_t struct_size;
  uint64_t length;       /* bytes, required, at least 1 */
  uint32_t storage_mode; /* mps_storage_mode */
  uint32_t cache_mode;   /* mps_cache_mode */
  uint32_t hazard_mode;  /* mps_hazard_mode */
  uint32_t reserved;
  const char *label; /* UTF-8, copied; for captures and error texts */
} mps_buffer_desc;

typedef struct mps_buffer_info {
  size_t struct_size;
  uint64_t length;
  void *contents;       /* NULL for private storage */
  uint64_t gpu_address; /* what a kernel sees as the buffer's address */
  uint64_t heap_offset; /* bytes from the heap's start; 0 outside a placement heap */
  mps_heap *heap;       /* borrowed: to be retained before it is used; NULL for a buffer of its own */
  uint32_t storage_mode;
  uint32_t in_use; /* 1 while queued or running work uses the buffer */
} mps_buffer_info;

/* Called once when memory taken over without a copy is no longer needed, on any thread, also one that is in a call of
 * this library. */
typedef void (*mps_release_fn)(void *user, void *pointer, uint64_t length);

/* Size and alignment, in bytes, that a buffer of `length` takes in a heap of these options. Since 1. */
MPS_API mps_status mps_device_heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *out_size,
                                                  uint64_t *out_align);

/* Reserve memory to cut buffers from. Errors: OUT_OF_MEMORY; INVALID_ARGUMENT for size 0. Since 1. */
MPS_API mps_status mps_heap_create(mps_device *device, const mps_heap_desc *desc, mps_heap **out_heap);
MPS_API mps_status mps_heap_retain(mps_heap *heap);
MPS_API mps_status mps_heap_release(mps_heap *heap);

/* The heap's size and the bytes of it that live buffers take. Since 1. */
MPS_API mps_status mps_heap_get_size(mps_heap *heap, uint64_t *out_size, uint64_t *out_used);

/* Tell whether the memory may be taken away; gives the state before. EMPTY drops the contents now. Since 1. */
MPS_API mps_status mps_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state, mps_purgeable_state *out_previous);

/* A buffer of its own, filled with zeros. Errors: OUT_OF_MEMORY; LIMIT_EXCEEDED above max_buffer_length, with both
 * sizes; INVALID_ARGUMENT for length 0. Since 1. */
MPS_API mps_status mps_buffer_create(mps_device *device, const mps_buffer_desc *desc, mps_buffer **out_buffer);

/* A buffer in a heap, which must have the same storage and cache mode. `offset` counts in a placement heap only, and
 * must suit mps_device_heap_size_and_align. Contents are undefined. Errors: OUT_OF_MEMORY when an automatic heap is
 * full; INVALID_ARGUMENT when it does not fit at that offset. Since 1. */
MPS_API mps_status mps_buffer_create_in_heap(mps_heap *heap, const mps_buffer_desc *desc, uint64_t offset,
                                             mps_buffer **out_buffer);

/* A buffer over the caller's memory, shared and without a copy. Address and desc->length must be multiples of
 * page_size. `release` (may be NULL) is called when the last user, queued work included, is done; not on failure.
 * Errors: INVALID_ARGUMENT naming the alignment. Since 1. */
MPS_API mps_status mps_buffer_create_no_copy(mps_device *device, void *pointer, const mps_buffer_desc *desc,
                                             mps_release_fn release, void *user, mps_buffer **out_buffer);

/* A buffer over one of the device's own that somebody else made: `native` is an id<MTLBuffer> on Metal, which must be
 * a live object, of shared or private storage. Without a copy; it is retained as long as the buffer has users, queued
 * work included. Then `release` (may be NULL) is called with it and its length; not on failure. Work that its maker
 * queued elsewhere is the caller's to wait for. Errors: INVALID_ARGUMENT for an object of another kind or device;
 * UNSUPPORTED for other storage, and on the host device, whose memory is the caller's own: see
 * mps_buffer_create_no_copy. Since 1. */
MPS_API mps_status mps_buffer_create_from_native(mps_device *device, void *native, mps_release_fn release, void *user,
                                                 mps_buffer **out_buffer);
MPS_API mps_status mps_buffer_retain(mps_buffer *buffer);
MPS_API mps_status mps_buffer_release(mps_buffer *buffer);
MPS_API mps_status mps_buffer_get_info(mps_buffer *buffer, mps_buffer_info *info);

/* Where the CPU sees the bytes. The caller waits for work that writes them. Errors: UNSUPPORTED for private storage.
 * Since 1. */
MPS_API mps_status mps_buffer_contents(mps_buffer *buffer, void **out_contents);

/* The device's own object, as id<MTLBuffer> on Metal; NULL on the host device. Borrowed. Since 1. */
MPS_API mps_status mps_buffer_native(mps_buffer *buffer, void **out_native);

/* ---------------------------------------------------------------- queue */

typedef struct mps_queue_desc {
  size_t struct_size;
  const char *label;            /* UTF-8, copied */
  uint32_t max_command_buffers; /* in flight; 64 by default */
  uint32_t reserved;
} mps_queue_desc;

/* What became of a command buffer: the commands between two commits. */
typedef struct mps_command_info {
  size_t struct_size;
  uint64_t serial; /* 1 for a queue's first command buffer, then counting up */
  uint64_t start;  /* when the device began and finished it, nanoseconds of the device's clock; 0 before */
  uint64_t end;
  uint32_t status;     /* mps_status: OK or EXECUTION_FAILED */
  uint32_t scheduled;  /* 1 once the device has taken it */
  const char *message; /* "" or what failed; valid during the call of a handler, else NULL */
} mps_command_info;

typedef enum mps_handler_kind { MPS_HANDLER_SCHEDULED = 1, MPS_HANDLER_COMPLETED = 2 } mps_handler_kind;

/* Handlers and callbacks run on a thread of the library's, one after the other for each queue. They may call every
 * function of this library except those that wait for their own queue. Each is called exactly once, also after a
 * failure and after the queue's release. */
typedef void (*mps_handler_fn)(void *user, const mps_command_info *info);
typedef void (*mps_callback_fn)(void *user);

/* A queue runs its commands in order, each as if it began when the one before was complete; queues run side by side.
 * Since 1. */
MPS_API mps_status mps_queue_create(mps_device *device, const mps_queue_desc *desc, mps_queue **out_queue);
MPS_API mps_status mps_queue_retain(mps_queue *queue);

/* The last release commits what is encoded and returns at once; the work still runs to its end. Since 1. */
MPS_API mps_status mps_queue_release(mps_queue *queue);

/* Submit what was encoded since the last commit, as one command buffer. An empty one is no command buffer: `out_serial`
 * (may be NULL) then gives the last one's serial, 0 if there was none. Since 1. */
MPS_API mps_status mps_queue_commit(mps_queue *queue, uint64_t *out_serial);

/* Commit, then block until all work of the queue is complete. A failure of a command that no wait has reported yet is
 * reported here, once: EXECUTION_FAILED with the kernel's name. TIMEOUT after `timeout` nanoseconds; the queue then
 * goes on and can be waited for again, or left alone. Since 1. */
MPS_API mps_status mps_queue_wait(mps_queue *queue, uint64_t timeout);

/* 1 if nothing is encoded, queued or running, else 0. Never blocks, reports no failure. Since 1. */
MPS_API mps_status mps_queue_is_idle(mps_queue *queue, uint32_t *out_idle);

/* Call `handler` once when the command buffer being encoded is scheduled, or complete. It counts as encoded work: a
 * command buffer of nothing else is none that is empty. Since 1. */
MPS_API mps_status mps_queue_add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user);

/* Call `callback` when all commands encoded before are complete; later ones wait for its return. Commits. Since 1. */
MPS_API mps_status mps_queue_callback(mps_queue *queue, mps_callback_fn callback, void *user);

/* Times and status of a command buffer. NOT_FOUND for one that the queue no longer remembers; it keeps the last 64.
 * Since 1. */
MPS_API mps_status mps_queue_get_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info);

/* ---------------------------------------------------------------- event */

typedef struct mps_event_info {
  size_t struct_size;
  uint64_t value; /* the highest signalled so far; 0 at first */
  uint64_t time;  /* when it was signalled, device clock; 0 before any signal or if signalled by the CPU */
} mps_event_info;

/* A counter that queues and CPU signal and wait for. Its value only grows. Since 1. */
MPS_API mps_status mps_event_create(mps_device *device, mps_event **out_event);
MPS_API mps_status mps_event_retain(mps_event *event);
MPS_API mps_status mps_event_release(mps_event *event);

/* Encode: set the event to `value` when all work before on the queue is complete. Not greater than what is signalled:
 * no effect when it runs. Since 1. */
MPS_API mps_status mps_queue_signal(mps_queue *queue, mps_event *event, uint64_t value);

/* Encode: later work on the queue begins when the event has reached `value`. Since 1. */
MPS_API mps_status mps_queue_wait_event(mps_queue *queue, mps_event *event, uint64_t value);

/* Signal from the CPU, now. Since 1. */
MPS_API mps_status mps_event_signal(mps_event *event, uint64_t value);

/* Block the caller until the event has reached `value`. A queue whose signal this is and that has a failure not yet
 * reported reports it here, as mps_queue_wait does. TIMEOUT after `timeout` nanoseconds. Does not commit. Since 1. */
MPS_API mps_status mps_event_wait(mps_event *event, uint64_t value, uint64_t timeout);

/* Never blocks, reports no failure. Since 1. */
MPS_API mps_status mps_event_get_info(mps_event *event, mps_event_info *info);

/* Call `callback` once when the event reaches `value`; at once, on this thread, if it has. Never, if the event comes to
 * its end before: release what `user` owns with the event then. Since 1. */
MPS_API mps_status mps_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user);

/* ---------------------------------------------------------------- library */

typedef enum mps_math_mode {
  MPS_MATH_SAFE = 0,    /* IEEE: NaN, infinities and signed zeros are kept, no reassociation */
  MPS_MATH_RELAXED = 1, /* reassociation and reciprocals, NaN and infinities kept */
  MPS_MATH_FAST = 2     /* as if NaN and infinities never came up */
} mps_math_mode;

#define MPS_LANGUAGE_VERSION(major, minor) ((major) << 16 | (minor))

/* Bits of mps_compile_options.flags. */
typedef enum mps_compile_flag {
  MPS_COMPILE_VALIDATE = 1, /* host device: check accesses at run time */
  MPS_COMPILE_LOGGING = 2   /* Metal: kernels log, at a cost even if they do not; the host device's always do */
} mps_compile_flag;

typedef struct mps_compile_options {
  size_t struct_size;
  uint32_t language_version; /* MPS_LANGUAGE_VERSION; 0 for the newest that the device has */
  uint32_t math_mode;        /* mps_math_mode */
  uint32_t flags;            /* MPS_COMPILE_* */
  uint32_t define_count;
  const char *const *defines;      /* "NAME" or "NAME=VALUE" */
  const char *const *include_dirs; /* host device only */
  uint32_t include_dir_count;
  uint32_t reserved;
} mps_compile_options;

/* Scalar or vector type of a value: mps_data_base | lanes << 8, lanes 1 to 4; 0 for anything else. */
typedef enum mps_data_base {
  MPS_DATA_NONE = 0,
  MPS_DATA_BOOL = 1,
  MPS_DATA_CHAR = 2,
  MPS_DATA_UCHAR = 3,
  MPS_DATA_SHORT = 4,
  MPS_DATA_USHORT = 5,
  MPS_DATA_INT = 6,
  MPS_DATA_UINT = 7,
  MPS_DATA_LONG = 8,
  MPS_DATA_ULONG = 9,
  MPS_DATA_HALF = 10,
  MPS_DATA_BFLOAT = 11,
  MPS_DATA_FLOAT = 12,
  MPS_DATA_STRUCT = 13,
  MPS_DATA_POINTER = 14
} mps_data_base;

/* A constant that a kernel leaves open: [[function_constant(index)]]. Texts live as long as the library. */
typedef struct mps_constant_info {
  size_t struct_size;
  const char *name;
  uint32_t index;
  uint32_t data_type; /* as above */
  uint32_t required;  /* 0 or 1 */
  uint32_t reserved;
} mps_constant_info;

/* Compile MSL text; on the host device also the bytes of a metallib, for its options. Errors: COMPILE_FAILED with the
 * compiler's log, which speaks of "program_source:line:column"; UNAVAILABLE when the host device finds no compiler,
 * saying what to install. Blocks while it compiles. Since 1. */
MPS_API mps_status mps_library_create_from_source(mps_device *device, const char *source, size_t length,
                                                  const mps_compile_options *options, mps_library **out_library);

/* Open a .metallib, or on the host device a kernel library that mslc made. Errors: NOT_FOUND, IO; INVALID_ARGUMENT for
 * a file of another format. Since 1. */
MPS_API mps_status mps_library_create_from_file(mps_device *device, const char *path, mps_library **out_library);

/* The same from memory; the bytes are copied. Since 1. */
MPS_API mps_status mps_library_create_from_data(mps_device *device, const void *data, size_t size,
                                                mps_library **out_library);
MPS_API mps_status mps_library_retain(mps_library *library);
MPS_API mps_status mps_library_release(mps_library *library);

/* The kernels of a library, in no particular order. Names live as long as the library. Since 1. */
MPS_API mps_status mps_library_kernel_count(mps_library *library, uint32_t *out_count);
MPS_API mps_status mps_library_kernel_name(mps_library *library, uint32_t number, const char **out_name);

/* The function constants that its kernels use. Since 1. */
MPS_API mps_status mps_library_constant_count(mps_library *library, uint32_t *out_count);
MPS_API mps_status mps_library_constant(mps_library *library, uint32_t number, mps_constant_info *info);

/* ---- the host device's compiler ----
 *
 * The host device does not compile by itself: it asks a compiler function, or, without one, runs the command that the
 * environment variable MPSSHIM_MSLC names ("mpscffi-mslc" by default; see docs/c-abi.md for how it is called). */

typedef struct mps_constant_value {
  const char *name; /* NULL: goes by index */
  uint32_t index;
  uint32_t data_type; /* mps_data_base | lanes << 8 */
  const void *value;  /* as laid out in MSL */
} mps_constant_value;

typedef struct mps_compile_request {
  size_t struct_size;
  const char *source; /* Metal source, or the bytes of a metallib, which begin with "MTLB" */
  size_t source_length;
  const char *kernel;                  /* NULL: check the whole source and list it; else: build this kernel */
  const mps_compile_options *options;  /* never NULL */
  const mps_constant_value *constants; /* for a build */
  uint32_t constant_count;
  uint32_t reserved;
} mps_compile_request;

typedef struct mps_compile_result mps_compile_result;

/* Returns OK, COMPILE_FAILED or another error. On OK it has called mps_compile_result_set with, for a check, a listing:
 * lines "kernel NAME" and "constant INDEX DATA_TYPE REQUIRED NAME"; for a build, the path of a kernel library that
 * holds the kernel. On failure with the message. It is called on the thread that asked, also on several at once. */
typedef mps_status (*mps_compiler_fn)(void *user, const mps_compile_request *request, mps_compile_result *result);

/* Set, or with NULL remove, the compiler function of the host device. Calls of the one before may be under way, and go
 * on after the return. Since 1. */
MPS_API mps_status mps_compiler_set(mps_compiler_fn compiler, void *user);

/* To be called by a compiler function: its answer, `length` bytes of UTF-8, copied. Since 1. */
MPS_API mps_status mps_compile_result_set(mps_compile_result *result, const char *text, size_t length);

/* ---------------------------------------------------------------- pipeline */

typedef enum mps_argument_kind {
  MPS_ARGUMENT_BUFFER = 1,      /* a buffer, from a byte offset on */
  MPS_ARGUMENT_BYTES = 2,       /* up to max_inline_bytes, copied into the command */
  MPS_ARGUMENT_THREADGROUP = 3, /* a length of threadgroup memory */
  MPS_ARGUMENT_ADDRESSES = 4    /* a table of the 64-bit addresses of many buffers */
} mps_argument_kind;

typedef enum mps_access { MPS_ACCESS_NONE = 0, MPS_ACCESS_READ = 1, MPS_ACCESS_READ_WRITE = 3 } mps_access;

/* One parameter of a kernel that is bound by the caller. Texts live as long as the pipeline. */
typedef struct mps_argument_info {
  size_t struct_size;
  const char *name;      /* as the kernel calls it; "" if unknown */
  const char *type_name; /* of the value pointed to, as the source spells it; "" if unknown */
  uint32_t kind;         /* MPS_ARGUMENT_BUFFER or MPS_ARGUMENT_THREADGROUP */
  uint32_t index;        /* its slot: [[buffer(index)]] or [[threadgroup(index)]] */
  uint32_t access;       /* mps_access, by the kernel */
  uint32_t data_type;    /* of one element */
  uint32_t data_size;    /* bytes of one element; 0 if unknown */
  uint32_t data_align;
  uint32_t is_reference; /* 1 for T&: exactly one element is read */
  uint32_t is_used;      /* 0 if the kernel is known not to touch it */
} mps_argument_info;

typedef struct mps_pipeline_desc {
  size_t struct_size;
  const char *kernel;                  /* required */
  const mps_constant_value *constants; /* values of function constants */
  uint32_t constant_count;
  uint32_t reserved;
  const char *label; /* by default the kernel's name */
} mps_pipeline_desc;

typedef struct mps_pipeline_info {
  size_t struct_size;
  const char *kernel; /* lives as long as the pipeline */
  uint32_t max_total_threads_per_threadgroup;
  uint32_t thread_execution_width;
  uint32_t static_threadgroup_memory; /* bytes */
  uint32_t argument_count;
} mps_pipeline_info;

/* Make a kernel ready to run. Errors: NOT_FOUND naming the kernels there are; COMPILE_FAILED; INVALID_ARGUMENT for a
 * constant that is missing, unknown or of another type; LIMIT_EXCEEDED for too much threadgroup memory or too many
 * buffers. May compile, and then blocks. Since 1. */
MPS_API mps_status mps_pipeline_create(mps_library *library, const mps_pipeline_desc *desc,
                                       mps_pipeline **out_pipeline);
MPS_API mps_status mps_pipeline_retain(mps_pipeline *pipeline);
MPS_API mps_status mps_pipeline_release(mps_pipeline *pipeline);
MPS_API mps_status mps_pipeline_get_info(mps_pipeline *pipeline, mps_pipeline_info *info);

/* Argument `number`, from 0 to argument_count - 1, in the order of the kernel's parameters. Since 1. */
MPS_API mps_status mps_pipeline_argument(mps_pipeline *pipeline, uint32_t number, mps_argument_info *info);

/* ---------------------------------------------------------------- commands: dispatch, copy, fill */

/* For a length of which 0 means all: nothing at all. */
#define MPS_LENGTH_NONE UINT64_MAX

typedef struct mps_address {
  mps_buffer *buffer;
  uint64_t offset;
  uint64_t length; /* bytes from the offset on that a validated kernel may use, 0 for all, MPS_LENGTH_NONE; others do
                    * not ask */
} mps_address;

typedef struct mps_argument {
  uint32_t kind;      /* mps_argument_kind */
  uint32_t index;     /* slot */
  mps_buffer *buffer; /* BUFFER */
  uint64_t offset;    /* BUFFER: bytes */
  const void *data;   /* BYTES: the bytes; ADDRESSES: mps_address[length] */
  uint64_t length;    /* BYTES: bytes; THREADGROUP: bytes, a multiple of 16, 0 for a slot that the kernel does not
                       * use, or does not have; ADDRESSES: entries; BUFFER: bytes from the offset on that a validated
                       * kernel may use, as for mps_address */
} mps_argument;

typedef enum mps_grid_kind {
  MPS_GRID_THREADS = 0,     /* grid counts threads; groups at the edges may be smaller */
  MPS_GRID_THREADGROUPS = 1 /* grid counts threadgroups */
} mps_grid_kind;

/* A whole dispatch in one struct, which may be kept and used again. */
typedef struct mps_dispatch {
  size_t struct_size;
  mps_pipeline *pipeline;
  const mps_argument *arguments;
  uint32_t argument_count;
  uint32_t grid_kind; /* mps_grid_kind */
  uint64_t grid[3];   /* x, y, z; any 0: nothing runs, and that is no error */
  uint64_t group[3];  /* threads of a threadgroup; all 0, for a grid in threads: the library chooses */
} mps_dispatch;

/* Encode one run of a kernel. Everything is checked before anything is encoded: the grid and the group against the
 * device's and the kernel's limits, that every slot the kernel uses is bound, and every argument against its buffer.
 * Buffers stay alive until it has run. Errors: INVALID_ARGUMENT, LIMIT_EXCEEDED, both with the numbers. Since 1. */
MPS_API mps_status mps_queue_dispatch(mps_queue *queue, const mps_dispatch *dispatch);

/* Encode a copy of `length` bytes between buffers, of any length; ranges of one buffer must not overlap.
 * Errors: INVALID_ARGUMENT for a range outside its buffer. Since 1. */
MPS_API mps_status mps_queue_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                                  uint64_t target_offset, uint64_t length);

/* Encode: set `length` bytes to `value`. Since 1. */
MPS_API mps_status mps_queue_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length,
                                  uint8_t value);

/* ---------------------------------------------------------------- matrix product */

/* Matrices of one shape in a buffer, row after row. The gap behind a row belongs to it, also to the last one: rows *
 * row_bytes of each matrix must lie in the buffer. Offsets and steps are multiples of an element's size. */
typedef struct mps_matrix {
  mps_buffer *buffer;
  uint64_t offset; /* bytes to the first element of the first matrix */
  uint64_t rows;   /* as stored; up to 2^31 - 1, columns too */
  uint64_t columns;
  uint64_t row_bytes;    /* from one row to the next; 0 for rows without gaps */
  uint64_t matrix_bytes; /* from one matrix to the next; 0: the same matrix for each product */
  uint32_t transposed;   /* 1: the product is with its transpose; 0 for the result */
  uint32_t reserved;
} mps_matrix;

/* result[i] = left[i] * right[i] for each i below `count`, in one struct, which may be kept and used again. Sums are
 * in float whatever the elements are. Any length 0: nothing is computed, but sums of no products are zeros. */
typedef struct mps_matmul {
  size_t struct_size;
  uint32_t data_type; /* of all elements: MPS_DATA_FLOAT, MPS_DATA_HALF or MPS_DATA_BFLOAT */
  uint32_t reserved;
  uint64_t count; /* products; 0 is no error */
  mps_matrix left;
  mps_matrix right;
  mps_matrix result; /* overlaps neither operand nor itself */
} mps_matmul;

/* Encode a product of matrices: MPSMatrixMultiplication on Metal, the function that was set on the host device.
 * Buffers stay alive until it has run. Errors: INVALID_ARGUMENT with the numbers; UNSUPPORTED for what the device
 * lacks: MPS_DATA_BFLOAT on Metal, a function on the host device. Since 1. */
MPS_API mps_status mps_queue_matmul(mps_queue *queue, const mps_matmul *matmul);

/* Computes products for the host device. The last three are where the first elements lie; row_bytes is set, and no
 * length is 0. Returns OK, or the status that the queue's failure names. It is called on a thread of the library's, on
 * several at once, and waits for no queue. */
typedef mps_status (*mps_matmul_fn)(void *user, const mps_matmul *matmul, const void *left, const void *right,
                                    void *result);

typedef enum mps_matmul_flag {
  MPS_MATMUL_ANY_THREAD = 1 /* may also be called on the thread that waits for the product: it wakes no other */
} mps_matmul_flag;

/* Set, or with NULL remove, the host device's function for products. `flags` are bits of mps_matmul_flag. Work that was
 * encoded before and has not begun uses the new one; calls of the one before may be under way, and go on after the
 * return. Errors: INVALID_ARGUMENT for unknown flags. Since 1. */
MPS_API mps_status mps_matmul_set(mps_matmul_fn function, void *user, uint32_t flags);

/* ---------------------------------------------------------------- command lists */

typedef struct mps_copy {
  size_t struct_size;
  mps_buffer *source;
  uint64_t source_offset;
  mps_buffer *target;
  uint64_t target_offset;
  uint64_t length; /* bytes */
} mps_copy;

typedef struct mps_fill {
  size_t struct_size;
  mps_buffer *buffer;
  uint64_t offset;
  uint64_t length; /* bytes */
  uint32_t value;  /* of each byte: 0 to 255 */
  uint32_t reserved;
} mps_fill;

typedef enum mps_command_kind {
  MPS_COMMAND_DISPATCH = 1, /* as mps_queue_dispatch */
  MPS_COMMAND_COPY = 2,     /* as mps_queue_copy */
  MPS_COMMAND_FILL = 3,     /* as mps_queue_fill */
  MPS_COMMAND_MATMUL = 4    /* as mps_queue_matmul; UNSUPPORTED for sums of no products between gaps */
} mps_command_kind;

/* One entry of a list of commands, which may be kept and used again. Of this struct, which stands in arrays, the size
 * never changes; what it points to begins with a struct_size. */
typedef struct mps_command {
  uint32_t kind; /* mps_command_kind */
  uint32_t reserved;
  union {
    const mps_dispatch *dispatch;
    const mps_copy *copy;
    const mps_fill *fill;
    const mps_matmul *matmul;
  } u;
} mps_command;

/* Encode a list of commands, in its order and with no command of another thread in between, behind what is encoded
 * already, and commit all of it as one command buffer. All commands are checked before one of them is encoded. The list
 * and what it points to may be changed or freed afterwards. Errors: those of the commands' own functions, with the
 * number of the command; OUT_OF_MEMORY, after which the first commands of the list may run. Since 1. */
MPS_API mps_status mps_queue_submit(mps_queue *queue, const mps_command *commands, uint32_t count);

/* Check a command as mps_queue_submit does, for queues of `device`. Since 1. */
MPS_API mps_status mps_command_check(mps_device *device, const mps_command *command);

/* ---------------------------------------------------------------- capture */

typedef struct mps_capture_desc {
  size_t struct_size;
  const char *path; /* of the document to write, ending in ".gputrace"; required */
  mps_queue *queue; /* NULL: the whole device */
} mps_capture_desc;

/* 1 if a capture can be started in this process, else 0: Metal wants MTL_CAPTURE_ENABLED=1 at its launch. Since 1. */
MPS_API mps_status mps_capture_is_supported(mps_device *device, uint32_t *out_supported);

/* Record all commands from here on. Errors: UNSUPPORTED; INVALID_STATE if one is running; INVALID_ARGUMENT for a path
 * of another suffix; IO if it exists or cannot be written. Nothing is left behind on an error. Since 1. */
MPS_API mps_status mps_capture_start(mps_device *device, const mps_capture_desc *desc);

/* Stop and write the document. Wait for the queues first: what still runs may be missing. INVALID_STATE if none runs;
 * IO if a part of it could not be written, which is then missing: the capture has stopped all the same. Since 1. */
MPS_API mps_status mps_capture_stop(mps_device *device);
MPS_API mps_status mps_capture_is_active(mps_device *device, uint32_t *out_active);

/* ---------------------------------------------------------------- signpost */

/* One of the first two, or'ed with what is marked, if it is not the caller's own: that chooses the name that the mark
 * has on macOS, under the subsystem "PyTorchMPS", as tools for torch.mps look for it. */
typedef enum mps_signpost_category {
  MPS_SIGNPOST_EVENTS = 1,
  MPS_SIGNPOST_INTERVALS = 2,
  MPS_SIGNPOST_KERNELS = 0x10,
  MPS_SIGNPOST_COPIES = 0x20,
  MPS_SIGNPOST_FALLBACKS = 0x30 /* work that the CPU does in the device's place */
} mps_signpost_category;

/* A mark in the system's trace: os_signpost on macOS; in a running capture elsewhere. `message` is UTF-8. A trace of
 * this library (below) that runs has it too. Since 1. */
MPS_API mps_status mps_signpost_event(mps_signpost_category category, const char *message);

/* The start of an interval; `out_id` names it for its end. One of MPS_SIGNPOST_FALLBACKS is marked as those of commands
 * are: in the way that the running trace asks for, if it does (MPS_TRACE_SIGNPOST_FALLBACKS). Since 1. */
MPS_API mps_status mps_signpost_begin(mps_signpost_category category, const char *message, uint64_t *out_id);

/* The end of an interval. NOT_FOUND if `id` is no open one. Since 1. */
MPS_API mps_status mps_signpost_end(uint64_t id, const char *message);

/* ---------------------------------------------------------------- trace
 *
 * What this process has its devices do, each command with its times. One trace at a time, of all devices. A command
 * that was encoded while a trace ran is recorded when it is complete, even if the trace was stopped meanwhile. */

typedef enum mps_trace_kind {
  MPS_TRACE_DISPATCH = 1,        /* of a kernel: name, grid, group */
  MPS_TRACE_COPY = 2,            /* bytes; grid: mps_storage_mode of source and target */
  MPS_TRACE_FILL = 3,            /* bytes */
  MPS_TRACE_MATMUL = 4,          /* grid: columns, rows and number of products */
  MPS_TRACE_SIGNAL = 5,          /* bytes: the value */
  MPS_TRACE_WAIT = 6,            /* for an event; bytes: the value */
  MPS_TRACE_CALLBACK = 7,        /* of the host, on a queue */
  MPS_TRACE_COMMAND_BUFFER = 8,  /* serial */
  MPS_TRACE_FALLBACK = 9,        /* an interval of signposts of that category */
  MPS_TRACE_ARGUMENT = 10,       /* with MPS_TRACE_BUFFERS: a buffer of the command of the same id */
  MPS_TRACE_BUFFER_CREATE = 16,  /* bytes; name: its label */
  MPS_TRACE_BUFFER_RELEASE = 17, /* when its memory is given back */
  MPS_TRACE_HEAP_CREATE = 18,
  MPS_TRACE_HEAP_RELEASE = 19,
  MPS_TRACE_LIBRARY = 20,  /* compiled or loaded; name: "source", "data" or the path */
  MPS_TRACE_PIPELINE = 21, /* name: its label */
  MPS_TRACE_RANGE = 22,    /* an interval of signposts of the caller's own */
  MPS_TRACE_MARK = 23      /* a signpost event of the caller's own */
} mps_trace_kind;

/* Bits of mps_trace_desc.flags. */
typedef enum mps_trace_flag {
  MPS_TRACE_COMMANDS = 0x01,           /* commit after each command, so that a GPU times it by itself: slower */
  MPS_TRACE_WAITS = 0x02,              /* commit and wait after each command, for at most a second: slower still */
  MPS_TRACE_BUFFERS = 0x04,            /* record the buffers of each kernel, product, copy and fill */
  MPS_TRACE_ENCODED = 0x08,            /* record commands also when they are encoded, with start and end 0 */
  MPS_TRACE_SIGNPOST_EVENTS = 0x10,    /* a signpost when a command is complete */
  MPS_TRACE_SIGNPOST_INTERVALS = 0x20, /* signposts when it begins and ends */
  MPS_TRACE_SIGNPOST_ENCODED = 0x40,   /* those intervals begin when it is encoded */
  MPS_TRACE_SIGNPOST_KERNELS = 0x100,  /* of what there are signposts */
  MPS_TRACE_SIGNPOST_COPIES = 0x200,
  MPS_TRACE_SIGNPOST_FALLBACKS = 0x400
} mps_trace_flag;

typedef struct mps_trace_desc {
  size_t struct_size;
  uint32_t capacity; /* records that can wait to be read; 262144 by default */
  uint32_t flags;    /* MPS_TRACE_* */
} mps_trace_desc;

/* Texts are never NULL and live as long as the library. Times are nanoseconds of mps_device_timestamps' clock. */
typedef struct mps_trace_record {
  uint32_t kind;          /* mps_trace_kind */
  uint32_t status;        /* mps_status: OK, or why it failed */
  uint64_t id;            /* counts up in the order of encoding, over all queues */
  uint64_t thread;        /* that encoded it or called, as the system numbers threads */
  uint64_t queue;         /* number of its queue, counted from 1; 0 for what belongs to none */
  const char *queue_name; /* the queue's label */
  const char *name;       /* the kernel's label, or as said above */
  uint64_t encoded;       /* when the caller asked for it */
  uint64_t start;         /* when the device began and ended it */
  uint64_t end;
  uint64_t bytes;
  uint64_t serial;  /* COMMAND_BUFFER: its serial; ARGUMENT: the slot */
  uint64_t object;  /* of buffers and heaps: tells live ones apart; ARGUMENT: the buffer */
  uint32_t grid[3]; /* threads; ARGUMENT: the first is how often the buffer is held */
  uint32_t group[3];
  uint32_t together; /* commands, this one included, that start and end are the times of: 1 for times of its own */
  uint32_t reserved;
} mps_trace_record;

/* Begin to record; what nobody has read of an older trace is dropped. Errors: INVALID_STATE if a trace is running,
 * INVALID_ARGUMENT for unknown flags, LIMIT_EXCEEDED for a capacity above 2^24, OUT_OF_MEMORY. Since 1. */
MPS_API mps_status mps_trace_start(const mps_trace_desc *desc);

/* Encode no more commands as traced. INVALID_STATE if none runs. Since 1. */
MPS_API mps_status mps_trace_stop(void);

/* Take up to `capacity` records, the oldest first, each `record_size` bytes: sizeof(mps_trace_record). `out_dropped`
 * (may be NULL): how many there was no room for since the last call. May be called while a trace runs, and after.
 * Since 1. */
MPS_API mps_status mps_trace_read(void *records, size_t record_size, uint32_t capacity, uint32_t *out_count,
                                  uint64_t *out_dropped);

/* ---------------------------------------------------------------- log */

/* What kernels write by <metal_logging>, as os_log_default.log("x is %f", x): Metal 3.2, macOS 15. */

typedef enum mps_log_level {
  MPS_LOG_DEBUG = 1,
  MPS_LOG_INFO = 2,
  MPS_LOG_NOTICE = 3, /* os_log::log */
  MPS_LOG_ERROR = 4,
  MPS_LOG_FAULT = 5
} mps_log_level;

/* One message. The texts are UTF-8, never NULL, and valid during the call of the handler. */
typedef struct mps_log_message {
  size_t struct_size;
  uint32_t level; /* mps_log_level */
  uint32_t reserved;
  uint64_t dropped; /* not 0: no kernel's message, but how many of them there was no room for */
  const char *subsystem;
  const char *category;
  const char *kernel; /* "" if the device does not tell */
  const char *message;
} mps_log_message;

typedef void (*mps_log_fn)(void *user, const mps_log_message *message);

typedef struct mps_log_desc {
  size_t struct_size;
  mps_log_fn handler; /* NULL: a line to standard error */
  void *user;
  uint32_t level; /* mps_log_level: messages below are not made; 0 for all */
  uint32_t reserved;
  uint64_t buffer_size; /* bytes of text to keep until it is delivered, 1 KiB to 1 GiB; 0 for 1 MiB */
} mps_log_desc;

/* Say where the messages of all kernels of this process go; NULL for standard error. Messages are delivered one at a
 * time, those of one thread in order, at the latest when the command buffer that they are from is complete, before a
 * wait for it returns; on a thread of the library's or on one that dispatches or waits. The handler may call this
 * library, but neither wait for work nor call this function. When it returns, the handler before is not called any
 * more. On Metal the level and size count for queues that are made later. Errors: INVALID_ARGUMENT, INVALID_STATE in a
 * handler. Since 1. */
MPS_API mps_status mps_log_set(const mps_log_desc *desc);

/* ---------------------------------------------------------------- diagnostics */

typedef struct mps_live_objects {
  size_t struct_size;
  uint64_t devices;
  uint64_t heaps;
  uint64_t buffers;
  uint64_t queues;
  uint64_t events;
  uint64_t libraries;
  uint64_t pipelines;
  uint64_t pending_commands; /* encoded or committed and not yet complete, over all queues */
} mps_live_objects;

/* How many objects exist; exact when no other thread creates or releases. Works in a forked child. Since 1. */
MPS_API mps_status mps_get_live_objects(mps_live_objects *counts);

/* How the library was built, as "key=value" lines: version, compiler, devices, options. A static string. Since 1. */
MPS_API const char *mps_build_info(void);

/* The path that this library was loaded from. A static string. Since 1. */
MPS_API const char *mps_shim_path(void);

/* cdef: end */

#if defined(__cplusplus) && __cplusplus >= 201103L
static_assert(sizeof(mps_status) == 4, "not with -fshort-enums: the library was built without");
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(mps_status) == 4, "not with -fshort-enums: the library was built without");
#endif

#ifdef __cplusplus
}
#endif

#endif
