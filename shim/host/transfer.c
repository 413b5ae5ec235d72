#include "transfer.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE 64u

/* Bytes up to the next cache line. */
static size_t to_line(const void *pointer) {
  return -(uintptr_t)pointer & (LINE - 1);
}

/* No prefetch: the processor's own does better than any hint that was tried here. */
static void stream_copy(char *target, const char *source, size_t length) {
  size_t head = to_line(target);
  memcpy(target, source, head);
  size_t lines = (length - head) / LINE;
  __m128i *to = (__m128i *)(void *)(target + head);
  const __m128i *from = (const __m128i *)(const void *)(source + head);
  for (size_t i = 0; i < lines; i++, to += 4, from += 4) {
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
  size_t done = head + lines * LINE;
  memcpy(target + done, source + done, length - done);
}

static void stream_fill(char *target, int value, size_t length) {
  size_t head = to_line(target);
  memset(target, value, head);
  size_t lines = (length - head) / LINE;
  __m128i *to = (__m128i *)(void *)(target + head);
  __m128i bytes = _mm_set1_epi8((char)value);
  for (size_t i = 0; i < lines; i++, to += 4) {
    _mm_stream_si128(to, bytes);
    _mm_stream_si128(to + 1, bytes);
    _mm_stream_si128(to + 2, bytes);
    _mm_stream_si128(to + 3, bytes);
  }
  _mm_sfence();
  size_t done = head + lines * LINE;
  memset(target + done, value, length - done);
}

static int overlap(const char *a, const char *b, size_t length) {
  return a < b + length && b < a + length;
}

void host_transfer_copy(void *target, const void *source, size_t length, size_t whole) {
  if (whole >= HOST_STREAM_BYTES && length >= LINE && !overlap(target, source, length)) {
    stream_copy(target, source, length);
  } else {
    memmove(target, source, length);
  }
}

void host_transfer_fill(void *target, int value, size_t length, size_t whole) {
  if (whole >= HOST_STREAM_BYTES && length >= LINE) {
    stream_fill(target, value, length);
  } else {
    memset(target, value, length);
  }
}

#else

void host_transfer_copy(void *target, const void *source, size_t length, size_t whole) {
  (void)whole;
  memmove(target, source, length);
}

void host_transfer_fill(void *target, int value, size_t length, size_t whole) {
  (void)whole;
  memset(target, value, length);
}

#endif
