/* The checks that the public functions share. `function` is always the public function's own name. */
#ifndef MPS_CORE_CHECK_H
#define MPS_CORE_CHECK_H

#include "object.h"
#include "status.h"

/* Begin a public function: refuse a forked child and a handle that is not one of `kind`. */
#define MPS_ENTER(handle, kind)                                                                                        \
  do {                                                                                                                 \
    MPS_TRY(mps_fork_check());                                                                                         \
    MPS_TRY(mps_object_check((handle), (kind), __func__));                                                             \
  } while (0)

/* Refuse NULL for a pointer that the function needs. */
#define MPS_REQUIRE(pointer)                                                                                           \
  do {                                                                                                                 \
    if ((pointer) == NULL) {                                                                                           \
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: " #pointer " must not be NULL", __func__);                     \
    }                                                                                                                  \
  } while (0)

/* Bytes of a struct up to and with `field`: what the release that brought the struct knew of it. */
#define MPS_SIZE_THROUGH(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* Read the caller's descriptor into one of this version: fields that it does not have yet are 0, fields that this
 * version does not have yet must be. NULL reads as all zeros. */
#define MPS_READ(type, last_field, to, from)                                                                           \
  MPS_TRY(mps_struct_read(__func__, #type, (to), sizeof(type), (from), MPS_SIZE_THROUGH(type, last_field)))

/* Check the caller's struct for results, which may be shorter or longer than this version's. */
#define MPS_CHECK_RESULT(type, last_field, to)                                                                         \
  MPS_TRY(mps_struct_check(__func__, #type, (to), MPS_SIZE_THROUGH(type, last_field)))

mps_status mps_struct_check(const char *function, const char *type, const void *given, size_t minimum);
mps_status mps_struct_read(const char *function, const char *type, void *to, size_t size, const void *from,
                           size_t minimum);

/* Give a result to the caller: as much as the caller's struct holds, zeros in what this version does not know. */
void mps_struct_write(void *to, const void *from, size_t size);

/* INVALID_ARGUMENT unless both objects are of one device. */
mps_status mps_check_same_device(const char *function, const mps_device *own, const char *what,
                                 const mps_device *other);

/* INVALID_ARGUMENT unless [offset, offset + length) lies in the buffer. */
mps_status mps_check_range(const char *function, const char *what, const mps_buffer *buffer, uint64_t offset,
                           uint64_t length);

/* INVALID_ARGUMENT unless the modes of a heap or a buffer are ones that there are. */
mps_status mps_check_modes(const char *function, uint32_t storage_mode, uint32_t cache_mode, uint32_t hazard_mode);

#endif
