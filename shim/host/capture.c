#include "capture.h"

#include "capture_call.h"
#include "capture_store.h"
#include "clock.h"
#include "compiler.h"
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT 1
#define FILE_NAME "commands.jsonl"
#define README "README.txt"
#define PART_MAX (PATH_MAX + 64)

typedef struct capture {
  uint32_t references; /* under `lock`: one while it runs, one for each command that is captured or waits for that */
  bool is_taken;     /* under `lock`: captured commands run one at a time, so that nobody writes what is being stored */
  mps_queue *only;   /* the queue that is captured, held; NULL for all */
  uint64_t commands; /* of whose turn it is, as what is in the store */
  host_store *store;
  FILE *file; /* closed with the capture */
} capture;

_Atomic bool host_capture_running;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER; /* a capture is not taken any more, or stopped */
static capture *current;                               /* NULL when none runs */
static char directory[PATH_MAX];

bool host_capture_supported(mps_device *device) {
  (void)device;
  return true;
}

bool host_capture_active(mps_device *device) {
  (void)device;
  return host_capture_is_on();
}

static mps_status io_error(const char *what, const char *path, int error) {
  return mps_fail(MPS_STATUS_IO, "cannot %s '%s': %s", what, path, strerror(error));
}

/* ---- the document ---- */

/* Path of a part of the document. */
static const char *part(char path[PART_MAX], const char *name) {
  snprintf(path, PART_MAX, "%s/%s", directory, name);
  return path;
}

static void remove_document(void) {
  static const char *const folders[] = {"buffers", "libraries"};
  char path[PART_MAX];
  unlink(part(path, FILE_NAME));
  unlink(part(path, README));
  for (int i = 0; i < 2; i++) {
    rmdir(part(path, folders[i]));
  }
  rmdir(directory);
}

/* For whoever is sent the document and has never seen one. */
static bool write_readme(void) {
  char path[PART_MAX];
  FILE *file = fopen(part(path, README), "wxe");
  if (!file) {
    return false;
  }
  fprintf(
      file,
      "Commands that a device was given to do, captured by mpscffi %s: each with its kernel and its buffers.\n\n"
      "  mpscffi replay --list DIRECTORY                      what there is\n"
      "  mpscffi replay DIRECTORY                             run each command again and compare\n"
      "  mpscffi replay --cut NUMBER -o OTHER.gputrace DIRECTORY   one command as a capture of its own\n\n"
      "commands.jsonl lists them, a JSON object on each line; libraries/ has the kernels; buffers/B-V.bin is version "
      "V of buffer B.\n",
      mps_version());
  return fclose(file) == 0;
}

/* The directories and the open list of commands, or NULL with the error told. */
static FILE *make_document(const char *path, mps_status *status) {
  if (strlen(path) + 64 > sizeof directory) {
    *status = io_error("make the capture", path, ENAMETOOLONG);
    return NULL;
  }
  snprintf(directory, sizeof directory, "%s", path);
  char buffers[PART_MAX], libraries[PART_MAX], list[PART_MAX];
  if (mkdir(path, 0777) != 0) {
    *status = io_error("make the capture", path, errno);
    return NULL;
  }
  FILE *file = NULL;
  if (!write_readme() || mkdir(part(buffers, "buffers"), 0777) != 0 || mkdir(part(libraries, "libraries"), 0777) != 0 ||
      !(file = fopen(part(list, FILE_NAME), "wxe"))) {
    *status = io_error("write the capture", path, errno);
    remove_document();
  }
  return file;
}

static void free_capture(capture *gone) {
  if (gone->store) {
    host_store_free(gone->store);
  }
  if (gone->only) {
    mps_queue_drop(gone->only);
  }
  fclose(gone->file);
  free(gone);
}

/* With the lock held. */
static mps_status open_capture(mps_device *device, const mps_capture_desc *desc) {
  mps_status status = MPS_STATUS_OK;
  FILE *file = make_document(desc->path, &status);
  if (!file) {
    return status;
  }
  capture *opened = calloc(1, sizeof *opened);
  host_store *store = opened ? host_store_new(directory, file) : NULL;
  if (!store) {
    free(opened);
    fclose(file);
    remove_document();
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a capture");
  }
  opened->references = 1;
  opened->store = store;
  opened->file = file;
  opened->only = desc->queue;
  if (opened->only) {
    mps_queue_hold(opened->only);
  }
  fprintf(file, "{\"capture\": %d, \"version\": \"%s\", \"device\": ", FORMAT, mps_version());
  host_json_text(file, device->info.name);
  fprintf(file, ", \"start\": %" PRIu64 "}\n", mps_now());
  host_store_flush(store);
  current = opened;
  atomic_store(&host_capture_running, true);
  return MPS_STATUS_OK;
}

mps_status host_capture_start(mps_device *device, const mps_capture_desc *desc) {
  pthread_mutex_lock(&lock);
  mps_status status = current ? mps_fail(MPS_STATUS_INVALID_STATE,
                                         "a capture to '%s' is running: stop it before starting another", directory)
                              : open_capture(device, desc);
  pthread_mutex_unlock(&lock);
  return status;
}

