/* What the stand-in's files share. */
#ifndef STANDIN_PRIVATE_H
#define STANDIN_PRIVATE_H

#import <Foundation/Foundation.h>

#include "standin.h"

/* A rule of Metal's or Foundation's is broken: say which, and abort. The frameworks would do so, or go wrong silently.
 */
#define STANDIN_RULE(holds, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(holds)) {                                                                                                    \
      standin_broken(__VA_ARGS__);                                                                                     \
    }                                                                                                                  \
  } while (0)
__attribute__((format(printf, 1, 2), noreturn)) void standin_broken(const char *format, ...);

/* The setting's value; one less afterwards if it is positive: for settings that count. */
bool standin_take(const char *name);

/* Do not count an object: it lives as long as the process. */
id standin_immortal(id object);

/* Work that standin_settle() waits for. */
void standin_begin_work(void);
void standin_end_work(void);

/* An autoreleased error. */
NSError *standin_error(NSErrorDomain domain, NSInteger code, const char *text);

#endif
