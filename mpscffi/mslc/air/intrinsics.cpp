// What translated AIR calls, in terms of the prelude: so that a kernel means the same whether it comes as source or
// precompiled. Compiled to bitcode once, and linked into each kernel, where all of it is inlined.
//
// Names are those of AIR with underscores, as mslc_air_min_s_i32 for air.min.s.i32. All take and give scalars, as the
// calling convention of vectors is not LLVM's own; what has vectors is taken apart by the translation.
#include <metal_atomic>
#include <metal_common>
#include <metal_compute>
#include <metal_integer>
#include <metal_math>
#include <metal_quadgroup>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <mslc/gang.h>
#include <mslc/launch.h>

#define MSLC_AIR extern "C" __attribute__((always_inline))

using metal::ulong2;

// ---------------------------------------------------------------- types, with AIR's names for them

#define MSLC_FLOATS(each, ...)                                                                                         \
  each(float, f32, __VA_ARGS__) each(half, f16, __VA_ARGS__) each(bfloat, bf16, __VA_ARGS__)
#define MSLC_SIGNED(each, ...)                                                                                         \
  each(char, s_i8, __VA_ARGS__) each(short, s_i16, __VA_ARGS__) each(int, s_i32, __VA_ARGS__)                          \
      each(long, s_i64, __VA_ARGS__)
#define MSLC_UNSIGNED(each, ...)                                                                                       \
  each(uchar, u_i8, __VA_ARGS__) each(ushort, u_i16, __VA_ARGS__) each(uint, u_i32, __VA_ARGS__)                       \
      each(ulong, u_i64, __VA_ARGS__)
#define MSLC_BITS(each, ...)                                                                                           \
  each(uchar, i8, __VA_ARGS__) each(ushort, i16, __VA_ARGS__) each(uint, i32, __VA_ARGS__) each(ulong, i64, __VA_ARGS__)
#define MSLC_INTEGERS(each, ...) MSLC_SIGNED(each, __VA_ARGS__) MSLC_UNSIGNED(each, __VA_ARGS__)
#define MSLC_NUMBERS(each, ...) MSLC_FLOATS(each, __VA_ARGS__) MSLC_INTEGERS(each, __VA_ARGS__)
// What AIR says no sign of, too.
#define MSLC_VALUES(each, ...) MSLC_NUMBERS(each, __VA_ARGS__) MSLC_BITS(each, __VA_ARGS__)

// ---------------------------------------------------------------- arithmetic

#define MSLC_OF_1(type, suffix, name, function)                                                                        \
  MSLC_AIR type mslc_air_##name##_##suffix(type a) {                                                                   \
    return static_cast<type>(metal::function(a));                                                                      \
  }
#define MSLC_OF_2(type, suffix, name, function)                                                                        \
  MSLC_AIR type mslc_air_##name##_##suffix(type a, type b) {                                                           \
    return static_cast<type>(metal::function(a, b));                                                                   \
  }
#define MSLC_OF_3(type, suffix, name, function)                                                                        \
  MSLC_AIR type mslc_air_##name##_##suffix(type a, type b, type c) {                                                   \
    return static_cast<type>(metal::function(a, b, c));                                                                \
  }

#define MSLC_FLOAT_1(name) MSLC_FLOATS(MSLC_OF_1, name, name)
MSLC_FLOAT_1(acos)
MSLC_FLOAT_1(acosh)
MSLC_FLOAT_1(asin)
MSLC_FLOAT_1(asinh)
MSLC_FLOAT_1(atan)
MSLC_FLOAT_1(atanh)
MSLC_FLOAT_1(ceil)
MSLC_FLOAT_1(cos)
MSLC_FLOAT_1(cosh)
MSLC_FLOAT_1(cospi)
MSLC_FLOAT_1(exp)
MSLC_FLOAT_1(exp2)
MSLC_FLOAT_1(exp10)
MSLC_FLOAT_1(fabs)
MSLC_FLOAT_1(floor)
MSLC_FLOAT_1(fract)
MSLC_FLOAT_1(log)
MSLC_FLOAT_1(log2)
MSLC_FLOAT_1(log10)
MSLC_FLOAT_1(rint)
MSLC_FLOAT_1(round)
MSLC_FLOAT_1(rsqrt)
MSLC_FLOAT_1(saturate)
MSLC_FLOAT_1(sign)
MSLC_FLOAT_1(sin)
MSLC_FLOAT_1(sinh)
MSLC_FLOAT_1(sinpi)
MSLC_FLOAT_1(sqrt)
MSLC_FLOAT_1(tan)
MSLC_FLOAT_1(tanh)
MSLC_FLOAT_1(tanpi)
MSLC_FLOAT_1(trunc)

