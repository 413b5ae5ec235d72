#include "fiber.h"

#include <stdio.h>

/* Floating point in kernels: denormals are flushed to zero, on the way in and out, as GPUs do it; everything else is
 * the default, whatever the calling thread has set. */
#if defined(__x86_64__)

#include <xmmintrin.h>

typedef unsigned float_mode;

static float_mode enter_float_mode(void) {
  const unsigned masked_exceptions = 0x1f80, denormals_are_zero = 0x0040, flush_to_zero = 0x8000;
  const unsigned raised_exceptions = 0x003f; /* left as they are: to clear them is slow on some processors */
  float_mode before = _mm_getcsr();
  _mm_setcsr((before & raised_exceptions) | masked_exceptions | denormals_are_zero | flush_to_zero);
  return before;
}

static void leave_float_mode(float_mode before) {
  _mm_setcsr(before);
}

#elif defined(__aarch64__)

typedef uint64_t float_mode;

static float_mode enter_float_mode(void) {
  const uint64_t flush_to_zero = UINT64_C(1) << 24;
  float_mode before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(flush_to_zero));
  return before;
}

static void leave_float_mode(float_mode before) {
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
}

#endif

bool host_kernel_run(const mslc_kernel *kernel, const mslc_launch *launch, uint64_t first, uint64_t last,
                     host_fault *fault) {
  host_worker *worker = host_worker_open();
  if (worker == NULL) {
    snprintf(fault->text, sizeof fault->text, "could not start: there is no memory for its threadgroup memory");
    return false;
  }
  worker->kernel = kernel->name;
  float_mode before = enter_float_mode();
  int faulted = host_fiber_guard(&worker->recover, kernel->run, launch, first, last);
  worker->recover = NULL;
  leave_float_mode(before);
  if (faulted) {
    host_fault_describe(worker, fault);
    host_fibers_abandon(worker);
    return false;
  }
  return true;
}
