/*
 * What the binding computes itself: single blocks of the random generator, without a device. They are those of
 * kernels/random.metal, and NumPy draws them through its own C interface.
 */
#include <stdint.h>

/* cdef: begin */
/* Where a random stream is. Python and NumPy's threads move it on together, so `offset` is only touched atomically. */
typedef struct {
  uint64_t seed;
  uint64_t offset;
} mpscffi_stream;
/* cdef: end */

/* As numpy/random/bitgen.h declares it. */
typedef struct {
  void *state;
  uint64_t (*next_uint64)(void *state);
  uint32_t (*next_uint32)(void *state);
  double (*next_double)(void *state);
  uint64_t (*next_raw)(void *state);
} mpscffi_bitgen;

/* Philox4x32-10. Blocks of different purposes have nothing in common; 0 is for numbers. */
static void mpscffi_philox(uint64_t seed, uint64_t index, uint32_t purpose, uint32_t words[4]) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = 0, c3 = purpose;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p = (uint64_t)c0 * 0xD2511F53u;
    const uint64_t q = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)q;
    c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

/* Reserve blocks: the number of the first. */
static uint64_t mpscffi_stream_take(mpscffi_stream *stream, uint64_t blocks) {
  return __atomic_fetch_add(&stream->offset, blocks, __ATOMIC_RELAXED);
}

static uint64_t mpscffi_stream_offset(mpscffi_stream *stream) {
  return __atomic_load_n(&stream->offset, __ATOMIC_RELAXED);
}

static void mpscffi_stream_set(mpscffi_stream *stream, uint64_t seed, uint64_t offset) {
  __atomic_store_n(&stream->seed, seed, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->offset, offset, __ATOMIC_RELAXED);
}

/* A block for each number: what is left of it is dropped, so that seed and offset are the whole state. */
static uint64_t mpscffi_next_uint64(void *state) {
  mpscffi_stream *stream = (mpscffi_stream *)state;
  uint32_t words[4];
  mpscffi_philox(__atomic_load_n(&stream->seed, __ATOMIC_RELAXED), mpscffi_stream_take(stream, 1), 0, words);
  return words[0] | (uint64_t)words[1] << 32;
}

static uint32_t mpscffi_next_uint32(void *state) {
  return (uint32_t)mpscffi_next_uint64(state);
}

static double mpscffi_next_double(void *state) {
  return (double)(mpscffi_next_uint64(state) >> 11) * 0x1p-53;
}

/* Make NumPy's structure at an address draw from a stream, which must live as long. */
static void mpscffi_bitgen_attach(uintptr_t address, mpscffi_stream *stream) {
  mpscffi_bitgen *bitgen = (mpscffi_bitgen *)address;
  bitgen->state = stream;
  bitgen->next_uint64 = mpscffi_next_uint64;
  bitgen->next_uint32 = mpscffi_next_uint32;
  bitgen->next_double = mpscffi_next_double;
  bitgen->next_raw = mpscffi_next_uint64;
}