static void drop(capture *used, bool had_turn) {
  pthread_mutex_lock(&lock);
  if (had_turn) {
    used->is_taken = false;
    pthread_cond_broadcast(&turn);
  }
  bool last = --used->references == 0;
  pthread_mutex_unlock(&lock);
  if (last) {
    free_capture(used);
  }
}

/* What still runs keeps the capture, and writes its line when it is done: a kernel that never ends must not make a stop
 * hang, nor those that wait for their turn behind it. */
mps_status host_capture_stop(mps_device *device) {
  (void)device;
  pthread_mutex_lock(&lock);
  capture *closing = current;
  atomic_store(&host_capture_running, false);
  current = NULL;
  pthread_cond_broadcast(&turn);
  mps_status status = MPS_STATUS_OK;
  if (!closing) {
    status = mps_fail(MPS_STATUS_INVALID_STATE, "no capture is running");
  } else {
    fprintf(closing->file, "{\"stop\": %" PRIu64 "}\n", mps_now());
    host_store_flush(closing->store);
    int error = host_store_error(closing->store);
    if (error) {
      status = io_error("write all of the capture", directory, error);
    }
  }
  pthread_mutex_unlock(&lock);
  if (closing) {
    drop(closing, false);
  }
  return status;
}

/* ---- commands ---- */

/* The capture that wants work of a queue, kept until it is dropped, once the turn has come; NULL if none does, or if it
 * was stopped meanwhile. */
static capture *take_turn(const void *queue) {
  pthread_mutex_lock(&lock);
  capture *found = current && (!current->only || current->only->impl == queue) ? current : NULL;
  bool has_turn = false;
  if (found) {
    found->references++;
    while (current == found && found->is_taken) {
      pthread_cond_wait(&turn, &lock);
    }
    has_turn = current == found;
    found->is_taken |= has_turn;
  }
  pthread_mutex_unlock(&lock);
  if (found && !has_turn) {
    drop(found, false);
    return NULL;
  }
  return found;
}

static void write_place(capture *to, const char *key, mps_buffer *buffer, uint64_t offset) {
  fprintf(to->file, "\"%s\": %" PRIu64 ", \"offset\": %" PRIu64, key, host_store_buffer(to->store, buffer), offset);
}

static void write_addresses(capture *to, const mps_argument *argument) {
  const mps_address *addresses = argument->data;
  fputs("\"addresses\": [", to->file);
  for (uint64_t i = 0; i < argument->length; i++) {
    fputs(i ? ", " : "", to->file);
    if (addresses[i].buffer) {
      fputc('{', to->file);
      write_place(to, "buffer", addresses[i].buffer, addresses[i].offset);
      fprintf(to->file, ", \"length\": %" PRIu64 "}", addresses[i].length);
    } else {
      fputs("null", to->file);
    }
  }
  fputc(']', to->file);
}

static void write_argument(capture *to, const mps_argument *argument) {
  fprintf(to->file, "{\"slot\": %u, ", argument->index);
  switch ((mps_argument_kind)argument->kind) {
  case MPS_ARGUMENT_BUFFER:
    write_place(to, "buffer", argument->buffer, argument->offset);
    fprintf(to->file, ", \"length\": %" PRIu64, argument->length);
    break;
  case MPS_ARGUMENT_BYTES:
    fputs("\"bytes\": ", to->file);
    host_json_bytes(to->file, argument->data, argument->length);
    break;
  case MPS_ARGUMENT_THREADGROUP:
    fprintf(to->file, "\"threadgroup\": %" PRIu64, argument->length);
    break;
  case MPS_ARGUMENT_ADDRESSES:
    write_addresses(to, argument);
    break;
  }
  fputc('}', to->file);
}

static void write_constants(capture *to, const host_kernel *kernel) {
  fputs(", \"constants\": [", to->file);
  for (uint32_t i = 0; i < kernel->constant_count; i++) {
    const mps_constant_value *constant = &kernel->constants[i];
    fprintf(to->file, "%s{\"index\": %u, \"data_type\": %u, \"bytes\": ", i ? ", " : "", constant->index,
            constant->data_type);
    host_json_bytes(to->file, constant->value, host_constant_size(constant->data_type));
    fputc('}', to->file);
  }
  fputc(']', to->file);
}

static void write_dispatch(capture *to, const host_call *call) {
  const mps_pipeline *pipeline = call->pipeline;
  fputs(", \"kind\": \"dispatch\", \"kernel\": ", to->file);
  host_json_text(to->file, pipeline->kernel);
  fputs(", \"label\": ", to->file);
  host_json_text(to->file, pipeline->label);
  fprintf(to->file, ", \"library\": %" PRIu64, host_store_library(to->store, pipeline->library));
  write_constants(to, pipeline->impl);
  fputs(", \"grid\": ", to->file);
  host_json_size(to->file, call->grid);
  fputs(", \"group\": ", to->file);
  host_json_size(to->file, call->group);
  fputs(", \"arguments\": [", to->file);
  for (uint32_t i = 0; i < call->argument_count; i++) {
    fputs(i ? ", " : "", to->file);
    write_argument(to, &call->arguments[i]);
  }
  fputc(']', to->file);
}