#define MSLC_FLOAT_2(name) MSLC_FLOATS(MSLC_OF_2, name, name)
MSLC_FLOAT_2(atan2)
MSLC_FLOAT_2(copysign)
MSLC_FLOAT_2(fdim)
MSLC_FLOAT_2(fmax)
MSLC_FLOAT_2(fmin)
MSLC_FLOAT_2(fmod)
MSLC_FLOAT_2(nextafter)
MSLC_FLOAT_2(pow)
MSLC_FLOAT_2(powr)
MSLC_FLOAT_2(step)

#define MSLC_FLOAT_3(name) MSLC_FLOATS(MSLC_OF_3, name, name)
MSLC_FLOAT_3(clamp)
MSLC_FLOAT_3(fma)
MSLC_FLOAT_3(fmax3)
MSLC_FLOAT_3(fmedian3)
MSLC_FLOAT_3(fmin3)
MSLC_FLOAT_3(mix)
MSLC_FLOAT_3(smoothstep)

#define MSLC_INTEGER_OF_1(name, function) MSLC_INTEGERS(MSLC_OF_1, name, function)
MSLC_INTEGER_OF_1(abs, abs)
MSLC_BITS(MSLC_OF_1, clz, clz)
MSLC_BITS(MSLC_OF_1, ctz, ctz)
MSLC_BITS(MSLC_OF_1, popcount, popcount)
MSLC_BITS(MSLC_OF_1, reverse_bits, reverse_bits)

#define MSLC_INTEGER_OF_2(name, function) MSLC_INTEGERS(MSLC_OF_2, name, function)
MSLC_INTEGER_OF_2(abs_diff, absdiff)
MSLC_INTEGER_OF_2(add_sat, addsat)
MSLC_INTEGER_OF_2(hadd, hadd)
MSLC_INTEGER_OF_2(max, max)
MSLC_INTEGER_OF_2(min, min)
MSLC_INTEGER_OF_2(mul_hi, mulhi)
MSLC_INTEGER_OF_2(rhadd, rhadd)
MSLC_INTEGER_OF_2(sub_sat, subsat)
MSLC_BITS(MSLC_OF_2, rotate, rotate)

#define MSLC_INTEGER_OF_3(name, function) MSLC_INTEGERS(MSLC_OF_3, name, function)
MSLC_INTEGER_OF_3(clamp, clamp)
MSLC_INTEGER_OF_3(mad_hi, madhi)
MSLC_INTEGER_OF_3(mad_sat, madsat)
MSLC_INTEGER_OF_3(max3, max3)
MSLC_INTEGER_OF_3(median3, median3)
MSLC_INTEGER_OF_3(min3, min3)

#define MSLC_EXTRACT(type, suffix, ...)                                                                                \
  MSLC_AIR type mslc_air_extract_bits_##suffix(type a, uint offset, uint bits) {                                       \
    return metal::extract_bits(a, offset, bits);                                                                       \
  }
#define MSLC_INSERT(type, suffix, ...)                                                                                 \
  MSLC_AIR type mslc_air_insert_bits_##suffix(type base, type insert, uint offset, uint bits) {                        \
    return metal::insert_bits(base, insert, offset, bits);                                                             \
  }
