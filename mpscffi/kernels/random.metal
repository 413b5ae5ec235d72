// Random numbers, the same on every device: Philox4x32-10, and the distributions that are made of its words.
//
// Block `index` of a stream is Philox of the counter (low half of index, high half, attempt, purpose) under the key
// (low half of seed, high half). Thread i of a launch makes block `base + first + i` and the elements that come of it.
//
// What is not integer arithmetic is built from operations that Metal rounds correctly: conversions, fma, products,
// quotients and square roots. No product meets a sum outside an fma, so that no compiler has anything to contract.
// Compile it in safe math mode.
#include <metal_stdlib>
using namespace metal;

// How many threads of a kernel without loops one of these kernels' threads is worth, at most. The host device runs what
// is little at once, and would else take each loop for one that may not end.
#ifdef __MSLC__
#define WORK(THREADS) [[thread_work(THREADS)]]
#else
#define WORK(THREADS)
#endif

// A loop with a call in it is not vectorized.
#define INLINE inline __attribute__((always_inline))

// ---- the generator

// Why a block is drawn. Blocks of different purposes have nothing in common.
constant constexpr uint for_numbers = 0;
constant constexpr uint for_ties = 2; // 1 is for the seeds of spawned generators, which no kernel makes

struct words {
  uint of[4];
};

INLINE void philox(ulong seed, ulong index, uint attempt, uint purpose, thread words &out) {
  uint c0 = uint(index), c1 = uint(index >> 32), c2 = attempt, c3 = purpose;
  uint k0 = uint(seed), k1 = uint(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const ulong p = ulong(c0) * 0xD2511F53u;
    const ulong q = ulong(c2) * 0xCD9E8D57u;
    c0 = uint(q >> 32) ^ c1 ^ k0;
    c1 = uint(q);
    c2 = uint(p >> 32) ^ c3 ^ k1;
    c3 = uint(p);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out.of[0] = c0;
  out.of[1] = c1;
  out.of[2] = c2;
  out.of[3] = c3;
}

// ---- from words to floats

constant constexpr float two_to_minus_31 = 1.0f / 2147483648.0f;
constant constexpr float two_to_minus_32 = 1.0f / 4294967296.0f;
constant constexpr float below_one = 1.0f - 1.0f / 16777216.0f; // the number before it

// In (0, 1], with the resolution of 31 bits near 0.
INLINE float open_unit(uint word) {
  return fma(float(int(word >> 1)), two_to_minus_31, two_to_minus_32);
}

// The natural logarithm of a normal number: log(2^n (1 + t)) with 1 + t in [sqrt(1/2), sqrt(2)), so that nothing
// cancels near 1. Within 1 unit in the last place.
INLINE float log_of(float x) {
  const int bits = as_type<int>(x);
  const int n = (bits - 0x3f3504f3) >> 23;
  const float t = as_type<float>(bits - (n << 23)) - 1.0f;
  float p = -0.07859337f;
  p = fma(p, t, 0.12881543f);
  p = fma(p, t, -0.13128808f);
  p = fma(p, t, 0.14181210f);
  p = fma(p, t, -0.16624551f);
  p = fma(p, t, 0.20002286f);
  p = fma(p, t, -0.25000811f);
  p = fma(p, t, 0.33333316f);
  const float tail = fma(t, p, -0.5f) * (t * t);
  const float exponent = float(n);
  // ln 2 in two parts; the first has few bits, so that its product with n is exact.
  return fma(exponent, 0.693359375f, t + fma(exponent, -2.12194440e-4f, tail));
}

// Sine and cosine of a number of revolutions in [-1/2, 1/2]. Within 2 units in the last place.
INLINE void direction_of(float revolutions, thread float &sine, thread float &cosine) {
  const float quarters = rint(revolutions * 4.0f);
  const int quadrant = int(quarters);
  const float f = fma(quarters, -0.25f, revolutions); // [-1/8, 1/8], exact
  const float z = f * f;
  float s = -75.39356f;
  s = fma(s, z, 81.592354f);
  s = fma(s, z, -41.341663f);
  s = fma(s, z, 6.2831855f);
  s = s * f;
  float c = 59.229233f;
  c = fma(c, z, -85.44324f);
  c = fma(c, z, 64.93932f);
  c = fma(c, z, -19.739208f);
  c = fma(c, z, 1.0f);
  const bool odd = (quadrant & 1) != 0;
  sine = as_type<float>(as_type<uint>(odd ? c : s) ^ (uint(quadrant & 2) << 30));
  cosine = as_type<float>(as_type<uint>(odd ? s : c) ^ (uint((quadrant + 1) & 2) << 30));
}

// ---- distributions: `per_block` elements come of a block

// Bits of the mantissa, the hidden one included: uniform numbers are multiples of 2^-bits.
template <typename T> struct precision;
template <> struct precision<float> {
  static constant constexpr int bits = 24;
};
template <> struct precision<half> {
  static constant constexpr int bits = 11;
};
#if __METAL_VERSION__ >= 310
template <> struct precision<bfloat> {
  static constant constexpr int bits = 8;
};
#endif

struct uniform_law {
  float low, range, high;
  float highest; // the last number of the element type below `high`: rounding must not lead there
  static constant constexpr int per_block = 4;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    const float unit = as_type<float>((127 - precision<T>::bits) << 23);
    for (int k = 0; k < 4; k++) {
      const float u = float(int(w.of[k] >> (32 - precision<T>::bits))) * unit;
      const T value = T(fma(u, range, low));
      out[k] = float(value) < high ? value : T(highest);
    }
  }
};

