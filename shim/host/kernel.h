/* Compiled kernels of the host device: loading their libraries, and running a part of a launch on the calling thread.
 */
#ifndef MPS_HOST_KERNEL_H
#define MPS_HOST_KERNEL_H

#include "backend.h"
#include "kernel_abi.h"

/* What mps_pipeline.impl points to. */
typedef struct host_kernel {
  const mslc_kernel *kernel;
  uint32_t static_bytes; /* of threadgroup memory, slots laid out and padded */
  void *library;         /* the kernel library it comes from, held */
  uint32_t constant_count;
  mps_constant_value *constants; /* what it was built with, by index; one block with their values */
} host_kernel;

/* Why a run ended early: a text such as "wrote to address 0x10, where there is no memory". */
typedef struct host_fault {
  char text[448];
} host_fault;

/* Run the threadgroups [first, last) on the calling thread, whichever it is. false and `fault` if the kernel touched a
 * bad address, divided by zero or overflowed its stack; the thread is then as before the call. Denormals are flushed
 * while the kernel runs. Never returns if the kernel never ends. kernel_run.c. */
bool host_kernel_run(const mslc_kernel *kernel, const mslc_launch *launch, uint64_t first, uint64_t last,
                     host_fault *fault);

/* The part of mps_backend that deals with libraries: library.c and pipeline.c. */
mps_status host_library_from_source(mps_library *library, const char *source, size_t length,
                                    const mps_compile_options *options);
mps_status host_library_from_file(mps_library *library, const char *path);
mps_status host_library_from_data(mps_library *library, const void *data, size_t size);
void host_library_close(mps_library *library);
mps_status host_pipeline_open(mps_pipeline *pipeline, const mps_pipeline_desc *desc);
void host_pipeline_close(mps_pipeline *pipeline);

#endif
