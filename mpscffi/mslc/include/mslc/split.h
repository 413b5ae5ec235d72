// Threadgroups without fibers: what a kernel is written with that mslc/split has made into loops over the threads of a
// threadgroup, one loop for each part between two barriers.
//
// Such a kernel is called once for each threadgroup. Before its own parameters it has two more: the threadgroup, and
// the worker's memory for what each thread keeps from one loop to the next.
#pragma once
#pragma clang system_header
#include <mslc/collective.h>
#include <mslc/launch.h>

namespace mslc {

struct split_group {
  const launch_state &launch;
  threadgroup_state state;

  MSLC_FUNC thread_state thread(unsigned index) const {
    if (state.threads.x == state.count) {
      return {{index, 0, 0}, index};
    }
    const unsigned row = index / state.threads.x;
    return {{index % state.threads.x, row % state.threads.y, row / state.threads.y}, index};
  }
};

// A built-in input that differs from thread to thread.
template <role_kind kind, class P> MSLC_FUNC P split_input(const split_group &group, const thread_state &thread) {
  return as_parameter<P>(built_in<kind>(group.launch, group.state, thread));
}

// What a `constant T &` refers to, as in constant_copy.
template <class T, bool is_copied = sizeof(T) <= copied_bytes> struct split_constant {
  T copy;
  MSLC_FUNC explicit split_constant(const T &original) {
    __builtin_memcpy(&copy, &original, sizeof(T));
  }
  MSLC_FUNC const T &value() const {
    return copy;
  }
};
template <class T> struct split_constant<T, false> {
  const T &original;
  MSLC_FUNC explicit split_constant(const T &given) : original(given) {
  }
  MSLC_FUNC const T &value() const {
    return original;
  }
};

// A variable that each thread of the threadgroup has. It begins as raw memory; `begin` does what its declaration does.
template <class T> struct per_thread {
  static_assert(__is_trivially_copyable(T), "a thread's variable is kept as raw memory");
  static_assert(alignof(T) <= 64, "scratch_end knows no greater alignment");
  T *const values;
  MSLC_FUNC explicit per_thread(char *memory) : values(reinterpret_cast<T *>(memory)) {
  }
  MSLC_FUNC T &operator[](size_t thread) const {
    return values[thread];
  }
  static MSLC_FUNC void begin(T &value) {
    if constexpr (!__is_trivially_constructible(T)) {
      value = T();
    }
  }
};

// Where the memory of a variable of type T ends that begins at `begin`. A bit longer than the variable, lest those of
// all variables share a few cache sets.
template <class T> constexpr unsigned long scratch_end(unsigned long begin) {
  const unsigned long stagger = 320;
  return (begin + sizeof(T) * MSLC_MAX_GROUP_THREADS + stagger + 63) / 64 * 64;
}

// A loop over the threads: x, y and z of each, and the number of its row's first.
#define MSLC_FOR_THREADS(group)                                                                                        \
  for (unsigned mslc_z = 0, mslc_row = 0; mslc_z < (group).state.threads.z; mslc_z++)                                  \
    for (unsigned mslc_y = 0; mslc_y < (group).state.threads.y; mslc_y++, mslc_row += (group).state.threads.x)         \
      for (unsigned mslc_x = 0; mslc_x < (group).state.threads.x; mslc_x++)

// ---- functions of SIMD-groups and quadgroups: of `lanes` values, those of the lanes that there are ----

template <class Operation> struct split_reduction {
  template <class T> static MSLC_FUNC void run(T *values, const ushort *, unsigned lanes) {
    const T total = combined<Operation>(values, lanes);
    for (unsigned i = 0; i < lanes; i++) {
      values[i] = total;
    }
  }
};

template <class Operation, bool inclusive> struct split_scan {
  template <class T> static MSLC_FUNC void run(T *values, const ushort *, unsigned lanes) {
    T total = Operation::template neutral<T>();
    for (unsigned i = 0; i < lanes; i++) {
      const T before = total;
      total = Operation::run(total, values[i]);
      values[i] = inclusive ? total : before;
    }
  }
};

// From::lane(me, delta, width): the lane whose value goes to lane `me`.
template <class From, int width> struct split_exchange {
  template <class T> static MSLC_FUNC void run(T *values, const ushort *deltas, unsigned lanes) {
    T before[simd_width];
    for (unsigned i = 0; i < lanes; i++) {
      before[i] = values[i];
    }
    for (unsigned i = 0; i < lanes; i++) {
      const int from = From::lane(static_cast<int>(i), deltas[i], width);
      if (from >= 0 && static_cast<unsigned>(from) < lanes) {
        values[i] = before[from];
      }
    }
  }
};

#define MSLC_SPLIT_SHUFFLE(name, from)                                                                                 \
  struct name##_lane {                                                                                                 \
    static MSLC_FUNC int lane([[maybe_unused]] int me, int delta, [[maybe_unused]] int width) {                        \
      return from;                                                                                                     \
    }                                                                                                                  \
  };
