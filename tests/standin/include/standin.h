/* What tests ask of the stand-in, and tell it. Exported by the library, so that Python can call it too. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Objects of Foundation, libdispatch and Metal that exist, those excepted that live as long as the process: devices,
 * the shared managers, constant strings. Exact after standin_settle(). */
long standin_live_objects(void);

/* The same by classes, a line "COUNT CLASS" for each, as snprintf writes into a buffer. */
size_t standin_live_classes(char *text, size_t size);

/* Wait until no command buffer is in flight and no dispatch queue has work. */
void standin_settle(void);

/* Make the stand-in behave otherwise: see `settings` in control.m for the names. A setting's first value is that of the
 * environment variable STANDIN_NAME, else its default. -1, or 0 for standin_get's unknown names, is no setting's. */
void standin_set(const char *name, long value);
long standin_get(const char *name);

/* The last signpost as "type subsystem/category id name: text". */
const char *standin_last_signpost(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
