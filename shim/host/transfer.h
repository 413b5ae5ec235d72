/* Moving and setting bytes, the inner part of copies and fills. */
#ifndef MPS_HOST_TRANSFER_H
#define MPS_HOST_TRANSFER_H

#include <stddef.h>

/* From so many bytes on, the target goes past the caches: it would not stay in them anyway, and so the processor need
 * not read what it is about to overwrite. */
#define HOST_STREAM_BYTES ((size_t)32 << 20)

/* `whole` is the length of the command that these bytes are a part of. Ranges may overlap. */
void host_transfer_copy(void *target, const void *source, size_t length, size_t whole);
void host_transfer_fill(void *target, int value, size_t length, size_t whole);

#endif