// Box and Muller's transform of two pairs of words.
struct normal_law {
  float mean, deviation;
  static constant constexpr int per_block = 4;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    for (int k = 0; k < 4; k += 2) {
      const float radius = sqrt(log_of(open_unit(w.of[k])) * -2.0f);
      float sine, cosine;
      direction_of(float(int(w.of[k + 1])) * two_to_minus_32, sine, cosine);
      out[k] = T(fma(radius * cosine, deviation, mean));
      out[k + 1] = T(fma(radius * sine, deviation, mean));
    }
  }
};

struct exponential_law {
  float scale;
  float smallest; // normal number of the element type
  static constant constexpr int per_block = 4;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    for (int k = 0; k < 4; k++) {
      const float u = min(open_unit(w.of[k]), below_one); // below 1, whose logarithm is 0
      out[k] = T(max(log_of(u) * -scale, smallest));
    }
  }
};

struct bernoulli_law {
  ulong threshold; // probability x 2^32
  static constant constexpr int per_block = 4;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    for (int k = 0; k < 4; k++) {
      out[k] = ulong(w.of[k]) < threshold ? T(1) : T(0);
    }
  }
};

// A number below `range`, each as likely as any other: the high half of word x range, unless its low half is one of
// the 2^32 mod range that would favour some. Then the same word of the block's next attempt is tried, so that what an
// element is does not depend on its neighbours.
INLINE uint below(uint range, uint excess, ulong seed, ulong index, int k, uint word) {
  ulong product = ulong(word) * range;
  for (uint attempt = 1; uint(product) < excess; attempt++) {
    words w;
    philox(seed, index, attempt, for_numbers, w);
    product = ulong(w.of[k]) * range;
  }
  return uint(product >> 32);
}

struct integers_law {
  uint low;
  uint range;  // 0 for 2^32
  uint excess; // 2^32 mod range
  static constant constexpr int per_block = 4;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    for (int k = 0; k < 4; k++) {
      const uint value = range == 0 ? w.of[k] : below(range, excess, seed, index, k, w.of[k]);
      out[k] = T(int(low + value));
    }
  }
};

struct long_integers_law {
  ulong low;
  ulong range;  // 0 for 2^64
  ulong excess; // 2^64 mod range
  static constant constexpr int per_block = 2;

  template <typename T> INLINE void draw(ulong seed, ulong index, thread T *out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    for (int k = 0; k < 2; k++) {
      ulong value = pair(w, k);
      if (range != 0) {
        for (uint attempt = 1; value * range < excess; attempt++) {
          words w;
          philox(seed, index, attempt, for_numbers, w);
          value = pair(w, k);
        }
        value = mulhi(value, range);
      }
      out[k] = T(low + value);
    }
  }

private:
  static INLINE ulong pair(thread const words &w, int k) {
    return ulong(w.of[2 * k]) | ulong(w.of[2 * k + 1]) << 32;
  }
};

// ---- kernels

struct part {
  ulong seed;
  ulong base;  // the stream's block for the first element
  ulong first; // block of this launch, counted from there
  ulong count; // elements in all
};

