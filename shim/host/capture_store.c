#include "capture_store.h"

#include "json.h"
#include "kernel.h"
#include "library.h"
#include "status.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A buffer, and a copy of the contents that were stored last. */
typedef struct stored_buffer {
  mps_buffer *buffer;
  void *last; /* NULL before the first version */
  int64_t version;
} stored_buffer;

struct host_store {
  char *directory;
  FILE *lines;
  _Atomic int error; /* see host_store_error; a stop reads it while a command still runs */
  stored_buffer *buffers;
  size_t buffer_count, buffer_capacity;
  mps_library **libraries;
  size_t library_count, library_capacity;
};

host_store *host_store_new(const char *directory, FILE *lines) {
  host_store *store = calloc(1, sizeof *store);
  if (store) {
    store->lines = lines;
    store->directory = mps_text_copy(directory);
  }
  if (store && !store->directory) {
    free(store);
    return NULL;
  }
  return store;
}

void host_store_free(host_store *store) {
  for (size_t i = 0; i < store->buffer_count; i++) {
    free(store->buffers[i].last);
    mps_buffer_drop(store->buffers[i].buffer);
  }
  for (size_t i = 0; i < store->library_count; i++) {
    mps_library_drop(store->libraries[i]);
  }
  free(store->buffers);
  free(store->libraries);
  free(store->directory);
  free(store);
}

static void note_error(host_store *store, int error) {
  int none = 0;
  atomic_compare_exchange_strong(&store->error, &none, error ? error : EIO);
}

int host_store_error(const host_store *store) {
  return atomic_load(&store->error);
}

void host_store_flush(host_store *store) {
  if (fflush(store->lines) != 0 || ferror(store->lines)) {
    note_error(store, errno);
  }
}

/* Room for one more entry of a list: the list, which may have moved, or NULL. */
static void *grown(host_store *store, void *list, size_t count, size_t *capacity, size_t entry) {
  if (count < *capacity) {
    return list;
  }
  void *more = realloc(list, (*capacity * 2 + 16) * entry);
  if (more) {
    *capacity = *capacity * 2 + 16;
  } else {
    note_error(store, ENOMEM);
  }
  return more;
}

/* A new file, or none if it could not be written to its end. */
static bool write_file(host_store *store, const char *name, const void *data, uint64_t length) {
  char path[PATH_MAX];
  int fits = snprintf(path, sizeof path, "%s/%s", store->directory, name);
  FILE *file = fits < (int)sizeof path ? fopen(path, "wxe") : NULL;
  if (!file) {
    note_error(store, fits < (int)sizeof path ? errno : ENAMETOOLONG);
    return false;
  }
  bool is_written = fwrite(data, 1, length, file) == length;
  int error = errno;
  if (fclose(file) != 0 && is_written) {
    is_written = false;
    error = errno;
  }
  if (!is_written) {
    note_error(store, error);
    unlink(path);
  }
  return is_written;
}

/* ---- buffers ---- */

static stored_buffer *find_buffer(host_store *store, mps_buffer *buffer) {
  for (size_t i = store->buffer_count; i-- > 0;) { /* the latest are used most */
    if (store->buffers[i].buffer == buffer) {
      return &store->buffers[i];
    }
  }
  stored_buffer *list =
      grown(store, store->buffers, store->buffer_count, &store->buffer_capacity, sizeof *store->buffers);
  if (!list) {
    return NULL;
  }
  store->buffers = list;
  mps_buffer_hold(buffer);
  stored_buffer *found = &list[store->buffer_count++];
  *found = (stored_buffer){.buffer = buffer};
  flockfile(store->lines); /* no signpost in the middle of a line */
  fprintf(store->lines,
          "{\"buffer\": %zu, \"length\": %" PRIu64 ", \"storage\": \"%s\", \"label\": ", store->buffer_count,
          buffer->length, buffer->storage_mode == MPS_STORAGE_PRIVATE ? "private" : "shared");
  host_json_text(store->lines, buffer->label);
  fputs("}\n", store->lines);
  funlockfile(store->lines);
  return found;
}

