/* The host device's compiler, as a function and as a command. The command is this program itself. */
#include "expect.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

static mps_device *device;
static const char *program;
static const char *samples;

static const char source[] = "kernel void places() {}\n\0// bytes behind a zero";
static const char metallib[] = "MTLB\1\200\2\0 bytes behind a zero";

/* ---- a compiler ---- */

/* What the next question is to be answered with, and what was asked last. */
static struct {
  mps_status status;
  const char *text; /* NULL: nothing is set */
  unsigned checks, builds;
  size_t source_length;
  char options[256];
  char constants[256];
} desk;

static void note_request(const mps_compile_request *request) {
  const mps_compile_options *options = request->options;
  desk.source_length = request->source_length;
  snprintf(desk.options, sizeof desk.options, "%u.%u %u %u %s %s", options->language_version >> 16,
           options->language_version & 0xffff, options->math_mode, options->flags,
           options->define_count > 0 ? options->defines[options->define_count - 1] : "-",
           options->include_dir_count > 0 ? options->include_dirs[0] : "-");
  desk.constants[0] = '\0';
  for (uint32_t number = 0; number < request->constant_count; number++) {
    const mps_constant_value *constant = &request->constants[number];
    size_t at = strlen(desk.constants);
    snprintf(desk.constants + at, sizeof desk.constants - at, "%s:%u:%u ", constant->name != NULL ? constant->name : "",
             constant->index, constant->data_type);
  }
}

static mps_status answer(void *user, const mps_compile_request *request, mps_compile_result *result) {
  EXPECT(user == &desk);
  EXPECT_EQUAL(request->struct_size, sizeof *request);
  const char *expected = request->source[0] == 'M' ? metallib : source;
  EXPECT(memcmp(request->source, expected, request->source_length) == 0);
  if (request->kernel == NULL) {
    desk.checks++;
  } else {
    desk.builds++;
  }
  note_request(request);
  if (desk.text != NULL) {
    EXPECT_OK(mps_compile_result_set(result, "overwritten", 11));
    EXPECT_OK(mps_compile_result_set(result, desk.text, strlen(desk.text)));
  }
  return desk.status;
}

static mps_status compile(mps_library **out_library) {
  return mps_library_create_from_source(device, source, sizeof source, NULL, out_library);
}

static mps_library *compiled(const char *listing) {
  mps_library *library = NULL;
  desk.status = MPS_STATUS_OK;
  desk.text = listing;
  EXPECT_OK(compile(&library));
  return library;
}

/* ---- checks ---- */

static void listings_are_read(void) {
  mps_library *library = compiled("kernel places\nconstant 3 263 1 tile size\nkernel other\nconstant 4 1036 0 w\n");
  uint32_t kernels = 0, constants = 0;
  const char *name = NULL;
  EXPECT_EQUAL(desk.source_length, sizeof source);
  EXPECT_OK(mps_library_kernel_count(library, &kernels));
  EXPECT_OK(mps_library_constant_count(library, &constants));
  EXPECT_EQUAL(kernels, 2);
  EXPECT_EQUAL(constants, 2);
  EXPECT_OK(mps_library_kernel_name(library, 1, &name));
  EXPECT(strcmp(name, "other") == 0);
  mps_constant_info info = {.struct_size = sizeof info};
  EXPECT_OK(mps_library_constant(library, 0, &info));
  EXPECT(strcmp(info.name, "tile size") == 0);
  EXPECT_EQUAL(info.index, 3);
  EXPECT_EQUAL(info.data_type, MPS_DATA_UINT | 1 << 8);
  EXPECT_EQUAL(info.required, 1);
  EXPECT_OK(mps_library_constant(library, 1, &info));
  EXPECT_EQUAL(info.data_type, MPS_DATA_FLOAT | 4 << 8);
  EXPECT_EQUAL(info.required, 0);
  EXPECT_OK(mps_library_release(library));

  library = compiled("");
  EXPECT_OK(mps_library_kernel_count(library, &kernels));
  EXPECT_EQUAL(kernels, 0);
  EXPECT_OK(mps_library_release(library));
}

