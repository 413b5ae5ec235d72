/* Opening kernel libraries, and making pipelines of their kernels. */
#include "expect.h"

#include <dlfcn.h>
#if defined(__ELF__)
#include <elf.h>
#endif
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

static mps_device *device;
static const char *samples; /* path of the kernel library */
static char *bytes;         /* what is in it */
static size_t size;
static char directory[] = "/tmp/mpsshim-test-XXXXXX";

/* ---- files ---- */

static char *read_file(const char *path, size_t *out_size) {
  FILE *file = fopen(path, "rb");
  EXPECT(file != NULL);
  fseek(file, 0, SEEK_END);
  *out_size = (size_t)ftell(file);
  rewind(file);
  char *data = malloc(*out_size);
  EXPECT(data != NULL && fread(data, 1, *out_size, file) == *out_size);
  fclose(file);
  return data;
}

/* A file of the test's directory with these bytes; the path is good until the next call. */
static const char *write_file(const char *name, const void *data, size_t length) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "wb");
  EXPECT(file != NULL);
  EXPECT(fwrite(data, 1, length, file) == length);
  fclose(file);
  return path;
}

/* The library with each `from` changed to `to`, both of `length` bytes. */
static char *changed(const char *from, const char *to, size_t length) {
  char *copy = malloc(size);
  EXPECT(copy != NULL);
  memcpy(copy, bytes, size);
  size_t changes = 0;
  for (size_t at = 0; at + length <= size; at++) {
    if (memcmp(copy + at, from, length) == 0) {
      memcpy(copy + at, to, length);
      changes++;
    }
  }
  EXPECT(changes > 0);
  return copy;
}

/* How many mappings of this process are loaded kernel libraries. */
static unsigned loaded(void) {
  unsigned count = 0;
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    count += strstr(line, "mslc-kernels") != NULL;
  }
  if (maps != NULL) {
    fclose(maps);
  }
  return count;
}

/* ---- opening ---- */

static mps_library *open_samples(void) {
  mps_library *library = NULL;
  EXPECT_OK(mps_library_create_from_file(device, samples, &library));
  return library;
}

static bool has_kernel(mps_library *library, const char *wanted) {
  uint32_t count = 0;
  EXPECT_OK(mps_library_kernel_count(library, &count));
  for (uint32_t number = 0; number < count; number++) {
    const char *name = NULL;
    EXPECT_OK(mps_library_kernel_name(library, number, &name));
    if (strcmp(name, wanted) == 0) {
      return true;
    }
  }
  return false;
}

static mps_pipeline *open_pipeline(mps_library *library, const char *kernel) {
  mps_pipeline *pipeline = NULL;
  EXPECT_OK(mps_pipeline_create(
      library, &(mps_pipeline_desc){.struct_size = sizeof(mps_pipeline_desc), .kernel = kernel}, &pipeline));
  return pipeline;
}

static void names_are_listed(void) {
  mps_library *library = open_samples();
  uint32_t count = 0, constants = 9;
  EXPECT_OK(mps_library_kernel_count(library, &count));
  EXPECT_EQUAL(count, 17);
  EXPECT(has_kernel(library, "reverse") && has_kernel(library, "too_many_buffers") && !has_kernel(library, "revers"));
  EXPECT_OK(mps_library_constant_count(library, &constants));
  EXPECT_EQUAL(constants, 0);
  EXPECT_OK(mps_library_release(library));
}

static void refuse_file(const char *path, mps_status status, const char *text) {
  mps_library *library = NULL;
  expect_status(mps_library_create_from_file(device, path, &library), status, text, __FILE__, __LINE__, path);
  EXPECT(library == NULL);
}

static void refuse_data(const void *data, size_t length, mps_status status, const char *text) {
  mps_library *library = NULL;
  expect_status(mps_library_create_from_data(device, data, length, &library), status, text, __FILE__, __LINE__, text);
  EXPECT(library == NULL);
}