uint64_t host_store_buffer(host_store *store, mps_buffer *buffer) {
  const stored_buffer *found = find_buffer(store, buffer);
  return found ? (uint64_t)(found - store->buffers) + 1 : 0;
}

enum { FROM, TO, LENGTH, SAME };

/* Compares, and copies what differs. As a kernel of our own, since memory that was taken over without a copy may be
 * gone: that is a failure of the command, not of the capture. */
static void run_look(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first, (void)last;
  uint64_t length = (uintptr_t)launch->buffers[LENGTH];
  bool *same = launch->buffers[SAME];
  if (*same && memcmp(launch->buffers[TO], launch->buffers[FROM], length) == 0) {
    return;
  }
  *same = false;
  memcpy(launch->buffers[TO], launch->buffers[FROM], length);
}

static const mslc_kernel look = {.name = "capture", .run = run_look, .flags = MSLC_KERNEL_BOUNDED};

int64_t host_store_contents(host_store *store, mps_buffer *buffer) {
  stored_buffer *stored = find_buffer(store, buffer);
  if (!stored) {
    return -1;
  }
  bool same = stored->last != NULL;
  void *last = same ? stored->last : malloc(buffer->length);
  if (!last) {
    note_error(store, ENOMEM);
    return -1;
  }
  mslc_launch launch = {0};
  launch.buffers[FROM] = (void *)(uintptr_t)buffer->gpu_address;
  launch.buffers[TO] = last;
  launch.buffers[LENGTH] = (void *)(uintptr_t)buffer->length;
  launch.buffers[SAME] = &same;
  host_fault fault;
  bool was_read = host_kernel_run(&look, &launch, 0, 1, &fault);
  if (was_read && same) {
    return stored->version;
  }
  char name[64];
  snprintf(name, sizeof name, "buffers/%zu-%" PRId64 ".bin", (size_t)(stored - store->buffers) + 1,
           stored->version + 1);
  if (!was_read || !write_file(store, name, last, buffer->length)) {
    free(last); /* what it holds is no stored version any more */
    stored->last = NULL;
    return -1;
  }
  stored->last = last;
  return ++stored->version;
}

/* ---- libraries ---- */

static void write_library_line(const host_store *store, const host_library *own, const char *name) {
  const mps_compile_options *options = &own->options;
  fprintf(store->lines, "{\"library\": %zu, \"file\": ", store->library_count);
  host_json_text(store->lines, name);
  fprintf(store->lines, ", \"language_version\": [%u, %u], \"math_mode\": %u, \"flags\": %u, \"defines\": ",
          options->language_version >> 16, options->language_version & 0xffff, options->math_mode, options->flags);
  host_json_texts(store->lines, options->defines, options->define_count);
  fputs(", \"include_dirs\": ", store->lines);
  host_json_texts(store->lines, options->include_dirs, options->include_dir_count);
  fputs("}\n", store->lines);
}

static const char *suffix_of(const host_library *own) {
  return own->image ? "kernels" : host_is_metallib(own->source, own->source_length) ? "metallib" : "metal";
}

uint64_t host_store_library(host_store *store, mps_library *library) {
  for (size_t i = 0; i < store->library_count; i++) {
    if (store->libraries[i] == library) {
      return i + 1;
    }
  }
  mps_library **list =
      grown(store, store->libraries, store->library_count, &store->library_capacity, sizeof *store->libraries);
  if (!list) {
    return 0;
  }
  store->libraries = list;
  const host_library *own = library->impl;
  char name[64];
  snprintf(name, sizeof name, "libraries/%zu.%s", store->library_count + 1, suffix_of(own));
  if (!write_file(store, name, own->source, own->source_length)) {
    return 0;
  }
  mps_library_hold(library);
  list[store->library_count++] = library;
  write_library_line(store, own, name);
  return store->library_count;
}
