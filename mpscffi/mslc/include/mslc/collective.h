// What the functions of SIMD-groups and quadgroups are made of. Each gathers the operands of the lanes that take part,
// and one lane does the work for all.
#pragma once
#pragma clang system_header
#include <metal_compute>

namespace mslc {

constexpr uint simd_width = MSLC_SIMD_WIDTH;
constexpr uint quad_width = 4;

// The lanes' operands, for the lane that does the work.
template <class Operand> struct lanes {
  void *const *operands;
  uint mask;

  MSLC_FUNC Operand &operator[](uint lane) const {
    return *static_cast<Operand *>(operands[lane]);
  }
  MSLC_FUNC bool has(uint lane) const {
    return mask >> lane & 1;
  }
  // visit(lane) for each that takes part, in order.
  template <class Visit> MSLC_FUNC void each(Visit visit) const {
    if (mask == ~0u) { // as nearly always, and then a loop that can be vectorized
      for (uint i = 0; i < simd_width; i++) {
        visit(i);
      }
      return;
    }
    for (uint left = mask; left != 0; left &= left - 1) {
      visit(static_cast<uint>(__builtin_ctz(left)));
    }
  }
  // The lanes that take part in one group of `width` lanes.
  MSLC_FUNC lanes group(uint first, uint width) const {
    const uint all = width == simd_width ? ~0u : (1u << width) - 1;
    return {operands, mask & (all << first)};
  }
};

// The lanes of a SIMD-group wait for those that are before this place in the code.
MSLC_CONVERGENT_FUNC void rejoin() {
  int nothing = 0;
  collective(nothing, [](void *const *, unsigned) {});
}

// work(lanes) once for each group of `width` lanes that has any.
template <uint width, class Operand, class Work> MSLC_CONVERGENT_FUNC void for_groups(Operand &operand, Work) {
  collective(operand, [](void *const *operands, unsigned mask) {
    const lanes<Operand> all{operands, mask};
    for (uint first = 0; first < simd_width; first += width) {
      const lanes<Operand> some = all.group(first, width);
      if (some.mask != 0) {
        Work::run(some, first);
      }
    }
  });
}

// The combination of some values. Of a full SIMD-group by halves, which is fast and keeps errors of sums small; of fewer
// lanes one after the other. Operations are classes with a static run(a, b).
template <class Operation, class T> MSLC_FUNC T combined(T *values, uint count) {
  if (count == simd_width) {
    for (uint half_of = simd_width / 2; half_of != 0; half_of /= 2) {
      for (uint i = 0; i < half_of; i++) {
        values[i] = Operation::run(values[i], values[i + half_of]);
      }
    }
    return values[0];
  }
  T total = values[0];
  for (uint i = 1; i < count; i++) {
    total = Operation::run(total, values[i]);
  }
  return total;
}

// Every lane gets the combination of all operands.
template <class Operation> struct reduction {
  template <class T> static MSLC_FUNC void run(const lanes<T> &some, uint) {
    T values[simd_width];
    uint count = 0;
    some.each([&](uint i) { values[count++] = some[i]; });
    const T total = combined<Operation>(values, count);
    some.each([&](uint i) { some[i] = total; });
  }
};

// Every lane gets the combination of the lanes before it, and of itself if `inclusive`.
template <class Operation, bool inclusive> struct scan {
  template <class T> static MSLC_FUNC void run(const lanes<T> &some, uint) {
    T total = Operation::template neutral<T>();
    some.each([&](uint i) {
      const T before = total;
      total = Operation::run(total, some[i]);
      some[i] = inclusive ? total : before;
    });
  }
};

struct sum {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return static_cast<T>(a + b);
  }
  template <class T> static MSLC_FUNC T neutral() {
    return T(0);
  }
};
struct product {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return static_cast<T>(a * b);
  }
  template <class T> static MSLC_FUNC T neutral() {
    return T(1);
  }
};
struct smallest {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return metal::min(a, b);
  }
};
struct largest {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return metal::max(a, b);
  }
};
struct bits_and {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct bits_or {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct bits_xor {
  template <class T> static MSLC_FUNC T run(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// A value that goes from lane to lane: `from` is the lane to take it from, counted in the group, -1 for none. A lane
// that does not take part, or is none, has nothing to give: then a lane keeps `otherwise`.
template <class T> struct parcel {
  T value;
  T otherwise;
  int from;
};
struct exchange {
  template <class T> static MSLC_FUNC void run(const lanes<parcel<T>> &some, uint first) {
    T arrived[simd_width];
    some.each([&](uint i) {
      const uint from = first + static_cast<uint>(some[i].from);
      arrived[i] = some[i].from >= 0 && from < simd_width && some.has(from) ? some[from].value : some[i].otherwise;
    });
    some.each([&](uint i) { some[i].value = arrived[i]; });
  }
};
template <uint width, class T> MSLC_CONVERGENT_FUNC T take(T value, T otherwise, int from) {
  parcel<T> mine{value, otherwise, from};
  for_groups<width>(mine, exchange{});
  return mine.value;
}

// A lane's number in its group of `width`.
template <uint width> MSLC_FUNC int lane_in() {
  return static_cast<int>(mslc_lane() % width);
}

struct vote {
  bool yes;
  uint result;
};
struct ballot {
  static MSLC_FUNC void run(const lanes<vote> &some, uint first) {
    uint result = 0;
    some.each([&](uint i) { result |= static_cast<uint>(some[i].yes) << (i - first); });
    some.each([&](uint i) { some[i].result = result; });
  }
};
template <uint width> MSLC_CONVERGENT_FUNC uint votes(bool yes) {
  vote mine{yes, 0};
  for_groups<width>(mine, ballot{});
  return mine.result;
}

// The functions that SIMD-groups and quadgroups have in common, named by their prefix.
#define MSLC_GROUP_REDUCTION(name, operation, kinds)                                                                   \
  template <class T, class = enable_if_t<mslc::kinds<T>>> MSLC_CONVERGENT_FUNC T name(T data) {                        \
    mslc::for_groups<MSLC_GROUP_WIDTH>(data, mslc::reduction<mslc::operation>{});                                      \
    return data;                                                                                                       \
  }
#define MSLC_GROUP_SCAN(name, operation, inclusive)                                                                    \
  template <class T, class = enable_if_t<mslc::is_value<T>>> MSLC_CONVERGENT_FUNC T name(T data) {                     \
    mslc::for_groups<MSLC_GROUP_WIDTH>(data, mslc::scan<mslc::operation, inclusive>{});                                \
    return data;                                                                                                       \
  }
// `from` is an expression of `me`, `delta` and `width`.
#define MSLC_GROUP_SHUFFLE(name, from)                                                                                 \
  template <class T> MSLC_CONVERGENT_FUNC T name(T data, ushort delta) {                                               \
    constexpr int width [[maybe_unused]] = MSLC_GROUP_WIDTH;                                                           \
    const int me [[maybe_unused]] = mslc::lane_in<MSLC_GROUP_WIDTH>();                                                 \
    return mslc::take<MSLC_GROUP_WIDTH>(data, data, from);                                                             \
  }

#define MSLC_GROUP_FUNCTIONS(prefix)                                                                                   \
  MSLC_GROUP_REDUCTION(prefix##_sum, sum, is_value)                                                                    \
  MSLC_GROUP_REDUCTION(prefix##_product, product, is_value)                                                            \
  MSLC_GROUP_REDUCTION(prefix##_min, smallest, is_value)                                                               \
  MSLC_GROUP_REDUCTION(prefix##_max, largest, is_value)                                                                \
  MSLC_GROUP_REDUCTION(prefix##_and, bits_and, is_integer)                                                             \
  MSLC_GROUP_REDUCTION(prefix##_or, bits_or, is_integer)                                                               \
  MSLC_GROUP_REDUCTION(prefix##_xor, bits_xor, is_integer)                                                             \
  MSLC_GROUP_SCAN(prefix##_prefix_inclusive_sum, sum, true)                                                            \
  MSLC_GROUP_SCAN(prefix##_prefix_exclusive_sum, sum, false)                                                           \
  MSLC_GROUP_SCAN(prefix##_prefix_inclusive_product, product, true)                                                    \
  MSLC_GROUP_SCAN(prefix##_prefix_exclusive_product, product, false)                                                   \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle, delta < width ? delta : -1)                                                     \
  MSLC_GROUP_SHUFFLE(prefix##_broadcast, delta < width ? delta : -1)                                                   \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle_xor, delta < width ? me ^ delta : -1)                                            \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle_up, me - delta)                                                                  \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle_down, me + delta < width ? me + delta : -1)                                      \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle_rotate_up, (me - delta) & (width - 1))                                           \
  MSLC_GROUP_SHUFFLE(prefix##_shuffle_rotate_down, (me + delta) & (width - 1))                                         \
  template <class T>                                                                                                   \
  MSLC_CONVERGENT_FUNC T prefix##_shuffle_and_fill_up(T data, mslc::same<T> filling, ushort delta,                     \
                                                      ushort modulo = MSLC_GROUP_WIDTH) {                              \
    return mslc::shuffle_and_fill<MSLC_GROUP_WIDTH>(data, filling, -static_cast<int>(delta), modulo);                  \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  MSLC_CONVERGENT_FUNC T prefix##_shuffle_and_fill_down(T data, mslc::same<T> filling, ushort delta,                   \
                                                        ushort modulo = MSLC_GROUP_WIDTH) {                            \
    return mslc::shuffle_and_fill<MSLC_GROUP_WIDTH>(data, filling, delta, modulo);                                     \
  }                                                                                                                    \
  template <class T> MSLC_CONVERGENT_FUNC T prefix##_broadcast_first(T data) {                                         \
    mslc::for_groups<MSLC_GROUP_WIDTH>(data, mslc::broadcast_first{});                                                 \
    return data;                                                                                                       \
  }                                                                                                                    \
  MSLC_CONVERGENT_FUNC bool prefix##_all(bool condition) {                                                             \
    return mslc::votes<MSLC_GROUP_WIDTH>(!condition) == 0;                                                             \
  }                                                                                                                    \
  MSLC_CONVERGENT_FUNC bool prefix##_any(bool condition) {                                                             \
    return mslc::votes<MSLC_GROUP_WIDTH>(condition) != 0;                                                              \
  }                                                                                                                    \
  MSLC_CONVERGENT_FUNC prefix##_vote prefix##_ballot(bool condition) {                                                 \
    return prefix##_vote(mslc::votes<MSLC_GROUP_WIDTH>(condition));                                                    \
  }                                                                                                                    \
  MSLC_CONVERGENT_FUNC prefix##_vote prefix##_active_threads_mask() {                                                  \
    return prefix##_vote(mslc::votes<MSLC_GROUP_WIDTH>(true));                                                         \
  }                                                                                                                    \
  MSLC_CONVERGENT_FUNC bool prefix##_is_first() {                                                                      \
    return __builtin_ctz(mslc::votes<MSLC_GROUP_WIDTH>(true)) == mslc::lane_in<MSLC_GROUP_WIDTH>();                    \
  }                                                                                                                    \
  MSLC_FUNC bool prefix##_is_helper_thread() {                                                                         \
    return false;                                                                                                      \
  }

// Lanes are taken in segments of `modulo`; what comes from beyond a segment's end comes from the filling of the lane
// that is as far beyond the segment's other end.
template <class T> struct filled_parcel {
  T value;
  T filling;
  int from;
  bool from_filling;
};
struct filled_exchange {
  template <class T> static MSLC_FUNC void run(const lanes<filled_parcel<T>> &some, uint first) {
    T arrived[simd_width];
    some.each([&](uint i) {
      const filled_parcel<T> &mine = some[i];
      const uint from = first + static_cast<uint>(mine.from);
      arrived[i] = !some.has(from) ? mine.value : mine.from_filling ? some[from].filling : some[from].value;
    });
    some.each([&](uint i) { some[i].value = arrived[i]; });
  }
};
template <uint width, class T> MSLC_CONVERGENT_FUNC T shuffle_and_fill(T value, T filling, int delta, ushort modulo) {
  const int segment = modulo >= 2 && modulo <= width ? modulo : static_cast<int>(width);
  const int me = lane_in<width>();
  const int in_segment = me % segment + delta;
  const bool beyond = in_segment < 0 || in_segment >= segment;
  const int wrapped = ((in_segment % segment) + segment) % segment;
  filled_parcel<T> mine{value, filling, me - me % segment + wrapped, beyond};
  for_groups<width>(mine, filled_exchange{});
  return mine.value;
}

struct broadcast_first {
  template <class T> static MSLC_FUNC void run(const lanes<T> &some, uint) {
    const T value = some[static_cast<uint>(__builtin_ctz(some.mask))];
    some.each([&](uint i) { some[i] = value; });
  }
};

} // namespace mslc
