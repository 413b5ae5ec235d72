/* Which function constants a kernel uses, which Metal knows of every function: by the names in its source.
 *
 * The source is cut into what stands at its outermost level. Each piece declares a name, the last one before its first
 * bracket, and mentions others; a kernel reaches what the pieces mention that it reaches. Too much rather than too
 * little. */
#include "gpu.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct piece {
  const char *start, *end;
  const char *name;
  size_t name_length;
  bool reached;
} piece;

static bool is_name(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

/* A copy without comments and directives' hashes, and with attributes blanked out, which would look like bodies. */
static char *plain(const char *source) {
  char *text = strdup(source);
  for (char *c = text; *c != '\0'; c++) {
    if (c[0] == '/' && c[1] == '/') {
      while (*c != '\0' && *c != '\n') {
        *c++ = ' ';
      }
    } else if (c[0] == '/' && c[1] == '*') {
      const char *end = strstr(c + 2, "*/");
      end = end != NULL ? end + 2 : c + strlen(c);
      while (c < end) {
        *c++ = ' ';
      }
    } else if (c[0] == '[' && c[1] == '[') {
      const char *end = strstr(c, "]]");
      end = end != NULL ? end + 2 : c + strlen(c);
      while (c < end) {
        *c++ = ' ';
      }
    }
    if (*c == '\0') {
      break;
    }
  }
  return text;
}

static const char *piece_end(const char *at) {
  int depth = 0;
  if (*at == '#') {
    while (*at != '\0' && (*at != '\n' || at[-1] == '\\')) {
      at++;
    }
    return at;
  }
  for (; *at != '\0'; at++) {
    depth += (*at == '{' || *at == '(') - (*at == '}' || *at == ')');
    if (depth == 0 && (*at == ';' || *at == '}')) {
      return at + 1;
    }
  }
  return at;
}

static void find_name(piece *found) {
  const char *at = found->start;
  if (*at == '#') {
    at += strcspn(at, " \t");
    at += strspn(at, " \t");
    found->name = at;
    for (found->name_length = 0; is_name(at[found->name_length]); found->name_length++) {
    }
    return;
  }
  if (strncmp(at, "template", 8) == 0) {
    at += 8 + strspn(at + 8, " \t\n");
    for (int depth = 0; at < found->end; at++) {
      depth += (*at == '<') - (*at == '>');
      if (*at == '>' && depth == 0) {
        at++;
        break;
      }
      if (*at != '<' && depth == 0) {
        break; /* an instantiation */
      }
    }
  }
  for (; at < found->end && strchr("({=;<", *at) == NULL; at++) {
    if (is_name(*at) && (at == found->start || !is_name(at[-1]))) {
      found->name = at;
    }
  }
  for (found->name_length = 0; found->name != NULL && is_name(found->name[found->name_length]); found->name_length++) {
  }
}

static size_t cut(const char *text, piece **out_pieces) {
  size_t count = 0, room = 0;
  piece *pieces = NULL;
  for (const char *at = text + strspn(text, " \t\r\n;"); *at != '\0'; at += strspn(at, " \t\r\n;")) {
    if (count == room) {
      room = room != 0 ? 2 * room : 64;
      pieces = realloc(pieces, room * sizeof *pieces);
    }
    pieces[count] = (piece){.start = at, .end = piece_end(at)};
    find_name(&pieces[count]);
    at = pieces[count++].end;
  }
  *out_pieces = pieces;
  return count;
}

static bool mentions(const piece *where, const char *name, size_t length) {
  for (const char *at = where->start; at + length <= where->end; at++) {
    if (strncmp(at, name, length) == 0 && (at == where->start || !is_name(at[-1])) && !is_name(at[length])) {
      return true;
    }
  }
  return false;
}

static bool is_named(const piece *found, const char *name) {
  return found->name_length == strlen(name) && strncmp(found->name, name, found->name_length) == 0;
}

bool standin_reaches(const char *source, const char *kernel, const char *name) {
  if (source == NULL) {
    return true;
  }
  char *text = plain(source);
  piece *pieces;
  size_t count = cut(text, &pieces);
  bool known = false, result = false;
  for (size_t i = 0; i < count; i++) {
    pieces[i].reached = is_named(&pieces[i], kernel);
    known |= pieces[i].reached;
  }
  for (bool grown = known; grown;) {
    grown = false;
    for (size_t i = 0; i < count; i++) {
      for (size_t j = 0; j < count && !pieces[i].reached; j++) {
        if (pieces[j].reached && mentions(&pieces[j], pieces[i].name, pieces[i].name_length)) {
          pieces[i].reached = grown = true;
        }
      }
    }
  }
  for (size_t i = 0; i < count; i++) {
    result |= pieces[i].reached && mentions(&pieces[i], name, strlen(name));
  }
  free(pieces);
  free(text);
  /* A kernel whose name the source only makes by a macro or an attribute may reach everything. */
  return known ? result : true;
}
