/* Runs of kernels: what a launch looks like, and how it is spread over threads. */
#include "command.h"

#include "pool.h"
#include "transfer.h"
#include "validate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ALIGN 16u

/* What a caller's thread may run: threads of a kernel that has no loops, or bytes. Some microseconds either way, which
 * is what waking the worker would cost. */
#define SMALL_THREADS 16384u
#define SMALL_BYTES 262144u

static uint64_t volume(const uint32_t size[3]) {
  return (uint64_t)size[0] * size[1] * size[2];
}

static uint64_t round_up(uint64_t value) {
  return (value + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
}

/* ---- kernels ---- */

static bool may_borrow(const mps_dispatch *dispatch, const mps_argument *argument) {
  const mps_pipeline *pipeline = dispatch->pipeline;
  const mps_argument_info *info = &pipeline->arguments[pipeline->slot_argument[argument->index]];
  return info->access == MPS_ACCESS_READ && (uintptr_t)argument->data % ALIGN == 0;
}

/* The next `length` bytes of the storage, or NULL. */
static char *carve(char **storage, size_t *size, uint64_t length) {
  uint64_t room = round_up(length);
  if (room > *size) {
    return NULL;
  }
  char *place = *storage;
  *storage += room;
  *size -= room;
  return place;
}

static void write_addresses(uint64_t *table, const mps_argument *argument) {
  const mps_address *addresses = argument->data;
  for (uint64_t i = 0; i < argument->length; i++) {
    const mps_buffer *buffer = addresses[i].buffer;
    table[i] = buffer ? buffer->gpu_address + addresses[i].offset : 0;
  }
}

/* Bytes from an offset of a buffer on that a kernel may use, of which the caller has given a number; 0 for all. */
static uint64_t usable(const mps_buffer *buffer, uint64_t offset, uint64_t length) {
  if (length == MPS_LENGTH_NONE) {
    return 0;
  }
  uint64_t rest = buffer->length - offset;
  return length != 0 && length < rest ? length : rest;
}

/* The length behind each address. */
static bool write_lengths(host_bounds *bounds, const mps_argument *argument, char **storage, size_t *size) {
  const mps_address *addresses = argument->data;
  uint64_t *lengths = (uint64_t *)(void *)carve(storage, size, argument->length * sizeof(uint64_t));
  for (uint64_t i = 0; lengths && i < argument->length; i++) {
    const mps_address *address = &addresses[i];
    lengths[i] = address->buffer ? usable(address->buffer, address->offset, address->length) : 0;
  }
  bounds->tables[argument->index] = lengths;
  bounds->table_entries[argument->index] = (uint32_t)argument->length;
  return lengths != NULL;
}

/* What the arguments' lengths are, for a kernel that is validated. */
static bool bind_bounds(host_work *work, const mps_dispatch *dispatch, char **storage, size_t *size) {
  host_bounds *bounds = (host_bounds *)(void *)carve(storage, size, sizeof *bounds);
  if (!bounds) {
    return false;
  }
  memset(bounds, 0, sizeof *bounds);
  work->bounds = bounds;
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    switch ((mps_argument_kind)argument->kind) {
    case MPS_ARGUMENT_BUFFER:
      bounds->buffers[argument->index] = usable(argument->buffer, argument->offset, argument->length);
      break;
    case MPS_ARGUMENT_BYTES:
      bounds->buffers[argument->index] = argument->length;
      break;
    case MPS_ARGUMENT_ADDRESSES:
      bounds->buffers[argument->index] = argument->length * sizeof(uint64_t);
      if (!write_lengths(bounds, argument, storage, size)) {
        return false;
      }
      break;
    case MPS_ARGUMENT_THREADGROUP:
      bounds->threadgroup[argument->index] = (uint32_t)argument->length;
      break;
    }
  }
  return true;
}

size_t host_work_storage(const mps_dispatch *dispatch) {
  const host_kernel *own = dispatch->pipeline->impl;
  bool is_validated = own->kernel->flags & MSLC_KERNEL_VALIDATED;
  uint64_t storage = is_validated ? round_up(sizeof(host_bounds)) : 0;
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    if (argument->kind == MPS_ARGUMENT_BYTES) {
      storage += round_up(argument->length);
    } else if (argument->kind == MPS_ARGUMENT_ADDRESSES) {
      storage += round_up(argument->length * sizeof(uint64_t)) * (is_validated ? 2 : 1);
    }
  }
  return (size_t)storage;
}

