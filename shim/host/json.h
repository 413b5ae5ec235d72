/* The few forms of JSON that captures are written in. */
#ifndef MPS_HOST_JSON_H
#define MPS_HOST_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A quoted string, or null for NULL. Bytes above 0x7f are copied: what goes in is UTF-8. */
void host_json_text(FILE *file, const char *text);

/* Bytes as a string of hexadecimal digits. */
void host_json_bytes(FILE *file, const void *bytes, uint64_t length);

/* "[x, y, z]" */
void host_json_size(FILE *file, const uint64_t size[3]);

/* A list of strings. */
void host_json_texts(FILE *file, const char *const *texts, uint32_t count);

#endif