// Elements in C order, whole blocks only.
template <typename T, typename Law>
WORK(16)
kernel void dense(device T *out [[buffer(0)]], constant part &p [[buffer(1)]], constant Law &given [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
  Law law = given;
  const ulong block = p.first + i;
  T drawn[Law::per_block];
  law.draw(p.seed, p.base + block, drawn);
  for (int k = 0; k < Law::per_block; k++) {
    out[block * Law::per_block + k] = drawn[k];
  }
}

// Where an element lies, in bytes. `layout`: the number of axes, where element 0 lies, then length and stride of each
// axis, the innermost first.
INLINE long place(ulong element, constant long *layout) {
  long at = layout[1];
  for (long axis = 0; axis < layout[0]; axis++) {
    const ulong length = ulong(layout[2 + 2 * axis]);
    at += long(element % length) * layout[3 + 2 * axis];
    element /= length;
  }
  return at;
}

// The same elements wherever they lie, and those of a last block that is not whole.
template <typename T, typename Law>
WORK(64)
kernel void scattered(device uchar *out [[buffer(0)]], constant part &p [[buffer(1)]],
                      constant Law &given [[buffer(2)]], constant long *layout [[buffer(3)]],
                      uint i [[thread_position_in_grid]]) {
  Law law = given;
  const ulong block = p.first + i;
  T drawn[Law::per_block];
  law.draw(p.seed, p.base + block, drawn);
  for (int k = 0; k < Law::per_block; k++) {
    const ulong element = block * Law::per_block + k;
    if (element < p.count) {
      *reinterpret_cast<device T *>(out + place(element, layout)) = drawn[k];
    }
  }
}

// ---- a parameter for each element, which has blocks of its own

struct bernoulli_each_law {
  static constant constexpr ulong blocks = 1;

  template <typename T> static INLINE void draw(float probability, ulong seed, ulong index, thread T &out) {
    words w;
    philox(seed, index, 0, for_numbers, w);
    out = w.of[0] < ulong(probability * 4294967296.0f) ? T(1) : T(0);
  }
};

// The logarithm of the probability of the number whole + above, where rate is whole + rest: Stirling's, with the
// difference of its large terms as a series near the mean, so that it keeps its digits at any rate.
INLINE float poisson_log(float above, float whole, float rest, float rate) {
  const float number = whole + above;
  if (number < 0.5f) {
    return -rate;
  }
  const float beyond = above - rest; // number - rate
  const float x = beyond / rate;
  const float inverse = 1.0f / number;
  const float square = inverse * inverse;
  const float correction = inverse * fma(square, fma(square, 1.0f / 1260.0f, -1.0f / 360.0f), 1.0f / 12.0f);
  float loss;
  if (abs(x) < 0.25f) {
    // (1 + x) log(1 + x) - x
    float p = 1.0f / 132.0f;
    p = fma(p, x, -1.0f / 110.0f);
    p = fma(p, x, 1.0f / 90.0f);
    p = fma(p, x, -1.0f / 72.0f);
    p = fma(p, x, 1.0f / 56.0f);
    p = fma(p, x, -1.0f / 42.0f);
    p = fma(p, x, 1.0f / 30.0f);
    p = fma(p, x, -1.0f / 20.0f);
    p = fma(p, x, 1.0f / 12.0f);
    p = fma(p, x, -1.0f / 6.0f);
    p = fma(p, x, 0.5f);
    loss = fma(beyond * x, p, correction);
  } else {
    loss = fma(number, log_of(number / rate), correction - beyond);
  }
  return fma(log_of(6.2831855f * number), -0.5f, -loss);
}

// How many arrivals there are in a time, of which one is expected in each unit of it. Rates below 12: times between
// arrivals, which are exponential, are added up. Others: Hormann's transformed rejection, where two words make an
// attempt, of which four of five are taken. 128 words are more than either needs.
struct poisson_law {
  static constant constexpr ulong blocks = 32;

  template <typename T> static INLINE void draw(float rate, ulong seed, ulong index, thread T &out) {
    out = T(rate < 12.0f ? counted(rate, seed, index) : rejected(rate, seed, index));
  }

private:
  static INLINE int counted(float rate, ulong seed, ulong index) {
    words w;
    float passed = 0.0f;
    int count = 0;
    for (; count < int(blocks * 4); count++) {
      if (count % 4 == 0) {
        philox(seed, index + ulong(count / 4), 0, for_numbers, w);
      }
      passed = passed - log_of(min(open_unit(w.of[count % 4]), below_one));
      if (passed > rate) {
        break;
      }
    }
    return count;
  }

  static INLINE int rejected(float rate, ulong seed, ulong index) {
    const float b = fma(sqrt(rate), 2.53f, 0.931f);
    const float a = fma(b, 0.02483f, -0.059f);
    const float inverse_alpha = 1.1239f + 1.1328f / (b - 3.4f);
    const float squeeze = 0.9277f - 3.6224f / (b - 2.0f);
    const float whole = floor(rate), rest = rate - whole;
    words w;
    float above = 0.0f;
    for (int attempt = 0; attempt < int(blocks * 2); attempt++) {
      if (attempt % 2 == 0) {
        philox(seed, index + ulong(attempt / 2), 0, for_numbers, w);
      }
      const uint word = w.of[attempt % 2 * 2];
      const float v = open_unit(w.of[attempt % 2 * 2 + 1]);
      // The distance of a uniform number from the nearer end of its range; the last bit tells from which one.
      const float end = open_unit(word) * 0.5f;
      const float u = (word & 1) != 0 ? 0.5f - end : end - 0.5f;
      above = floor(fma(2.0f * a / end + b, u, rest + 0.43f));
      if (end >= 0.07f && v <= squeeze) {
        break;
      }
      if (above < -whole || above > 1073741824.0f || (end < 0.013f && v > end)) {
        continue;
      }
      if (log_of(v * inverse_alpha / (a / (end * end) + b)) <= poisson_log(above, whole, rest, rate)) {
        break;
      }
    }
    return int(whole) + int(above);
  }
};

// `given[element * step]` is an element's parameter: with a step of 0 there is one for all.
template <typename T, typename Law>
WORK(256)
kernel void each(device T *out [[buffer(0)]], constant part &p [[buffer(1)]], device const float *given [[buffer(2)]],
                 constant uint &step [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  const ulong element = p.first + i;
  T drawn;
  Law::draw(given[element * step], p.seed, p.base + element * Law::blocks, drawn);
  out[element] = drawn;
}

template <typename T, typename Law>
WORK(256)
kernel void each_scattered(device uchar *out [[buffer(0)]], constant part &p [[buffer(1)]],
                           device const float *given [[buffer(2)]], constant uint &step [[buffer(3)]],
                           constant long *layout [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  const ulong element = p.first + i;
  T drawn;
  Law::draw(given[element * step], p.seed, p.base + element * Law::blocks, drawn);
  *reinterpret_cast<device T *>(out + place(element, layout)) = drawn;
}

// ---- permutations

// What a permutation sorts: a random word above the element's number; and another word, by which elements are sorted
// whose first ones are equal.
WORK(16)
kernel void sort_keys(device ulong *keys [[buffer(0)]], device uint *ties [[buffer(1)]], constant part &p [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
  const ulong block = p.first + i;
  words high, low;
  philox(p.seed, p.base + block, 0, for_numbers, high);
  philox(p.seed, p.base + block, 0, for_ties, low);
  for (int k = 0; k < 4; k++) {
    const ulong element = block * 4 + k;
    keys[element] = ulong(high.of[k]) << 32 | element;
    ties[element] = low.of[k];
  }
}

// A small permutation, by Fisher and Yates, in one thread: the exchange number j takes word j of the stream.
WORK(16384)
kernel void shuffled(device long *out [[buffer(0)]], constant part &p [[buffer(1)]]) {
  const uint count = uint(p.count);
  for (uint j = 0; j < count; j++) {
    out[j] = j;
  }
  words w = {};
  for (uint j = 0; j + 1 < count; j++) {
    const ulong index = p.base + j / 4;
    if (j % 4 == 0) {
      philox(p.seed, index, 0, for_numbers, w);
    }
    const uint last = count - 1 - j;
    const uint range = last + 1;
    const uint other = below(range, (0u - range) % range, p.seed, index, int(j % 4), w.of[j % 4]);
    const long moved = out[other];
    out[other] = out[last];
    out[last] = moved;
  }
}

#define KERNELS(LAW, T)                                                                                                \
  template [[host_name(#LAW "_" #T)]] kernel void dense<T, LAW##_law>(device T *, constant part &,                     \
                                                                      constant LAW##_law &, uint);                     \
  template [[host_name(#LAW "_" #T "_scattered")]] kernel void scattered<T, LAW##_law>(                                \
      device uchar *, constant part &, constant LAW##_law &, constant long *, uint);
#define EACH(LAW, T)                                                                                                   \
  template [[host_name(#LAW "_" #T)]] kernel void each<T, LAW##_law>(device T *, constant part &,                      \
                                                                     device const float *, constant uint &, uint);     \
  template [[host_name(#LAW "_" #T "_scattered")]] kernel void each_scattered<T, LAW##_law>(                           \
      device uchar *, constant part &, device const float *, constant uint &, constant long *, uint);
#define FLOATING(T) KERNELS(uniform, T) KERNELS(normal, T) KERNELS(exponential, T) EVERY(T) KERNELS(integers, T)
#define EVERY(T) KERNELS(bernoulli, T) EACH(bernoulli_each, T) EACH(poisson, T)
FLOATING(float)
FLOATING(half)
#if __METAL_VERSION__ >= 310
FLOATING(bfloat)
#endif
EVERY(uchar)
EVERY(ushort)
EVERY(uint)
EVERY(ulong)
KERNELS(integers, uchar)
KERNELS(integers, ushort)
KERNELS(integers, uint)
KERNELS(long_integers, ulong)