MSLC_INTEGERS(MSLC_EXTRACT, )
MSLC_BITS(MSLC_INSERT, )

#define MSLC_LDEXP(type, suffix, ...)                                                                                  \
  MSLC_AIR type mslc_air_ldexp_##suffix(type a, int exponent) {                                                        \
    return metal::ldexp(a, exponent);                                                                                  \
  }
#define MSLC_WITH_POINTER(type, suffix, name, pointee)                                                                 \
  MSLC_AIR type mslc_air_##name##_##suffix(type a, pointee *second) {                                                  \
    return metal::name(a, *second);                                                                                    \
  }
#define MSLC_SINCOS(type, suffix, ...) MSLC_WITH_POINTER(type, suffix, sincos, type)
#define MSLC_MODF(type, suffix, ...) MSLC_WITH_POINTER(type, suffix, modf, type)
#define MSLC_FREXP(type, suffix, ...) MSLC_WITH_POINTER(type, suffix, frexp, int)
MSLC_FLOATS(MSLC_LDEXP, )
MSLC_FLOATS(MSLC_SINCOS, )
MSLC_FLOATS(MSLC_MODF, )
MSLC_FLOATS(MSLC_FREXP, )

// ---------------------------------------------------------------- SIMD-groups and quadgroups

#define MSLC_GROUPS(macro, name, kinds) kinds(macro, simd_##name, simd_##name) kinds(macro, quad_##name, quad_##name)
MSLC_GROUPS(MSLC_OF_1, sum, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, product, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, min, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, max, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, prefix_inclusive_sum, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, prefix_exclusive_sum, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, prefix_inclusive_product, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, prefix_exclusive_product, MSLC_NUMBERS)
MSLC_GROUPS(MSLC_OF_1, broadcast_first, MSLC_VALUES)

#define MSLC_WHOLE(macro, ...) MSLC_INTEGERS(macro, __VA_ARGS__) MSLC_BITS(macro, __VA_ARGS__)
MSLC_GROUPS(MSLC_OF_1, and, MSLC_WHOLE)
MSLC_GROUPS(MSLC_OF_1, or, MSLC_WHOLE)
MSLC_GROUPS(MSLC_OF_1, xor, MSLC_WHOLE)

#define MSLC_SHUFFLE(type, suffix, name, function)                                                                     \
  MSLC_AIR type mslc_air_##name##_##suffix(type data, ushort lane) {                                                   \
    return metal::function(data, lane);                                                                                \
  }
MSLC_GROUPS(MSLC_SHUFFLE, shuffle, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, broadcast, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, shuffle_xor, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, shuffle_up, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, shuffle_down, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, shuffle_rotate_up, MSLC_VALUES)
MSLC_GROUPS(MSLC_SHUFFLE, shuffle_rotate_down, MSLC_VALUES)

#define MSLC_FILLING_SHUFFLE(type, suffix, name, function)                                                             \
  MSLC_AIR type mslc_air_##name##_##suffix(type data, type filling, ushort delta, ushort modulo) {                     \
    return metal::function(data, filling, delta, modulo);                                                              \
  }
MSLC_GROUPS(MSLC_FILLING_SHUFFLE, shuffle_and_fill_up, MSLC_VALUES)
MSLC_GROUPS(MSLC_FILLING_SHUFFLE, shuffle_and_fill_down, MSLC_VALUES)

#define MSLC_VOTES(group)                                                                                              \
  MSLC_AIR bool mslc_air_##group##_all(bool condition) {                                                               \
    return metal::group##_all(condition);                                                                              \
  }                                                                                                                    \
  MSLC_AIR bool mslc_air_##group##_any(bool condition) {                                                               \
    return metal::group##_any(condition);                                                                              \
  }                                                                                                                    \
  MSLC_AIR ulong mslc_air_##group##_ballot(bool condition) {                                                           \
    return static_cast<metal::group##_vote::vote_t>(metal::group##_ballot(condition));                                 \
  }                                                                                                                    \
  MSLC_AIR ulong mslc_air_##group##_active_threads_mask() {                                                            \
    return static_cast<metal::group##_vote::vote_t>(metal::group##_active_threads_mask());                             \
  }                                                                                                                    \
  MSLC_AIR bool mslc_air_##group##_is_first() {                                                                        \
    return metal::group##_is_first();                                                                                  \
  }
