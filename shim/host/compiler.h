/* Whom the host device asks for compiled kernels: the function that was set, else a command. */
#ifndef MPS_HOST_COMPILER_H
#define MPS_HOST_COMPILER_H

#include "mpsshim.h"

#include <stdbool.h>

struct mps_compile_result {
  char *text; /* ended by a zero; NULL before it is set */
  size_t length;
};

typedef struct host_answer {
  mps_compile_result result;
  char *directory; /* private one of the command, or NULL */
} host_answer;

/* Ask, and wait for the answer. Fails with the compiler's status and message; else `answer` is to be freed. */
mps_status host_compiler_ask(const mps_compile_request *request, host_answer *answer);

/* Also deletes what the command has left beside its reply: load the kernel library before. */
void host_answer_free(host_answer *answer);

/* ---- compiler_command.c ---- */

/* Run the command. The status is the reply's; fails with IO, TIMEOUT, UNAVAILABLE or INTERNAL of its own, and
 * `*out_replied` false, if there is none. */
mps_status host_compiler_command(const mps_compile_request *request, host_answer *answer, bool *out_replied);

/* Bytes of a value of a data type as MSL lays it out; 0 for a type that no function constant has. */
size_t host_constant_size(uint32_t data_type);

#endif
