/* Threads of a threadgroup as fibers: barriers, SIMD-groups, and the order in which they run. */
#include "kernel_samples.h"

#include <pthread.h>

#define MOST 4096

static const uint32_t sizes[] = {1, 2, 31, 32, 33, 64, 100, 256, 1023, 1024};
#define SIZES (sizeof sizes / sizeof sizes[0])

static host_image *image;

/* ---- barriers ---- */

static void reverses(uint32_t group, uint32_t threads) {
  uint32_t out[MOST], in[MOST];
  for (uint32_t n = 0; n < threads; n++) {
    in[n] = n * 2654435761u;
  }
  mslc_launch launch = sample_launch(threads, group, out, in);
  launch.threadgroup_offset[0] = 16384;
  sample_pass(image, "reverse", &launch);
  for (uint32_t n = 0; n < threads; n++) {
    uint32_t start = n / group * group;
    uint32_t length = threads - start < group ? threads - start : group;
    EXPECT_EQUAL(out[n], (start + length - 1 - (n - start)) * 2654435761u);
  }
}

static void sums(uint32_t group) {
  uint32_t out[2] = {0, 0}, in[2048];
  for (uint32_t n = 0; n < 2 * group; n++) {
    in[n] = n + 1;
  }
  mslc_launch launch = sample_launch(2 * group, group, out, in);
  sample_pass(image, "tree", &launch);
  uint32_t first = group * (group + 1) / 2;
  EXPECT_EQUAL(out[0], first);
  EXPECT_EQUAL(out[1], first + group * group);
}

static void returns_early(uint32_t group, uint32_t staying) {
  uint32_t out[1024];
  mslc_launch launch = sample_launch(group, group, out, &staying);
  sample_pass(image, "early_return", &launch);
  for (uint32_t n = 0; n < group; n++) {
    EXPECT_EQUAL(out[n], n < staying ? staying : 7);
  }
}

static void loops(uint32_t group, uint32_t rounds) {
  uint32_t out[1024];
  mslc_launch launch = sample_launch(group, group, out, &rounds);
  sample_pass(image, "rounds", &launch);
  for (uint32_t n = 0; n < group; n++) {
    EXPECT_EQUAL(out[n], rounds);
  }
}

static void barriers(void) {
  for (size_t n = 0; n < SIZES; n++) {
    reverses(sizes[n], sizes[n]);
    reverses(sizes[n], 3 * sizes[n] + sizes[n] / 2 > MOST ? MOST : 3 * sizes[n] + sizes[n] / 2);
    sums(sizes[n]);
    loops(sizes[n], 5);
    returns_early(sizes[n], 1);
    returns_early(sizes[n], sizes[n] / 2);
    returns_early(sizes[n], sizes[n]);
  }
}

/* ---- SIMD-groups ---- */

/* The lanes that thread `thread`'s SIMD-group has. */
static uint32_t lanes_of(uint32_t threads, uint32_t thread) {
  uint32_t left = threads - thread / 32 * 32;
  return left >= 32 ? UINT32_MAX : (UINT32_C(1) << left) - 1;
}

static void simd_sums(uint32_t group) {
  uint32_t out[1024], in[1024];
  for (uint32_t n = 0; n < group; n++) {
    in[n] = n * n + 1;
  }
  mslc_launch launch = sample_launch(group, group, out, in);
  sample_pass(image, "simd_sum", &launch);
  for (uint32_t n = 0; n < group; n++) {
    uint32_t expected = 0;
    for (uint32_t lane = n / 32 * 32; lane < group && lane < n / 32 * 32 + 32; lane++) {
      expected += lane * lane + 1;
    }
    EXPECT_EQUAL(out[n], expected);
  }
}

static void diverges(uint32_t group) {
  uint32_t out[2048], in = 0;
  mslc_launch launch = sample_launch(group, group, out, &in);
  sample_pass(image, "divergent", &launch);
  for (uint32_t n = 0; n < group; n++) {
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
      uint32_t other = n / 32 * 32 + lane;
      same |= other < group && (other % 3 == 0) == (n % 3 == 0) ? UINT32_C(1) << lane : 0;
    }
    EXPECT_EQUAL(out[2 * n], same);
    EXPECT_EQUAL(out[2 * n + 1], lanes_of(group, n));
  }
}

/* A lane that is in its round r meets those that have as many rounds or more. */
static void trips(uint32_t group) {
  uint32_t out[1024], in = 0;
  mslc_launch launch = sample_launch(group, group, out, &in);
  sample_pass(image, "trip_counts", &launch);
  for (uint32_t n = 0; n < group; n++) {
    uint32_t meets = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
      meets |= lane % 8 >= n % 8 ? UINT32_C(1) << lane : 0;
    }
    EXPECT_EQUAL(out[n], meets & lanes_of(group, n));
  }
}

static void some_at_the_barrier(uint32_t group) {
  uint32_t out[1024], in = 0;
  mslc_launch launch = sample_launch(group, group, out, &in);
  sample_pass(image, "barrier_and_collective", &launch);
  for (uint32_t n = 0; n < group; n++) {
    uint32_t lanes = lanes_of(group, n);
    EXPECT_EQUAL(out[n], n % 2 == 1 ? (lanes & 0xaaaaaaaa) ^ lanes : lanes);
  }
}

/* SIMD-groups take turns, one collective each. */
static void takes_turns(uint32_t group) {
  uint32_t out[4 * 32], in = 0;
  mslc_launch launch = sample_launch(group, group, out, &in);
  sample_pass(image, "turns", &launch);
  uint32_t simdgroups = (group + 31) / 32;
  for (uint32_t n = 0; n < 4 * simdgroups; n++) {
    EXPECT_EQUAL(out[n], n % simdgroups);
  }
}

static void waits_by_yielding(uint32_t group) {
  uint32_t out[1024] = {0}, in = 0;
  mslc_launch launch = sample_launch(group, group, out, &in);
  sample_pass(image, "chain", &launch);
  for (uint32_t n = 0; n < group; n++) {
    EXPECT_EQUAL(out[n], group - n);
  }
}

static void simdgroups(void) {
  for (size_t n = 0; n < SIZES; n++) {
    simd_sums(sizes[n]);
    diverges(sizes[n]);
    trips(sizes[n]);
    some_at_the_barrier(sizes[n]);
    takes_turns(sizes[n]);
    waits_by_yielding(sizes[n]);
  }
}

/* ---- floating point ---- */

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void flushes_denormals(void) {
  const uint32_t smallest_normal = 0x00800000, denormal = 0x00400000;
  float in[3] = {from_bits(smallest_normal), from_bits(denormal), 3.0f}, out[3] = {1, 1, 1};
  mslc_launch launch = sample_launch(3, 3, out, in);
  sample_pass(image, "halve", &launch);
  EXPECT(out[0] == 0.0f && out[1] == 0.0f && out[2] == 1.5f);
  volatile float here = in[0];
  here *= 0.5f;
  EXPECT(here != 0.0f); /* this thread's own mode is back */
}

/* ---- on several threads at once ---- */

static void *everything(void *nothing) {
  (void)nothing;
  barriers();
  simdgroups();
  flushes_denormals();
  return NULL;
}

int main(int count, char **arguments) {
  image = samples_open(count, arguments);
  everything(NULL);
  pthread_t threads[3];
  for (size_t n = 0; n < 3; n++) {
    EXPECT_EQUAL(pthread_create(&threads[n], NULL, everything, NULL), 0);
  }
  for (size_t n = 0; n < 3; n++) {
    pthread_join(threads[n], NULL);
  }
  host_image_drop(image);
  return 0;
}
