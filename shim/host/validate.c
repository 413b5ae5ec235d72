#include "validate.h"

#include "fiber.h"
#include "resources.h"

#include <stdlib.h>
#include <string.h>
#if defined(__ELF__)
#include <link.h>
#endif

/* A pointer: a bit that no address has, the number of what it was made from, and the way from its start. */
#define POINTER_BIT (UINT64_C(1) << 62)
#define EXTENT_SHIFT 42
#define EXTENT_START (UINT64_C(1) << (EXTENT_SHIFT - 1))
#define EXTENT_MOST (UINT64_C(1) << (62 - EXTENT_SHIFT))
/* Extents are numbered by multiples of this, and found by what undoes it: an index that is wrong by far seldom meets
 * another one. */
#define EXTENT_MIX UINT64_C(0x9e375)
#define EXTENT_UNMIX UINT64_C(0xb94dd)
#define ARENA_EXTENT MSLC_BUFFER_SLOTS /* all threadgroup memory; those behind it are reached through tables */

/* Threadgroup memory is split once more. */
#define PLACE_SHIFT 20
#define PLACE_MOST 4096u

/* After so many errors a loop that waits for what its reads do not find would never end. */
#define ERRORS_MOST 100000u

static uint64_t pointer_to(uint64_t extent) {
  return POINTER_BIT | (extent * EXTENT_MIX & (EXTENT_MOST - 1)) << EXTENT_SHIFT | EXTENT_START;
}

uint64_t host_validate_place(uint64_t number) {
  return (number + 1) << PLACE_SHIFT;
}

/* ---- what there is ---- */

static uint64_t slots_of(const mslc_kernel *kernel) {
  return (uint64_t)(kernel->slots_end - kernel->slots);
}

static bool make_extents(host_validator *validator) {
  const host_work *work = validator->work;
  uint64_t buffers = MSLC_BUFFER_SLOTS + 1;
  for (int slot = 0; slot < MSLC_BUFFER_SLOTS; slot++) {
    buffers += work->bounds->table_entries[slot];
  }
  uint64_t shared = 1 + slots_of(work->kernel) + MSLC_BUFFER_SLOTS;
  if (buffers > EXTENT_MOST || shared > PLACE_MOST) {
    validator->stopped = "could not start: validation has no room for so many buffers or threadgroup variables";
    return false;
  }
  validator->buffers = calloc(buffers, sizeof *validator->buffers);
  validator->shared = calloc(shared, sizeof *validator->shared);
  validator->buffer_count = buffers;
  validator->shared_count = shared;
  validator->stopped = "could not start: there is no memory for its validation";
  return validator->buffers != NULL && validator->shared != NULL;
}

static void place_table(host_validator *validator, int slot, uint64_t *used) {
  const host_bounds *bounds = validator->work->bounds;
  uint64_t *table = validator->work->launch.buffers[slot];
  for (unsigned entry = 0; entry < bounds->table_entries[slot]; entry++) {
    if (table[entry] != 0) {
      validator->buffers[*used] =
          (host_extent){(char *)(uintptr_t)table[entry], bounds->tables[slot][entry], slot, entry, true, false};
      table[entry] = pointer_to((*used)++);
    }
  }
}

/* What a slot's pointer is made from: the same as that of an earlier slot with the same memory, since kernels compare
 * pointers to see whether they were given one buffer twice. */
static uint64_t extent_of(const host_validator *validator, int slot) {
  const host_extent *own = &validator->buffers[slot];
  for (int other = 0; other < slot; other++) {
    if (validator->buffers[other].memory == own->memory && validator->buffers[other].length == own->length) {
      return (uint64_t)other;
    }
  }
  return (uint64_t)slot;
}

static void place_buffers(host_validator *validator) {
  uint64_t used = ARENA_EXTENT + 1;
  for (int slot = 0; slot < MSLC_BUFFER_SLOTS; slot++) {
    char *memory = validator->work->launch.buffers[slot];
    uint64_t length = validator->work->bounds->buffers[slot];
    validator->buffers[slot] = (host_extent){memory, length, slot, 0, false, false};
    validator->launch.buffers[slot] = memory != NULL ? (void *)(uintptr_t)pointer_to(extent_of(validator, slot)) : NULL;
    place_table(validator, slot, &used);
  }
}

