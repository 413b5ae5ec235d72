/* The Metal device: libraries, pipelines, and the cache of these. */
#include "metal_fixture.h"

#include <sys/stat.h>

static void test_libraries(void) {
  mps_library *none;
  mps_compile_options options = {.struct_size = sizeof options, .flags = MPS_COMPILE_VALIDATE};
  const char *folders[] = {"/tmp"};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &none), UNSUPPORTED, "MTL_SHADER_VALIDATION");
  options = (mps_compile_options){.struct_size = sizeof options, .include_dirs = folders, .include_dir_count = 1};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &none), UNSUPPORTED, "include_dirs");
  EXPECT_FAIL(mps_library_create_from_source(device, "\xff", 1, NULL, &none), INVALID_ARGUMENT, "no UTF-8");
  const char *defines[] = {"A=\xff"};
  options = (mps_compile_options){.struct_size = sizeof options, .defines = defines, .define_count = 1};
  EXPECT_FAIL(mps_library_create_from_source(device, "", 0, &options, &none), INVALID_ARGUMENT, "defines[0]");
  char path[4096];
  snprintf(path, sizeof path, "%s/\xff", directory);
  FILE *file = fopen(path, "w");
  EXPECT(file != NULL && fclose(file) == 0);
  EXPECT_FAIL(mps_library_create_from_file(device, path, &none), INVALID_ARGUMENT, "no UTF-8");
  EXPECT_FAIL(mps_library_create_from_file(device, directory, &none), INVALID_ARGUMENT, "is a directory");
  EXPECT_FAIL(mps_library_create_from_file(device, "/nowhere/at all", &none), NOT_FOUND, "/nowhere/at all");
  snprintf(path, sizeof path, "%s/loop", directory);
  EXPECT_EQUAL(symlink("loop", path), 0);
  EXPECT_FAIL(mps_library_create_from_file(device, path, &none), IO, "loop");
  EXPECT_FAIL(mps_library_create_from_file(device, "/proc/self/status", &none), INVALID_ARGUMENT, "no library");
  EXPECT_FAIL(mps_library_create_from_data(device, "abc", 3, &none), INVALID_ARGUMENT, "these 3 bytes");
}

static void test_pipelines(void) {
  mps_pipeline_desc desc = {.struct_size = sizeof desc, .kernel = "add"};
  mps_pipeline *pipeline;
  standin_set("missing_argument", 1);
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), UNSUPPORTED, "argument 'image' of kernel 'add'");
  standin_set("missing_argument", 0);
  standin_set("fail_functions", 1);
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), NOT_FOUND, "'add'");
  uint32_t value = 1;
  mps_constant_value constants[] = {{.index = 3, .data_type = MPS_DATA_UINT | 1 << 8, .value = &value}};
  desc.constants = constants;
  desc.constant_count = 1;
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant with index 3");
  constants[0].name = "size";
  EXPECT_FAIL(mps_pipeline_create(library, &desc, &pipeline), INVALID_ARGUMENT, "no function constant 'size'");
}

/* The folder that the cache is in, and its file. */
static char cache[4096], cache_file[4200];

static long cached_pipelines(void) {
  char line[2048];
  FILE *file = fopen(cache_file, "r");
  long lines = -1;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    lines++;
  }
  if (file != NULL) {
    fclose(file);
  }
  return lines;
}

/* Make the pipeline of a kernel, whether it is cached or not, and have what is new written. */
static void use_kernel(const char *kernel) {
  EXPECT_OK(mps_pipeline_release(make_pipeline(kernel)));
  standin_settle();
}

/* The same on a device that begins with what is in the cache. */
static void use_kernel_anew(const char *kernel) {
  close_device();
  open_device();
  use_kernel(kernel);
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  EXPECT(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void test_cache(void) {
  snprintf(cache, sizeof cache, "%s/cache/of", directory);
  snprintf(cache_file, sizeof cache_file, "%s/metal-Stand-in_GPU-Version_15.0__Build_24A000_.binarchive", cache);
  setenv("MPSCFFI_CACHE_DIR", cache, 1);
  use_kernel_anew("add");
  EXPECT_EQUAL(cached_pipelines(), 1);
  use_kernel_anew("add"); /* which is found */
  EXPECT_EQUAL(cached_pipelines(), 1);
  use_kernel("gather");
  EXPECT_EQUAL(cached_pipelines(), 2);
  standin_set("fail_archives", 1); /* the cache is off from here on */
  use_kernel("wild");
  use_kernel("wild_loop");
  EXPECT_EQUAL(cached_pipelines(), 2);
}

static void test_damaged_cache(void) {
  write_file(cache_file, "damaged");
  use_kernel_anew("add"); /* which begins it anew */
  EXPECT_EQUAL(cached_pipelines(), 1);

  char inside[4300];
  snprintf(inside, sizeof inside, "%s/x", cache_file);
  EXPECT_EQUAL(unlink(cache_file), 0);
  EXPECT_EQUAL(mkdir(cache_file, 0777), 0); /* it cannot be written */
  write_file(inside, "");
  use_kernel_anew("add");
}

static void test_folders_of_caches(void) {
  char path[4096];
  setenv("MPSCFFI_CACHE_DIR", "/proc/nowhere/at/all", 1);
  use_kernel_anew("add");
  setenv("MPSCFFI_CACHE_DIR", "", 1); /* as if it were not set */
  setenv("HOME", directory, 1);
  use_kernel_anew("add");
  snprintf(path, sizeof path, "%s/Library/Caches/mpscffi", directory);
  EXPECT_EQUAL(access(path, F_OK), 0);
  unsetenv("HOME");
  use_kernel_anew("add");
}

int main(int argc, char **argv) {
  static void (*const tests[])(void) = {test_libraries, test_pipelines, test_cache, test_damaged_cache,
                                        test_folders_of_caches};
  return run_tests(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
