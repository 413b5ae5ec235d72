// From a kernel function to a kernel library: the code that runs a part of a launch, and the tables that describe it.
//
// The unit that mslc generates begins with MSLC_THREADGROUP_MEMORY(_only) and ends with
//
//   static constexpr mslc::parameter_text mslc_texts[] = {{"out", "float"}, {"i", "uint"}};
//   MSLC_KERNEL_LIBRARY("host name", flags, work, max_total_threads, mslc_texts, &fill<float>,
//                       mslc::role<mslc::buffer, 0>, mslc::role<mslc::thread_position_in_grid>)
//
// with one text and one role for each parameter (`mslc_texts` is nullptr if there is none); C++ deduces their types.
//
// A library of several kernels is linked of one unit for each, with a number in both macros and MSLC_KERNEL in place of
// MSLC_KERNEL_LIBRARY, and of one that has MSLC_LIBRARY alone.
#pragma once
#pragma clang system_header
#include <mslc/reflection.h>
#include <mslc/runtime.h>
#include <mslc/number_helpers.h>

namespace mslc {

using metal::size_t;

// What threadgroups begin with: zeros in the variables that ask for them.
MSLC_FUNC void begin_threadgroup();

struct index3 {
  unsigned x, y, z;
};

// What all threads of a threadgroup have in common.
struct threadgroup_state {
  index3 position; // of the threadgroup in the grid
  index3 origin;   // of its first thread in the grid
  index3 threads;  // that it has
  unsigned count;  // the same, in all
};

// What all threadgroups have in common: a copy of the launch on the stack, which no store of a kernel can reach, so
// that its values need no reloading.
struct launch_state {
  void *buffers[MSLC_BUFFER_SLOTS];
  unsigned threadgroup_offset[MSLC_BUFFER_SLOTS];
  index3 grid, group, groups;

  MSLC_FUNC explicit launch_state(const mslc_launch &launch) {
    for (unsigned i = 0; i < MSLC_BUFFER_SLOTS; i++) {
      buffers[i] = launch.buffers[i];
      threadgroup_offset[i] = launch.threadgroup_offset[i];
    }
    grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    group = {launch.group[0], launch.group[1], launch.group[2]};
    groups = {launch.groups[0], launch.groups[1], launch.groups[2]};
  }

  MSLC_FUNC threadgroup_state threadgroup(unsigned long number) const {
    threadgroup_state state;
    if (groups.y == 1 && groups.z == 1) {
      state.position = {static_cast<unsigned>(number), 0, 0};
    } else {
      unsigned long rows = number / groups.x;
      state.position = {static_cast<unsigned>(number % groups.x), static_cast<unsigned>(rows % groups.y),
                        static_cast<unsigned>(rows / groups.y)};
    }
    state.origin = {state.position.x * group.x, state.position.y * group.y, state.position.z * group.z};
    state.threads = {smaller(grid.x - state.origin.x, group.x), smaller(grid.y - state.origin.y, group.y),
                     smaller(grid.z - state.origin.z, group.z)};
    state.count = state.threads.x * state.threads.y * state.threads.z;
    return state;
  }

  static MSLC_FUNC unsigned smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
  }
};

// One thread: where it is in its threadgroup.
struct thread_state {
  index3 position;
  unsigned index; // x fastest
};

MSLC_FUNC constexpr unsigned rounded_up(unsigned count, unsigned width) {
  return (count + width - 1) / width;
}

