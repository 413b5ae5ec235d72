#include "backend.h"
#include "check.h"
#include "command.h"
#include "log.h"
#include "trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Entries of one table of addresses. */
enum { MAX_ADDRESSES = 65536 };

/* Where an offset must lie when the kernel's type is not known: what Metal wants of every offset. */
enum { UNKNOWN_ALIGN = 4 };

/* What binding the arguments has found so far. */
typedef struct binding {
  const mps_device *device;
  const mps_pipeline *pipeline;
  uint32_t buffers;      /* bit n: buffer slot n is bound */
  uint32_t threadgroups; /* the same for threadgroup memory */
  uint64_t threadgroup_bytes;
} binding;

/* ---- refusals, out of the way of the path that is taken ---- */

/* The slots of a kernel as "0 x, 2 y"; NULL when there is no memory. To be freed. */
static char *slot_list(const mps_pipeline *pipeline, uint32_t kind) {
  char *text = NULL;
  size_t size = 0;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) {
    return NULL;
  }
  const char *separator = "";
  for (uint32_t i = 0; i < pipeline->info.argument_count; i++) {
    const mps_argument_info *argument = &pipeline->arguments[i];
    if (argument->kind == kind) {
      fprintf(stream, "%s%" PRIu32 " %s", separator, argument->index, argument->name);
      separator = ", ";
    }
  }
  if (*separator == '\0') {
    fputs("none", stream);
  }
  if (fclose(stream) != 0) {
    free(text);
    return NULL;
  }
  return text;
}

static mps_status no_such_slot(const mps_pipeline *pipeline, uint32_t number, uint32_t kind, uint32_t index) {
  const char *noun = kind == MPS_ARGUMENT_THREADGROUP ? "threadgroup" : "buffer";
  char *list = slot_list(pipeline, kind);
  mps_fail(MPS_STATUS_INVALID_ARGUMENT,
           "mps_queue_dispatch: arguments[%" PRIu32 "] is for %s slot %" PRIu32
           ", which kernel '%s' does not have; its %s slots: %s",
           number, noun, index, pipeline->kernel, noun, list != NULL ? list : "?");
  free(list);
  return MPS_STATUS_INVALID_ARGUMENT;
}

static mps_status bound_twice(const mps_pipeline *pipeline, uint32_t number, uint32_t kind, uint32_t index) {
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                  "mps_queue_dispatch: arguments[%" PRIu32 "] binds %s slot %" PRIu32 " of kernel '%s' a second time",
                  number, kind == MPS_ARGUMENT_THREADGROUP ? "threadgroup" : "buffer", index, pipeline->kernel);
}

/* A slot that the kernel has and that nobody bound is refused, unless the kernel is known not to touch it. */
static mps_status check_unbound(const binding *bound) {
  const mps_pipeline *pipeline = bound->pipeline;
  for (uint32_t i = 0; i < pipeline->info.argument_count; i++) {
    const mps_argument_info *argument = &pipeline->arguments[i];
    bool threadgroup = argument->kind == MPS_ARGUMENT_THREADGROUP;
    uint32_t mask = threadgroup ? bound->threadgroups : bound->buffers;
    if (argument->is_used && (mask >> argument->index & 1) == 0) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "mps_queue_dispatch: nothing is bound to %s slot %" PRIu32 " of kernel '%s' (argument '%s')",
                      threadgroup ? "threadgroup" : "buffer", argument->index, pipeline->kernel, argument->name);
    }
  }
  return MPS_STATUS_OK;
}

static mps_status too_short(const mps_pipeline *pipeline, const mps_argument_info *slot, uint64_t given) {
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                  "mps_queue_dispatch: argument '%s' (buffer slot %" PRIu32 ") of kernel '%s' reads %" PRIu32
                  " bytes, but only %" PRIu64 " are given",
                  slot->name, slot->index, pipeline->kernel, slot->data_size, given);
}

/* ---- arguments ---- */

/* Take a slot, of those that the kernel has, that is not taken yet. `kind` is the slot's: buffer or threadgroup. */
static inline mps_status claim_slot(const binding *bound, uint32_t number, uint32_t kind, uint32_t index,
                                    uint32_t slots, uint32_t *taken) {
  uint32_t limit = bound->device->info.max_buffer_slots;
  if (index >= limit) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: arguments[%" PRIu32 "] is for slot %" PRIu32
                    ", but the slots are 0 to %" PRIu32,
                    number, index, limit - 1);
  }
  uint32_t bit = UINT32_C(1) << index;
  if ((slots & bit) == 0) {
    return no_such_slot(bound->pipeline, number, kind, index);
  }
  if ((*taken & bit) != 0) {
    return bound_twice(bound->pipeline, number, kind, index);
  }
  *taken |= bit;
  return MPS_STATUS_OK;
}

