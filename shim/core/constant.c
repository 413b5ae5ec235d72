/* Values of function constants: which constant of the library each is for. */
#include "object.h"
#include "status.h"

#include <inttypes.h>
#include <string.h>

const mps_constant_info *mps_library_find_constant(const mps_library *library, const mps_constant_value *value) {
  const mps_constant_info *found = NULL;
  for (uint32_t number = 0; number < library->constant_count; number++) {
    const mps_constant_info *constant = &library->constants[number];
    bool is_meant = value->name != NULL ? strcmp(constant->name, value->name) == 0 : constant->index == value->index;
    if (is_meant && constant->data_type == value->data_type) {
      return constant;
    }
    if (is_meant && found == NULL) {
      found = constant;
    }
  }
  return found;
}

static mps_status unknown_constant(const mps_library *library, const mps_constant_value *value) {
  const char *why = library->constant_count == 0 ? "it has none" : "see mps_library_constant for those it has";
  if (value->name != NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "the library has no function constant '%s': %s", value->name, why);
  }
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "the library has no function constant with index %" PRIu32 ": %s",
                  value->index, why);
}

mps_status mps_library_check_constants(const mps_library *library, const mps_constant_value *values, uint32_t count) {
  for (uint32_t number = 0; number < count; number++) {
    const mps_constant_value *value = &values[number];
    const mps_constant_info *constant = mps_library_find_constant(library, value);
    if (constant == NULL) {
      return unknown_constant(library, value);
    }
    if (constant->data_type != value->data_type) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "function constant '%s' (index %" PRIu32 ") has data type 0x%" PRIx32
                      ", and the value given is of data type 0x%" PRIx32,
                      constant->name, constant->index, constant->data_type, value->data_type);
    }
    for (uint32_t before = 0; before < number; before++) {
      if (mps_library_find_constant(library, &values[before]) == constant) {
        return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "function constant '%s' (index %" PRIu32 ") is given two values",
                        constant->name, constant->index);
      }
    }
  }
  return MPS_STATUS_OK;
}
