/* What validation has found, in words. */
#include "validate.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static __attribute__((format(printf, 2, 3))) void say(host_fault *fault, const char *format, ...) {
  size_t used = strlen(fault->text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fault->text + used, sizeof fault->text - used, format, arguments);
  va_end(arguments);
}

static void say_place(host_fault *fault, const mslc_site *site) {
  if (site->file == NULL || site->file[0] == '\0') {
    return;
  }
  if (site->line != 0) {
    say(fault, " at %.160s:%u", site->file, site->line);
  } else {
    say(fault, " in '%.160s'", site->file);
  }
}

static const char *argument_name(const mslc_kernel *kernel, const host_extent *extent) {
  unsigned kind = extent->is_shared ? MPS_ARGUMENT_THREADGROUP : MPS_ARGUMENT_BUFFER;
  for (unsigned i = 0; i < kernel->argument_count; i++) {
    if (kernel->arguments[i].kind == kind && kernel->arguments[i].index == (unsigned)extent->slot) {
      return kernel->arguments[i].name;
    }
  }
  return "";
}

static void say_memory(host_fault *fault, const mslc_kernel *kernel, const host_extent *extent) {
  if (extent->slot < 0) {
    say(fault, "threadgroup variable %u of %" PRIu64 " bytes", extent->entry, extent->length);
  } else {
    const char *what = extent->is_shared  ? "threadgroup argument"
                       : extent->in_table ? "a buffer in the table"
                                          : "buffer";
    say(fault, "%s '%.64s' (index %d) of %" PRIu64 " bytes", what, argument_name(kernel, extent), extent->slot,
        extent->length);
  }
}

/* A thread's place, of the grid, and its threadgroup's. */
static void say_thread(host_fault *fault, const mslc_launch *launch, uint64_t group, unsigned thread) {
  const unsigned *groups = launch->groups, *size = launch->group;
  unsigned at[3] = {(unsigned)(group % groups[0]), (unsigned)(group / groups[0] % groups[1]),
                    (unsigned)(group / groups[0] / groups[1])};
  unsigned width[2];
  for (int i = 0; i < 2; i++) {
    unsigned left = launch->grid[i] - at[i] * size[i];
    width[i] = left < size[i] ? left : size[i];
  }
  say(fault, "thread (%u, %u, %u) of threadgroup (%u, %u, %u)", at[0] * size[0] + thread % width[0],
      at[1] * size[1] + thread / width[0] % width[1], at[2] * size[2] + thread / width[0] / width[1], at[0], at[1],
      at[2]);
}

static void say_access(host_fault *fault, const host_error *error) {
  say(fault, "%s %" PRIu64 " bytes", error->writes ? "wrote" : "read", error->length);
  say_place(fault, error->site);
}

static void say_race(host_fault *fault, const host_validator *validator, const host_error *error) {
  const host_stamp *other = &error->other;
  const mslc_site *site = (const mslc_site *)(const void *)((const char *)validator->work->kernel + other->site);
  say(fault, ", which ");
  say_thread(fault, &validator->launch, other->group - (uint64_t)1, other->thread);
  say(fault, " %s", error->other_writes ? "wrote" : "read");
  say_place(fault, site);
  say(fault, other->group == (uint32_t)error->group + 1 ? " with no barrier between" : ": threadgroups have no order");
}

static void say_barrier(host_fault *fault, const host_validator *validator, const host_error *error) {
  const char *what = error->site->flags & MSLC_SITE_LANES ? "simdgroup_barrier" : "threadgroup_barrier";
  say(fault, "waited at the %s", what);
  say_place(fault, error->site);
  say(fault, ", which not all threads reach: ");
  say_thread(fault, &validator->launch, error->group, error->other.thread);
  if (error->other_barrier != NULL) {
    say(fault, " waited at the barrier");
    say_place(fault, error->other_barrier);
  } else {
    say(fault, " had returned");
  }
}

static void say_error(host_fault *fault, const host_validator *validator, const host_error *error) {
  const mslc_kernel *kernel = validator->work->kernel;
  if (error->kind != HOST_ERROR_BARRIER) {
    say_access(fault, error);
  }
  switch (error->kind) {
  case HOST_ERROR_BOUNDS:
    say(fault, ", outside of ");
    say_memory(fault, kernel, error->extent);
    say(fault, ": offset %" PRId64, error->offset);
    break;
  case HOST_ERROR_ADDRESS:
    say(fault, ", at address 0x%" PRIx64 ", which belongs to nothing that the kernel was given",
        (uint64_t)error->offset);
    break;
  case HOST_ERROR_UNSET:
    say(fault, " that no thread has written yet: offset %" PRId64 " in ", error->offset);
    say_memory(fault, kernel, error->extent);
    break;
  case HOST_ERROR_RACE:
    say(fault, ", a data race: offset %" PRId64 " in ", error->offset);
    say_memory(fault, kernel, error->extent);
    say_race(fault, validator, error);
    break;
  case HOST_ERROR_BARRIER:
    say_barrier(fault, validator, error);
    break;
  }
  if (error->has_thread) {
    say(fault, "; ");
    say_thread(fault, &validator->launch, error->group, error->thread);
  }
}

void host_validate_describe(const host_validator *validator, host_fault *fault) {
  fault->text[0] = '\0';
  if (validator->errors == 0) {
    say(fault, "%s", validator->stopped);
    return;
  }
  say_error(fault, validator, &validator->first);
  if (validator->errors > 1) {
    say(fault, "; and %" PRIu64 " more%s", validator->errors - 1, validator->stopped != NULL ? ", then stopped" : "");
  }
}
