// vec<T, N>: a class around clang's vector type. The bare vector type would not do: `float4(a, b, c, d)` is an error
// for it in C++, and `float4(some_int4)` compiles and reinterprets the bits.
//
// x, y, z and w are true members, swizzles of two and more are properties: with a property on the left, `v.x += e`
// would not compile in a template.
#pragma once
#pragma clang system_header
#include <mslc/lanes.h>
#include <mslc/swizzle.h>

namespace mslc {

// What an element is kept as inside a vector: clang has no vectors of bool.
template <class T> struct stored {
  using type = T;
};
template <> struct stored<bool> {
  using type = unsigned char;
};
template <class T, int N> using native = typename stored<T>::type __attribute__((ext_vector_type(N)));

// Vectors of bfloat compute in float. Left to the compiler, every conversion of an element would be a function call on
// a CPU without bfloat instructions.
template <int N> MSLC_FUNC constexpr native<float, N> widen(native<bfloat, N> lanes) {
  native<uint, N> bits = __builtin_convertvector(__builtin_bit_cast(native<ushort, N>, lanes), native<uint, N>);
  return __builtin_bit_cast(native<float, N>, bits << 16);
}
template <int N> MSLC_FUNC constexpr native<bfloat, N> narrow(native<float, N> lanes) {
  native<uint, N> bits = __builtin_bit_cast(native<uint, N>, lanes);
  native<uint, N> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; // to nearest, ties to even
  native<uint, N> quiet = (bits >> 16) | 0x40u;
  native<uint, N> is_nan = __builtin_bit_cast(native<uint, N>, (bits & 0x7fffffffu) > 0x7f800000u);
  native<uint, N> chosen = (quiet & is_nan) | (rounded & ~is_nan);
  return __builtin_bit_cast(native<bfloat, N>, __builtin_convertvector(chosen, native<ushort, N>));
}

// The lanes to compute with, and the way back.
template <class T, int N> MSLC_FUNC constexpr auto computed(native<T, N> lanes) {
  if constexpr (__is_same(T, bfloat)) {
    return widen<N>(lanes);
  } else {
    return lanes;
  }
}
template <class T, int N, class V> MSLC_FUNC constexpr native<T, N> kept(V lanes) {
  if constexpr (__is_same(T, bfloat)) {
    return narrow<N>(lanes);
  } else {
    return lanes;
  }
}
// Lanes of a comparison, 0 or -1, as lanes of bool.
template <int N, class V> MSLC_FUNC constexpr native<bool, N> truths(V lanes) {
  return __builtin_convertvector(lanes, native<bool, N>) & static_cast<unsigned char>(1);
}

template <class T, class S, int N> MSLC_FUNC constexpr native<T, N> convert_lanes(native<S, N> lanes) {
  if constexpr (__is_same(T, S)) {
    return lanes;
  } else if constexpr (__is_same(T, bool)) {
    auto from = computed<S, N>(lanes);
    return truths<N>(from != decltype(from)(0));
  } else if constexpr (__is_same(T, bfloat)) {
    return narrow<N>(__builtin_convertvector(lanes, native<float, N>));
  } else if constexpr (__is_same(S, bfloat)) {
    return convert_lanes<T, float, N>(widen<N>(lanes));
  } else if constexpr (metal::is_floating_point_v<S> && metal::is_integral_v<T>) {
    native<T, N> result{}; // one by one: the compiler's own vector conversion does not saturate
    for (int i = 0; i < N; i++) {
      result[i] = static_cast<T>(lanes[i]);
    }
    return result;
  } else {
    return __builtin_convertvector(lanes, native<T, N>);
  }
}

// What vec and packed_vec give their swizzles: mslc_lanes() and mslc_assign(). A swizzle of a swizzle is one of a copy:
// whatever writes asks for an lvalue, so that no write to a copy compiles and is lost.
#define MSLC_SWIZZLE_READ(count, xyzw, rgba)                                                                           \
  MSLC_FUNC constexpr ::metal::vec<T, count> mslc_get_##xyzw() const {                                                 \
    return ::metal::vec<T, count>::of(this->mslc_lanes().xyzw);                                                        \
  }                                                                                                                    \
  __declspec(property(get = mslc_get_##xyzw)) ::metal::vec<T, count> xyzw, rgba;
#define MSLC_SWIZZLE_WRITE(count, xyzw, rgba)                                                                          \
  MSLC_FUNC constexpr ::metal::vec<T, count> mslc_get_##xyzw() const {                                                 \
    return ::metal::vec<T, count>::of(this->mslc_lanes().xyzw);                                                        \
  }                                                                                                                    \
  MSLC_FUNC void mslc_put_##xyzw(::metal::vec<T, count> value) & {                                                     \
    auto lanes = this->mslc_lanes();                                                                                   \
    lanes.xyzw = value.mslc_lanes();                                                                                   \
    this->mslc_assign(lanes);                                                                                          \
  }                                                                                                                    \
  __declspec(property(get = mslc_get_##xyzw, put = mslc_put_##xyzw)) ::metal::vec<T, count> xyzw, rgba;

#define MSLC_COMPONENTS_2                                                                                              \
  struct {                                                                                                             \
    T x, y;                                                                                                            \
  };                                                                                                                   \
  struct {                                                                                                             \
    T r, g;                                                                                                            \
  };
#define MSLC_COMPONENTS_3                                                                                              \
  struct {                                                                                                             \
    T x, y, z;                                                                                                         \
  };                                                                                                                   \
  struct {                                                                                                             \
    T r, g, b;                                                                                                         \
  };
#define MSLC_COMPONENTS_4                                                                                              \
  struct {                                                                                                             \
    T x, y, z, w;                                                                                                      \
  };                                                                                                                   \
  struct {                                                                                                             \
    T r, g, b, a;                                                                                                      \
  };

// The memory of a vector, and the names of its components.
template <class T, int N> struct vector_storage;
#define MSLC_VECTOR_STORAGE(N)                                                                                         \
  template <class T> struct vector_storage<T, N> {                                                                     \
    union {                                                                                                            \
      native<T, N> mslc_vector;                                                                                        \
      MSLC_COMPONENTS_##N                                                                                              \
    };                                                                                                                 \
    vector_storage() = default;                                                                                        \
    MSLC_FUNC constexpr explicit vector_storage(native<T, N> lanes) : mslc_vector(lanes) {                             \
    }                                                                                                                  \
    MSLC_FUNC constexpr native<T, N> mslc_lanes() const {                                                              \
      return mslc_vector;                                                                                              \
    }                                                                                                                  \
    MSLC_FUNC constexpr void mslc_assign(native<T, N> lanes) {                                                         \
      mslc_vector = lanes;                                                                                             \
    }                                                                                                                  \
    MSLC_SWIZZLES_##N(MSLC_SWIZZLE_READ, MSLC_SWIZZLE_WRITE)                                                           \
  };
MSLC_VECTOR_STORAGE(2)
MSLC_VECTOR_STORAGE(3)
MSLC_VECTOR_STORAGE(4)
#undef MSLC_VECTOR_STORAGE

// The operators that only integers and bools have. They live in a base class, so that for others they are not there at
// all, and the error is the user's line.
template <class Vector, class T, int N, bool integral> struct vector_bits {};
template <class Vector, class T, int N> struct vector_bits<Vector, T, N, true> {
#define MSLC_INTEGER_OPERATOR(op)                                                                                      \
  friend MSLC_FUNC constexpr Vector operator op(Vector a, Vector b) {                                                  \
    return Vector::of(a.mslc_lanes() op b.mslc_lanes());                                                               \
  }                                                                                                                    \
  friend MSLC_FUNC Vector &operator op##=(Vector & a, Vector b) {                                                      \
    return a = a op b;                                                                                                 \
  }
  MSLC_INTEGER_OPERATOR(%)
  MSLC_INTEGER_OPERATOR(&)
  MSLC_INTEGER_OPERATOR(|)
  MSLC_INTEGER_OPERATOR(^)
#undef MSLC_INTEGER_OPERATOR

// Metal takes a shift's amount modulo the width.
#define MSLC_SHIFT_OPERATOR(op)                                                                                        \
  template <class U, class = enable_if_t<metal::is_integral_v<U>>>                                                     \
  friend MSLC_FUNC constexpr Vector operator op(Vector a, const metal::vec<U, N> &b) {                                 \
    return Vector::of(a.mslc_lanes() op(Vector(b).mslc_lanes() & static_cast<T>(sizeof(T) * 8 - 1)));                  \
  }                                                                                                                    \
  template <class U, class = enable_if_t<metal::is_integral_v<U>>>                                                     \
  friend MSLC_FUNC constexpr Vector operator op(Vector a, U b) {                                                       \
    return a op Vector(static_cast<T>(b));                                                                             \
  }                                                                                                                    \
  template <class U> friend MSLC_FUNC Vector &operator op##=(Vector & a, const U & b) {                                \
    return a = a op b;                                                                                                 \
  }
  MSLC_SHIFT_OPERATOR(<<)
  MSLC_SHIFT_OPERATOR(>>)
#undef MSLC_SHIFT_OPERATOR

  friend MSLC_FUNC constexpr Vector operator~(Vector a) {
    return Vector::of(~a.mslc_lanes());
  }
};

