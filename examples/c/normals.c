/* Normal numbers as mpscffi.randn gives them, without Python: the same Metal source, run through the C interface.
 *
 * Usage: normals random.metal SEED OFFSET COUNT, which writes COUNT floats to standard output. COUNT is a multiple
 * of 4. */
#include <mpsshim.h>

#include <stdio.h>
#include <stdlib.h>

/* As `part` and `normal_law` in random.metal. */
typedef struct {
  uint64_t seed, base, first, count;
} part;
typedef struct {
  float mean, deviation;
} normal_law;

static void check(mps_status status) {
  if (status != MPS_STATUS_OK) {
    fprintf(stderr, "normals: %s: %s\n", mps_status_text(status), mps_error_message());
    exit(1);
  }
}

static char *read_file(const char *path, size_t *out_length) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  *out_length = (size_t)ftell(file);
  rewind(file);
  char *text = malloc(*out_length);
  if (text == NULL || fread(text, 1, *out_length, file) != *out_length) {
    perror(path);
    exit(1);
  }
  fclose(file);
  return text;
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s random.metal SEED OFFSET COUNT\n", argv[0]);
    return 2;
  }
  const part numbers = {strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), 0, strtoull(argv[4], NULL, 0)};
  const normal_law law = {0, 1};
  size_t length;
  char *source = read_file(argv[1], &length);

  uint32_t gpus;
  check(mps_device_count(MPS_DEVICE_METAL, &gpus));
  mps_device *device;
  check(mps_device_create(gpus > 0 ? MPS_DEVICE_METAL : MPS_DEVICE_HOST, 0, &device));
  const mps_compile_options options = {.struct_size = sizeof options, .math_mode = MPS_MATH_SAFE};
  mps_library *library;
  check(mps_library_create_from_source(device, source, length, &options, &library));
  free(source);
  mps_pipeline *pipeline;
  mps_pipeline_desc wanted = {.struct_size = sizeof wanted, .kernel = "normal_float"};
  check(mps_pipeline_create(library, &wanted, &pipeline));
  mps_buffer *buffer;
  mps_buffer_desc room = {.struct_size = sizeof room, .length = numbers.count * sizeof(float)};
  check(mps_buffer_create(device, &room, &buffer));

  const mps_argument arguments[] = {
      {.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = buffer},
      {.kind = MPS_ARGUMENT_BYTES, .index = 1, .data = &numbers, .length = sizeof numbers},
      {.kind = MPS_ARGUMENT_BYTES, .index = 2, .data = &law, .length = sizeof law},
  };
  mps_queue *queue;
  check(mps_queue_create(device, NULL, &queue));
  check(mps_queue_dispatch(queue, &(mps_dispatch){
                                      .struct_size = sizeof(mps_dispatch),
                                      .pipeline = pipeline,
                                      .arguments = arguments,
                                      .argument_count = 3,
                                      .grid = {numbers.count / 4, 1, 1},
                                  }));
  check(mps_queue_wait(queue, MPS_FOREVER));
  void *contents;
  check(mps_buffer_contents(buffer, &contents));
  const size_t written = fwrite(contents, sizeof(float), numbers.count, stdout);

  check(mps_buffer_release(buffer));
  check(mps_queue_release(queue));
  check(mps_pipeline_release(pipeline));
  check(mps_library_release(library));
  check(mps_device_release(device));
  return written != numbers.count;
}