/* As place_slots of pipeline.c and bind_arguments of work.c lay it out. */
static void place_shared(host_validator *validator) {
  const mslc_kernel *kernel = validator->work->kernel;
  uint64_t bytes = 0;
  host_extent *extent = validator->shared + 1;
  for (unsigned number = 0; number < slots_of(kernel); number++) {
    const mslc_threadgroup_slot *slot = &kernel->slots[number];
    uint64_t align = slot->align != 0 ? slot->align : 1;
    bytes = (bytes + align - 1) / align * align;
    *extent++ = (host_extent){validator->arena + bytes, slot->size, -1, number, false, true};
    bytes += slot->size;
  }
  for (int slot = 0; slot < MSLC_BUFFER_SLOTS; slot++, extent++) {
    uint32_t length = validator->work->bounds->threadgroup[slot]; /* 0 if it has none */
    *extent = (host_extent){
        validator->arena + validator->work->launch.threadgroup_offset[slot], length, slot, 0, false, true};
    validator->launch.threadgroup_offset[slot] = (unsigned)(extent - validator->shared) << PLACE_SHIFT;
  }
}

#if defined(__ELF__)

static int find_object(struct dl_phdr_info *info, size_t size, void *user) {
  (void)size;
  host_validator *validator = user;
  const char *inside = (const char *)validator->work->kernel;
  uintptr_t start = UINTPTR_MAX, end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type == PT_LOAD) {
      uintptr_t first = (uintptr_t)(info->dlpi_addr + segment->p_vaddr);
      start = first < start ? first : start;
      end = first + segment->p_memsz > end ? first + segment->p_memsz : end;
    }
  }
  if ((uintptr_t)inside < start || (uintptr_t)inside >= end) {
    return 0;
  }
  validator->library = (const char *)start;
  validator->library_end = (const char *)end;
  return 1;
}

static void find_library(host_validator *validator) {
  dl_iterate_phdr(find_object, validator);
}

#else

/* Where a library ends is not known: all addresses pass as its own. */
static void find_library(host_validator *validator) {
  validator->library = NULL;
  validator->library_end = (const char *)(uintptr_t)POINTER_BIT;
}

#endif

/* ---- checking an access ---- */

/* What an access is to. */
typedef struct target {
  const host_extent *extent;
  int64_t offset;
} target;

static HOST_ON_FIBER target find_target(const host_validator *validator, uint64_t pointer) {
  uint64_t number = ((pointer & (POINTER_BIT - 1)) >> EXTENT_SHIFT) * EXTENT_UNMIX & (EXTENT_MOST - 1);
  int64_t offset = (int64_t)(pointer & ((UINT64_C(1) << EXTENT_SHIFT) - 1)) - (int64_t)EXTENT_START;
  if (number == ARENA_EXTENT) {
    const int64_t half = 1 << (PLACE_SHIFT - 1);
    int64_t place = (offset + half) >> PLACE_SHIFT;
    bool is_known = place > 0 && (uint64_t)place < validator->shared_count;
    return (target){is_known ? &validator->shared[place] : &validator->shared[0],
                    is_known ? offset - (place << PLACE_SHIFT) : offset};
  }
  return number < validator->buffer_count ? (target){&validator->buffers[number], offset} : (target){NULL, 0};
}

static HOST_ON_FIBER _Noreturn void stop(host_worker *worker, const char *why) {
  worker->validator->stopped = why;
  worker->trap = (host_trap){.stop = HOST_STOP_VALIDATOR};
  host_fiber_resume(worker->recover);
}

static HOST_ON_FIBER unsigned thread_of(const host_worker *worker) {
  return worker->group->first + worker->lane;
}

static HOST_ON_FIBER host_error error_at(host_error_kind kind, const mslc_site *site, bool writes, uint64_t length,
                                         target at) {
  return (host_error){
      .kind = kind, .site = site, .writes = writes, .length = length, .extent = at.extent, .offset = at.offset};
}

HOST_ON_FIBER void host_validate_add(host_worker *worker, unsigned thread, host_error error) {
  host_validator *validator = worker->validator;
  if (validator->errors++ == 0) {
    error.group = validator->group;
    error.has_thread = worker->live != 0;
    error.thread = thread;
    validator->first = error;
  }
  validator->group_failed = true;
  if (validator->errors >= ERRORS_MOST) {
    stop(worker, "");
  }
}