MSLC_SPLIT_SHUFFLE(shuffle, delta < width ? delta : -1)
MSLC_SPLIT_SHUFFLE(broadcast, delta < width ? delta : -1)
MSLC_SPLIT_SHUFFLE(shuffle_xor, delta < width ? me ^ delta : -1)
MSLC_SPLIT_SHUFFLE(shuffle_up, me - delta)
MSLC_SPLIT_SHUFFLE(shuffle_down, me + delta < width ? me + delta : -1)
MSLC_SPLIT_SHUFFLE(shuffle_rotate_up, (me - delta) & (width - 1))
MSLC_SPLIT_SHUFFLE(shuffle_rotate_down, (me + delta) & (width - 1))
#undef MSLC_SPLIT_SHUFFLE

#define MSLC_SPLIT_REDUCTIONS(X, width)                                                                                \
  X(sum, split_reduction<mslc::sum>)                                                                                   \
  X(product, split_reduction<mslc::product>)                                                                           \
  X(min, split_reduction<mslc::smallest>)                                                                              \
  X(max, split_reduction<mslc::largest>)                                                                               \
  X(and, split_reduction<mslc::bits_and>)                                                                              \
  X(or, split_reduction<mslc::bits_or>)                                                                                \
  X(xor, split_reduction<mslc::bits_xor>)                                                                              \
  X(prefix_inclusive_sum, split_scan<mslc::sum MSLC_COMMA true>)                                                       \
  X(prefix_exclusive_sum, split_scan<mslc::sum MSLC_COMMA false>)                                                      \
  X(prefix_inclusive_product, split_scan<mslc::product MSLC_COMMA true>)                                               \
  X(prefix_exclusive_product, split_scan<mslc::product MSLC_COMMA false>)                                              \
  X(shuffle, split_exchange<shuffle_lane MSLC_COMMA width>)                                                            \
  X(broadcast, split_exchange<broadcast_lane MSLC_COMMA width>)                                                        \
  X(shuffle_xor, split_exchange<shuffle_xor_lane MSLC_COMMA width>)                                                    \
  X(shuffle_up, split_exchange<shuffle_up_lane MSLC_COMMA width>)                                                      \
  X(shuffle_down, split_exchange<shuffle_down_lane MSLC_COMMA width>)                                                  \
  X(shuffle_rotate_up, split_exchange<shuffle_rotate_up_lane MSLC_COMMA width>)                                        \
  X(shuffle_rotate_down, split_exchange<shuffle_rotate_down_lane MSLC_COMMA width>)

#define MSLC_COMMA ,
#define MSLC_SPLIT_SIMD(name, operation) using split_simd_##name = operation;
#define MSLC_SPLIT_QUAD(name, operation) using split_quad_##name = operation;
MSLC_SPLIT_REDUCTIONS(MSLC_SPLIT_SIMD, 32)
MSLC_SPLIT_REDUCTIONS(MSLC_SPLIT_QUAD, 4)
#undef MSLC_SPLIT_SIMD
#undef MSLC_SPLIT_QUAD
#undef MSLC_COMMA
#undef MSLC_SPLIT_REDUCTIONS

// Operand and second argument of one lane.
template <class T> struct split_operand {
  T value;
  ushort delta;
};

// results[i] of each thread: what it gets when all threads of its group of `width` give operand(thread).
template <unsigned width, class Operation, class Operand, class T>
MSLC_FUNC void split_collective(const split_group &group, Operand operand, const per_thread<T> &results) {
  for (unsigned first = 0; first < group.state.count; first += width) {
    const unsigned left = group.state.count - first;
    const unsigned lanes = left < width ? left : width;
    T values[width];
    ushort deltas[width];
    for (unsigned i = 0; i < lanes; i++) {
      const split_operand<T> given = operand(group.thread(first + i));
      values[i] = given.value;
      deltas[i] = given.delta;
    }
    Operation::run(values, deltas, lanes);
    for (unsigned i = 0; i < lanes; i++) {
      results[first + i] = values[i];
    }
  }
}

// ---- how the launcher calls such a kernel ----

template <class... Parameters>
struct signature<void (*)(const split_group &, char *, Parameters...)> : signature<void (*)(Parameters...)> {
  static constexpr bool is_split = true;

  template <auto function, class... Roles>
  static MSLC_FUNC void run_threadgroup(const launch_state &launch, const threadgroup_state &state) {
    const typename signature<void (*)(Parameters...)>::template constants<Roles...> copies(launch);
    call<function, Roles...>({launch, state}, copies, numbers_below<sizeof...(Parameters)>());
  }

private:
  template <auto function, class... Roles, class Copies, unsigned... numbers>
  static MSLC_FUNC void call(const split_group &group, const Copies &copies, numbers_list<numbers...>) {
    const thread_state first{{0, 0, 0}, 0};
    function(group, static_cast<char *>(mslc_scratch()),
             parameter<numbers, Parameters, Roles>(group.launch, group.state, first, copies)...);
  }
};

} // namespace mslc