MSLC_VOTES(simd)
MSLC_VOTES(quad)

MSLC_AIR void mslc_air_threadgroup_barrier() {
  mslc_threadgroup_barrier();
}
MSLC_AIR void mslc_air_simdgroup_barrier() {
  metal::simdgroup_barrier(metal::mem_flags::mem_none);
}

MSLC_AIR uint mslc_air_lane() {
  return mslc_lane();
}

// ---------------------------------------------------------------- matrices of a SIMD-group

namespace mslc {

// Where a lane's two elements are, by the distances between columns and between rows.
template <class T, class P> struct strided_transfer {
  P *first;
  P *second;
  metal::vec<T, 2> elements;

  MSLC_FUNC strided_transfer(P *memory, ulong2 strides, ulong2 origin) {
    const ulong column = origin.x + static_cast<ulong>(tile_column(mslc_lane()));
    const ulong row = origin.y + static_cast<ulong>(tile_row(mslc_lane()));
    first = memory + column * strides.x + row * strides.y;
    second = first + strides.x;
  }
};

struct store_strided_tile {
  template <class Transfer> static MSLC_FUNC void run(const lanes<Transfer> &some, uint) {
    some.each([&](uint i) {
      *some[i].first = some[i].elements.x;
      *some[i].second = some[i].elements.y;
    });
  }
};

} // namespace mslc

#define MSLC_MATRIX(type, suffix, ...)                                                                                 \
  MSLC_AIR void mslc_air_matrix_load_##suffix(type *elements, const type *memory, ulong column_stride,                 \
                                              ulong row_stride, ulong column, ulong row) {                             \
    mslc::strided_transfer<type, const type> mine(memory, ulong2(column_stride, row_stride), ulong2(column, row));     \
    mslc::for_groups<mslc::simd_width>(mine, mslc::load_tile{});                                                       \
    elements[0] = mine.elements.x;                                                                                     \
    elements[1] = mine.elements.y;                                                                                     \
  }                                                                                                                    \
  MSLC_AIR void mslc_air_matrix_store_##suffix(const type *elements, type *memory, ulong column_stride,                \
                                               ulong row_stride, ulong column, ulong row) {                            \
    mslc::strided_transfer<type, type> mine(memory, ulong2(column_stride, row_stride), ulong2(column, row));           \
    mine.elements = metal::vec<type, 2>(elements[0], elements[1]);                                                     \
    mslc::for_groups<mslc::simd_width>(mine, mslc::store_strided_tile{});                                              \
  }                                                                                                                    \
  MSLC_AIR void mslc_air_matrix_diagonal_##suffix(type *elements, type value) {                                        \
    metal::simdgroup_matrix<type, 8, 8> matrix(value);                                                                 \
    elements[0] = matrix.thread_elements().x;                                                                          \
    elements[1] = matrix.thread_elements().y;                                                                          \
  }
MSLC_FLOATS(MSLC_MATRIX, )

// d = a b + c. Halves and bfloats come as floats: the sums are of floats anyhow, rounded at the end.
MSLC_AIR void mslc_air_matrix_multiply_accumulate(float *d, const float *a, const float *b, const float *c) {
  using metal::float2;
  mslc::product_of_tiles<float, float, float, float> mine{
      float2(a[0], a[1]), float2(b[0], b[1]), float2(c[0], c[1]), {}};
  mslc::for_groups<mslc::simd_width>(mine, mslc::multiply_tiles{});
  d[0] = mine.d.x;
  d[1] = mine.d.y;
}

// ---------------------------------------------------------------- atomics

