/* What mps_library.impl points to on the host device. */
#ifndef MPS_HOST_LIBRARY_H
#define MPS_HOST_LIBRARY_H

#include "image.h"

/* Either a kernel library, or a source or metallib that is compiled kernel by kernel. */
typedef struct host_library {
  host_image *image; /* NULL for what is compiled */
  char *source;      /* owned, as everything in options; of a metallib or a kernel library, the file */
  size_t source_length;
  mps_compile_options options;
} host_library;

#endif
