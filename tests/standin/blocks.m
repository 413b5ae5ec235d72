/* The blocks runtime. Debian's retains no captured objects, so here is one. Blocks are objects: the classes that the
 * compiler names are aliases of one of ours. */
#import "private.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct block {
  Class kind;
  _Atomic int flags;
  int reserved;
  void *invoke;
  struct {
    unsigned long reserved, size;
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
  } *descriptor;
};

enum { COUNT = 0xfffe, ONE = 2, ON_HEAP = 1 << 24, HAS_HELPERS = 1 << 25, IS_GLOBAL = 1 << 28 };
enum { IS_OBJECT = 3, IS_BLOCK = 7, IS_BYREF = 8 };

__attribute__((objc_root_class))
@interface StandinBlock {
  Class kind;
}
@end

@implementation StandinBlock
+ (void)initialize {
}
- (id)copy {
  return _Block_copy(self);
}
- (id)retain {
  return _Block_copy(self);
}
- (oneway void)release {
  _Block_release(self);
}
@end

__asm__(".globl _NSConcreteStackBlock, _NSConcreteGlobalBlock\n"
        ".set _NSConcreteStackBlock, _OBJC_CLASS_StandinBlock\n"
        ".set _NSConcreteGlobalBlock, _OBJC_CLASS_StandinBlock\n");

void *_Block_copy(const void *from) {
  struct block *block = (struct block *)from;
  if (block == NULL || (atomic_load(&block->flags) & IS_GLOBAL) != 0) {
    return block;
  }
  if ((atomic_load(&block->flags) & ON_HEAP) != 0) {
    atomic_fetch_add(&block->flags, ONE);
    return block;
  }
  struct block *copy = malloc(block->descriptor->size);
  memcpy((void *)copy, block, block->descriptor->size);
  atomic_store(&copy->flags, (atomic_load(&block->flags) & ~COUNT) | ON_HEAP | ONE);
  if ((atomic_load(&block->flags) & HAS_HELPERS) != 0) {
    block->descriptor->copy(copy, block);
  }
  return copy;
}

void _Block_release(const void *from) {
  struct block *block = (struct block *)from;
  if (block == NULL || (atomic_load(&block->flags) & ON_HEAP) == 0) {
    return;
  }
  if (((atomic_fetch_sub(&block->flags, ONE) - ONE) & COUNT) != 0) {
    return;
  }
  if ((atomic_load(&block->flags) & HAS_HELPERS) != 0) {
    block->descriptor->dispose(block);
  }
  free(block);
}

void _Block_object_assign(void *to, const void *from, int kind) {
  STANDIN_RULE((kind & IS_BYREF) == 0, "__block variables are not among what the stand-in knows");
  *(const void **)to = kind == IS_OBJECT  ? (const void *)[(id)from retain]
                       : kind == IS_BLOCK ? _Block_copy(from)
                                          : from;
}

void _Block_object_dispose(const void *object, int kind) {
  if (kind == IS_OBJECT) {
    [(id)object release];
  } else if (kind == IS_BLOCK) {
    _Block_release(object);
  }
}