static bool bind_arguments(mslc_launch *launch, const mps_dispatch *dispatch, bool borrow, char *storage, size_t size) {
  const host_kernel *kernel = dispatch->pipeline->impl;
  if (dispatch->argument_count < dispatch->pipeline->info.argument_count) {
    memset(launch->buffers, 0, sizeof launch->buffers); /* what is not bound is not used; if it is, let it fault */
  }
  uint32_t arena = (uint32_t)round_up(kernel->static_bytes);
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    char *place;
    switch ((mps_argument_kind)argument->kind) {
    case MPS_ARGUMENT_BUFFER:
      launch->buffers[argument->index] = (void *)(uintptr_t)(argument->buffer->gpu_address + argument->offset);
      break;
    case MPS_ARGUMENT_BYTES:
      if (borrow && may_borrow(dispatch, argument)) {
        launch->buffers[argument->index] = (void *)(uintptr_t)argument->data;
        break;
      }
      place = carve(&storage, &size, argument->length);
      if (!place) {
        return false;
      }
      memcpy(place, argument->data, argument->length);
      launch->buffers[argument->index] = place;
      break;
    case MPS_ARGUMENT_ADDRESSES:
      place = carve(&storage, &size, argument->length * sizeof(uint64_t));
      if (!place) {
        return false;
      }
      write_addresses((uint64_t *)(void *)place, argument);
      launch->buffers[argument->index] = place;
      break;
    case MPS_ARGUMENT_THREADGROUP:
      launch->threadgroup_offset[argument->index] = arena;
      arena += (uint32_t)round_up(argument->length);
      break;
    }
  }
  return true;
}

bool host_work_bind(host_work *work, const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3],
                    bool borrow, char *storage, size_t size) {
  const mps_pipeline *pipeline = dispatch->pipeline;
  work->kernel = ((const host_kernel *)pipeline->impl)->kernel;
  work->name = pipeline->label;
  for (int i = 0; i < 3; i++) {
    work->launch.grid[i] = grid[i];
    work->launch.group[i] = group[i];
    work->launch.groups[i] = grid[i] / group[i] + (grid[i] % group[i] != 0);
  }
  work->groups = volume(work->launch.groups);
  work->threads = volume(grid);
  work->bounds = NULL;
  if ((work->kernel->flags & MSLC_KERNEL_VALIDATED) && !bind_bounds(work, dispatch, &storage, &size)) {
    return false;
  }
  return bind_arguments(&work->launch, dispatch, borrow, storage, size);
}

/* ---- copies and fills ---- */

/* The slots of our own kernels. All but the addresses are numbers. */
enum { SOURCE, TARGET, LENGTH, PIECE, VALUE };

/* Big enough to be worth a second thread, small enough for all threads to end together. */
#define PIECE_MIN ((uint64_t)4 << 20)
#define PIECE_MAX ((uint64_t)32 << 20)

static uint64_t number(const mslc_launch *launch, int slot) {
  return (uintptr_t)launch->buffers[slot];
}

static uint64_t range_end(const mslc_launch *launch, unsigned long last) {
  uint64_t end = last * number(launch, PIECE);
  return end < number(launch, LENGTH) ? end : number(launch, LENGTH);
}

static void run_copy(const mslc_launch *launch, unsigned long first, unsigned long last) {
  uint64_t start = first * number(launch, PIECE);
  host_transfer_copy((char *)launch->buffers[TARGET] + start, (const char *)launch->buffers[SOURCE] + start,
                     range_end(launch, last) - start, number(launch, LENGTH));
}

static void run_fill(const mslc_launch *launch, unsigned long first, unsigned long last) {
  uint64_t start = first * number(launch, PIECE);
  host_transfer_fill((char *)launch->buffers[TARGET] + start, (int)number(launch, VALUE),
                     range_end(launch, last) - start, number(launch, LENGTH));
}

static const mslc_kernel copy_kernel = {.name = "copy", .run = run_copy, .flags = MSLC_KERNEL_BOUNDED};
static const mslc_kernel fill_kernel = {.name = "fill", .run = run_fill, .flags = MSLC_KERNEL_BOUNDED};