static inline mps_status check_place(const binding *bound, const mps_argument_info *slot, const mps_buffer *buffer,
                                     uint64_t offset) {
  MPS_TRY(mps_object_check(buffer, MPS_KIND_BUFFER, "mps_queue_dispatch"));
  MPS_TRY(mps_check_same_device("mps_queue_dispatch", bound->device, "buffer", buffer->device));
  if (offset >= buffer->length) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: offset %" PRIu64
                    " for argument '%s' of kernel '%s' is not inside the buffer of %" PRIu64 " bytes",
                    offset, slot->name, bound->pipeline->kernel, buffer->length);
  }
  return MPS_STATUS_OK;
}

static inline mps_status check_buffer(const binding *bound, const mps_argument *argument,
                                      const mps_argument_info *slot) {
  MPS_TRY(check_place(bound, slot, argument->buffer, argument->offset));
  uint32_t align = slot->data_align != 0 ? slot->data_align : UNKNOWN_ALIGN;
  if ((argument->offset & (align - 1)) != 0) { /* alignments are powers of two */
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: offset %" PRIu64
                    " for argument '%s' of kernel '%s' is no multiple of its alignment, %" PRIu32 " bytes",
                    argument->offset, slot->name, bound->pipeline->kernel, align);
  }
  uint64_t rest = argument->buffer->length - argument->offset;
  if (slot->is_reference && rest < slot->data_size) {
    return too_short(bound->pipeline, slot, rest);
  }
  return MPS_STATUS_OK;
}

/* Inline bytes and tables are copies: what a kernel writes there would be lost. */
static inline mps_status check_copied(const binding *bound, const mps_argument *argument, const mps_argument_info *slot,
                                      uint64_t bytes) {
  if (argument->data == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: data for argument '%s' of kernel '%s' must not be NULL", slot->name,
                    bound->pipeline->kernel);
  }
  if (slot->access == MPS_ACCESS_READ_WRITE) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: kernel '%s' can write to argument '%s' (buffer slot %" PRIu32
                    "), which therefore needs a buffer, not %s",
                    bound->pipeline->kernel, slot->name, slot->index,
                    argument->kind == MPS_ARGUMENT_BYTES ? "inline bytes" : "a table of addresses");
  }
  if (slot->is_reference && bytes < slot->data_size) {
    return too_short(bound->pipeline, slot, bytes);
  }
  return MPS_STATUS_OK;
}

static inline mps_status check_bytes(const binding *bound, const mps_argument *argument,
                                     const mps_argument_info *slot) {
  uint32_t limit = bound->device->info.max_inline_bytes;
  if (argument->length == 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: argument '%s' of kernel '%s' is given 0 inline bytes, at least 1 is expected",
                    slot->name, bound->pipeline->kernel);
  }
  if (argument->length > limit) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: argument '%s' of kernel '%s' is given %" PRIu64
                    " inline bytes, the limit is %" PRIu32 ": put them into a buffer",
                    slot->name, bound->pipeline->kernel, argument->length, limit);
  }
  return check_copied(bound, argument, slot, argument->length);
}

static mps_status check_addresses(const binding *bound, const mps_argument *argument, const mps_argument_info *slot) {
  if (argument->length == 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: the table of addresses for argument '%s' of kernel '%s' has no entry",
                    slot->name, bound->pipeline->kernel);
  }
  if (argument->length > MAX_ADDRESSES) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: the table of addresses for argument '%s' of kernel '%s' has %" PRIu64
                    " entries, the limit is %d",
                    slot->name, bound->pipeline->kernel, argument->length, MAX_ADDRESSES);
  }
  MPS_TRY(check_copied(bound, argument, slot, argument->length * sizeof(uint64_t)));
  const mps_address *entries = argument->data;
  for (uint64_t i = 0; i < argument->length; i++) {
    MPS_TRY(check_place(bound, slot, entries[i].buffer, entries[i].offset));
  }
  return MPS_STATUS_OK;
}