// What a vector can be filled with. Not with what converts to everything, as it converts to a vector too.
struct no_number;
template <class S, class T>
constexpr bool is_component =
    is_number<S> || __is_enum(S) || (lanes_of<S> == 1 && __is_convertible(S, T) && !__is_convertible(S, no_number *));

} // namespace mslc

namespace metal {

template <class T, int N>
struct vec : mslc::vector_storage<T, N>, mslc::vector_bits<vec<T, N>, T, N, is_integral_v<T>> {
  static_assert(N >= 2 && N <= 4, "a vector has 2, 3 or 4 components");
  using storage = mslc::vector_storage<T, N>;
  using lanes_type = mslc::native<T, N>;

  vec() = default;
  vec(const vec &) = default;
  vec &operator=(const vec &) & = default;
  template <class S, class = enable_if_t<mslc::is_component<S, T>>>
  MSLC_FUNC constexpr vec(S value) : storage(fill(mslc::convert<T>(value))) {
  }
  template <class S>
  MSLC_FUNC explicit constexpr vec(const vec<S, N> &other) : storage(mslc::convert_lanes<T, S, N>(other.mslc_lanes())) {
  }
  template <class A, class B, class... Rest>
  MSLC_FUNC constexpr vec(const A &a, const B &b, const Rest &...rest) : storage(gather(a, b, rest...)) {
  }

