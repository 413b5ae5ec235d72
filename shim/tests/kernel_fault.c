/* Kernels that fault: the run ends with words about it, and everything goes on. */
#include "kernel_samples.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOWHERE                                                                                                        \
  ", where there is no memory; compiled with validation (validate=True, --validate, MPS_COMPILE_VALIDATE) it says "    \
  "where"

typedef struct mistake {
  uint32_t kind;    /* as go_wrong in kernel_samples.c numbers them */
  uint32_t address; /* where that matters */
  const char *text;
} mistake;

static const mistake mistakes[] = {
    {0, 0, "wrote to address 0x0" NOWHERE},
    {0, 0x1230, "wrote to address 0x1230" NOWHERE},
    {1, 0x40, "read from address 0x40" NOWHERE},
#if defined(__x86_64__)
    {2, 0xdead0000, "used an address that is no valid one"},
    {3, 0, "divided an integer by zero, or the smallest one by -1"},
#endif
    {4, 0,
     "overflowed its stack: its variables and calls need too much memory, or it used an index beyond an array of its "
     "own"},
    {5, 0,
     "executed an illegal instruction; a library that was compiled elsewhere may be for another CPU: see "
     "mpscffi-mslc --cpu"},
};
#define MISTAKES (sizeof mistakes / sizeof mistakes[0])

static host_image *image;

static void works(uint32_t group) {
  uint32_t out[1024], rounds = 3;
  mslc_launch launch = sample_launch(group, group, out, &rounds);
  sample_pass(image, "rounds", &launch);
  for (uint32_t n = 0; n < group; n++) {
    EXPECT_EQUAL(out[n], 3);
  }
}

static void fails(const char *kernel, const mistake *expected, uint32_t group, uint32_t thread) {
  uint32_t out[4] = {0}, in[3] = {expected->kind, thread, expected->address};
  mslc_launch launch = sample_launch(group, group, out, in);
  host_fault fault = {""};
  EXPECT(!sample_run(image, kernel, &launch, &fault));
  EXPECT_EQUAL(out[1], 0);
  if (strcmp(fault.text, expected->text) != 0) {
    fprintf(stderr, "%s, mistake %u: \"%s\"\n  expected \"%s\"\n", kernel, expected->kind, fault.text, expected->text);
    exit(1);
  }
}

/* Also on a thread that has run fibers, whether they came to their end or not. */
static void waits_alone(void) {
  static const mistake fiber_fault = {0, 0, "wrote to address 0x0" NOWHERE};
  for (uint32_t way = 0; way < 3; way++) {
    const mistake alone = {way, 0,
                           "reached a barrier or SIMD-group function, but was built without fibers: please report it"};
    fails("wait_alone", &alone, 1, 0);
    works(40);
    fails("wait_alone", &alone, 1, 0);
    fails("fiber_fault", &fiber_fault, 40, 0);
    fails("wait_alone", &alone, 1, 0);
  }
}

static void *all_mistakes(void *nothing) {
  (void)nothing;
  waits_alone();
  for (size_t n = 0; n < MISTAKES; n++) {
    for (int twice = 0; twice < 2; twice++) {
      fails("fault", &mistakes[n], 1, 0);
      works(64);
      fails("fiber_fault", &mistakes[n], 40, 0);
      fails("fiber_fault", &mistakes[n], 1024, 1023);
      works(1024);
    }
  }
  return NULL;
}

/* A thread whose stack is small, and on which nothing has run before. */
static void on_another_thread(void) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, (size_t)256 << 10);
  EXPECT_EQUAL(pthread_create(&thread, &attributes, all_mistakes, NULL), 0);
  pthread_attr_destroy(&attributes);
  pthread_join(thread, NULL);
}

static void on_two_threads_at_once(void) {
  pthread_t threads[2];
  for (size_t n = 0; n < 2; n++) {
    EXPECT_EQUAL(pthread_create(&threads[n], NULL, all_mistakes, NULL), 0);
  }
  for (size_t n = 0; n < 2; n++) {
    pthread_join(threads[n], NULL);
  }
}

/* ---- faults that are none of a kernel's ---- */

static void touch_nothing(void) {
  volatile uintptr_t address = 8;
  *(volatile int *)address = 1;
}

static void leave_by_handler(int signal) {
  _exit(40 + signal);
}

static void send_fault(void) {
  kill(getpid(), SIGSEGV);
  pause();
}

/* How a child ends that does `act`: minus its signal, or its exit status. */
static int end_of_child(void (*act)(void)) {
  pid_t child = fork();
  if (child == 0) {
    act();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void set_handler_and_fault(void) {
  signal(SIGSEGV, leave_by_handler);
  works(32);
  touch_nothing();
}

static void run_then_fault(void) {
  signal(SIGSEGV, SIG_DFL); /* a sanitizer may have set its own */
  works(32);
  touch_nothing();
}

static void run_then_send(void) {
  signal(SIGSEGV, SIG_DFL);
  works(32);
  send_fault();
}

static void run_then_raise(void) {
  signal(SIGSEGV, SIG_DFL);
  works(32);
  raise(SIGSEGV);
}

static void ignore_run_then_raise(void) {
  signal(SIGSEGV, SIG_IGN);
  works(32);
  raise(SIGSEGV);
  _exit(5);
}

static void run_then_trap(void) {
  signal(SIGTRAP, SIG_DFL);
  works(32);
#if defined(__x86_64__)
  __asm__ volatile("int3");
#else
  __builtin_trap();
#endif
}

/* In children, before this process runs its first kernel: so the handlers that they set are there before ours. */
static void faults_of_others_end_as_ever(void) {
  EXPECT_EQUAL(end_of_child(set_handler_and_fault), 40 + SIGSEGV);
  EXPECT_EQUAL(end_of_child(run_then_fault), -SIGSEGV);
  EXPECT_EQUAL(end_of_child(run_then_send), -SIGSEGV);
  EXPECT_EQUAL(end_of_child(run_then_raise), -SIGSEGV);
  EXPECT_EQUAL(end_of_child(ignore_run_then_raise), 5);
  EXPECT_EQUAL(end_of_child(run_then_trap), -SIGTRAP);
}

int main(int count, char **arguments) {
  image = samples_open(count, arguments);
  faults_of_others_end_as_ever();
  all_mistakes(NULL);
  on_another_thread();
  on_two_threads_at_once();
  host_image_drop(image);
  return 0;
}
