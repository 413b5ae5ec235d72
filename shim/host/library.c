#include "library.h"
#include "compiler.h"
#include "status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mps_status no_memory(void) {
  return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a library");
}

/* ---- a source ---- */

static void free_texts(const char *const *texts, uint32_t count) {
  for (uint32_t number = 0; texts != NULL && number < count; number++) {
    free((char *)texts[number]);
  }
  free((void *)texts);
}

/* Copies of `count` texts; NULL without memory, or for none. */
static const char **copy_texts(const char *const *texts, uint32_t count) {
  const char **copies = count == 0 ? NULL : calloc(count, sizeof *copies);
  for (uint32_t number = 0; copies != NULL && number < count; number++) {
    copies[number] = mps_text_copy(texts[number]);
    if (copies[number] == NULL) {
      free_texts(copies, count);
      return NULL;
    }
  }
  return copies;
}

static void free_library(host_library *own) {
  if (own->image != NULL) {
    host_image_drop(own->image);
  }
  free(own->source);
  free_texts(own->options.defines, own->options.define_count);
  free_texts(own->options.include_dirs, own->options.include_dir_count);
  free(own);
}

/* What is needed to compile the source's kernels later. `source`, which has room for a zero at its end, is taken over,
 * or freed if there is no memory. */
static host_library *take_source(char *source, size_t length, const mps_compile_options *options) {
  host_library *own = calloc(1, sizeof *own);
  if (own == NULL || source == NULL) {
    free(own);
    free(source);
    return NULL;
  }
  own->source = source;
  own->source_length = length;
  own->source[length] = '\0';
  own->options = *options;
  own->options.defines = copy_texts(options->defines, options->define_count);
  own->options.include_dirs = copy_texts(options->include_dirs, options->include_dir_count);
  if ((options->define_count != 0 && own->options.defines == NULL) ||
      (options->include_dir_count != 0 && own->options.include_dirs == NULL)) {
    free_library(own);
    return NULL;
  }
  return own;
}

static char *copy_source(const void *source, size_t length) {
  char *copy = malloc(length + 1);
  if (copy != NULL) {
    memcpy(copy, source, length);
  }
  return copy;
}

/* ---- the names of a library ---- */

static void free_names(mps_library *library) {
  for (uint32_t number = 0; number < library->kernel_count; number++) {
    free(library->kernel_names[number]);
  }
  for (uint32_t number = 0; number < library->constant_count; number++) {
    free((char *)library->constants[number].name);
  }
  free(library->kernel_names);
  free(library->constants);
  library->kernel_names = NULL;
  library->constants = NULL;
  library->kernel_count = library->constant_count = 0;
}

static bool add_kernel(mps_library *library, const char *name) {
  library->kernel_names[library->kernel_count] = mps_text_copy(name);
  return library->kernel_names[library->kernel_count] != NULL && ++library->kernel_count != 0;
}

static mps_status bad_listing(const char *line) {
  return mps_fail(MPS_STATUS_INTERNAL,
                  "the Metal compiler's listing has the line \"%s\", not \"kernel NAME\" or \"constant INDEX DATA_TYPE "
                  "REQUIRED NAME\"",
                  line);
}

/* "INDEX DATA_TYPE REQUIRED NAME" */
static mps_status add_constant(mps_library *library, const char *text) {
  mps_constant_info *constant = &library->constants[library->constant_count];
  int name = 0;
  constant->struct_size = sizeof *constant;
  if (sscanf(text, "%" SCNu32 " %" SCNu32 " %" SCNu32 " %n", &constant->index, &constant->data_type,
             &constant->required, &name) != 3 ||
      name == 0 || text[name] == '\0' || host_constant_size(constant->data_type) == 0) {
    return bad_listing(text);
  }
  constant->name = mps_text_copy(text + name);
  if (constant->name == NULL) {
    return no_memory();
  }
  library->constant_count++;
  return MPS_STATUS_OK;
}