/* They are compiled kernel by kernel, as sources are: the compiler gets the whole file. */
static void metallibs_are_asked_for(void) {
  char path[] = "/tmp/mpsshim-test-XXXXXX";
  int file = mkstemp(path);
  EXPECT(file >= 0 && write(file, metallib, sizeof metallib) == (ssize_t)sizeof metallib && close(file) == 0);
  mps_library *libraries[2] = {NULL, NULL};
  desk.status = MPS_STATUS_OK;
  desk.text = "kernel places\nconstant 3 257 1 flag\nconstant 3 263 1 tile\nconstant 4 263 1 tile\n";
  EXPECT_OK(mps_library_create_from_file(device, path, &libraries[0]));
  EXPECT_EQUAL(desk.source_length, sizeof metallib);
  EXPECT_OK(mps_library_create_from_data(device, metallib, sizeof metallib, &libraries[1]));
  EXPECT_EQUAL(desk.source_length, sizeof metallib);
  for (int number = 0; number < 2; number++) {
    /* Its functions may come from several sources, with constants of one index or one name. */
    unsigned tile = 16, flag = 1;
    mps_pipeline *pipeline = NULL;
    mps_constant_value values[] = {{NULL, 3, 263, &tile}, {NULL, 3, 257, &flag}, {"tile", 0, 263, &tile}};
    mps_pipeline_desc desc = {sizeof desc, "places", values, 1, 0, NULL};
    desk.text = samples;
    EXPECT_OK(mps_pipeline_create(libraries[number], &desc, &pipeline));
    EXPECT(strcmp(desk.constants, ":3:263 ") == 0);
    EXPECT_OK(mps_pipeline_release(pipeline));
    desc.constants = &values[1];
    EXPECT_OK(mps_pipeline_create(libraries[number], &desc, &pipeline));
    EXPECT(strcmp(desk.constants, ":3:257 ") == 0);
    EXPECT_OK(mps_pipeline_release(pipeline));
    EXPECT_OK(mps_library_release(libraries[number]));
  }
  mps_library *library = NULL;
  desk.status = MPS_STATUS_INVALID_ARGUMENT;
  desk.text = "cut off";
  EXPECT_FAIL(mps_library_create_from_file(device, path, &library), INVALID_ARGUMENT, path);
  EXPECT_FAIL(mps_library_create_from_data(device, metallib, sizeof metallib, &library), INVALID_ARGUMENT,
              "the metallib: cut off");
  EXPECT_EQUAL(unlink(path), 0);
}

static void bad_answers_are_errors(void) {
  static const char *const listings[] = {"kernels a", "kernel ", "constant 1 2 x", "constant 1 2 0 bad_type",
                                         "constant 1 263 1 "};
  mps_library *library = NULL;
  for (size_t n = 0; n < sizeof listings / sizeof listings[0]; n++) {
    desk.status = MPS_STATUS_OK;
    desk.text = listings[n];
    EXPECT_FAIL(compile(&library), INTERNAL, "listing has the line");
  }
  desk.text = NULL;
  EXPECT_FAIL(compile(&library), INTERNAL, "nothing else");
  desk.status = MPS_STATUS_COMPILE_FAILED;
  EXPECT_FAIL(compile(&library), COMPILE_FAILED, "nothing else");
  desk.status = (mps_status)99;
  desk.text = "?";
  EXPECT_FAIL(compile(&library), INTERNAL, "unknown status 99");
  desk.status = MPS_STATUS_COMPILE_FAILED;
  desk.text = "program_source:1:8: error: no\n  kernel\n";
  EXPECT_FAIL(compile(&library), COMPILE_FAILED, "program_source");
  EXPECT(strcmp(mps_error_message(), desk.text) == 0); /* the log, and nothing else */
  EXPECT(library == NULL);
  EXPECT_FAIL(mps_compile_result_set(NULL, "", 0), INVALID_HANDLE, "NULL");
}

static void options_arrive(void) {
  const char *defines[] = {"A", "B=two words"};
  const char *directories[] = {"/some/where"};
  mps_compile_options options = {.struct_size = sizeof options,
                                 .language_version = MPS_LANGUAGE_VERSION(3, 1),
                                 .math_mode = MPS_MATH_FAST,
                                 .flags = MPS_COMPILE_VALIDATE,
                                 .define_count = 2,
                                 .defines = defines,
                                 .include_dirs = directories,
                                 .include_dir_count = 1};
  mps_library *library = NULL;
  mps_pipeline *pipeline = NULL;
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "places"};
  desk.status = MPS_STATUS_OK;
  desk.text = "kernel places";
  EXPECT_OK(mps_library_create_from_source(device, source, sizeof source, &options, &library));
  EXPECT(strcmp(desk.options, "3.1 2 1 B=two words /some/where") == 0);
  defines[1] = directories[0] = NULL; /* they were copied */
  desk.options[0] = '\0';
  desk.text = samples;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  EXPECT(strcmp(desk.options, "3.1 2 1 B=two words /some/where") == 0);
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

/* ---- builds ---- */

static void refuse_constants(mps_library *library, const mps_constant_value *constants, uint32_t count,
                             const char *text) {
  mps_pipeline *pipeline = NULL;
  mps_pipeline_desc desc = {sizeof desc, "places", constants, count, 0, NULL};
  unsigned builds = desk.builds;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, text);
  EXPECT_EQUAL(desk.builds, builds); /* the compiler was not asked */
}

