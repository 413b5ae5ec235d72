// What the library knows of scalars and vectors alike: how many components, of which type, and how to get at them.
#pragma once
#pragma clang system_header
#include <metal_type_traits>

namespace metal {
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
template <class T, int Columns, int Rows> struct matrix;
} // namespace metal

namespace mslc {

using metal::conditional_t;
using metal::enable_if_t;

template <class T> struct shape {
  static constexpr int lanes = 1;
  using element = T;
};
template <class T, int N> struct shape<metal::vec<T, N>> {
  static constexpr int lanes = N;
  using element = T;
};
template <class T, int N> struct shape<metal::packed_vec<T, N>> {
  static constexpr int lanes = N;
  using element = T;
};
template <class T> constexpr int lanes_of = shape<__remove_cv(T)>::lanes;
template <class T> using element_of = typename shape<__remove_cv(T)>::element;

// The type with the shape of T and the element E.
template <class E, int N> struct shaped {
  using type = metal::vec<E, N>;
};
template <class E> struct shaped<E, 1> {
  using type = E;
};
template <class T, class E> using with_element = typename shaped<E, lanes_of<T>>::type;

// What a packed vector computes as; any other type is itself.
template <class T> using plain = with_element<T, element_of<T>>;

template <class T> constexpr bool is_number = metal::is_arithmetic_v<T>;
template <class T> constexpr bool is_value = is_number<element_of<T>>; // a number, or a vector of them
template <class T> constexpr bool is_floating = metal::is_floating_point_v<element_of<T>>; // the same of floating point
template <class T> constexpr bool is_integer = metal::is_integral_v<element_of<T>>;

// A parameter type that takes no part in deduction.
template <class T> struct undeduced {
  using type = T;
};
template <class T> using same = typename undeduced<T>::type;

template <class A, class B>
constexpr bool is_half_and_bfloat =
    (__is_same(A, half) && __is_same(B, bfloat)) || (__is_same(A, bfloat) && __is_same(B, half));

// For the operand of a cast to T: clang refuses a cast between half and bfloat, so it goes through float.
template <class T, class S> MSLC_FUNC constexpr decltype(auto) cast_operand(S &&value) {
  if constexpr (is_half_and_bfloat<__remove_cvref(T), __remove_cvref(S)>) {
    return static_cast<float>(value);
  } else {
    return static_cast<S &&>(value);
  }
}
template <class T, class S> MSLC_FUNC constexpr T convert(const S &value) {
  return static_cast<T>(cast_operand<T>(value));
}

template <class T> MSLC_FUNC constexpr element_of<T> lane(const T &value, int i) {
  if constexpr (lanes_of<T> == 1) {
    return value;
  } else {
    return value.at(i);
  }
}

template <class R, class F, class... A> MSLC_FUNC constexpr element_of<R> mapped(F f, int i, const A &...values) {
  return convert<element_of<R>>(f(lane(values, i)...));
}

// f of each component, as an R. Without a loop, as LLVM takes minutes for code with thousands of them.
template <class R, class F, class... A> MSLC_FUNC constexpr R map(F f, const A &...values) {
  if constexpr (lanes_of<R> == 1) {
    return convert<R>(f(values...));
  } else {
    element_of<R> results[lanes_of<R>]{mapped<R>(f, 0, values...), mapped<R>(f, 1, values...)};
    if constexpr (lanes_of<R> > 2) {
      results[2] = mapped<R>(f, 2, values...);
    }
    if constexpr (lanes_of<R> > 3) {
      results[3] = mapped<R>(f, 3, values...);
    }
    return R::load(results);
  }
}

// What an operation of two values gives: the vector of the two if there is one, of the element that C++ would choose.
template <class A, class B> struct common_element {
  using type = decltype(A() + B());
};
template <class A> struct common_element<A, A> {
  using type = A;
};
template <class A, class B>
using common = typename shaped<typename common_element<element_of<A>, element_of<B>>::type,
                               (lanes_of<A> > lanes_of<B> ? lanes_of<A> : lanes_of<B>)>::type;

} // namespace mslc