// An order other than relaxed, which only loads and stores tell apart here, is the strictest.
#define MSLC_ATOMIC_ACCESS(type, suffix)                                                                               \
  MSLC_AIR type mslc_air_atomic_load_##suffix(const type *object, uint order) {                                        \
    type value;                                                                                                        \
    if (order == metal::memory_order_relaxed) {                                                                        \
      __atomic_load(object, &value, __ATOMIC_RELAXED);                                                                 \
    } else {                                                                                                           \
      __atomic_load(object, &value, __ATOMIC_SEQ_CST);                                                                 \
    }                                                                                                                  \
    return value;                                                                                                      \
  }                                                                                                                    \
  MSLC_AIR void mslc_air_atomic_store_##suffix(type *object, type value, uint order) {                                 \
    if (order == metal::memory_order_relaxed) {                                                                        \
      __atomic_store(object, &value, __ATOMIC_RELAXED);                                                                \
    } else {                                                                                                           \
      __atomic_store(object, &value, __ATOMIC_SEQ_CST);                                                                \
    }                                                                                                                  \
  }
MSLC_ATOMIC_ACCESS(float, f32)
MSLC_ATOMIC_ACCESS(uint, i32)
MSLC_ATOMIC_ACCESS(ulong, i64)

#define MSLC_ATOMIC_EXCHANGE(type, suffix)                                                                             \
  MSLC_AIR type mslc_air_atomic_xchg_##suffix(metal::atomic<type> *object, type value) {                               \
    return metal::atomic_exchange_explicit(object, value);                                                             \
  }                                                                                                                    \
  MSLC_AIR type mslc_air_atomic_cmpxchg_##suffix(metal::atomic<type> *object, type *expected, type desired) {          \
    type old = *expected;                                                                                              \
    metal::atomic_compare_exchange_weak_explicit(object, &old, desired);                                               \
    *expected = old;                                                                                                   \
    return old;                                                                                                        \
  }
MSLC_ATOMIC_EXCHANGE(float, f32)
MSLC_ATOMIC_EXCHANGE(uint, i32)

#define MSLC_ATOMIC_FETCH(type, suffix, name)                                                                          \
  MSLC_AIR type mslc_air_atomic_##name##_##suffix(metal::atomic<type> *object, type value) {                           \
    return metal::atomic_fetch_##name##_explicit(object, value);                                                       \
  }
#define MSLC_ATOMIC_WORD(name) MSLC_ATOMIC_FETCH(int, s_i32, name) MSLC_ATOMIC_FETCH(uint, u_i32, name)
MSLC_ATOMIC_WORD(add)
MSLC_ATOMIC_WORD(sub)
MSLC_ATOMIC_WORD(min)
MSLC_ATOMIC_WORD(max)
MSLC_ATOMIC_WORD(and)
MSLC_ATOMIC_WORD(or)
MSLC_ATOMIC_WORD(xor)
MSLC_ATOMIC_FETCH(float, f32, add)
MSLC_ATOMIC_FETCH(float, f32, sub)

MSLC_AIR void mslc_air_atomic_min_u_i64(metal::atomic<ulong> *object, ulong value) {
  metal::atomic_min_explicit(object, value);
}
MSLC_AIR void mslc_air_atomic_max_u_i64(metal::atomic<ulong> *object, ulong value) {
  metal::atomic_max_explicit(object, value);
}

MSLC_AIR void mslc_air_fence() {
  metal::atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst);
}

// ---------------------------------------------------------------- running a kernel

// In the kernel's own module: run one thread; and copy, once for many threads, the values that are bound by reference.
extern "C" MSLC_HIDDEN void mslc_air_thread(const mslc::launch_state &launch, const mslc::threadgroup_state &group,
                                            const mslc::thread_state &thread, const char *constants);
extern "C" MSLC_HIDDEN void mslc_air_copy_constants(const mslc::launch_state &launch, char *constants);

