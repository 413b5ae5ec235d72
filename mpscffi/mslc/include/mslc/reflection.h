// What a kernel's parameters are, read from the types that C++ has deduced.
#pragma once
#pragma clang system_header
#include <metal_packed_vector>
#include <mslc/kernel_abi.h>

namespace metal {
template <class T> struct atomic;
}

namespace mslc {

// Where a parameter gets its value. One name for each attribute that Metal has for an input of a kernel.
enum role_kind {
  buffer,             // device or constant memory at buffer slot n
  constant_reference, // the same by `constant T &`: one value for all threads
  threadgroup_buffer, // threadgroup memory whose size the caller gives, slot n
  thread_position_in_grid,
  thread_position_in_threadgroup,
  thread_index_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_grid,
  threadgroups_per_grid,
  threads_per_threadgroup,          // less than asked for in a threadgroup at the grid's edge
  dispatch_threads_per_threadgroup, // as asked for
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  dispatch_simdgroups_per_threadgroup,
  threads_per_simdgroup,
  thread_execution_width,
  thread_index_in_quadgroup,
  quadgroup_index_in_threadgroup,
  quadgroups_per_threadgroup,
  dispatch_quadgroups_per_threadgroup,
  grid_origin,
  grid_size,
  absent, // a buffer that the function constants of this kernel leave out
};

template <role_kind kind_, unsigned slot_ = 0> struct role {
  static constexpr role_kind kind = kind_;
  static constexpr unsigned slot = slot_;
  static constexpr bool is_bound = kind <= threadgroup_buffer; // the caller binds it
};

// A parameter as the source spells it.
struct parameter_text {
  const char *name;
  const char *type_name;
};

// mps_data_base of mpsshim.h.
template <class T> constexpr unsigned data_base() {
  if constexpr (__is_same(T, bool)) {
    return 1;
  } else if constexpr (__is_same(T, half)) {
    return 10;
  } else if constexpr (__is_same(T, bfloat)) {
    return 11;
  } else if constexpr (__is_same(T, float)) {
    return 12;
  } else if constexpr (__is_integral(T)) {
    constexpr unsigned of_size = sizeof(T) == 1 ? 2 : sizeof(T) == 2 ? 4 : sizeof(T) == 4 ? 6 : 8;
    return of_size + (__is_unsigned(T) ? 1 : 0);
  } else if constexpr (__is_enum(T)) {
    return data_base<__underlying_type(T)>();
  } else if constexpr (__is_pointer(T)) {
    return 14;
  } else {
    return 13;
  }
}

template <class T> struct element_facts {
  static constexpr unsigned data_type = data_base<element_of<T>>() | lanes_of<T> << 8;
  static constexpr unsigned size = sizeof(T);
  static constexpr unsigned align = alignof(T);
};
template <class T, int Columns, int Rows> struct element_facts<metal::matrix<T, Columns, Rows>> {
  static constexpr unsigned data_type = 0;
  static constexpr unsigned size = sizeof(metal::matrix<T, Columns, Rows>);
  static constexpr unsigned align = alignof(metal::matrix<T, Columns, Rows>);
};
template <class T> struct element_facts<metal::atomic<T>> : element_facts<T> {};
template <class T, size_t N> struct element_facts<T[N]> : element_facts<T> {};
template <> struct element_facts<void> {
  static constexpr unsigned data_type = 0;
  static constexpr unsigned size = 1;
  static constexpr unsigned align = 1;
};

// The language's own types have one name each, whatever name a template or an alias gave them.
template <class T> struct own_name {
  static constexpr const char *text = nullptr;
};
#define MSLC_OWN_NAME(T)                                                                                               \
  template <> struct own_name<T> {                                                                                     \
    static constexpr const char *text = #T;                                                                            \
  };
#define MSLC_OWN_NAMES(T)                                                                                              \
  MSLC_OWN_NAME(T)                                                                                                     \
  MSLC_OWN_NAME(T##2)                                                                                                  \
  MSLC_OWN_NAME(T##3)                                                                                                  \
  MSLC_OWN_NAME(T##4)                                                                                                  \
  MSLC_OWN_NAME(packed_##T##2)                                                                                         \
  MSLC_OWN_NAME(packed_##T##3)                                                                                         \
  MSLC_OWN_NAME(packed_##T##4)
MSLC_OWN_NAMES(bool)
MSLC_OWN_NAMES(char)
MSLC_OWN_NAMES(uchar)
MSLC_OWN_NAMES(short)
MSLC_OWN_NAMES(ushort)
MSLC_OWN_NAMES(int)
MSLC_OWN_NAMES(uint)
MSLC_OWN_NAMES(long)
MSLC_OWN_NAMES(ulong)
MSLC_OWN_NAMES(half)
MSLC_OWN_NAMES(bfloat)
MSLC_OWN_NAMES(float)
#undef MSLC_OWN_NAME
#undef MSLC_OWN_NAMES

template <class T> struct element_name : own_name<T> {};
template <class T, size_t N> struct element_name<T[N]> : element_name<__remove_cv(T)> {};

// T of a `T *` or `T &`.
template <class P> using pointee = __remove_pointer(__remove_reference_t(P));

template <class Parameter, class Role> constexpr mslc_argument describe(const parameter_text &text) {
  using facts = element_facts<__remove_cv(pointee<Parameter>)>;
  mslc_argument argument{};
  argument.name = text.name;
  using name = element_name<__remove_cv(pointee<Parameter>)>;
  argument.type_name = name::text != nullptr ? name::text : text.type_name;
  argument.kind = Role::kind == threadgroup_buffer ? 3 : 1;
  argument.index = Role::slot;
  argument.access = __is_const(pointee<Parameter>) ? 1 : 3;
  argument.data_type = facts::data_type;
  argument.data_size = facts::size;
  argument.data_align = facts::align;
  // A reference to an array is as a pointer to its elements.
  argument.is_reference = __is_lvalue_reference(Parameter) && !__is_array(pointee<Parameter>) ? 1 : 0;
  return argument;
}

} // namespace mslc
