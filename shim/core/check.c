#include "check.h"

#include <inttypes.h>
#include <string.h>

/* No struct of this interface will ever be larger: more is an uninitialised struct_size. */
enum { LARGEST_STRUCT = 4096 };

mps_status mps_struct_check(const char *function, const char *type, const void *given, size_t minimum) {
  if (given == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the pointer to %s must not be NULL", function, type);
  }
  size_t size = *(const size_t *)given;
  if (size < minimum || size > LARGEST_STRUCT) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: struct_size is %zu, at least %zu is expected: set it to sizeof(%s)", function, size, minimum,
                    type);
  }
  return MPS_STATUS_OK;
}

mps_status mps_struct_read(const char *function, const char *type, void *to, size_t size, const void *from,
                           size_t minimum) {
  memset(to, 0, size);
  if (from == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_TRY(mps_struct_check(function, type, from, minimum));
  size_t given = *(const size_t *)from;
  memcpy(to, from, given < size ? given : size);
  for (size_t i = size; i < given; i++) {
    if (((const unsigned char *)from)[i] != 0) {
      return mps_fail(MPS_STATUS_UNSUPPORTED,
                      "%s: byte %zu of %s is set, but version %s of the library knows only the first %zu", function, i,
                      type, mps_version(), size);
    }
  }
  return MPS_STATUS_OK;
}

void mps_struct_write(void *to, const void *from, size_t size) {
  size_t given = *(const size_t *)to;
  size_t common = given < size ? given : size;
  memcpy((char *)to + sizeof given, (const char *)from + sizeof given, common - sizeof given);
  memset((char *)to + common, 0, given - common);
}

mps_status mps_check_same_device(const char *function, const mps_device *own, const char *what,
                                 const mps_device *other) {
  if (own != other) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the %s belongs to device '%s', not to '%s'", function, what,
                    other->info.name, own->info.name);
  }
  return MPS_STATUS_OK;
}

mps_status mps_check_range(const char *function, const char *what, const mps_buffer *buffer, uint64_t offset,
                           uint64_t length) {
  if (offset > buffer->length || length > buffer->length - offset) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: %" PRIu64 " bytes from offset %" PRIu64 " on do not lie in the %s of %" PRIu64 " bytes",
                    function, length, offset, what, buffer->length);
  }
  return MPS_STATUS_OK;
}

mps_status mps_check_modes(const char *function, uint32_t storage_mode, uint32_t cache_mode, uint32_t hazard_mode) {
  if (storage_mode != MPS_STORAGE_SHARED && storage_mode != MPS_STORAGE_PRIVATE) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: storage_mode is %" PRIu32 ", not MPS_STORAGE_SHARED (0) or _PRIVATE (2)", function,
                    storage_mode);
  }
  if (cache_mode > MPS_CACHE_WRITE_COMBINED) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: cache_mode is %" PRIu32 ", not MPS_CACHE_DEFAULT (0) or _WRITE_COMBINED (1)", function,
                    cache_mode);
  }
  if (hazard_mode > MPS_HAZARD_TRACKED) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: hazard_mode is %" PRIu32 ", not MPS_HAZARD_DEFAULT (0), _UNTRACKED (1) or _TRACKED (2)",
                    function, hazard_mode);
  }
  return MPS_STATUS_OK;
}