static void write_range(capture *to, const char *name, const mps_argument *range) {
  fprintf(to->file, ", \"%s\": {", name);
  write_place(to, "buffer", range->buffer, range->offset);
  fputc('}', to->file);
}

static void write_matmul(capture *to, const host_call *call) {
  static const char *const names[] = {"left", "right", "result"};
  const mps_matmul *matmul = &call->matmul;
  const mps_matrix *matrices[] = {&matmul->left, &matmul->right, &matmul->result};
  fprintf(to->file, ", \"kind\": \"matmul\", \"data_type\": %u, \"count\": %" PRIu64, matmul->data_type, matmul->count);
  for (int i = 0; i < 3; i++) {
    const mps_matrix *matrix = matrices[i];
    fprintf(to->file, ", \"%s\": {", names[i]);
    write_place(to, "buffer", matrix->buffer, matrix->offset);
    fprintf(to->file,
            ", \"rows\": %" PRIu64 ", \"columns\": %" PRIu64 ", \"row_bytes\": %" PRIu64 ", \"matrix_bytes\": %" PRIu64
            ", \"transposed\": %u}",
            matrix->rows, matrix->columns, matrix->row_bytes, matrix->matrix_bytes, matrix->transposed);
  }
}

static void write_call(capture *to, const host_call *call) {
  switch (call->kind) {
  case HOST_CALL_DISPATCH:
    write_dispatch(to, call);
    break;
  case HOST_CALL_COPY:
    fprintf(to->file, ", \"kind\": \"copy\", \"length\": %" PRIu64, call->length);
    write_range(to, "source", &call->arguments[0]);
    write_range(to, "target", &call->arguments[1]);
    break;
  case HOST_CALL_FILL:
    fprintf(to->file, ", \"kind\": \"fill\", \"length\": %" PRIu64 ", \"value\": %u", call->length, call->value);
    write_range(to, "target", &call->arguments[0]);
    break;
  case HOST_CALL_MATMUL:
    write_matmul(to, call);
    break;
  }
  fputs(", \"buffers\": [", to->file);
  for (uint32_t i = 0; i < call->buffer_count; i++) {
    const host_call_buffer *use = &call->buffers[i];
    fprintf(to->file, "%s{\"buffer\": %" PRIu64 ", \"before\": %" PRId64 ", \"after\": %" PRId64 "}", i ? ", " : "",
            host_store_buffer(to->store, use->buffer), use->before, use->after);
  }
  fputc(']', to->file);
}

/* What a line speaks of gets its own line first: numbers are given out here. */
static void introduce(capture *to, const host_call *call) {
  for (uint32_t i = 0; i < call->buffer_count; i++) {
    host_store_buffer(to->store, call->buffers[i].buffer);
  }
  if (call->pipeline) {
    host_store_library(to->store, call->pipeline->library);
  }
}

static void store_contents(capture *to, host_call *call, bool after) {
  for (uint32_t i = 0; call && i < call->buffer_count; i++) {
    host_call_buffer *use = &call->buffers[i];
    *(after ? &use->after : &use->before) = host_store_contents(to->store, use->buffer);
  }
}

bool host_capture_begin(host_capturing *capturing, const void *queue, host_call *call) {
  capture *to = host_capture_is_on() ? take_turn(queue) : NULL;
  if (!to) {
    return false;
  }
  store_contents(to, call, false);
  *capturing = (host_capturing){.to = to, .call = call, .start = mps_now()};
  return true;
}

void host_capture_end(host_capturing *capturing, const char *label, const char *what, const char *failure) {
  uint64_t end = mps_now();
  capture *to = capturing->to;
  host_call *call = capturing->call;
  store_contents(to, call, true);
  flockfile(to->file); /* no signpost in the middle of a line */
  if (call) {
    introduce(to, call);
  }
  fprintf(to->file, "{\"command\": %" PRIu64 ", \"queue\": ", ++to->commands);
  host_json_text(to->file, label);
  fputs(", \"what\": ", to->file);
  host_json_text(to->file, what);
  fprintf(to->file, ", \"start\": %" PRIu64 ", \"end\": %" PRIu64 ", \"failed\": ", capturing->start, end);
  host_json_text(to->file, failure);
  if (call) {
    write_call(to, call);
  }
  fputs("}\n", to->file);
  host_store_flush(to->store);
  funlockfile(to->file);
  drop(to, true);
}

void host_capture_signpost(const char *what, mps_signpost_category category, uint64_t id, const char *message) {
  pthread_mutex_lock(&lock);
  if (current) {
    FILE *file = current->file;
    flockfile(file);
    fprintf(file,
            "{\"signpost\": \"%s\", \"time\": %" PRIu64 ", \"category\": \"%s\", \"id\": %" PRIu64 ", \"message\": ",
            what, mps_now(), (category & MPS_SIGNPOST_INTERVALS) != 0 ? "intervals" : "events", id);
    host_json_text(file, message);
    fputs("}\n", file);
    host_store_flush(current->store);
    funlockfile(file);
  }
  pthread_mutex_unlock(&lock);
}
