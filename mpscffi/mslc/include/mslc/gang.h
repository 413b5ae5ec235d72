// SIMD-groups whose lanes are loops: how a kernel is run that mslc/gang has made functions of, one call of which runs
// all lanes of a SIMD-group. Each SIMD-group is a fiber.
#pragma once
#pragma clang system_header
#include <mslc/launch.h>

extern "C" {

// In the kernel's own module. `begin` is the number of the first lane in its threadgroup. The latter two for 32 lanes
// in rows of 32 and 16.
#define MSLC_GANG(name)                                                                                                \
  MSLC_HIDDEN void name(const mslc::launch_state &launch, const mslc::threadgroup_state &group, unsigned begin,        \
                        unsigned lanes, const void *constants, char *scratch);
MSLC_GANG(mslc_gang)
MSLC_GANG(mslc_gang_32)
MSLC_GANG(mslc_gang_16)
#undef MSLC_GANG
}

namespace mslc {

// Do what a SIMD-group function does for all lanes, whose operands lie `stride` bytes apart. Then it is the next
// SIMD-group's turn, as on fibers: kernels lean on that where they lack a barrier.
MSLC_FUNC void gang_collective(char *operands, unsigned long stride, unsigned lanes, mslc_collective_fn operation) {
  void *places[MSLC_SIMD_WIDTH];
  for (unsigned i = 0; i < MSLC_SIMD_WIDTH; i++) {
    places[i] = operands + i * stride;
  }
  operation(places, lanes == MSLC_SIMD_WIDTH ? ~0u : (1u << lanes) - 1);
  mslc_turn();
}

// A SIMD-group's share of the worker's memory. It is used from its end: what a kernel writes in front of a thread's own
// array, as some do where they need it not, goes astray in what is not used. Ends differ, lest all share a few cache
// sets.
constexpr unsigned gang_scratch_bytes = MSLC_SCRATCH_BYTES / (MSLC_MAX_GROUP_THREADS / MSLC_SIMD_WIDTH);
constexpr unsigned gang_scratch_stagger = 448;

struct gang_context {
  const launch_state &launch;
  const threadgroup_state &group;
  const void *constants;
  char *scratch;
};

static void run_gang(const void *given, unsigned number) {
  const gang_context &context = *static_cast<const gang_context *>(given);
  const unsigned begin = number * MSLC_SIMD_WIDTH;
  const unsigned left = context.group.count - begin;
  const unsigned lanes = left < MSLC_SIMD_WIDTH ? left : MSLC_SIMD_WIDTH;
  char *scratch = context.scratch + (number + 1) * gang_scratch_bytes - number * gang_scratch_stagger;
  const index3 threads = context.group.threads;
  const bool is_full = lanes == MSLC_SIMD_WIDTH;
  const auto run = is_full && threads.x % MSLC_SIMD_WIDTH == 0        ? mslc_gang_32
                   : is_full && threads.x == 16 && threads.y % 2 == 0 ? mslc_gang_16
                                                                      : mslc_gang;
  run(context.launch, context.group, begin, lanes, context.constants, scratch);
}

// `Constants` are copies of small constants.
template <class Constants> MSLC_FUNC void run_gangs(const mslc_launch *given, unsigned long first, unsigned long last) {
  const launch_state launch(*given);
  const Constants copies(launch);
  for (unsigned long number = first; number < last; number++) {
    const threadgroup_state group = launch.threadgroup(number);
    begin_threadgroup();
    const gang_context context{launch, group, &copies, static_cast<char *>(mslc_scratch())};
    mslc_runtime_table->run_fibers(run_gang, &context, rounded_up(group.count, MSLC_SIMD_WIDTH));
  }
}

// Of a kernel in Metal's language.
template <auto function, class... Roles> struct gang_launcher {
  using kernel = signature<decltype(function)>;
  using constants = typename kernel::template constants<Roles...>;

  static MSLC_FUNC void run_thread(const launch_state &launch, const threadgroup_state &group,
                                   const thread_state &thread, const void *copies) {
    kernel::template call<function>(launch, group, thread, *static_cast<const constants *>(copies));
  }
  static void run(const mslc_launch *launch, unsigned long first, unsigned long last) {
    run_gangs<constants>(launch, first, last);
  }
};

} // namespace mslc

// In a unit whose kernel has MSLC_KERNEL_GANGS: what a SIMD-group's functions are made from.
#define MSLC_GANG_THREAD(...)                                                                                          \
  extern "C" {                                                                                                         \
  MSLC_HIDDEN __attribute__((noinline)) void mslc_thread(const mslc::launch_state &launch,                             \
                                                         const mslc::threadgroup_state &group,                         \
                                                         const mslc::thread_state &thread, const void *constants) {    \
    mslc::gang_launcher<__VA_ARGS__>::run_thread(launch, group, thread, constants);                                    \
  }                                                                                                                    \
  inline MSLC_HIDDEN __attribute__((used, always_inline)) void                                                         \
  mslc_gang_collective(char *operands, unsigned long stride, unsigned lanes, mslc_collective_fn operation) {           \
    mslc::gang_collective(operands, stride, lanes, operation);                                                         \
  }                                                                                                                    \
  }
