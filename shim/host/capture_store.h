/* The files of a capture besides its list of commands: contents of buffers, and sources. */
#ifndef MPS_HOST_CAPTURE_STORE_H
#define MPS_HOST_CAPTURE_STORE_H

#include "backend.h"

#include <stdio.h>

typedef struct host_store host_store;

/* A store in a directory that exists. Lines about what it stores go to `lines`. NULL when there is no memory. */
host_store *host_store_new(const char *directory, FILE *lines);

/* Also lets go of the buffers and libraries that it held. */
void host_store_free(host_store *store);

/* The number of a buffer in the capture. A new one is held until the store is freed, so that no other comes to lie at
 * its address, and gets a line. 0 when there is no memory. */
uint64_t host_store_buffer(host_store *store, mps_buffer *buffer);

/* The version of a buffer's contents as they are now: written to a file of its own unless they are those of the last
 * version. Negative if they cannot be read or written. */
int64_t host_store_contents(host_store *store, mps_buffer *buffer);

/* The number of a library; a new one is held, and its source is written. 0 if that failed. */
uint64_t host_store_library(host_store *store, mps_library *library);

/* Bring `lines` to their file, where they outlive a crash, and no child process writes them a second time. */
void host_store_flush(host_store *store);

/* errno of the first thing that could not be written, lines included; 0 if everything was. */
int host_store_error(const host_store *store);

#endif