static void other_things_are_refused(void) {
  refuse_file("/nowhere/at.all", MPS_STATUS_NOT_FOUND, "/nowhere/at.all");
  refuse_file(directory, MPS_STATUS_INVALID_ARGUMENT, "is a directory");
  refuse_file(write_file("empty", "", 0), MPS_STATUS_INVALID_ARGUMENT, "is empty");
  refuse_file(write_file("text", "kernel void f() {}\n", 19), MPS_STATUS_INVALID_ARGUMENT, "is no shared object");
  char fifo[256];
  snprintf(fifo, sizeof fifo, "%s/fifo", directory);
  EXPECT_EQUAL(mkfifo(fifo, 0600), 0);
  refuse_file(fifo, MPS_STATUS_INVALID_ARGUMENT, "is no regular file");
  EXPECT_EQUAL(unlink(fifo), 0);
  Dl_info libc;
  EXPECT(dladdr((void *)(uintptr_t)fprintf, &libc) != 0);
  refuse_file(libc.dli_fname, MPS_STATUS_INVALID_ARGUMENT, "without kernels");
}

#if defined(__ELF__)
/* Cut off anywhere, with the header of another machine, of another version: none of it reaches the system's loader. */
static void damage_is_refused(void) {
  for (size_t length = 1; length < size; length += length < 256 ? 1 : 97) {
    refuse_data(bytes, length, MPS_STATUS_INVALID_ARGUMENT, length < 4 ? "is no shared object" : "is cut off");
  }
  char *copy = malloc(size);
  EXPECT(copy != NULL);
  memcpy(copy, bytes, size);
  copy[18] = 8; /* e_machine: MIPS */
  refuse_data(copy, size, MPS_STATUS_INVALID_ARGUMENT, "is made for another processor");
  free(copy);
  copy = changed("mslc\1\0\0\0", "mslc\2\0\0\0", 8);
  refuse_data(copy, size, MPS_STATUS_INVALID_ARGUMENT, "has version 2 of the kernel interface");
  free(copy);
  copy = changed("mslc\1\0\0\0", "clsm\1\0\0\0", 8);
  refuse_data(copy, size, MPS_STATUS_INVALID_ARGUMENT, "another mslc_kernel_library");
  free(copy);
}

/* Where the entries for the system's loader begin in the library. */
static size_t dynamic_section(void) {
  Elf64_Ehdr header;
  memcpy(&header, bytes, sizeof header);
  for (unsigned number = 0; number < header.e_phnum; number++) {
    Elf64_Phdr segment;
    memcpy(&segment, bytes + header.e_phoff + number * sizeof segment, sizeof segment);
    if (segment.p_type == PT_DYNAMIC) {
      return segment.p_offset;
    }
  }
  EXPECT(!"a shared object has a dynamic section");
  return 0;
}

static void code_that_runs_at_loading_is_refused(void) {
  const int64_t tags[] = {DT_INIT, DT_FINI, DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ, DT_PREINIT_ARRAYSZ};
  for (size_t number = 0; number < sizeof tags / sizeof tags[0]; number++) {
    char *copy = malloc(size);
    EXPECT(copy != NULL);
    memcpy(copy, bytes, size);
    Elf64_Dyn entry = {.d_tag = tags[number], .d_un.d_val = 8};
    memcpy(copy + dynamic_section(), &entry, sizeof entry);
    refuse_data(copy, size, MPS_STATUS_INVALID_ARGUMENT, "has code that runs when it is loaded or unloaded");
    free(copy);
  }
}
#endif

static void files_may_change(void) {
  char path[256];
  snprintf(path, sizeof path, "%s", write_file("kernels.so", bytes, size));
  mps_library *before = NULL, *after = NULL;
  EXPECT_OK(mps_library_create_from_file(device, path, &before));
  char *renamed = changed("\0places", "\0plazas", 7);
  write_file("kernels.so", renamed, size);
  EXPECT_OK(mps_library_create_from_file(device, path, &after));
  EXPECT(has_kernel(before, "places") && !has_kernel(before, "plazas"));
  EXPECT(has_kernel(after, "plazas") && !has_kernel(after, "places"));
  write_file("kernels.so", "", 0);
  mps_pipeline *pipeline = open_pipeline(after, "plazas");
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(before));
  EXPECT_OK(mps_library_release(after));
  free(renamed);
}

/* ---- pipelines ---- */