static void bind_range(host_work *work, const mslc_kernel *kernel, uint64_t length) {
  uint64_t piece = length / 8;
  piece = piece < PIECE_MIN ? PIECE_MIN : piece > PIECE_MAX ? PIECE_MAX : piece;
  piece = (piece + 4095) & ~(uint64_t)4095;
  work->kernel = kernel;
  work->name = NULL;
  work->bounds = NULL;
  work->groups = length / piece + (length % piece != 0);
  work->threads = length;
  work->launch.buffers[LENGTH] = (void *)(uintptr_t)length;
  work->launch.buffers[PIECE] = (void *)(uintptr_t)piece;
}

void host_work_copy(host_work *work, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                    uint64_t target_offset, uint64_t length) {
  bind_range(work, &copy_kernel, length);
  work->launch.buffers[SOURCE] = (void *)(uintptr_t)(source->gpu_address + source_offset);
  work->launch.buffers[TARGET] = (void *)(uintptr_t)(target->gpu_address + target_offset);
}

void host_work_fill(host_work *work, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  bind_range(work, &fill_kernel, length);
  work->launch.buffers[TARGET] = (void *)(uintptr_t)(buffer->gpu_address + offset);
  work->launch.buffers[VALUE] = (void *)(uintptr_t)value;
}

/* ---- running ---- */

/* How many threads of a kernel without loops do as much as all of a dispatch; UINT64_MAX if nobody knows. */
static uint64_t plain_threads(const host_work *work) {
  const unsigned both = MSLC_KERNEL_BOUNDED | MSLC_KERNEL_FIBERS;
  uint64_t each = work->kernel->work ? work->kernel->work : 1, all;
  bool is_known =
      (work->kernel->flags & both) == MSLC_KERNEL_BOUNDED && !__builtin_mul_overflow(work->threads, each, &all);
  return is_known ? all : UINT64_MAX;
}

bool host_work_is_small(const host_work *work) {
  return work->name ? plain_threads(work) <= SMALL_THREADS : work->threads <= SMALL_BYTES;
}

/* Far more than it takes: a byte a nanosecond, and for a thread of a kernel without loops as long as a hundred. */
#define THREAD_NS 100u

uint64_t host_work_cost(const host_work *work) {
  if (!work->name) {
    return work->threads;
  }
  uint64_t cost;
  bool is_known = !work->bounds && !__builtin_mul_overflow(plain_threads(work), THREAD_NS, &cost);
  return is_known ? cost : UINT64_MAX;
}

/* Threadgroups to claim at once: some eight rounds for each thread, so that none waits long for the last one, but never
 * so few threads of a kernel without loops that claiming them costs more than running them. */
static uint64_t chunk_of(const host_work *work) {
  if (!work->name) {
    return 1;
  }
  uint64_t chunk = work->groups / ((uint64_t)host_pool_width() * 8);
  uint64_t least = 1;
  if (work->kernel->flags & MSLC_KERNEL_BOUNDED) {
    uint64_t group = volume(work->launch.group);
    uint64_t most = SMALL_THREADS / 4 / (work->kernel->work ? work->kernel->work : 1);
    least = group < most ? most / group : 1;
  }
  return chunk < least ? least : chunk;
}

bool host_work_run(const host_work *work, host_fault *fault) {
  if (work->bounds) {
    return host_validate_run(work, fault);
  }
  if (work->groups == 1 || host_work_is_small(work)) {
    return host_kernel_run(work->kernel, &work->launch, 0, work->groups, fault);
  }
  return host_pool_run(work->kernel, &work->launch, work->groups, chunk_of(work), fault);
}

void host_work_describe_size(const host_work *work, char *text, size_t size) {
  const unsigned *grid = work->launch.grid;
  const unsigned *group = work->launch.group;
  snprintf(text, size, "grid %u x %u x %u, group %u x %u x %u", grid[0], grid[1], grid[2], group[0], group[1],
           group[2]);
}

void host_work_describe(const host_work *work, char *text, size_t size) {
  if (work->name) {
    char extent[128];
    host_work_describe_size(work, extent, sizeof extent);
    snprintf(text, size, "kernel '%.128s'; %s", work->name, extent);
  } else {
    snprintf(text, size, "%s of %" PRIu64 " bytes", work->kernel->name, work->threads);
  }
}
