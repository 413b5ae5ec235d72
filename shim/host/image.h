/* A kernel library that is loaded into the process, counted by those who use it. */
#ifndef MPS_HOST_IMAGE_H
#define MPS_HOST_IMAGE_H

#include "kernel.h"

typedef struct host_image {
  _Atomic uint32_t references;
  void *handle; /* dlopen's */
  const mslc_library *library;
} host_image;

/* Load the bytes of a kernel library; `name` is what errors call it. The bytes are copied. */
mps_status host_image_open(const void *data, size_t size, const char *name, host_image **out_image);

/* Load a file. NOT_FOUND, IO, INVALID_ARGUMENT for what is no kernel library. */
mps_status host_image_open_file(const char *path, host_image **out_image);

/* Read a file that may be a kernel library or a metallib; the bytes are the caller's, to be freed. Errors as above. */
mps_status host_library_read(const char *path, char **out_data, size_t *out_size);

/* By its first bytes. */
bool host_is_metallib(const void *data, size_t size);

void host_image_hold(host_image *image);
void host_image_drop(host_image *image);

/* NULL if there is no kernel of that name. */
const mslc_kernel *host_image_kernel(const host_image *image, const char *name);

#endif
