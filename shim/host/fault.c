/* Faults of kernels: the processor's signal becomes the end of host_kernel_run, not of the process. */
#if defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE 1
#else
#define _GNU_SOURCE 1
#endif

#include "fiber.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/ucontext.h>
#else
#include <ucontext.h>
#endif

/* The code of x86-64 for an address with wrong upper bits; it does not tell which. */
#if defined(SI_KERNEL)
#define NO_ADDRESS SI_KERNEL
#else
#define NO_ADDRESS 0
#endif

/* How far from the stack pointer an address may lie to be called a use of the stack. */
#define STACK_REACH ((uintptr_t)64 << 10)

/* SIGTRAP is what a point that cannot be reached does on aarch64, and SIGILL on x86-64. */
static const int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
#define FAULT_SIGNALS (sizeof fault_signals / sizeof fault_signals[0])

static struct sigaction previous[FAULT_SIGNALS];

/* ---- the interrupted context, per system and processor: what it did, and making it go on in host_fiber_resume ---- */

#if defined(__linux__) && defined(__x86_64__)

static host_trap_access access_of(const ucontext_t *context) {
  const greg_t page_fault = 14, write_bit = 2, fetch_bit = 16;
  greg_t error = context->uc_mcontext.gregs[REG_ERR];
  if (context->uc_mcontext.gregs[REG_TRAPNO] != page_fault) {
    return HOST_ACCESS_UNKNOWN;
  }
  return error & fetch_bit ? HOST_ACCESS_EXECUTE : error & write_bit ? HOST_ACCESS_WRITE : HOST_ACCESS_READ;
}

static uintptr_t stack_pointer_of(const ucontext_t *context) {
  return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
}

static void redirect(ucontext_t *context, void *to) {
  context->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)host_fiber_resume;
  context->uc_mcontext.gregs[REG_RDI] = (greg_t)(uintptr_t)to;
}

#elif defined(__linux__) && defined(__aarch64__)

/* Why the access failed stands in a record of the kernel's, behind the registers. */
static host_trap_access access_of(const ucontext_t *context) {
  const uint32_t esr_magic = 0x45535201;
  const uint8_t *record = (const uint8_t *)context->uc_mcontext.__reserved;
  const uint8_t *end = record + sizeof context->uc_mcontext.__reserved;
  while (end - record >= 16) {
    struct {
      uint32_t magic, size;
      uint64_t esr;
    } head;
    memcpy(&head, record, sizeof head);
    if (head.magic == esr_magic) {
      uint64_t class = head.esr >> 26 & 0x3f;
      if (class == 0x20 || class == 0x21) {
        return HOST_ACCESS_EXECUTE;
      }
      return class != 0x24 && class != 0x25 ? HOST_ACCESS_UNKNOWN
             : head.esr & 1u << 6           ? HOST_ACCESS_WRITE
                                            : HOST_ACCESS_READ;
    }
    if (head.magic == 0 || head.size < 8) {
      break;
    }
    record += head.size;
  }
  return HOST_ACCESS_UNKNOWN;
}

static uintptr_t stack_pointer_of(const ucontext_t *context) {
  return (uintptr_t)context->uc_mcontext.sp;
}

static void redirect(ucontext_t *context, void *to) {
  context->uc_mcontext.pc = (uintptr_t)host_fiber_resume;
  context->uc_mcontext.regs[0] = (uintptr_t)to;
}

#elif defined(__APPLE__) && defined(__x86_64__)

static host_trap_access access_of(const ucontext_t *context) {
  const uint32_t page_fault = 14, write_bit = 2, fetch_bit = 16;
  uint32_t error = context->uc_mcontext->__es.__err;
  if (context->uc_mcontext->__es.__trapno != page_fault) {
    return HOST_ACCESS_UNKNOWN;
  }
  return error & fetch_bit ? HOST_ACCESS_EXECUTE : error & write_bit ? HOST_ACCESS_WRITE : HOST_ACCESS_READ;
}

static uintptr_t stack_pointer_of(const ucontext_t *context) {
  return (uintptr_t)context->uc_mcontext->__ss.__rsp;
}

static void redirect(ucontext_t *context, void *to) {
  context->uc_mcontext->__ss.__rip = (uintptr_t)host_fiber_resume;
  context->uc_mcontext->__ss.__rdi = (uintptr_t)to;
}

#elif defined(__APPLE__) && defined(__aarch64__)

static host_trap_access access_of(const ucontext_t *context) {
  uint32_t esr = context->uc_mcontext->__es.__esr;
  uint32_t class = esr >> 26;
  if (class == 0x20 || class == 0x21) {
    return HOST_ACCESS_EXECUTE;
  }
  return class != 0x24 && class != 0x25 ? HOST_ACCESS_UNKNOWN : esr & 1u << 6 ? HOST_ACCESS_WRITE : HOST_ACCESS_READ;
}

static uintptr_t stack_pointer_of(const ucontext_t *context) {
  return (uintptr_t)__darwin_arm_thread_state64_get_sp(context->uc_mcontext->__ss);
}