static mps_status check_threadgroup(binding *bound, const mps_argument *argument) {
  const mps_pipeline *pipeline = bound->pipeline;
  uint32_t limit = bound->device->info.max_threadgroup_memory;
  if (argument->length % 16 != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: %" PRIu64 " bytes of threadgroup memory for slot %" PRIu32
                    " of kernel '%s' are no multiple of 16",
                    argument->length, argument->index, pipeline->kernel);
  }
  /* No overflow: a length beyond the limit ends here, and there are few slots. */
  bound->threadgroup_bytes += argument->length <= limit ? argument->length : (uint64_t)limit + 1;
  if (bound->threadgroup_bytes + pipeline->info.static_threadgroup_memory > limit) {
    return mps_fail(
        MPS_STATUS_LIMIT_EXCEEDED,
        "mps_queue_dispatch: threadgroup memory of kernel '%s' exceeds the limit of %" PRIu32 " bytes: %" PRIu32
        " bytes of its own and, with slot %" PRIu32 " of %" PRIu64 " bytes, too many bound",
        pipeline->kernel, limit, pipeline->info.static_threadgroup_memory, argument->index, argument->length);
  }
  return MPS_STATUS_OK;
}

static mps_status unknown_argument(const mps_argument *argument, uint32_t number) {
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                  "mps_queue_dispatch: kind of arguments[%" PRIu32 "] is %" PRIu32
                  ", not MPS_ARGUMENT_BUFFER (1), _BYTES (2), _THREADGROUP (3) or _ADDRESSES (4)",
                  number, argument->kind);
}

static inline mps_status check_argument(binding *bound, const mps_argument *argument, uint32_t number) {
  const mps_pipeline *pipeline = bound->pipeline;
  if (argument->kind == MPS_ARGUMENT_THREADGROUP) {
    /* No bytes are taken for any slot, as Metal does: programs send them for slots that the kernel does not use. */
    uint32_t slots = argument->length != 0 ? pipeline->threadgroup_slots : UINT32_MAX;
    MPS_TRY(claim_slot(bound, number, MPS_ARGUMENT_THREADGROUP, argument->index, slots, &bound->threadgroups));
    return check_threadgroup(bound, argument);
  }
  if (argument->kind < MPS_ARGUMENT_BUFFER || argument->kind > MPS_ARGUMENT_ADDRESSES) {
    return unknown_argument(argument, number);
  }
  MPS_TRY(claim_slot(bound, number, MPS_ARGUMENT_BUFFER, argument->index, pipeline->buffer_slots, &bound->buffers));
  const mps_argument_info *slot = &pipeline->arguments[pipeline->slot_argument[argument->index]];
  switch (argument->kind) {
  case MPS_ARGUMENT_BUFFER:
    return check_buffer(bound, argument, slot);
  case MPS_ARGUMENT_BYTES:
    return check_bytes(bound, argument, slot);
  default:
    return check_addresses(bound, argument, slot);
  }
}

static mps_status check_arguments(const mps_device *device, const mps_dispatch *dispatch) {
  binding bound = {.device = device, .pipeline = dispatch->pipeline};
  if (dispatch->argument_count > 0 && dispatch->arguments == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: argument_count is %" PRIu32 ", but arguments is NULL",
                    dispatch->argument_count);
  }
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    MPS_TRY(check_argument(&bound, &dispatch->arguments[i], i));
  }
  if (bound.buffers != dispatch->pipeline->buffer_slots ||
      bound.threadgroups != dispatch->pipeline->threadgroup_slots) {
    return check_unbound(&bound);
  }
  return MPS_STATUS_OK;
}

/* ---- grid ---- */

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* As many threads as the kernel takes, rows along x first. In more than one dimension x is a whole number of
 * SIMD-groups where it is cut, so that their threads stay in one row. */
static void choose_group(const mps_dispatch *dispatch, const mps_device_info *limits, uint64_t group[3]) {
  const mps_pipeline_info *kernel = &dispatch->pipeline->info;
  const uint64_t *grid = dispatch->grid;
  uint64_t most = kernel->max_total_threads_per_threadgroup;
  uint64_t most_x = most;
  if ((grid[1] > 1 || grid[2] > 1) && most > kernel->thread_execution_width) {
    most_x -= most % kernel->thread_execution_width;
  }
  group[0] = smaller(smaller(grid[0], most_x), limits->max_threads_per_threadgroup[0]);
  group[1] = smaller(smaller(grid[1], most / group[0]), limits->max_threads_per_threadgroup[1]);
  group[2] = smaller(smaller(grid[2], most / (group[0] * group[1])), limits->max_threads_per_threadgroup[2]);
}

