/* The thread that calls what was registered with mps_event_notify, so that no signaller runs foreign code. */
#ifndef MPS_HOST_NOTIFIER_H
#define MPS_HOST_NOTIFIER_H

#include "mpsshim.h"

typedef struct host_notification {
  struct host_notification *next;
  uint64_t value;
  mps_callback_fn callback;
  void *user;
} host_notification;

/* Make sure the thread is there. 0 or an errno. */
int host_notifier_start(void);

/* Hand over a list of notifications, in the order in which they are to be called. They are freed after the call. */
void host_notifier_post(host_notification *first);

#endif