static void redirect(ucontext_t *context, void *to) {
  __darwin_arm_thread_state64_set_pc_fptr(context->uc_mcontext->__ss, (void *)host_fiber_resume);
  context->uc_mcontext->__ss.__x[0] = (uintptr_t)to;
}

#else
#error "how a fault is handled on this system is not known"
#endif

/* ---- the handler ---- */

static bool was_sent(const siginfo_t *info) {
  return info->si_code <= 0;
}

/* true for a fault of the instruction that runs, false for a signal that somebody sent. Another handler of this
 * process, installed later, may have seen the fault first and raised the signal again for us. */
static bool is_fault(const siginfo_t *info) {
#if defined(SI_TKILL)
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
    return true;
  }
#endif
  return !was_sent(info);
}

/* Not a kernel's fault: do what would have been done without us. */
static void pass_on(int signal, siginfo_t *info, void *context) {
  size_t index = 0;
  while (fault_signals[index] != signal) {
    index++;
  }
  const struct sigaction *before = &previous[index];
  if (before->sa_flags & SA_SIGINFO) {
    before->sa_sigaction(signal, info, context);
  } else if (before->sa_handler == SIG_IGN && was_sent(info)) {
    return;
  } else if (before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN) {
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    sigaction(signal, &fatal, NULL);
    if (was_sent(info) || signal == SIGTRAP) {
      raise(signal); /* else the same instruction faults again, after the return */
    }
  } else {
    before->sa_handler(signal);
  }
}

static void on_fault(int signal, siginfo_t *info, void *context) {
  host_worker *worker = host_self;
  if (worker == NULL || worker->recover == NULL || !is_fault(info)) {
    pass_on(signal, info, context);
    return;
  }
  worker->trap = (host_trap){
      .stop = HOST_STOP_SIGNAL,
      .signal = signal,
      .code = info->si_code,
      .access = access_of(context),
      .address = (uintptr_t)info->si_addr,
      .stack_pointer = stack_pointer_of(context),
  };
  redirect(context, worker->recover);
  worker->recover = NULL;
}

void host_fault_handlers_install(void) {
  struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
  action.sa_sigaction = on_fault;
  sigemptyset(&action.sa_mask);
  for (size_t index = 0; index < FAULT_SIGNALS; index++) {
    sigaction(fault_signals[index], NULL, &previous[index]);
    sigaction(fault_signals[index], &action, NULL);
  }
}

/* ---- in words ---- */

static bool is_stack_overflow(const host_worker *worker) {
  const host_trap *trap = &worker->trap;
  bool near_stack = trap->address - (trap->stack_pointer - STACK_REACH) < 2 * STACK_REACH;
  return host_fiber_guards(worker, trap->address) || near_stack;
}

static void describe_access(const host_worker *worker, host_fault *fault) {
  static const char *const verbs[] = {[HOST_ACCESS_UNKNOWN] = "used",
                                      [HOST_ACCESS_READ] = "read from",
                                      [HOST_ACCESS_WRITE] = "wrote to",
                                      [HOST_ACCESS_EXECUTE] = "called"};
  const host_trap *trap = &worker->trap;
  const char *verb = verbs[trap->access];
  if (trap->code <= 0) {
    snprintf(fault->text, sizeof fault->text, "used memory that it must not use");
  } else if (trap->code == NO_ADDRESS) {
    snprintf(fault->text, sizeof fault->text, "used an address that is no valid one");
  } else if (is_stack_overflow(worker)) {
    snprintf(fault->text, sizeof fault->text,
             "overflowed its stack: its variables and calls need too much memory, or it used an index beyond an array "
             "of its own");
  } else if (trap->signal == SIGSEGV && trap->code == SEGV_ACCERR) {
    snprintf(fault->text, sizeof fault->text, "%s address 0x%" PRIxPTR ", which does not permit that", verb,
             trap->address);
  } else {
    snprintf(fault->text, sizeof fault->text,
             "%s address 0x%" PRIxPTR ", where there is no memory; compiled with validation (validate=True, "
             "--validate, MPS_COMPILE_VALIDATE) it says where",
             verb, trap->address);
  }
}

void host_fault_describe(const host_worker *worker, host_fault *fault) {
  const host_trap *trap = &worker->trap;
  if (trap->stop == HOST_STOP_NO_STACKS) {
    snprintf(fault->text, sizeof fault->text, "could not start: there is no memory for the stacks of its threads");
  } else if (trap->stop == HOST_STOP_NO_SCRATCH) {
    snprintf(fault->text, sizeof fault->text, "could not start: there is no memory for the variables of its threads");
  } else if (trap->stop == HOST_STOP_NO_FIBERS) {
    snprintf(fault->text, sizeof fault->text,
             "reached a barrier or SIMD-group function, but was built without fibers: please report it");
  } else if (trap->signal == SIGFPE) {
    snprintf(fault->text, sizeof fault->text, "divided an integer by zero, or the smallest one by -1");
  } else if (trap->signal == SIGILL || trap->signal == SIGTRAP) {
    snprintf(fault->text, sizeof fault->text,
             "executed an illegal instruction; a library that was compiled elsewhere may be for another CPU: see "
             "mpscffi-mslc --cpu");
  } else {
    describe_access(worker, fault);
  }
}
