/* Logs of the unified logging system: here only a name and a category. */
#ifndef STANDIN_OS_LOG_H
#define STANDIN_OS_LOG_H

typedef struct standin_log *os_log_t;

os_log_t os_log_create(const char *subsystem, const char *category);

#endif