static mps_status check_group(const mps_dispatch *dispatch, const mps_device_info *limits) {
  const uint64_t *group = dispatch->group;
  const uint32_t *most = limits->max_threads_per_threadgroup;
  if (group[0] == 0 || group[1] == 0 || group[2] == 0) {
    return mps_fail(
        MPS_STATUS_INVALID_ARGUMENT,
        "mps_queue_dispatch: group (%" PRIu64 ", %" PRIu64 ", %" PRIu64
        ") for kernel '%s' has a dimension of 0: give at least 1 in each, or 0 in all to leave the choice to the "
        "library",
        group[0], group[1], group[2], dispatch->pipeline->kernel);
  }
  if (group[0] > most[0] || group[1] > most[1] || group[2] > most[2]) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: group (%" PRIu64 ", %" PRIu64 ", %" PRIu64
                    ") for kernel '%s' exceeds the device's (%" PRIu32 ", %" PRIu32 ", %" PRIu32 ")",
                    group[0], group[1], group[2], dispatch->pipeline->kernel, most[0], most[1], most[2]);
  }
  uint64_t threads = group[0] * group[1] * group[2]; /* within the device's limits, so it does not overflow */
  if (threads > dispatch->pipeline->info.max_total_threads_per_threadgroup) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: group (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ") has %" PRIu64
                    " threads, kernel '%s' takes at most %" PRIu32,
                    group[0], group[1], group[2], threads, dispatch->pipeline->kernel,
                    dispatch->pipeline->info.max_total_threads_per_threadgroup);
  }
  return MPS_STATUS_OK;
}

/* The group to use: the one given, or for all 0 one that suits the grid. `grid` is not empty in the latter case. */
static mps_status resolve_group(const mps_dispatch *dispatch, const mps_device_info *limits, uint64_t group[3]) {
  const uint64_t *given = dispatch->group;
  if ((given[0] | given[1] | given[2]) != 0) {
    group[0] = given[0];
    group[1] = given[1];
    group[2] = given[2];
    return check_group(dispatch, limits);
  }
  if (dispatch->grid_kind == MPS_GRID_THREADGROUPS) {
    return mps_fail(
        MPS_STATUS_INVALID_ARGUMENT,
        "mps_queue_dispatch: a grid of threadgroups for kernel '%s' needs their size in group: only for a grid of "
        "threads can the library choose it",
        dispatch->pipeline->kernel);
  }
  choose_group(dispatch, limits, group);
  return MPS_STATUS_OK;
}

static mps_status resolve_grid(const mps_dispatch *dispatch, const uint64_t group[3], uint32_t grid_threads[3],
                               uint32_t group_threads[3]) {
  uint64_t groups = 1;
  bool fits = true;
  for (int i = 0; i < 3; i++) {
    uint64_t threads = dispatch->grid[i], along = dispatch->grid[i];
    if (dispatch->grid_kind == MPS_GRID_THREADGROUPS) {
      fits = fits && !__builtin_mul_overflow(threads, group[i], &threads);
    } else {
      along = threads / group[i] + (threads % group[i] != 0);
    }
    fits = fits && threads <= UINT32_MAX && !__builtin_mul_overflow(groups, along, &groups);
    grid_threads[i] = (uint32_t)threads;
    group_threads[i] = (uint32_t)group[i];
  }
  if (!fits) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "mps_queue_dispatch: grid (%" PRIu64 ", %" PRIu64 ", %" PRIu64
                    ") of %s for kernel '%s', in groups of (%" PRIu64 ", %" PRIu64 ", %" PRIu64
                    "), exceeds 2^32 - 1 threads in a dimension or 2^64 - 1 threadgroups in all",
                    dispatch->grid[0], dispatch->grid[1], dispatch->grid[2],
                    dispatch->grid_kind == MPS_GRID_THREADS ? "threads" : "threadgroups", dispatch->pipeline->kernel,
                    group[0], group[1], group[2]);
  }
  return MPS_STATUS_OK;
}

/* ---- commands ---- */

/* What a trace with MPS_TRACE_WAITS asks for. Only so long: what the queue waits for may be to come from this thread.
 * In a callback of the queue's it cannot wait at all. */
static mps_status wait_for_traced(mps_queue *queue) {
  const uint64_t patience = 1000000000u;
  mps_status status = queue->device->backend->queue_wait(queue, patience);
  return status == MPS_STATUS_TIMEOUT || status == MPS_STATUS_INVALID_STATE ? MPS_STATUS_OK : status;
}

mps_status mps_after_encoding(mps_queue *queue, mps_status status) {
  mps_log_flush(); /* what was encoded may have been run */
  bool waits = (mps_trace_flags() & MPS_TRACE_WAITS) != 0;
  return waits && status == MPS_STATUS_OK ? wait_for_traced(queue) : status;
}

