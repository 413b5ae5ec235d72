#include "json.h"

#include <inttypes.h>

void host_json_text(FILE *file, const char *text) {
  if (!text) {
    fputs("null", file);
    return;
  }
  fputc('"', file);
  for (const char *c = text; *c; c++) {
    if (*c == '"' || *c == '\\') {
      fputc('\\', file);
      fputc(*c, file);
    } else if ((unsigned char)*c < ' ') {
      fprintf(file, "\\u%04x", (unsigned char)*c);
    } else {
      fputc(*c, file);
    }
  }
  fputc('"', file);
}

void host_json_bytes(FILE *file, const void *bytes, uint64_t length) {
  const unsigned char *at = bytes;
  fputc('"', file);
  for (uint64_t i = 0; i < length; i++) {
    fprintf(file, "%02x", at[i]);
  }
  fputc('"', file);
}

void host_json_size(FILE *file, const uint64_t size[3]) {
  fprintf(file, "[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", size[0], size[1], size[2]);
}

void host_json_texts(FILE *file, const char *const *texts, uint32_t count) {
  fputc('[', file);
  for (uint32_t i = 0; i < count; i++) {
    fputs(i ? ", " : "", file);
    host_json_text(file, texts[i]);
  }
  fputc(']', file);
}