static void constants_are_matched(void) {
  mps_library *library = compiled("kernel places\nconstant 3 263 1 tile\nconstant 4 268 0 scale\n");
  uint32_t tile = 16;
  float scale = 2;
  mps_constant_value good[] = {{"tile", 77, 263, &tile}, {NULL, 4, 268, &scale}};
  mps_pipeline *pipeline = NULL;
  mps_pipeline_desc desc = {sizeof desc, "places", good, 2, 0, NULL};
  desk.text = samples;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  EXPECT(strcmp(desk.constants, "tile:3:263 :4:268 ") == 0);
  EXPECT_OK(mps_pipeline_release(pipeline));

  mps_constant_value wrong[] = {{"tiles", 3, 263, &tile}, {NULL, 5, 263, &tile}, {"tile", 0, 262, &tile}};
  mps_constant_value twice[] = {{"tile", 0, 263, &tile}, {NULL, 3, 263, &tile}};
  refuse_constants(library, &wrong[0], 1, "no function constant 'tiles'");
  refuse_constants(library, &wrong[1], 1, "no function constant with index 5");
  refuse_constants(library, &wrong[2], 1, "'tile' (index 3) has data type 0x107");
  refuse_constants(library, twice, 2, "is given two values");
  EXPECT_OK(mps_library_release(library));
}

static void builds_can_fail(void) {
  mps_library *library = compiled("kernel places\nkernel absent\n");
  mps_pipeline *pipeline = NULL;
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "places"};
  desk.text = "/nowhere/kernel.so";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), NOT_FOUND, "/nowhere/kernel.so");
  desk.status = MPS_STATUS_INVALID_ARGUMENT;
  desk.text = "kernel 'places' needs the function constant 'tile'";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, desk.text);
  desk.status = MPS_STATUS_OK;
  desk.text = samples;
  desc.kernel = "absent";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INTERNAL, "without the kernel 'absent'");
  EXPECT(pipeline == NULL);
  EXPECT_OK(mps_library_release(library));
}

/* ---- the command ---- */

/* One field of a request: NAME LENGTH, newline, the bytes, newline. */
typedef struct field {
  char name[32];
  char *value;
  size_t length;
} field;

static bool read_field(FILE *request, field *next) {
  if (fscanf(request, "%31s %zu", next->name, &next->length) != 2 || fgetc(request) != '\n') {
    return false;
  }
  next->value = calloc(1, next->length + 1);
  EXPECT(next->value != NULL && fread(next->value, 1, next->length, request) == next->length);
  EXPECT(fgetc(request) == '\n');
  return true;
}

/* All fields as "name=value;", the source by its length. */
static void summarise(const char *path, char *text, size_t room) {
  FILE *request = fopen(path, "rb");
  EXPECT(request != NULL);
  field next;
  text[0] = '\0';
  while (read_field(request, &next)) {
    size_t at = strlen(text);
    bool is_source = strcmp(next.name, "source") == 0;
    if (is_source) {
      EXPECT(next.length == sizeof source && memcmp(next.value, source, sizeof source) == 0);
    }
    snprintf(text + at, room - at, "%s=%s;", next.name, is_source ? "the same" : next.value);
    free(next.value);
  }
  EXPECT(feof(request));
  fclose(request);
}

/* Answers a check with what it was asked, as a kernel's name; a build with the library, beside the reply. */
static int be_command(int count, char **arguments) {
  EXPECT_EQUAL(count, 7);
  EXPECT(strcmp(arguments[3], "--request") == 0 && strcmp(arguments[5], "--reply") == 0);
  char text[1024], copy[1100];
  summarise(arguments[4], text, sizeof text);
  if (strcmp(arguments[2], "silent") == 0) {
    puts("I have nothing to say");
    return 3;
  }
  if (strcmp(arguments[2], "absent") == 0) {
    return 127; /* as of a child that finds no program to become */
  }
  if (strcmp(arguments[2], "endless") == 0) {
    fork(); /* its children end with it */
    for (;;) {
      pause();
    }
  }
  FILE *reply = fopen(arguments[6], "wb");
  EXPECT(reply != NULL);
  if (strcmp(arguments[2], "failing") == 0) {
    fputs("7\nprogram_source:1:1: error: no\n", reply);
  } else if (strstr(text, "action=check;") != NULL) {
    fprintf(reply, "0\nkernel places\nkernel %s\nconstant 3 263 1 tile\nconstant 4 1036 0 scale\n", text);
  } else {
    EXPECT(strstr(text, "kernel=places;constant=3 263 10000000 tile;constant=4 1036 "
                        "0000803f000000400000404000008040 ;") != NULL);
    snprintf(copy, sizeof copy, "%s.so", arguments[6]);
    EXPECT_EQUAL(symlink(arguments[2], copy), 0);
    fprintf(reply, "0\n%s", copy);
  }
  fclose(reply);
  return 1; /* which does not matter */
}

