/* Signposts: kept for tests to look at. As in Apple's macros, name and format must be string literals. */
#ifndef STANDIN_OS_SIGNPOST_H
#define STANDIN_OS_SIGNPOST_H

#include <os/log.h>
#include <stdint.h>

typedef uint64_t os_signpost_id_t;
#define OS_SIGNPOST_ID_EXCLUSIVE ((os_signpost_id_t)0xEEEEB0B5B2B2EEEE)

__attribute__((format(printf, 5, 6))) void standin_signpost(const char *type, os_log_t log, os_signpost_id_t id,
                                                            const char *name, const char *format, ...);

/* "%{public}s" is Apple's: printf knows only "%s". */
#define STANDIN_MARK(type, log, id, name, format, text)                                                                \
  standin_signpost(type, log, id, "" name "", sizeof("" format "") ? "%s" : "", text)
#define os_signpost_event_emit(log, id, name, format, text) STANDIN_MARK("event", log, id, name, format, text)
#define os_signpost_interval_begin(log, id, name, format, text) STANDIN_MARK("begin", log, id, name, format, text)
#define os_signpost_interval_end(log, id, name, format, text) STANDIN_MARK("end", log, id, name, format, text)

#endif