template <role_kind kind>
MSLC_FUNC index3 built_in(const launch_state &launch, const threadgroup_state &group, const thread_state &thread) {
  const unsigned full = launch.group.x * launch.group.y * launch.group.z;
  if constexpr (kind == thread_position_in_grid) {
    return {group.origin.x + thread.position.x, group.origin.y + thread.position.y, group.origin.z + thread.position.z};
  } else if constexpr (kind == thread_position_in_threadgroup) {
    return thread.position;
  } else if constexpr (kind == thread_index_in_threadgroup) {
    return {thread.index, 0, 0};
  } else if constexpr (kind == threadgroup_position_in_grid) {
    return group.position;
  } else if constexpr (kind == threads_per_grid || kind == grid_size) {
    return launch.grid;
  } else if constexpr (kind == threadgroups_per_grid) {
    return launch.groups;
  } else if constexpr (kind == threads_per_threadgroup) {
    return group.threads;
  } else if constexpr (kind == dispatch_threads_per_threadgroup) {
    return launch.group;
  } else if constexpr (kind == thread_index_in_simdgroup) {
    return {thread.index % MSLC_SIMD_WIDTH, 0, 0};
  } else if constexpr (kind == simdgroup_index_in_threadgroup) {
    return {thread.index / MSLC_SIMD_WIDTH, 0, 0};
  } else if constexpr (kind == simdgroups_per_threadgroup) {
    return {rounded_up(group.count, MSLC_SIMD_WIDTH), 1, 1};
  } else if constexpr (kind == dispatch_simdgroups_per_threadgroup) {
    return {rounded_up(full, MSLC_SIMD_WIDTH), 1, 1};
  } else if constexpr (kind == threads_per_simdgroup || kind == thread_execution_width) {
    return {MSLC_SIMD_WIDTH, 1, 1};
  } else if constexpr (kind == thread_index_in_quadgroup) {
    return {thread.index % 4, 0, 0};
  } else if constexpr (kind == quadgroup_index_in_threadgroup) {
    return {thread.index / 4, 0, 0};
  } else if constexpr (kind == quadgroups_per_threadgroup) {
    return {rounded_up(group.count, 4), 1, 1};
  } else if constexpr (kind == dispatch_quadgroups_per_threadgroup) {
    return {rounded_up(full, 4), 1, 1};
  } else {
    static_assert(kind == grid_origin, "a role without a value");
    return {0, 0, 0};
  }
}

// A position as the type of the parameter that asks for it. Member by member: a value made as one vector inside the
// loop over threads keeps LLVM's loop vectorizer out.
template <class P> MSLC_FUNC P as_parameter(index3 value) {
  if constexpr (lanes_of<P> == 1) {
    return static_cast<P>(value.x);
  } else {
    static_assert(lanes_of<P> <= 3, "a position has at most 3 components");
    P position;
    position.x = static_cast<element_of<P>>(value.x);
    position.y = static_cast<element_of<P>>(value.y);
    if constexpr (lanes_of<P> == 3) {
      position.z = static_cast<element_of<P>>(value.z);
    }
    return position;
  }
}

// A `constant T &` is the same for all threads, but C++ must think that any store may change it. So small ones are
// copied to the stack, where LLVM sees that none does.
constexpr size_t copied_bytes = 256;
template <unsigned number, class Parameter, class Role, bool is_reference = Role::kind == constant_reference>
struct constant_copy {
  MSLC_FUNC explicit constant_copy(const launch_state &) {
  }
};
template <unsigned number, class Parameter, class Role> struct constant_copy<number, Parameter, Role, true> {
  using T = __remove_cv(__remove_reference_t(Parameter));
  static constexpr bool is_copied = sizeof(T) <= copied_bytes;
  alignas(T) unsigned char bytes[is_copied ? sizeof(T) : 1];
  const T *original;

  MSLC_FUNC explicit constant_copy(const launch_state &launch)
      : original(static_cast<const T *>(launch.buffers[Role::slot])) {
    if constexpr (is_copied) {
      __builtin_memcpy(bytes, original, sizeof(T));
    }
  }
  MSLC_FUNC const T &value() const {
    if constexpr (is_copied) {
      return *reinterpret_cast<const T *>(bytes);
    } else {
      return *original;
    }
  }
};

