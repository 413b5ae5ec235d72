/* Running the kernels of kernel_samples.c on the calling thread, below the queues. */
#ifndef MPS_TESTS_KERNEL_SAMPLES_H
#define MPS_TESTS_KERNEL_SAMPLES_H

#include "image.h"
#include "expect.h"

/* Path of the kernel library, from the command line. */
static inline host_image *samples_open(int count, char **arguments) {
  host_image *image = NULL;
  if (count != 2) {
    fprintf(stderr, "usage: %s KERNEL_LIBRARY\n", arguments[0]);
    exit(2);
  }
  EXPECT_OK(host_image_open_file(arguments[1], &image));
  return image;
}

static inline mslc_launch sample_launch(uint32_t threads, uint32_t group, void *out, void *in) {
  return (mslc_launch){
      .buffers = {out, in},
      .grid = {threads, 1, 1},
      .group = {group, 1, 1},
      .groups = {(threads + group - 1) / group, 1, 1},
  };
}

static inline bool sample_run(const host_image *image, const char *name, const mslc_launch *launch, host_fault *fault) {
  const mslc_kernel *kernel = host_image_kernel(image, name);
  EXPECT(kernel != NULL);
  return host_kernel_run(kernel, launch, 0, launch->groups[0], fault);
}

/* Run it; a fault fails the test. */
static inline void sample_pass(const host_image *image, const char *name, const mslc_launch *launch) {
  host_fault fault = {""};
  if (!sample_run(image, name, launch, &fault)) {
    fprintf(stderr, "kernel %s: %s\n", name, fault.text);
    exit(1);
  }
}

#endif
