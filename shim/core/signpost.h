/* Signposts on every backend; `category` is checked. */
#ifndef MPS_CORE_SIGNPOST_H
#define MPS_CORE_SIGNPOST_H

#include <stdint.h>

void mps_signpost_emit_event(uint32_t category, const char *message);
void mps_signpost_emit_begin(uint32_t category, const char *message, uint64_t id);
void mps_signpost_emit_end(uint32_t category, const char *message, uint64_t id);

#endif