template <unsigned number, class Parameter, class Role>
MSLC_FUNC Parameter parameter(const launch_state &launch, const threadgroup_state &group, const thread_state &thread,
                              const constant_copy<number, Parameter, Role> &copy) {
  if constexpr (Role::kind == constant_reference) {
    return copy.value();
  } else if constexpr (Role::is_bound) {
    void *memory;
    if constexpr (Role::kind == threadgroup_buffer) {
      memory = static_cast<char *>(mslc_arena()) + launch.threadgroup_offset[Role::slot];
    } else {
      memory = launch.buffers[Role::slot];
    }
    if constexpr (__is_lvalue_reference(Parameter)) {
      return *static_cast<__remove_reference_t(Parameter) *>(memory);
    } else if constexpr (__is_pointer(Parameter)) { // of others the reflection tells
      return static_cast<Parameter>(memory);
    }
  } else if constexpr (Role::kind == absent) {
    if constexpr (__is_lvalue_reference(Parameter)) {
      return *static_cast<__remove_reference_t(Parameter) *>(mslc_arena()); // C++ has no null reference
    } else {
      return Parameter();
    }
  } else {
    return as_parameter<__remove_cvref(Parameter)>(built_in<Role::kind>(launch, group, thread));
  }
}

template <unsigned... numbers> struct numbers_list {};
template <class, unsigned... numbers> struct numbers_of {
  using list = numbers_list<numbers...>;
};
template <unsigned count> using numbers_below = typename __make_integer_seq<numbers_of, unsigned, count>::list;

template <class T> constexpr bool is_pointer_or_reference = __is_pointer(T) || __is_lvalue_reference(T);

template <class Function> struct signature;
template <class... Parameters> struct signature<void (*)(Parameters...)> {
  static constexpr unsigned count = sizeof...(Parameters);
  static constexpr bool is_split = false; // see split.h

  template <class Numbers, class... Roles> struct numbered_constants;
  template <unsigned... numbers, class... Roles>
  struct numbered_constants<numbers_list<numbers...>, Roles...> : constant_copy<numbers, Parameters, Roles>... {
    MSLC_FUNC explicit numbered_constants(const launch_state &launch)
        : constant_copy<numbers, Parameters, Roles>(launch)... {
    }
  };
  template <class... Roles> using constants = numbered_constants<numbers_below<count>, Roles...>;

  template <auto function, class... Roles, unsigned... numbers>
  static MSLC_FUNC void call(const launch_state &launch, const threadgroup_state &group, const thread_state &thread,
                             const numbered_constants<numbers_list<numbers...>, Roles...> &copies) {
    [[clang::always_inline]] function(parameter<numbers, Parameters, Roles>(launch, group, thread, copies)...);
  }

  template <class... Roles> struct arguments {
    mslc_argument list[(0 + ... + Roles::is_bound) + 1];
    unsigned count;
    constexpr explicit arguments(const parameter_text *texts) : list{}, count(0) {
      (append<Parameters, Roles>(texts), ...);
    }
    template <class Parameter, class Role> constexpr void append(const parameter_text *&texts) {
      if constexpr (Role::is_bound) {
        static_assert(mslc::is_pointer_or_reference<Parameter>, "a kernel takes its buffers as pointers or references");
        list[count++] = describe<Parameter, Role>(*texts);
      }
      texts++;
    }
  };
};