static void pipelines_know_their_kernel(void) {
  mps_library *library = open_samples();
  mps_pipeline *pipeline = open_pipeline(library, "places");
  mps_pipeline_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_pipeline_get_info(pipeline, &info));
  EXPECT(strcmp(info.kernel, "places") == 0);
  EXPECT_EQUAL(info.max_total_threads_per_threadgroup, 256);
  EXPECT_EQUAL(info.thread_execution_width, 32);
  EXPECT_EQUAL(info.static_threadgroup_memory, 128); /* 4, then 100 at 16, then 1; in units of 16 */
  EXPECT_EQUAL(info.argument_count, 2);
  EXPECT_OK(mps_pipeline_release(pipeline));

  pipeline = open_pipeline(library, "reverse");
  mps_argument_info argument = {.struct_size = sizeof argument};
  EXPECT_OK(mps_pipeline_argument(pipeline, 1, &argument));
  EXPECT(strcmp(argument.name, "in") == 0 && strcmp(argument.type_name, "uint32_t") == 0);
  EXPECT_EQUAL(argument.kind, MPS_ARGUMENT_BUFFER);
  EXPECT_EQUAL(argument.index, 1);
  EXPECT_EQUAL(argument.access, MPS_ACCESS_READ_WRITE);
  EXPECT_EQUAL(argument.data_type, MPS_DATA_UINT | 1 << 8);
  EXPECT_EQUAL(argument.data_size, 4);
  EXPECT_OK(mps_pipeline_argument(pipeline, 2, &argument));
  EXPECT_EQUAL(argument.kind, MPS_ARGUMENT_THREADGROUP);
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

static void pipelines_can_be_refused(void) {
  mps_library *library = open_samples();
  mps_pipeline *pipeline = NULL;
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "nothing"};
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), NOT_FOUND, "nothing");
  desc.kernel = "too_much_memory";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), LIMIT_EXCEEDED, "40000 bytes");
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), LIMIT_EXCEEDED, "32768");
  desc.kernel = "too_many_buffers";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), LIMIT_EXCEEDED, "'thirty_second'");
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), LIMIT_EXCEEDED, "slot 31");
  float value = 1;
  mps_constant_value constant = {"scale", 3, MPS_DATA_FLOAT | 1 << 8, &value};
  desc = (mps_pipeline_desc){sizeof desc, "places", &constant, 1, 0, NULL};
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant 'scale'");
  constant.name = NULL;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant with index 3");
  EXPECT(pipeline == NULL);
  EXPECT_OK(mps_library_release(library));
}

/* The slots of `places`, as its run sees them. */
static void run_places(mps_pipeline *pipeline) {
  mps_queue *queue = NULL;
  mps_buffer *buffer = NULL;
  void *contents = NULL;
  EXPECT_OK(mps_queue_create(device, NULL, &queue));
  EXPECT_OK(
      mps_buffer_create(device, &(mps_buffer_desc){.struct_size = sizeof(mps_buffer_desc), .length = 64}, &buffer));
  EXPECT_OK(mps_buffer_contents(buffer, &contents));
  mps_argument arguments[] = {{.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
                              {.kind = MPS_ARGUMENT_BUFFER, .index = 1, .buffer = buffer}};
  mps_dispatch dispatch = {.struct_size = sizeof dispatch,
                           .pipeline = pipeline,
                           .arguments = arguments,
                           .argument_count = 2,
                           .grid = {1, 1, 1}};
  EXPECT_OK(mps_queue_dispatch(queue, &dispatch));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  const uint32_t *places = contents;
  EXPECT_EQUAL(places[0], 0);
  EXPECT_EQUAL(places[1], 16);
  EXPECT_EQUAL(places[2], 116);
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(queue));
}

static void kernels_outlive_the_library_handle(void) {
  mps_library *library = NULL;
  EXPECT_OK(mps_library_create_from_data(device, bytes, size, &library));
  mps_pipeline *first = open_pipeline(library, "places");
  mps_pipeline *second = open_pipeline(library, "places");
  EXPECT_OK(mps_library_release(library));
  EXPECT(loaded() > 0);
  EXPECT_OK(mps_pipeline_release(first));
  run_places(second);
  EXPECT_OK(mps_pipeline_release(second));
  EXPECT_EQUAL(loaded(), 0);
}

int main(int count, char **arguments) {
  EXPECT_EQUAL(count, 2);
  samples = arguments[1];
  bytes = read_file(samples, &size);
  EXPECT(mkdtemp(directory) != NULL);
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  names_are_listed();
  other_things_are_refused();
#if defined(__ELF__)
  damage_is_refused();
  code_that_runs_at_loading_is_refused();
#endif
  files_may_change();
  pipelines_know_their_kernel();
  pipelines_can_be_refused();
  kernels_outlive_the_library_handle();
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  free(bytes);
  return 0;
}
