/* The root class, its count of live objects, zombies, autorelease pools. */
#import "private.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of libobjc by name. */
Class objc_lookup_class(const char *name);
Class class_getSuperclass(Class kind);
size_t class_getInstanceSize(Class kind);
BOOL class_respondsToSelector(Class kind, SEL selector);
const char *class_getName(Class kind);
const char *sel_getName(SEL selector);
extern void (*(*__objc_msg_forward2)(id, SEL))(void);

void standin_broken(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fputs("stand-in: ", stderr);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  fflush(NULL);
  abort();
}

/* ---- what follows an object's instance variables ---- */

typedef struct tail {
  _Atomic long references;
  _Atomic bool immortal;
  void *next_dead;
} tail;

static long live;
static bool zombies;
static _Atomic(void *) graveyard; /* dead objects stay reachable, lest they count as leaks */

static tail *tail_of(id object) {
  size_t size = (class_getInstanceSize(object->kind) + _Alignof(tail) - 1) & ~(_Alignof(tail) - 1);
  return (tail *)(void *)((char *)object + size);
}

/* Live objects of each class, for whoever has to find a leak. */
static pthread_mutex_t census_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const char *name;
  long count;
} census[128];

static void count_object(Class kind, long change) {
  const char *name = class_getName(kind);
  pthread_mutex_lock(&census_lock);
  size_t i = 0;
  while (census[i].name != NULL && strcmp(census[i].name, name) != 0) {
    i++;
  }
  census[i].name = name;
  census[i].count += change;
  live += change;
  pthread_mutex_unlock(&census_lock);
}

long standin_live_objects(void) {
  pthread_mutex_lock(&census_lock);
  long count = live;
  pthread_mutex_unlock(&census_lock);
  return count;
}

size_t standin_live_classes(char *text, size_t size) {
  size_t used = 0;
  pthread_mutex_lock(&census_lock);
  for (size_t i = 0; census[i].name != NULL; i++) {
    if (census[i].count != 0) {
      int length = snprintf(text + used, used < size ? size - used : 0, "%ld %s\n", census[i].count, census[i].name);
      used += (size_t)length;
    }
  }
  pthread_mutex_unlock(&census_lock);
  return used;
}

id standin_immortal(id object) {
  if (!atomic_exchange(&tail_of(object)->immortal, true)) {
    count_object(object->kind, -1);
  }
  return object;
}

/* Without this, libobjc crashes on a selector that is not there. */
static void (*missing(id object, SEL selector))(void) {
  standin_broken("%s does not implement %s", class_getName(object->kind), sel_getName(selector));
}

__attribute__((constructor)) static void start(void) {
  __objc_msg_forward2 = missing;
  zombies = getenv("STANDIN_ZOMBIES") != NULL;
}

@interface NSAutoreleasePool (Standin)
- (void)add:(id)object;
@end

/* What a dead object becomes: it answers nothing, so that a late message is reported with its name. */
__attribute__((objc_root_class))
@interface StandinReleasedObject {
  Class kind;
}
@end
@implementation StandinReleasedObject
@end

@implementation NSObject
+ (void)initialize {
}
/* calloc here and not in libobjc, so that sanitizers see who allocates. */
+ (instancetype)alloc {
  size_t size = (class_getInstanceSize((Class)self) + _Alignof(tail) - 1) & ~(_Alignof(tail) - 1);
  id object = calloc(1, size + sizeof(tail));
  object->kind = (Class)self;
  atomic_store(&tail_of(object)->references, 1);
  count_object((Class)self, 1);
  return object;
}
+ (instancetype)new {
  return [[self alloc] init];
}
+ (Class)class {
  return (Class)self;
}
- (instancetype)init {
  return self;
}
- (BOOL)respondsToSelector:(SEL)selector {
  return class_respondsToSelector(kind, selector);
}
- (BOOL)isKindOfClass:(Class)other {
  for (Class at = kind; at != NULL; at = class_getSuperclass(at)) {
    if (at == other) {
      return YES;
    }
  }
  return NO;
}
- (NSUInteger)retainCount {
  return (NSUInteger)atomic_load(&tail_of(self)->references);
}
- (instancetype)retain {
  atomic_fetch_add(&tail_of(self)->references, 1);
  return self;
}
- (oneway void)release {
  long before = atomic_fetch_sub(&tail_of(self)->references, 1);
  STANDIN_RULE(before > 0, "a %s is released once too often", class_getName(kind));
  if (before == 1) {
    [self dealloc];
  }
}
- (void)dealloc {
  if (!atomic_load(&tail_of(self)->immortal)) {
    count_object(kind, -1);
  }
  if (!zombies) {
    free(self);
    return;
  }
  tail_of(self)->next_dead = atomic_exchange(&graveyard, (void *)self);
  kind = objc_lookup_class("StandinReleasedObject");
}

/* ---- pools ---- */

static _Thread_local NSAutoreleasePool *top;

- (instancetype)autorelease {
  /* macOS only logs this, and leaks. */
  STANDIN_RULE(top != nil, "a %s is autoreleased without a pool", class_getName(kind));
  [top add:self];
  return self;
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
  outer = top;
  top = self;
  return self;
}
- (void)add:(id)object {
  if (count == room) {
    room = room != 0 ? 2 * room : 16;
    items = realloc(items, room * sizeof *items);
  }
  items[count++] = object;
}
- (void)drain {
  STANDIN_RULE(top == self, "autorelease pools are drained out of order");
  while (count > 0) {
    [items[--count] release];
  }
  top = outer;
  free(items);
  [super release];
}
- (oneway void)release {
  [self drain];
}
@end

/* ---- work under way ---- */

static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_done = PTHREAD_COND_INITIALIZER;
static long work;

void standin_begin_work(void) {
  pthread_mutex_lock(&work_lock);
  work++;
  pthread_mutex_unlock(&work_lock);
}

void standin_end_work(void) {
  pthread_mutex_lock(&work_lock);
  if (--work == 0) {
    pthread_cond_broadcast(&work_done);
  }
  pthread_mutex_unlock(&work_lock);
}

void standin_settle(void) {
  pthread_mutex_lock(&work_lock);
  while (work > 0) {
    pthread_cond_wait(&work_done, &work_lock);
  }
  pthread_mutex_unlock(&work_lock);
}