// How the threads of a kernel are run. `fibers`: one after another, each on a stack of its own, so that it can wait.
// A kernel that was split runs a whole threadgroup when it is called.
template <bool fibers, auto function, class... Roles> struct launcher {
  using kernel = signature<decltype(function)>;
  using constants = typename kernel::template constants<Roles...>;
  static_assert(kernel::count == sizeof...(Roles), "one role for each parameter");

  // Whether a thread can tell which threadgroup it is in. If not, a row of threadgroups is run as one long one.
  template <role_kind kind>
  static constexpr bool tells_threadgroup =
      !(kind == buffer || kind == constant_reference || kind == thread_position_in_grid || kind == threads_per_grid ||
        kind == grid_size || kind == grid_origin || kind == absent || kind == threadgroups_per_grid ||
        kind == dispatch_threads_per_threadgroup || kind == dispatch_simdgroups_per_threadgroup ||
        kind == dispatch_quadgroups_per_threadgroup || kind == threads_per_simdgroup || kind == thread_execution_width);
  static constexpr bool joins_threadgroups = !(false || ... || tells_threadgroup<Roles::kind>);

  static void run(const mslc_launch *given, unsigned long first, unsigned long last) {
    const launch_state launch(*given);
    unsigned long number = first;
    while (number < last) {
      threadgroup_state group = launch.threadgroup(number);
      begin_threadgroup();
      if constexpr (kernel::is_split) {
        kernel::template run_threadgroup<function, Roles...>(launch, group);
        number++;
      } else if constexpr (fibers) {
        run_fibers(launch, group);
        number++;
      } else {
        number += joins_threadgroups ? join(launch, group, last - number) : 1;
        run_rows(launch, group);
      }
    }
  }

private:
  // Lengthen a threadgroup by those that follow it along x, `limit` of them with itself; how many it is then.
  static MSLC_FUNC unsigned long join(const launch_state &launch, threadgroup_state &group, unsigned long limit) {
    const unsigned long in_row = launch.groups.x - group.position.x;
    const unsigned long count = limit < in_row ? limit : in_row;
    const unsigned long threads = count * launch.group.x;
    const unsigned left = launch.grid.x - group.origin.x;
    group.threads.x = threads < left ? static_cast<unsigned>(threads) : left;
    return count;
  }

  static MSLC_FUNC void run_rows(const launch_state &launch, const threadgroup_state &group) {
    const constants copies(launch);
    unsigned index = 0;
    for (unsigned z = 0; z < group.threads.z; z++) {
      for (unsigned y = 0; y < group.threads.y; y++) {
        // Counted in the grid's coordinates, in which most kernels address memory: they cannot wrap around.
        const unsigned begin = group.origin.x;
        const unsigned end = begin + group.threads.x;
        __builtin_assume(begin < end);
        for (unsigned x = begin; x < end; x++) {
          const thread_state thread{{x - begin, y, z}, index + (x - begin)};
          kernel::template call<function>(launch, group, thread, copies);
        }
        index += group.threads.x;
      }
    }
  }

  struct fiber_context {
    const launch_state &launch;
    const threadgroup_state &group;
  };
  static MSLC_FUNC void run_fibers(const launch_state &launch, const threadgroup_state &group) {
    const fiber_context context{launch, group};
    mslc_runtime_table->run_fibers(run_fiber, &context, group.count);
  }
  static void run_fiber(const void *given, unsigned index) {
    const fiber_context &context = *static_cast<const fiber_context *>(given);
    const launch_state &launch = context.launch;
    const threadgroup_state &group = context.group;
    thread_state thread{{index, 0, 0}, index};
    if (group.threads.x != group.count) {
      const unsigned row = index / group.threads.x;
      thread.position = {index % group.threads.x, row % group.threads.y, row / group.threads.y};
    }
    const constants copies(launch);
    kernel::template call<function>(launch, group, thread, copies);
  }
};

// A kernel's reflection, laid out by the compiler.
template <auto function, class... Roles>
using argument_table = typename signature<decltype(function)>::template arguments<Roles...>;

template <auto function, class... Roles> struct gang_launcher; // see gang.h
template <unsigned flags, auto function, class... Roles> constexpr auto choose_run() {
  if constexpr ((flags & MSLC_KERNEL_GANGS) != 0) {
    return &gang_launcher<function, Roles...>::run;
  } else {
    return &launcher<(flags & MSLC_KERNEL_FIBERS) != 0, function, Roles...>::run;
  }
}
template <unsigned flags, auto function, class... Roles>
constexpr auto run_function = choose_run<flags, function, Roles...>();

// Slots count in 32 bits. Whatever they can tell is summed up, and refused if it is too much, by the loader.
template <class T> constexpr bool fits_slot = sizeof(T) <= 0xffffffff;

} // namespace mslc

