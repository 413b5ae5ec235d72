// What kernels ask of the host device's runtime.
//
// A kernel library links against nothing: each function here is a jump through the table that the loader puts into
// mslc_runtime_table. A jump and not a call, because the runtime tells SIMD-group functions apart by their return
// address, which so is the place in the kernel. The functions are convergent: a compiler that duplicates such a call,
// as when it unrolls a loop with a remainder, would make two places of one.
#pragma once
#pragma clang system_header
#include <metal_config>
#include <mslc/kernel_abi.h>

#define MSLC_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

extern MSLC_HIDDEN const mslc_runtime *mslc_runtime_table;

MSLC_HIDDEN void mslc_threadgroup_barrier() __attribute__((convergent, nothrow));
MSLC_HIDDEN void mslc_collective(void *operand, mslc_collective_fn operation)
    __attribute__((convergent, nomerge, nothrow));
MSLC_HIDDEN void mslc_yield() __attribute__((convergent, nothrow));
MSLC_HIDDEN void mslc_log(const mslc_log_call *call) __attribute__((nothrow));
MSLC_HIDDEN void mslc_turn() __attribute__((nothrow));

// The same value each time one thread of a kernel asks, so calls may be merged and leave loops.
MSLC_HIDDEN void *mslc_arena() __attribute__((const, nothrow, returns_nonnull));
MSLC_HIDDEN void *mslc_scratch() __attribute__((const, nothrow, returns_nonnull));
MSLC_HIDDEN unsigned mslc_lane() __attribute__((const, nothrow));
}

namespace mslc {

using word = unsigned long; // every entry of the table
static_assert(__builtin_offsetof(mslc_runtime, run_fibers) == 1 * sizeof(word), "MSLC_THUNKS knows the table's layout");
static_assert(__builtin_offsetof(mslc_runtime, arena) == 2 * sizeof(word), "MSLC_THUNKS knows the table's layout");
static_assert(__builtin_offsetof(mslc_runtime, threadgroup_barrier) == 3 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, collective) == 4 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, lane) == 5 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, yield) == 6 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, scratch) == 10 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, log) == 11 * sizeof(word), "as above");
static_assert(__builtin_offsetof(mslc_runtime, turn) == 12 * sizeof(word), "as above");

// A loop that waits for another thread calls this in each round.
MSLC_FUNC void yield() {
  mslc_yield();
}

// Do `operation` for all lanes of the SIMD-group that meet here. `operand` is this lane's part in it, and its result.
template <class Operand> MSLC_CONVERGENT_FUNC void collective(Operand &operand, mslc_collective_fn operation) {
  mslc_collective(&operand, operation);
}

} // namespace mslc

#if defined(__x86_64__)
#define MSLC_THUNK(name, offset)                                                                                       \
  ".weak " name "\n.hidden " name "\n.type " name ",@function\n" name ":\n"                                            \
  "  movq mslc_runtime_table(%rip), %rax\n"                                                                            \
  "  jmpq *" offset "(%rax)\n"                                                                                         \
  ".size " name ", . - " name "\n"
#elif defined(__aarch64__)
#define MSLC_THUNK(name, offset)                                                                                       \
  ".weak " name "\n.hidden " name "\n.type " name ",%function\n" name ":\n"                                            \
  "  adrp x16, mslc_runtime_table\n"                                                                                   \
  "  ldr x16, [x16, :lo12:mslc_runtime_table]\n"                                                                       \
  "  ldr x16, [x16, #" offset "]\n"                                                                                    \
  "  br x16\n"                                                                                                         \
  ".size " name ", . - " name "\n"
#else
#error "the host device runs kernels on x86-64 and aarch64"
#endif

// The bodies of the functions above, once in a library; weak, so that a library may be linked of several units.
#define MSLC_THUNKS                                                                                                    \
  __asm__(".pushsection .text\n"                                                                                       \
          ".p2align 4\n" MSLC_THUNK("mslc_arena", "16") MSLC_THUNK("mslc_threadgroup_barrier", "24")                   \
              MSLC_THUNK("mslc_collective", "32") MSLC_THUNK("mslc_lane", "40") MSLC_THUNK("mslc_yield", "48")         \
                  MSLC_THUNK("mslc_scratch", "80") MSLC_THUNK("mslc_log", "88")                                        \
                      MSLC_THUNK("mslc_turn", "96") ".popsection\n");                                                  \
  extern "C" {                                                                                                         \
  MSLC_HIDDEN __attribute__((weak)) const mslc_runtime *mslc_runtime_table = nullptr;                                  \
  }