static HOST_ON_FIBER void add_error(host_worker *worker, host_error error) {
  host_validate_add(worker, worker->live != 0 ? thread_of(worker) : 0, error);
}

/* Threadgroup memory: has any byte that is read been written? Padding is copied with what it pads. */
static HOST_ON_FIBER bool is_set(const host_validator *validator, const char *place, uint64_t length) {
  const unsigned char *flags = validator->is_set + (place - validator->arena);
  for (uint64_t i = 0; i < length; i++) {
    if (flags[i]) {
      return true;
    }
  }
  return length == 0;
}

static HOST_ON_FIBER void note_races(host_worker *worker, const mslc_site *site, unsigned flags, target at,
                                     uint64_t length) {
  host_validator *validator = worker->validator;
  bool is_shared = at.extent->is_shared;
  unsigned thread = thread_of(worker);
  if ((flags & MSLC_SITE_ATOMIC) && (flags & MSLC_SITE_READ) && !is_shared) {
    validator->group_acquired = true;
  }
  if (flags & MSLC_SITE_ACQUIRE) {
    validator->acquired[thread] = worker->barriers + 1;
  }
  host_access access = {
      .stamp = {.group = (uint32_t)validator->group + 1,
                .barriers = worker->barriers,
                .collectives = worker->group->collectives,
                .site = (int32_t)((intptr_t)site - (intptr_t)validator->work->kernel),
                .thread = (uint16_t)thread,
                .is_atomic = flags & MSLC_SITE_ATOMIC},
      .writes = flags & MSLC_SITE_WRITE,
      .is_shared = is_shared,
      .trusts_groups = validator->group_acquired,
      .trusts_threads = validator->acquired[thread] == worker->barriers + 1,
  };
  uintptr_t start = (uintptr_t)(at.extent->memory + at.offset), end = start + length;
  bool raced = false;
  for (uintptr_t cell = start & ~(uintptr_t)3; cell < end; cell += 4) {
    unsigned first = cell < start ? (unsigned)(start - cell) : 0;
    unsigned last = end - cell < 4 ? (unsigned)(end - cell) : 4;
    access.stamp.bytes = (uint8_t)((1u << last) - (1u << first));
    host_cell *known = host_shadow_cell(&validator->shadow, cell);
    if (known == NULL) {
      stop(worker, "was stopped: there is no memory for its validation, which needs some 16 times that of the buffers "
                   "it touches");
    }
    host_error error = error_at(HOST_ERROR_RACE, site, access.writes, length, at);
    if (host_shadow_note(known, &access, &error.other, &error.other_writes) && !raced) {
      raced = true;
      add_error(worker, error);
    }
  }
}

static HOST_ON_FIBER void note_shared(host_worker *worker, const mslc_site *site, unsigned flags, target at,
                                      uint64_t length) {
  host_validator *validator = worker->validator;
  char *place = at.extent->memory + at.offset;
  if ((flags & MSLC_SITE_READ) && !is_set(validator, place, length) && !validator->group_failed) {
    add_error(worker, error_at(HOST_ERROR_UNSET, site, false, length, at));
  }
  if (flags & MSLC_SITE_WRITE) {
    memset(validator->is_set + (place - validator->arena), 1, length);
  }
}

/* The library itself, where its constants are, and the stacks of threads. */
static HOST_ON_FIBER bool is_own(const host_worker *worker, uintptr_t address, uint64_t length) {
  const host_validator *validator = worker->validator;
  uintptr_t in_library = address - (uintptr_t)validator->library;
  uintptr_t library = (uintptr_t)(validator->library_end - validator->library);
  uintptr_t in_stacks = address - (uintptr_t)worker->stacks;
  uintptr_t stacks = MSLC_MAX_GROUP_THREADS * HOST_FIBER_STACK;
  return (in_library < library && length <= library - in_library) ||
         (in_stacks < stacks && length <= stacks - in_stacks);
}