// The start of the unit: its kernel's variables in threadgroup memory. The linker gathers their slots between two
// symbols, for each unit apart. T belongs to the kernel, so that only the slots of kernels that are really emitted are
// in the library. `is_zeroed`: declared with `= {0}`.
//
// It is a macro, as clang must hear of a section that can be written to in the unit itself: of what it has heard in a
// precompiled header it forgets that, and puts slots into read-only memory.
#define MSLC_THREADGROUP_MEMORY(unit)                                                                                  \
  extern "C" {                                                                                                         \
  extern MSLC_HIDDEN __attribute__((weak)) mslc_threadgroup_slot __start_mslc_slots##unit[];                           \
  extern MSLC_HIDDEN __attribute__((weak)) mslc_threadgroup_slot __stop_mslc_slots##unit[];                            \
  }                                                                                                                    \
  namespace mslc {                                                                                                     \
  template <int n, class T, bool is_zeroed> struct threadgroup_place {                                                 \
    __attribute__((section("mslc_slots" #unit))) static mslc_threadgroup_slot mslc_threadgroup_slot_;                  \
  };                                                                                                                   \
  template <int n, class T, bool is_zeroed>                                                                            \
  mslc_threadgroup_slot threadgroup_place<n, T, is_zeroed>::mslc_threadgroup_slot_ = {sizeof(T), alignof(T), 0,        \
                                                                                      is_zeroed};                      \
  template <int n, class T, bool is_zeroed = false> MSLC_FUNC T &threadgroup_variable() {                              \
    static_assert(::mslc::fits_slot<T>, "this is more threadgroup memory than a kernel has: 32768 bytes");             \
    mslc_threadgroup_slot *slot = &threadgroup_place<n, T, is_zeroed>::mslc_threadgroup_slot_;                         \
    /* lest LLVM see that nothing here writes to the slot, and put it into read-only memory */                         \
    __asm__("" : "+r"(slot));                                                                                          \
    return *reinterpret_cast<T *>(static_cast<char *>(mslc_arena()) + slot->offset);                                   \
  }                                                                                                                    \
  MSLC_FUNC void begin_threadgroup() {                                                                                 \
    for (mslc_threadgroup_slot *slot = __start_mslc_slots##unit; slot != __stop_mslc_slots##unit; slot++) {            \
      if (slot->reserved) {                                                                                            \
        __builtin_memset(static_cast<char *>(mslc_arena()) + slot->offset, 0, slot->size);                             \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
  }

// The end of the unit: the description of its kernel. Last come the address of its function and the roles.
#define MSLC_KERNEL(unit, host_name, flags, work, max_threads, texts, ...)                                             \
  MSLC_THUNKS                                                                                                          \
  MSLC_NUMBER_HELPERS                                                                                                  \
  static constexpr mslc::argument_table<__VA_ARGS__> mslc_arguments(texts);                                            \
  extern "C" {                                                                                                         \
  extern MSLC_HIDDEN const mslc_kernel mslc_kernel##unit;                                                              \
  const mslc_kernel mslc_kernel##unit = {host_name,                                                                    \
                                         mslc::run_function<flags, __VA_ARGS__>,                                       \
                                         flags,                                                                        \
                                         max_threads,                                                                  \
                                         mslc_arguments.count,                                                         \
                                         work,                                                                         \
                                         mslc_arguments.list,                                                          \
                                         __start_mslc_slots##unit,                                                     \
                                         __stop_mslc_slots##unit};                                                     \
  }

// The library itself: of the kernels to which an array points.
#define MSLC_LIBRARY(kernels)                                                                                          \
  extern "C" {                                                                                                         \
  extern __attribute__((visibility("default"))) const mslc_library mslc_kernel_library;                                \
  const mslc_library mslc_kernel_library = {                                                                           \
      MSLC_LIBRARY_MAGIC, MSLC_KERNEL_ABI, sizeof(kernels) / sizeof(kernels[0]), 0, kernels, &mslc_runtime_table};     \
  }

// Both, for a library of one kernel.
#define MSLC_KERNEL_LIBRARY(...)                                                                                       \
  MSLC_KERNEL(_only, __VA_ARGS__)                                                                                      \
  static const mslc_kernel *const mslc_kernels[] = {&mslc_kernel_only};                                                \
  MSLC_LIBRARY(mslc_kernels)
