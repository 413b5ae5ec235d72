// What every kernel library made of AIR holds besides its kernel: the way to the runtime, number conversions, and what
// reads the arguments of log messages.
#include <mslc/launch.h>

MSLC_THUNKS
MSLC_NUMBER_HELPERS

namespace {

// More values than that are not logged at once.
constexpr unsigned most_values = 64;

// "%-8.3v4hlf": what kernel_log.c makes of it, as far as it tells of the type.
struct conversion {
  unsigned lanes = 0;  // behind v; 0: no vector
  unsigned length = 0; // bytes that h, hh, l, hl and ll stand for; 0: none is there
  char letter = 0;     // 0: it is none
};

bool is_among(char letter, const char *letters) {
  while (*letters != 0 && *letters != letter) {
    letters++;
  }
  return letter != 0 && *letters == letter;
}

unsigned number_at(const char *&at) {
  unsigned number = 0;
  for (; is_among(*at, "0123456789"); at++) {
    number = number < 100000 ? number * 10 + (*at - '0') : number;
  }
  return number;
}

unsigned length_at(const char *&at) {
  if (*at == 'h') {
    at++;
    if (*at != 'h' && *at != 'l') {
      return 2;
    }
    return *at++ == 'h' ? 1 : 4;
  }
  if (*at == 'l') {
    at += at[1] == 'l' ? 2 : 1;
    return 8;
  }
  return is_among(*at, "jzt") ? at++, 8 : 0;
}

// `at` is behind the %, and then behind the conversion, if it is one.
conversion conversion_at(const char *&at) {
  const char *next = at;
  conversion found;
  while (is_among(*next, "-+ #0")) {
    next++;
  }
  number_at(next);
  if (*next == '.') {
    number_at(++next);
  }
  if (*next == 'v') {
    found.lanes = number_at(++next);
  }
  found.length = length_at(next);
  if (is_among(*next, "diuoxXcfFeEgGaAsp")) {
    found.letter = *next;
    at = next + 1;
  }
  return found;
}

// Arguments as C passes variable ones where it has them in memory: promoted, each at a multiple of its own size.
struct arguments {
  const char *start;
  unsigned long size;
  unsigned long used = 0;

  const char *take(unsigned long bytes) {
    unsigned long place = (used + bytes - 1) / bytes * bytes;
    if (place > size || bytes > size - place) {
      return nullptr;
    }
    used = place + bytes;
    return start + place;
  }
};

template <class T> T at(const char *place, unsigned lane) {
  T value;
  __builtin_memcpy(&value, place + lane * sizeof(T), sizeof(T));
  return value;
}

double float_at(const char *place, unsigned lane, unsigned bytes) {
  return bytes == 8 ? at<double>(place, lane) : bytes == 4 ? at<float>(place, lane) : (float)at<half>(place, lane);
}

long integer_at(const char *place, unsigned lane, unsigned bytes, bool is_signed) {
  switch (bytes) {
  case 1:
    return is_signed ? (long)at<signed char>(place, lane) : (long)at<unsigned char>(place, lane);
  case 2:
    return is_signed ? (long)at<short>(place, lane) : (long)at<unsigned short>(place, lane);
  case 4:
    return is_signed ? (long)at<int>(place, lane) : (long)at<unsigned>(place, lane);
  default:
    return at<long>(place, lane);
  }
}

bool read_value(arguments &list, const conversion &as, mslc_value &value) {
  bool is_float = is_among(as.letter, "fFeEgGaA"), is_pointer = is_among(as.letter, "sp");
  bool is_signed = is_among(as.letter, "di");
  unsigned lanes = is_pointer || as.lanes < 2 ? 1 : as.lanes;
  // Of a vector the length is that of its elements; a number by itself is promoted to int or double.
  unsigned bytes = is_pointer ? 8 : lanes > 1 ? (as.length != 0 ? as.length : 4) : is_float || as.length == 8 ? 8 : 4;
  if (lanes > 4 || (is_float && bytes < 2)) {
    return false;
  }
  const char *place = list.take((lanes == 3 ? 4 : lanes) * bytes);
  if (place == nullptr) {
    return false;
  }
  value.lanes = lanes;
  value.size = bytes;
  value.kind = is_pointer  ? MSLC_VALUE_POINTER
               : is_float  ? MSLC_VALUE_FLOAT
               : is_signed ? MSLC_VALUE_SIGNED
                           : MSLC_VALUE_UNSIGNED;
  for (unsigned lane = 0; lane < lanes; lane++) {
    if (is_pointer) {
      value.pointer = at<const void *>(place, 0);
    } else if (is_float) {
      value.floats[lane] = float_at(place, lane, bytes);
    } else {
      value.integers[lane] = integer_at(place, lane, bytes, is_signed);
    }
  }
  return true;
}

// os_log_type as mps_log_level of mpsshim.h
unsigned level_of(unsigned type) {
  return type == 2 ? 1 : type == 1 ? 2 : type == 16 ? 4 : type == 17 ? 5 : 3;
}

// The default logger has no subsystem, and -1 for a category.
const char *text_of(const char *text) {
  return text == nullptr || text == (const char *)-1l ? "" : text;
}

} // namespace

extern "C" MSLC_HIDDEN void mslc_air_os_log(const char *subsystem, const char *category, unsigned type,
                                            const char *format, const char *list, unsigned long size) {
  arguments left{list, size};
  mslc_value values[most_values] = {};
  unsigned count = 0;
  for (const char *next = format; *next != 0 && count < most_values;) {
    if (*next++ != '%') {
      continue;
    }
    if (*next == '%') {
      next++;
      continue;
    }
    conversion as = conversion_at(next);
    if (as.letter != 0) {
      if (!read_value(left, as, values[count])) {
        break;
      }
      count++;
    }
  }
  const mslc_log_call call = {text_of(subsystem), text_of(category), format, values, count, level_of(type)};
  mslc_log(&call);
}