static mps_status add_line(mps_library *library, const char *line) {
  const char kernel[] = "kernel ", constant[] = "constant ";
  if (strncmp(line, kernel, sizeof kernel - 1) == 0 && line[sizeof kernel - 1] != '\0') {
    return add_kernel(library, line + sizeof kernel - 1) ? MPS_STATUS_OK : no_memory();
  }
  if (strncmp(line, constant, sizeof constant - 1) == 0) {
    return add_constant(library, line + sizeof constant - 1);
  }
  return bad_listing(line);
}

/* `listing` is cut into its lines. */
static mps_status take_listing(mps_library *library, char *listing) {
  size_t lines = 1;
  for (const char *at = listing; (at = strchr(at, '\n')) != NULL; at++) {
    lines++;
  }
  library->kernel_names = calloc(lines, sizeof *library->kernel_names);
  library->constants = calloc(lines, sizeof *library->constants);
  if (library->kernel_names == NULL || library->constants == NULL) {
    return no_memory();
  }
  char *rest = NULL;
  for (char *line = strtok_r(listing, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
    MPS_TRY(add_line(library, line));
  }
  return MPS_STATUS_OK;
}

static mps_status take_image(mps_library *library, const mslc_library *from) {
  library->kernel_names = calloc(from->kernel_count + 1, sizeof *library->kernel_names);
  if (library->kernel_names == NULL) {
    return no_memory();
  }
  for (unsigned number = 0; number < from->kernel_count; number++) {
    if (!add_kernel(library, from->kernels[number]->name)) {
      return no_memory();
    }
  }
  return MPS_STATUS_OK;
}

/* ---- opening and closing ---- */

static mps_status keep_or_undo(mps_library *library, host_library *own, mps_status status) {
  if (status == MPS_STATUS_OK) {
    library->impl = own;
  } else {
    free_names(library);
    free_library(own);
  }
  return status;
}

/* Takes `own` over; NULL if there was no memory for it. */
static mps_status check_source(mps_library *library, host_library *own) {
  if (own == NULL) {
    return no_memory();
  }
  mps_compile_request request = {
      .struct_size = sizeof request,
      .source = own->source,
      .source_length = own->source_length,
      .options = &own->options,
  };
  host_answer answer;
  mps_status status = host_compiler_ask(&request, &answer);
  if (status == MPS_STATUS_OK) {
    status = take_listing(library, answer.result.text);
    host_answer_free(&answer);
  }
  return keep_or_undo(library, own, status);
}

mps_status host_library_from_source(mps_library *library, const char *source, size_t length,
                                    const mps_compile_options *options) {
  return check_source(library, take_source(copy_source(source, length), length, options));
}

/* The compiler tells a metallib from a source by its first bytes. Takes `data` over. */
static mps_status from_metallib(mps_library *library, char *data, size_t size, const char *name) {
  const mps_compile_options options = {.struct_size = sizeof options};
  mps_status status = check_source(library, take_source(data, size, &options));
  if (status == MPS_STATUS_INVALID_ARGUMENT) {
    return mps_fail(status, "%s: %s", name, mps_error_message());
  }
  return status;
}

/* Takes `data` over, which is kept for captures. */
static mps_status from_image(mps_library *library, char *data, size_t size, const char *name) {
  const mps_compile_options options = {.struct_size = sizeof options};
  host_library *own = take_source(data, size, &options);
  if (own == NULL) {
    return no_memory();
  }
  mps_status status = host_image_open(own->source, size, name, &own->image);
  return keep_or_undo(library, own, status == MPS_STATUS_OK ? take_image(library, own->image->library) : status);
}

mps_status host_library_from_file(mps_library *library, const char *path) {
  char *data = NULL;
  size_t size = 0;
  MPS_TRY(host_library_read(path, &data, &size));
  if (host_is_metallib(data, size)) {
    return from_metallib(library, data, size, path);
  }
  return from_image(library, data, size, path);
}

mps_status host_library_from_data(mps_library *library, const void *data, size_t size) {
  if (host_is_metallib(data, size)) {
    return from_metallib(library, copy_source(data, size), size, "the metallib");
  }
  return from_image(library, copy_source(data, size), size, "the data");
}

void host_library_close(mps_library *library) {
  free_library(library->impl);
}