#define MSLC_INPUT(kind)                                                                                               \
  MSLC_AIR uint mslc_air_##kind(const mslc::launch_state &launch, const mslc::threadgroup_state &group,                \
                                const mslc::thread_state &thread, uint component) {                                    \
    const mslc::index3 value = mslc::built_in<mslc::kind>(launch, group, thread);                                      \
    return component == 0 ? value.x : component == 1 ? value.y : value.z;                                              \
  }
MSLC_INPUT(thread_position_in_grid)
MSLC_INPUT(thread_position_in_threadgroup)
MSLC_INPUT(thread_index_in_threadgroup)
MSLC_INPUT(threadgroup_position_in_grid)
MSLC_INPUT(threads_per_grid)
MSLC_INPUT(threadgroups_per_grid)
MSLC_INPUT(threads_per_threadgroup)
MSLC_INPUT(dispatch_threads_per_threadgroup)
MSLC_INPUT(thread_index_in_simdgroup)
MSLC_INPUT(simdgroup_index_in_threadgroup)
MSLC_INPUT(simdgroups_per_threadgroup)
MSLC_INPUT(dispatch_simdgroups_per_threadgroup)
MSLC_INPUT(threads_per_simdgroup)
MSLC_INPUT(thread_execution_width)
MSLC_INPUT(thread_index_in_quadgroup)
MSLC_INPUT(quadgroup_index_in_threadgroup)
MSLC_INPUT(quadgroups_per_threadgroup)
MSLC_INPUT(dispatch_quadgroups_per_threadgroup)
MSLC_INPUT(grid_origin)
MSLC_INPUT(grid_size)

MSLC_AIR void *mslc_air_buffer(const mslc::launch_state &launch, uint slot) {
  return launch.buffers[slot];
}
MSLC_AIR void *mslc_air_threadgroup_buffer(const mslc::launch_state &launch, uint slot) {
  return static_cast<char *>(mslc_arena()) + launch.threadgroup_offset[slot];
}
MSLC_AIR void *mslc_air_threadgroup_variable(uint offset) {
  return static_cast<char *>(mslc_arena()) + offset;
}

namespace mslc {

// AIR has no threadgroup memory that begins as zero.
MSLC_FUNC void begin_threadgroup() {
}

// Stands for a kernel of AIR where launch.h wants a function and its parameters: what there are is known to the module.
struct air_parameters {};
static void air_kernel(air_parameters) {
}

template <> struct signature<void (*)(air_parameters)> {
  static constexpr unsigned count = 1;
  static constexpr bool is_split = false;

  template <class... Roles> struct constants {
    alignas(16) char values[MSLC_AIR_CONSTANT_BYTES];
    MSLC_FUNC explicit constants(const launch_state &launch) {
      mslc_air_copy_constants(launch, values);
    }
  };
  template <auto function, class... Roles>
  static MSLC_FUNC void call(const launch_state &launch, const threadgroup_state &group, const thread_state &thread,
                             const constants<Roles...> &copies) {
    mslc_air_thread(launch, group, thread, copies.values);
  }
};

} // namespace mslc

#define MSLC_RUN(name, fibers, kind)                                                                                   \
  extern "C" void mslc_air_run_##name(const mslc_launch *launch, unsigned long first, unsigned long last) {            \
    mslc::launcher<fibers, &mslc::air_kernel, mslc::role<mslc::kind>>::run(launch, first, last);                       \
  }
MSLC_AIR void mslc_gang_collective(char *operands, ulong stride, uint lanes, mslc_collective_fn operation) {
  mslc::gang_collective(operands, stride, lanes, operation);
}
extern "C" void mslc_air_run_gangs(const mslc_launch *launch, unsigned long first, unsigned long last) {
  mslc::run_gangs<mslc::signature<void (*)(mslc::air_parameters)>::constants<>>(launch, first, last);
}
MSLC_RUN(fibers, true, thread_index_in_threadgroup)
MSLC_RUN(threadgroups, false, thread_index_in_threadgroup)
MSLC_RUN(rows, false, thread_position_in_grid) // of a kernel that cannot tell where a threadgroup ends