  static MSLC_FUNC constexpr vec of(lanes_type lanes) {
    return vec(exactly{}, lanes);
  }
  static MSLC_FUNC constexpr vec load(const T *elements) {
    using E = typename mslc::stored<T>::type;
    if constexpr (N == 2) {
      return of(lanes_type{(E)elements[0], (E)elements[1]});
    } else if constexpr (N == 3) {
      return of(lanes_type{(E)elements[0], (E)elements[1], (E)elements[2]});
    } else {
      return of(lanes_type{(E)elements[0], (E)elements[1], (E)elements[2], (E)elements[3]});
    }
  }

  MSLC_FUNC constexpr T at(int i) const {
    if (__builtin_is_constant_evaluated()) {
      struct elements {
        typename mslc::stored<T>::type of[N == 3 ? 4 : N];
      };
      return static_cast<T>(__builtin_bit_cast(elements, this->mslc_lanes()).of[i]);
    }
    return static_cast<T>(this->mslc_lanes()[i]);
  }
  MSLC_FUNC constexpr T operator[](size_t i) const & {
    return at(static_cast<int>(i));
  }
  MSLC_FUNC T &operator[](size_t i) & {
    return reinterpret_cast<T *>(&this->mslc_vector)[i];
  }

#define MSLC_OPERATOR(op)                                                                                              \
  friend MSLC_FUNC constexpr vec operator op(vec a, vec b) {                                                           \
    return of(mslc::kept<T, N>(a.computed() op b.computed()));                                                         \
  }                                                                                                                    \
  friend MSLC_FUNC vec &operator op##=(vec & a, vec b) {                                                               \
    return a = a op b;                                                                                                 \
  }
  MSLC_OPERATOR(+)
  MSLC_OPERATOR(-)
  MSLC_OPERATOR(*)
  MSLC_OPERATOR(/)
#undef MSLC_OPERATOR

#define MSLC_COMPARISON(op)                                                                                            \
  friend MSLC_FUNC constexpr vec<bool, N> operator op(vec a, vec b) {                                                  \
    return vec<bool, N>::of(mslc::truths<N>(a.computed() op b.computed()));                                            \
  }
  MSLC_COMPARISON(==)
  MSLC_COMPARISON(!=)
  MSLC_COMPARISON(<)
  MSLC_COMPARISON(<=)
  MSLC_COMPARISON(>)
  MSLC_COMPARISON(>=)
#undef MSLC_COMPARISON