static void use_command(const char *mode) {
  char command[1024];
  snprintf(command, sizeof command, "  %s  command %s ", program, mode);
  setenv("MPSSHIM_MSLC", command, 1);
}

static unsigned files_in(const char *path) {
  unsigned count = 0;
  DIR *directory = opendir(path);
  EXPECT(directory != NULL);
  for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
    count += entry->d_name[0] != '.';
  }
  closedir(directory);
  return count;
}

static void command_is_asked(void) {
  const char *defines[] = {"ONE=a b"};
  mps_compile_options options = {.struct_size = sizeof options,
                                 .language_version = MPS_LANGUAGE_VERSION(3, 2),
                                 .math_mode = MPS_MATH_RELAXED,
                                 .define_count = 1,
                                 .defines = defines};
  mps_library *library = NULL;
  use_command(samples);
  EXPECT_OK(mps_library_create_from_source(device, source, sizeof source, &options, &library));
  const char *asked = NULL;
  EXPECT_OK(mps_library_kernel_name(library, 1, &asked));
  EXPECT(strcmp(asked, "version=1;action=check;source=the same;language_version=3.2;math_mode=relaxed;flags=0;"
                       "define=ONE=a b;") == 0);
  uint32_t tile = 16;
  float scale[4] = {1, 2, 3, 4};
  mps_constant_value constants[] = {{"tile", 0, 263, &tile}, {NULL, 4, 1036, scale}};
  mps_pipeline_desc desc = {sizeof desc, "places", constants, 2, 0, NULL};
  mps_pipeline *pipeline = NULL;
  EXPECT_OK(mps_pipeline_create(library, &desc, &pipeline));
  EXPECT_OK(mps_pipeline_release(pipeline));
  EXPECT_OK(mps_library_release(library));
}

static void command_can_fail(void) {
  mps_library *library = NULL;
  use_command("failing");
  EXPECT_FAIL(compile(&library), COMPILE_FAILED, "program_source:1:1: error: no\n");
  use_command("silent");
  EXPECT_FAIL(compile(&library), INTERNAL, "I have nothing to say");
  setenv("MPSSHIM_MSLC", "no-such-compiler --fast", 1);
  EXPECT_FAIL(compile(&library), UNAVAILABLE, "\"no-such-compiler\" on the PATH: install it");
  use_command("absent");
  EXPECT_FAIL(compile(&library), UNAVAILABLE, "there is no command");
  setenv("MPSSHIM_MSLC", "/dev/null", 1);
  EXPECT_FAIL(compile(&library), UNAVAILABLE, "cannot be run");
  setenv("MPSSHIM_MSLC", "  ", 1);
  EXPECT_FAIL(compile(&library), UNAVAILABLE, "MPSSHIM_MSLC holds no command");
  EXPECT(library == NULL);
}

static void commands_have_a_time_limit(void) {
  mps_library *library = NULL;
  use_command("endless");
  setenv("MPSSHIM_MSLC_TIMEOUT", "soon", 1);
  EXPECT_FAIL(compile(&library), INVALID_ARGUMENT, "MPSSHIM_MSLC_TIMEOUT is \"soon\"");
  setenv("MPSSHIM_MSLC_TIMEOUT", "1", 1);
  EXPECT_FAIL(compile(&library), TIMEOUT, "was stopped after 1 seconds");
  unsetenv("MPSSHIM_MSLC_TIMEOUT");
}

static void commands(void) {
  char directory[] = "/tmp/mpsshim-test-XXXXXX";
  EXPECT(mkdtemp(directory) != NULL);
  setenv("TMPDIR", directory, 1);
  EXPECT_OK(mps_compiler_set(NULL, NULL));
  command_is_asked();
  command_can_fail();
  commands_have_a_time_limit();
  signal(SIGCHLD, SIG_IGN); /* children vanish by themselves */
  command_is_asked();
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQUAL(files_in(directory), 0);
  EXPECT_EQUAL(rmdir(directory), 0);
  mps_library *library = NULL;
  EXPECT_FAIL(compile(&library), IO, directory);
}

int main(int count, char **arguments) {
  if (count > 2 && strcmp(arguments[1], "command") == 0) {
    return be_command(count, arguments);
  }
  EXPECT_EQUAL(count, 2);
  program = realpath(arguments[0], NULL);
  samples = realpath(arguments[1], NULL);
  EXPECT(program != NULL && samples != NULL);
  EXPECT_OK(mps_device_create(MPS_DEVICE_HOST, 0, &device));
  EXPECT_OK(mps_compiler_set(answer, &desk));
  listings_are_read();
  metallibs_are_asked_for();
  bad_answers_are_errors();
  options_arrive();
  constants_are_matched();
  builds_can_fail();
  commands();
  EXPECT_OK(mps_device_release(device));
  expect_nothing_lives();
  return 0;
}
