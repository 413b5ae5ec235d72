/* y = a * x + y on the first Metal GPU, or on the CPU where there is none: from Metal source to checked result.
 *
 * Build and run it against an installed mpscffi with `make run`. Given the path of a library that was compiled before,
 * it takes the kernel from there, and needs no compiler. */
#include <mpsshim.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100003 };

static const char source[] = "#include <metal_stdlib>\n"
                             "using namespace metal;\n"
                             "kernel void saxpy(device float *y, device const float *x, constant float &a,\n"
                             "                  uint i [[thread_position_in_grid]]) {\n"
                             "  y[i] += a * x[i];\n"
                             "}\n";

/* Every function gives a status; the message tells the whole story. */
static void check(mps_status status) {
  if (status != MPS_STATUS_OK) {
    fprintf(stderr, "saxpy: %s: %s\n", mps_status_text(status), mps_error_message());
    exit(1);
  }
}

static mps_device *open_device(void) {
  uint32_t gpus;
  check(mps_device_count(MPS_DEVICE_METAL, &gpus));
  mps_device *device;
  check(mps_device_create(gpus > 0 ? MPS_DEVICE_METAL : MPS_DEVICE_HOST, 0, &device));
  return device;
}

static mps_buffer *make_buffer(mps_device *device, float **out_contents) {
  mps_buffer *buffer;
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = COUNT * sizeof(float)};
  check(mps_buffer_create(device, &desc, &buffer));
  void *contents;
  check(mps_buffer_contents(buffer, &contents));
  *out_contents = contents;
  return buffer;
}

static mps_library *open_library(mps_device *device, const char *path) {
  mps_library *library;
  check(path != NULL ? mps_library_create_from_file(device, path, &library)
                     : mps_library_create_from_source(device, source, sizeof source - 1, NULL, &library));
  return library;
}

int main(int argc, char **argv) {
  if (mps_abi_version() != MPS_ABI_VERSION) {
    fprintf(stderr, "saxpy: built for ABI %d, but the library has %u\n", MPS_ABI_VERSION, mps_abi_version());
    return 1;
  }
  mps_device *device = open_device();
  mps_device_info info = {.struct_size = sizeof info};
  check(mps_device_get_info(device, &info));

  mps_library *library = open_library(device, argc > 1 ? argv[1] : NULL);
  mps_pipeline *pipeline;
  mps_pipeline_desc wanted = {.struct_size = sizeof wanted, .kernel = "saxpy"};
  check(mps_pipeline_create(library, &wanted, &pipeline));

  float *x, *y;
  mps_buffer *x_buffer = make_buffer(device, &x), *y_buffer = make_buffer(device, &y);
  for (int i = 0; i < COUNT; i++) {
    x[i] = (float)i;
    y[i] = 1;
  }

  const float a = 0.5f;
  const mps_argument arguments[] = {
      {.kind = MPS_ARGUMENT_BUFFER, .index = 0, .buffer = y_buffer},
      {.kind = MPS_ARGUMENT_BUFFER, .index = 1, .buffer = x_buffer},
      {.kind = MPS_ARGUMENT_BYTES, .index = 2, .data = &a, .length = sizeof a},
  };
  mps_queue *queue;
  check(mps_queue_create(device, NULL, &queue));
  check(mps_queue_dispatch(queue, &(mps_dispatch){
                                      .struct_size = sizeof(mps_dispatch),
                                      .pipeline = pipeline,
                                      .arguments = arguments,
                                      .argument_count = 3,
                                      .grid = {COUNT, 1, 1},
                                  }));
  check(mps_queue_wait(queue, MPS_FOREVER));

  int wrong = 0;
  for (int i = 0; i < COUNT; i++) {
    wrong += fabsf(y[i] - (1 + a * (float)i)) > 1e-6f * (1 + a * (float)i);
  }
  printf("%s: %d of %d results are right\n", info.name, COUNT - wrong, COUNT);

  /* In any order: what is still needed is kept alive. */
  check(mps_buffer_release(x_buffer));
  check(mps_buffer_release(y_buffer));
  check(mps_queue_release(queue));
  check(mps_pipeline_release(pipeline));
  check(mps_library_release(library));
  check(mps_device_release(device));
  return wrong != 0;
}