  friend MSLC_FUNC constexpr vec<bool, N> operator&&(vec a, vec b) {
    return vec<bool, N>(a) & vec<bool, N>(b);
  }
  friend MSLC_FUNC constexpr vec<bool, N> operator||(vec a, vec b) {
    return vec<bool, N>(a) | vec<bool, N>(b);
  }
  friend MSLC_FUNC constexpr vec<bool, N> operator!(vec a) {
    return a == vec(T(0));
  }
  friend MSLC_FUNC constexpr vec operator+(vec a) {
    return a;
  }
  friend MSLC_FUNC constexpr vec operator-(vec a) {
    return of(mslc::kept<T, N>(-a.computed()));
  }
  friend MSLC_FUNC vec &operator++(vec &a) {
    return a = a + vec(T(1));
  }
  friend MSLC_FUNC vec &operator--(vec &a) {
    return a = a - vec(T(1));
  }
  friend MSLC_FUNC vec operator++(vec &a, int) {
    vec before = a;
    ++a;
    return before;
  }
  friend MSLC_FUNC vec operator--(vec &a, int) {
    vec before = a;
    --a;
    return before;
  }

private:
  struct exactly {};
  MSLC_FUNC constexpr vec(exactly, lanes_type lanes) : storage(lanes) {
  }

  MSLC_FUNC constexpr auto computed() const {
    return mslc::computed<T, N>(this->mslc_lanes());
  }
  static MSLC_FUNC constexpr lanes_type fill(T value) {
    typename mslc::stored<T>::type element = value;
    return (lanes_type)element;
  }
  template <class... A> static MSLC_FUNC constexpr lanes_type gather(const A &...values) {
    static_assert((0 + ... + mslc::lanes_of<A>) <= N, "more components than the vector has");
    if constexpr (sizeof...(A) == N) { // all are numbers
      return lanes_type{static_cast<typename mslc::stored<T>::type>(mslc::convert<T>(mslc::lane(values, 0)))...};
    } else {
      T elements[N]{};
      int count = 0;
      (append(elements, count, values), ...);
      return load(elements).mslc_lanes();
    }
  }
  // Without a loop: code with thousands of loops, each of a constructor, is what LLVM takes minutes for.
  template <class A> static MSLC_FUNC constexpr void append(T *elements, int &count, const A &value) {
    constexpr int lanes = mslc::lanes_of<A>;
    elements[count++] = mslc::convert<T>(mslc::lane(value, 0));
    if constexpr (lanes > 1) {
      elements[count++] = mslc::convert<T>(mslc::lane(value, 1));
    }
    if constexpr (lanes > 2) {
      elements[count++] = mslc::convert<T>(mslc::lane(value, 2));
    }
  }
};

// A vector of one component, which generic code makes.
template <class T> struct vec<T, 1> {
  T x;
  vec() = default;
  MSLC_FUNC constexpr vec(T value) : x(value) {
  }
  MSLC_FUNC constexpr operator T() const {
    return x;
  }
  MSLC_FUNC constexpr T at(int) const {
    return x;
  }
  MSLC_FUNC constexpr T operator[](size_t) const & {
    return x;
  }
  MSLC_FUNC T &operator[](size_t) & {
    return x;
  }
};

template <class T> vec(T, T) -> vec<T, 2>;
template <class T> vec(T, T, T) -> vec<T, 3>;
template <class T> vec(T, T, T, T) -> vec<T, 4>;

} // namespace metal