/* The address that a pointer stands for; NULL if the access must not be. */
static HOST_ON_FIBER void *resolve(const void *pointer, uint64_t length, unsigned flags, const mslc_site *site) {
  host_worker *worker = host_self;
  uint64_t value = (uint64_t)(uintptr_t)pointer;
  bool writes = flags & MSLC_SITE_WRITE;
  if (worker->validator == NULL || length == 0) {
    return (void *)(uintptr_t)pointer;
  }
  if (!(value & POINTER_BIT)) {
    /* Code that is not the user's runs on the worker's stack too, and reads what the launch is made of. */
    if (site->file == NULL || is_own(worker, (uintptr_t)value, length)) {
      return (void *)(uintptr_t)pointer;
    }
    add_error(worker, error_at(HOST_ERROR_ADDRESS, site, writes, length, (target){NULL, (int64_t)value}));
    return NULL;
  }
  target at = find_target(worker->validator, value);
  if (at.extent == NULL) {
    add_error(worker, error_at(HOST_ERROR_ADDRESS, site, writes, length, (target){NULL, (int64_t)value}));
    return NULL;
  }
  if (at.offset < 0 || length > at.extent->length || (uint64_t)at.offset > at.extent->length - length) {
    add_error(worker, error_at(HOST_ERROR_BOUNDS, site, writes, length, at));
    return NULL;
  }
  if (at.extent->is_shared) {
    note_shared(worker, site, flags, at, length);
  }
  if (worker->live != 0) {
    note_races(worker, site, flags, at, length);
  }
  return at.extent->memory + at.offset;
}

HOST_ON_FIBER void *host_validate_check(void *pointer, const mslc_site *site) {
  void *place = resolve(pointer, site->size, site->flags, site);
  if (place != NULL) {
    return place;
  }
  host_validator *validator = host_self->validator;
  if (site->size > sizeof validator->harmless) {
    stop(host_self, "");
  }
  memset(validator->harmless, 0, site->size);
  return validator->harmless;
}

HOST_ON_FIBER void host_validate_copy(void *target, const void *source, unsigned long length, const mslc_site *site) {
  const void *from = resolve(source, length, MSLC_SITE_READ, site);
  void *to = resolve(target, length, MSLC_SITE_WRITE, site);
  if (to != NULL && from != NULL) {
    memmove(to, from, length);
  } else if (to != NULL) {
    memset(to, 0, length);
  }
}

HOST_ON_FIBER void host_validate_fill(void *target, unsigned char value, unsigned long length, const mslc_site *site) {
  void *to = resolve(target, length, MSLC_SITE_WRITE, site);
  if (to != NULL) {
    memset(to, value, length);
  }
}

/* ---- running ---- */

static void begin_group(host_validator *validator, uint64_t number) {
  validator->group = number;
  validator->group_failed = validator->group_acquired = validator->group_returned = false;
  memset(validator->barriers, 0, sizeof validator->barriers);
  memset(validator->acquired, 0, sizeof validator->acquired);
  memset(validator->is_set, 0, sizeof validator->is_set);
}

/* false and `fault` if the kernel was left by a fault of the processor. */
static bool run_groups(host_validator *validator, host_fault *fault) {
  const host_work *work = validator->work;
  for (uint64_t number = 0; number < work->groups; number++) {
    begin_group(validator, number);
    if (!host_kernel_run(work->kernel, &validator->launch, number, number + 1, fault)) {
      return validator->stopped != NULL;
    }
  }
  return true;
}

static bool run(host_validator *validator, host_worker *worker, host_fault *fault) {
  validator->arena = worker->arena;
  place_buffers(validator);
  place_shared(validator);
  find_library(validator);
  host_shadow_open(&validator->shadow, host_limits_memory() / 2);
  validator->stopped = NULL;
  worker->arena = (char *)(uintptr_t)pointer_to(ARENA_EXTENT);
  worker->validator = validator;
  bool whole = run_groups(validator, fault);
  worker->validator = NULL;
  worker->arena = validator->arena;
  host_shadow_close(&validator->shadow);
  return whole;
}

bool host_validate_run(const host_work *work, host_fault *fault) {
  host_worker *worker = host_worker_open();
  host_validator *validator = calloc(1, sizeof *validator);
  if (worker == NULL || validator == NULL) {
    free(validator);
    *fault = (host_fault){"could not start: there is no memory for its validation"};
    return false;
  }
  validator->work = work;
  validator->launch = work->launch;
  bool whole = !make_extents(validator) || run(validator, worker, fault);
  bool failed = !whole || validator->errors != 0 || validator->stopped != NULL;
  if (validator->errors != 0 || validator->stopped != NULL) {
    host_validate_describe(validator, fault);
  }
  free(validator->buffers);
  free(validator->shared);
  free(validator);
  return !failed;
}
