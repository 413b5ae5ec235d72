#include "pool.h"

#include "resources.h"
#include "thread.h"

#include <pthread.h>
#include <sched.h>

/* One launch, on the stack of the thread that asked for it. */
typedef struct pool_job {
  struct pool_job *next;
  const mslc_kernel *kernel;
  const mslc_launch *launch;
  uint64_t groups;
  uint64_t chunk;
  _Atomic uint64_t claimed; /* threadgroups given out, may run past `groups` */
  _Atomic uint32_t helpers; /* pool threads at work on it; grows only under the lock */
  _Atomic bool failed;
  host_fault fault; /* of who set `failed` */
} pool_job;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t work;
  pthread_cond_t left;       /* a helper has left some job */
  pool_job *jobs;            /* that may have something left to claim */
  _Atomic uint32_t job_news; /* counts jobs, so that a thread can look for news without the lock */
  uint32_t sleepers;
  _Atomic uint32_t leave_sleepers;
  uint32_t threads; /* never changes once they are started */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

/* ---- a job ---- */

/* At most one chunk past the end for each thread: far from an overflow. */
static bool job_has_work(pool_job *job) {
  return atomic_load_explicit(&job->claimed, memory_order_relaxed) < job->groups;
}

/* After a failure nothing more is claimed. */
static void job_fail(pool_job *job, const host_fault *fault) {
  if (!atomic_exchange_explicit(&job->failed, true, memory_order_relaxed)) {
    job->fault = *fault;
  }
  atomic_store_explicit(&job->claimed, job->groups, memory_order_relaxed);
}

static void job_work(pool_job *job) {
  while (job_has_work(job)) {
    uint64_t first = atomic_fetch_add_explicit(&job->claimed, job->chunk, memory_order_relaxed);
    if (first >= job->groups) {
      return;
    }
    uint64_t last = job->groups - first < job->chunk ? job->groups : first + job->chunk;
    host_fault fault;
    if (!host_kernel_run(job->kernel, job->launch, first, last, &fault)) {
      job_fail(job, &fault);
    }
  }
}

/* ---- threads ---- */

static pool_job *find_job(void) {
  pool_job *job = pool.jobs;
  while (job && !job_has_work(job)) {
    job = job->next;
  }
  return job;
}

/* Called and returns with the lock held: until there may be a new job. */
static void await_news(void) {
  uint32_t seen = atomic_load_explicit(&pool.job_news, memory_order_relaxed);
  pthread_mutex_unlock(&pool.lock);
  bool news = false;
  for (int i = 0; i < HOST_YIELDS && !news; i++) {
    sched_yield();
    news = atomic_load_explicit(&pool.job_news, memory_order_relaxed) != seen;
  }
  pthread_mutex_lock(&pool.lock);
  while (atomic_load_explicit(&pool.job_news, memory_order_relaxed) == seen) {
    pool.sleepers++;
    pthread_cond_wait(&pool.work, &pool.lock);
    pool.sleepers--;
  }
}

static void *pool_run(void *unused) {
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    pool_job *job = find_job();
    if (!job) {
      await_news();
      continue;
    }
    atomic_fetch_add_explicit(&job->helpers, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool.lock);
    job_work(job);
    /* Seen as 0 by its owner, the job is gone. */
    bool last = atomic_fetch_sub_explicit(&job->helpers, 1, memory_order_acq_rel) == 1;
    pthread_mutex_lock(&pool.lock);
    if (last && pool.leave_sleepers) {
      pthread_cond_broadcast(&pool.left);
    }
  }
  return NULL;
}

/* Fewer threads than wanted, or none, only make launches slower. */
static void start_threads(void) {
  uint32_t wanted = host_limits_cores() - 1;
  while (pool.threads < wanted && host_thread_start("mps-pool", pool_run, NULL) == 0) {
    pool.threads++;
  }
}

uint32_t host_pool_width(void) {
  static pthread_once_t started = PTHREAD_ONCE_INIT;
  pthread_once(&started, start_threads);
  return pool.threads + 1;
}

/* ---- launches ---- */

/* Wakes no more threads than there is work for besides the caller's. */
static void publish(pool_job *job) {
  uint64_t wanted = (job->groups - 1) / job->chunk;
  pthread_mutex_lock(&pool.lock);
  job->next = pool.jobs;
  pool.jobs = job;
  atomic_fetch_add_explicit(&pool.job_news, 1, memory_order_relaxed);
  if (wanted >= pool.sleepers) {
    pthread_cond_broadcast(&pool.work);
  } else {
    while (wanted--) {
      pthread_cond_signal(&pool.work);
    }
  }
  pthread_mutex_unlock(&pool.lock);
}

static void withdraw(pool_job *job) {
  pthread_mutex_lock(&pool.lock);
  pool_job **place = &pool.jobs;
  while (*place != job) {
    place = &(*place)->next;
  }
  *place = job->next;
  pthread_mutex_unlock(&pool.lock);
}

static bool has_helpers(pool_job *job) {
  return atomic_load_explicit(&job->helpers, memory_order_acquire) != 0;
}

static void await_helpers(pool_job *job) {
  for (int i = 0; i < HOST_YIELDS && has_helpers(job); i++) {
    sched_yield();
  }
  if (has_helpers(job)) {
    pthread_mutex_lock(&pool.lock);
    pool.leave_sleepers++;
    while (has_helpers(job)) {
      pthread_cond_wait(&pool.left, &pool.lock);
    }
    pool.leave_sleepers--;
    pthread_mutex_unlock(&pool.lock);
  }
}

bool host_pool_run(const mslc_kernel *kernel, const mslc_launch *launch, uint64_t groups, uint64_t chunk,
                   host_fault *fault) {
  pool_job job = {.kernel = kernel, .launch = launch, .groups = groups, .chunk = chunk};
  bool shared = groups > chunk && host_pool_width() > 1;
  if (shared) {
    publish(&job);
  }
  job_work(&job);
  if (shared) {
    withdraw(&job);
    await_helpers(&job);
  }
  if (job.failed) {
    *fault = job.fault;
  }
  return !job.failed;
}
