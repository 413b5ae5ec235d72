#include "kernel_log.h"

#include "fiber.h"
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

_Atomic(host_log_fn) host_log_to = mps_log_add;

/* ---- conversions ---- */

/* "%-8.3v4hlf": everything of a conversion but its %. */
typedef struct conversion {
  char flags[8];
  int width; /* -1: none */
  int precision;
  unsigned lanes;  /* behind v; 0: no vector */
  unsigned length; /* bytes that h, hh, l, hl and ll stand for; 0: none is there */
  char letter;
} conversion;

/* A text of limited size that is written piece by piece. */
typedef struct writer {
  char *to;
  size_t left; /* with the end */
} writer;

static HOST_ON_FIBER void advance(writer *out, int length) {
  size_t written = length < 0 ? 0 : (size_t)length;
  written = written < out->left ? written : out->left - 1;
  out->to += written;
  out->left -= written;
}

static HOST_ON_FIBER __attribute__((format(printf, 2, 3))) void put(writer *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  advance(out, vsnprintf(out->to, out->left, format, arguments));
  va_end(arguments);
}

static HOST_ON_FIBER bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

static HOST_ON_FIBER int read_number(const char **at) {
  int number = 0;
  while (is_digit(**at)) {
    number = number < 100000 ? number * 10 + (**at - '0') : number;
    ++*at;
  }
  return number;
}

static HOST_ON_FIBER unsigned read_length(const char **at) {
  static const struct {
    const char *word;
    unsigned bytes;
  } lengths[] = {{"hh", 1}, {"hl", 4}, {"h", 2}, {"ll", 8}, {"l", 8}, {"j", 8}, {"z", 8}, {"t", 8}};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    size_t size = strlen(lengths[i].word);
    if (strncmp(*at, lengths[i].word, size) == 0) {
      *at += size;
      return lengths[i].bytes;
    }
  }
  return 0;
}

/* `at` is behind the %. false if that is no conversion; else `at` is behind it. */
static HOST_ON_FIBER bool read_conversion(const char **at, conversion *found) {
  const char *next = *at;
  *found = (conversion){.width = -1, .precision = -1};
  size_t flags = 0;
  while (*next != '\0' && strchr("-+ #0", *next) != NULL) {
    if (flags < sizeof found->flags - 1) {
      found->flags[flags++] = *next;
    }
    next++;
  }
  found->width = is_digit(*next) ? read_number(&next) : -1;
  if (*next == '.') {
    next++;
    found->precision = read_number(&next);
  }
  if (*next == 'v') {
    next++;
    found->lanes = (unsigned)read_number(&next);
  }
  found->length = read_length(&next);
  found->letter = *next;
  if (*next == '\0' || strchr("diuoxXcfFeEgGaAsp", *next) == NULL) {
    return false;
  }
  *at = next + 1;
  return true;
}

/* ---- values ---- */

/* What an integer is when it is passed as one of `bytes` bytes. */
static HOST_ON_FIBER long narrowed(long value, unsigned bytes, bool is_signed) {
  if (bytes >= 8) {
    return value;
  }
  unsigned shift = 64 - 8 * bytes;
  unsigned long up = (unsigned long)value << shift;
  return is_signed ? (long)up >> shift : (long)(up >> shift);
}

/* A conversion for printf, of a value of the widest type. */
static HOST_ON_FIBER void spell(char *format, size_t size, const conversion *with, const char *length, char letter) {
  writer out = {format, size};
  put(&out, "%%%s", with->flags);
  if (with->width >= 0) {
    put(&out, "%d", with->width < HOST_LOG_BYTES ? with->width : HOST_LOG_BYTES);
  }
  if (with->precision >= 0) {
    put(&out, ".%d", with->precision < HOST_LOG_BYTES ? with->precision : HOST_LOG_BYTES);
  }
  put(&out, "%s%c", length, letter);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static HOST_ON_FIBER void put_integer(writer *out, const conversion *with, const mslc_value *value, unsigned lane) {
  char format[48];
  bool fits = strchr("diuoxXc", with->letter) != NULL;
  char letter = fits ? with->letter : value->kind == MSLC_VALUE_SIGNED ? 'd' : 'u';
  if (letter == 'c') {
    spell(format, sizeof format, with, "", letter);
    put(out, format, (int)(unsigned char)value->integers[lane]);
    return;
  }
  /* As in C, what is smaller than an int is passed as one; a vector's elements are not. */
  unsigned own = value->lanes == 1 && value->size < 4 ? 4 : value->size;
  unsigned bytes = fits && with->length != 0 ? with->length : own;
  spell(format, sizeof format, with, "l", letter);
  put(out, format, narrowed(value->integers[lane], bytes, letter == 'd' || letter == 'i'));
}

static HOST_ON_FIBER void put_float(writer *out, const conversion *with, const mslc_value *value, unsigned lane) {
  char format[48];
  bool fits = strchr("fFeEgGaA", with->letter) != NULL;
  spell(format, sizeof format, with, "", fits ? with->letter : 'f');
  put(out, format, value->floats[lane]);
}

static HOST_ON_FIBER void put_pointer(writer *out, const conversion *with, const mslc_value *value) {
  char format[48];
  bool is_text = with->letter == 's' && value->pointer != NULL;
  spell(format, sizeof format, with, "", is_text ? 's' : 'p');
  put(out, format, value->pointer);
}

#pragma GCC diagnostic pop

static HOST_ON_FIBER void put_value(writer *out, const conversion *with, const mslc_value *value) {
  for (unsigned lane = 0; lane < value->lanes && lane < 4; lane++) {
    if (lane > 0) {
      put(out, ",");
    }
    switch (value->kind) {
    case MSLC_VALUE_FLOAT:
      put_float(out, with, value, lane);
      break;
    case MSLC_VALUE_POINTER:
      put_pointer(out, with, value);
      break;
    default:
      put_integer(out, with, value, lane);
    }
  }
}

/* The next %, or the end. */
static HOST_ON_FIBER const char *percent_of(const char *text) {
  while (*text != '\0' && *text != '%') {
    text++;
  }
  return text;
}

HOST_ON_FIBER void host_log_format(char *text, size_t size, const mslc_log_call *call) {
  writer out = {text, size};
  unsigned used = 0;
  text[0] = '\0';
  for (const char *at = call->format; *at != '\0' && out.left > 1;) {
    const char *percent = percent_of(at);
    put(&out, "%.*s", (int)(percent - at < HOST_LOG_BYTES ? percent - at : HOST_LOG_BYTES), at);
    if (*percent == '\0') {
      return;
    }
    const char *next = percent + 1;
    conversion with;
    if (*next == '%') {
      put(&out, "%%");
      next++;
    } else if (read_conversion(&next, &with) && used < call->count) {
      put_value(&out, &with, &call->values[used++]);
    } else {
      next = percent + 1;
      put(&out, "%%");
    }
    at = next;
  }
}

HOST_ON_FIBER void host_log(const mslc_log_call *call) {
  host_worker *worker = host_self;
  if (!mps_log_wants(call->level)) {
    return;
  }
  /* All that a bad pointer can spoil is done before any lock is taken. */
  host_log_format(worker->message, sizeof worker->message, call);
  host_log_fn add = atomic_load_explicit(&host_log_to, memory_order_relaxed);
  add(&(mps_log_message){.struct_size = sizeof(mps_log_message),
                         .level = call->level,
                         .subsystem = call->subsystem,
                         .category = call->category,
                         .kernel = worker->kernel,
                         .message = worker->message});
}