mps_status mps_dispatch_check(const mps_device *device, const mps_dispatch *dispatch, mps_work *work) {
  const mps_pipeline *pipeline = dispatch->pipeline;
  MPS_TRY(mps_object_check(pipeline, MPS_KIND_PIPELINE, "mps_queue_dispatch"));
  MPS_TRY(mps_check_same_device("mps_queue_dispatch", device, "pipeline", pipeline->library->device));
  if (dispatch->grid_kind > MPS_GRID_THREADGROUPS) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_dispatch: grid_kind is %" PRIu32
                    ", not MPS_GRID_THREADS (0) or MPS_GRID_THREADGROUPS (1)",
                    dispatch->grid_kind);
  }
  MPS_TRY(check_arguments(device, dispatch));
  if (dispatch->grid[0] == 0 || dispatch->grid[1] == 0 || dispatch->grid[2] == 0) {
    work->kind = 0;
    bool chosen = (dispatch->group[0] | dispatch->group[1] | dispatch->group[2]) == 0;
    return chosen ? MPS_STATUS_OK : check_group(dispatch, &device->info);
  }
  uint64_t group[3];
  MPS_TRY(resolve_group(dispatch, &device->info, group));
  MPS_TRY(resolve_grid(dispatch, group, work->grid, work->group));
  work->kind = MPS_COMMAND_DISPATCH;
  work->dispatch = dispatch;
  return MPS_STATUS_OK;
}

static mps_status dispatch_checked(mps_queue *queue, const mps_dispatch *dispatch) {
  mps_work work;
  MPS_TRY(mps_dispatch_check(queue->device, dispatch, &work));
  if (work.kind == 0) {
    return MPS_STATUS_OK;
  }
  return mps_after_encoding(queue, queue->device->backend->encode_dispatch(queue, dispatch, work.grid, work.group));
}

mps_status mps_queue_dispatch(mps_queue *queue, const mps_dispatch *dispatch) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_REQUIRE(dispatch);
  if (dispatch->struct_size == sizeof *dispatch) {
    return dispatch_checked(queue, dispatch);
  }
  mps_dispatch copy;
  MPS_READ(mps_dispatch, group, &copy, dispatch);
  copy.struct_size = sizeof copy;
  return dispatch_checked(queue, &copy);
}

mps_status mps_copy_check(const mps_device *device, const mps_copy *copy) {
  const char *function = "mps_queue_copy";
  MPS_TRY(mps_object_check(copy->source, MPS_KIND_BUFFER, function));
  MPS_TRY(mps_object_check(copy->target, MPS_KIND_BUFFER, function));
  MPS_TRY(mps_check_same_device(function, device, "source", copy->source->device));
  MPS_TRY(mps_check_same_device(function, device, "target", copy->target->device));
  MPS_TRY(mps_check_range(function, "source", copy->source, copy->source_offset, copy->length));
  MPS_TRY(mps_check_range(function, "target", copy->target, copy->target_offset, copy->length));
  if (copy->source == copy->target && copy->length != 0) {
    uint64_t from = copy->source_offset, to = copy->target_offset;
    if ((from > to ? from - to : to - from) < copy->length) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "mps_queue_copy: %" PRIu64 " bytes from offset %" PRIu64 " to offset %" PRIu64
                      " of one buffer overlap: copy through another buffer",
                      copy->length, from, to);
    }
  }
  return MPS_STATUS_OK;
}

mps_status mps_queue_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                          uint64_t target_offset, uint64_t length) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  const mps_copy copy = {.struct_size = sizeof copy,
                         .source = source,
                         .source_offset = source_offset,
                         .target = target,
                         .target_offset = target_offset,
                         .length = length};
  MPS_TRY(mps_copy_check(queue->device, &copy));
  if (length == 0) {
    return MPS_STATUS_OK;
  }
  return mps_after_encoding(
      queue, queue->device->backend->encode_copy(queue, source, source_offset, target, target_offset, length));
}

mps_status mps_fill_check(const mps_device *device, const mps_fill *fill) {
  const char *function = "mps_queue_fill";
  MPS_TRY(mps_object_check(fill->buffer, MPS_KIND_BUFFER, function));
  MPS_TRY(mps_check_same_device(function, device, "buffer", fill->buffer->device));
  return mps_check_range(function, "buffer", fill->buffer, fill->offset, fill->length);
}

mps_status mps_queue_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  const mps_fill fill = {
      .struct_size = sizeof fill, .buffer = buffer, .offset = offset, .length = length, .value = value};
  MPS_TRY(mps_fill_check(queue->device, &fill));
  if (length == 0) {
    return MPS_STATUS_OK;
  }
  return mps_after_encoding(queue, queue->device->backend->encode_fill(queue, buffer, offset, length, value));
}
