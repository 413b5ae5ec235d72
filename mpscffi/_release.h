/* Calls that give memory back, on any thread: none begins once the interpreter ends. */
#include <stdatomic.h>
#include <time.h>

static void mpscffi_release(void *user, void *pointer, uint64_t length);

static atomic_int mpscffi_entered;
static atomic_bool mpscffi_closed;

static int enter(void) {
  atomic_fetch_add(&mpscffi_entered, 1);
  if (!atomic_load(&mpscffi_closed)) {
    return 1;
  }
  atomic_fetch_sub(&mpscffi_entered, 1);
  return 0;
}

static void leave(void) {
  atomic_fetch_sub(&mpscffi_entered, 1);
}

/* From now on memory is left to the end of the process. Waits a second, without the GIL, for those that are inside. */
static void mpscffi_close(void) {
  atomic_store(&mpscffi_closed, 1);
  for (int i = 0; i < 1000 && atomic_load(&mpscffi_entered) > 0; i++) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

/* An mps_release_fn: what Python keeps under the token `user` is let go. */
static void mpscffi_let_go(void *user, void *pointer, uint64_t length) {
  if (enter()) {
    mpscffi_release(user, pointer, length);
    leave();
  }
}
