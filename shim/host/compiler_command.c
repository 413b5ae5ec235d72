/* The compiler as a command: a request and a reply, both files of a private directory. docs/c-abi.md has the format. */
#include "compiler.h"
#include "clock.h"
#include "status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_COMMAND "mpscffi-mslc"
#define DEFAULT_TIME_LIMIT 600
#define MAX_WORDS 32
#define MAX_LOG 4000

extern char **environ;

/* ---- the request ---- */

size_t host_constant_size(uint32_t data_type) {
  static const uint8_t sizes[] = {
      [MPS_DATA_BOOL] = 1,   [MPS_DATA_CHAR] = 1, [MPS_DATA_UCHAR] = 1,  [MPS_DATA_SHORT] = 2,
      [MPS_DATA_USHORT] = 2, [MPS_DATA_INT] = 4,  [MPS_DATA_UINT] = 4,   [MPS_DATA_LONG] = 8,
      [MPS_DATA_ULONG] = 8,  [MPS_DATA_HALF] = 2, [MPS_DATA_BFLOAT] = 2, [MPS_DATA_FLOAT] = 4,
  };
  uint32_t base = data_type & 0xff;
  uint32_t lanes = data_type >> 8;
  if (base >= sizeof sizes || lanes < 1 || lanes > 4) {
    return 0;
  }
  return (size_t)sizes[base] * (lanes == 3 ? 4 : lanes); /* a vector of three takes the place of four */
}

static void put_field(FILE *file, const char *name, const char *value, size_t length) {
  fprintf(file, "%s %zu\n", name, length);
  fwrite(value, 1, length, file);
  fputc('\n', file);
}

static void put_text(FILE *file, const char *name, const char *value) {
  put_field(file, name, value, strlen(value));
}

static void put_language_version(FILE *file, uint32_t version) {
  char text[32] = "0";
  if (version != 0) {
    snprintf(text, sizeof text, "%u.%u", version >> 16, version & 0xffff);
  }
  put_text(file, "language_version", text);
}

/* INDEX DATA_TYPE HEX NAME, the name empty for a value that goes by index */
static void put_constant(FILE *file, const mps_constant_value *constant) {
  const char *name = constant->name != NULL ? constant->name : "";
  const unsigned char *bytes = constant->value;
  size_t size = host_constant_size(constant->data_type);
  char head[32];
  int head_length = snprintf(head, sizeof head, "%u %u ", constant->index, constant->data_type);
  fprintf(file, "constant %zu\n%s", (size_t)head_length + 2 * size + 1 + strlen(name), head);
  for (size_t at = 0; at < size; at++) {
    fprintf(file, "%02x", bytes[at]);
  }
  fprintf(file, " %s\n", name);
}

static void put_options(FILE *file, const mps_compile_options *options) {
  static const char *const math_modes[] = {
      [MPS_MATH_SAFE] = "safe", [MPS_MATH_RELAXED] = "relaxed", [MPS_MATH_FAST] = "fast"};
  char flags[16];
  put_language_version(file, options->language_version);
  put_text(file, "math_mode", math_modes[options->math_mode]);
  snprintf(flags, sizeof flags, "%u", options->flags);
  put_text(file, "flags", flags);
  for (uint32_t number = 0; number < options->define_count; number++) {
    put_text(file, "define", options->defines[number]);
  }
  for (uint32_t number = 0; number < options->include_dir_count; number++) {
    put_text(file, "include_dir", options->include_dirs[number]);
  }
}

static bool write_request(const char *path, const mps_compile_request *request) {
  FILE *file = fopen(path, "wbe");
  if (file == NULL) {
    return false;
  }
  put_text(file, "version", "1");
  put_text(file, "action", request->kernel == NULL ? "check" : "build");
  put_field(file, "source", request->source, request->source_length);
  put_options(file, request->options);
  if (request->kernel != NULL) {
    put_text(file, "kernel", request->kernel);
  }
  for (uint32_t number = 0; number < request->constant_count; number++) {
    put_constant(file, &request->constants[number]);
  }
  bool good = !ferror(file);
  return fclose(file) == 0 && good;
}

/* ---- the private directory ---- */

typedef struct exchange {
  char *directory; /* owned by the answer */
  char request[PATH_MAX];
  char reply[PATH_MAX];
  char log[PATH_MAX];
} exchange;

static mps_status open_exchange(exchange *files) {
  const char *parent = getenv("TMPDIR");
  char directory[PATH_MAX - 16];
  int length =
      snprintf(directory, sizeof directory, "%s/mpsshim-XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
  if (length >= (int)sizeof directory || mkdtemp(directory) == NULL) {
    return mps_fail(MPS_STATUS_IO, "no directory for the Metal compiler's files can be made in %s: %s; set TMPDIR",
                    parent != NULL ? parent : "/tmp", strerror(errno));
  }
  files->directory = mps_text_copy(directory);
  if (files->directory == NULL) {
    rmdir(directory);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to run the Metal compiler");
  }
  snprintf(files->request, sizeof files->request, "%s/request", directory);
  snprintf(files->reply, sizeof files->reply, "%s/reply", directory);
  snprintf(files->log, sizeof files->log, "%s/log", directory);
  return MPS_STATUS_OK;
}

static void remove_directory(const char *path) {
  DIR *directory = opendir(path);
  if (directory != NULL) {
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
      unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
  }
  rmdir(path);
}

void host_answer_free(host_answer *answer) {
  if (answer->directory != NULL) {
    remove_directory(answer->directory);
    free(answer->directory);
  }
  free(answer->result.text);
  *answer = (host_answer){0};
}

/* Up to `limit` bytes of a file, ended by a zero; NULL if it cannot be read. */
static char *read_text(const char *path, size_t limit, size_t *out_length) {
  FILE *file = fopen(path, "rbe");
  if (file == NULL) {
    return NULL;
  }
  size_t capacity = 4096, length = 0;
  char *text = malloc(capacity + 1);
  while (text != NULL && length < limit) {
    length += fread(text + length, 1, capacity - length, file);
    if (length < capacity) {
      break;
    }
    capacity *= 2;
    char *longer = realloc(text, capacity + 1);
    if (longer == NULL) {
      free(text);
    }
    text = longer;
  }
  fclose(file);
  if (text != NULL) {
    *out_length = length < limit ? length : limit;
    text[*out_length] = '\0';
  }
  return text;
}

/* ---- the process ---- */

/* The command's words, then ours, then NULL. `words` is cut into pieces. False if there are none or too many. */
static bool split_command(char *words, exchange *files, char *arguments[MAX_WORDS + 5]) {
  size_t count = 0;
  char *rest = NULL;
  for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    if (count == MAX_WORDS) {
      return false;
    }
    arguments[count++] = word;
  }
  bool some = count > 0;
  arguments[count++] = (char *)"--request";
  arguments[count++] = files->request;
  arguments[count++] = (char *)"--reply";
  arguments[count++] = files->reply;
  arguments[count] = NULL;
  return some;
}

/* 0 or an errno. The child leads a process group, and starts with default signals, of which none is blocked. */
static int spawn(pid_t *out_process, char *const arguments[], const char *log) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  int error = posix_spawnattr_init(&attributes);
  if (error != 0) {
    return error;
  }
  error = posix_spawn_file_actions_init(&actions);
  if (error != 0) {
    posix_spawnattr_destroy(&attributes);
    return error;
  }
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  error = posix_spawnp(out_process, arguments[0], &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

/* Seconds that the command may take. */
static mps_status time_limit(uint64_t *out_seconds) {
  const char *text = getenv("MPSSHIM_MSLC_TIMEOUT");
  *out_seconds = DEFAULT_TIME_LIMIT;
  if (text == NULL) {
    return MPS_STATUS_OK;
  }
  char *end = NULL;
  long seconds = strtol(text, &end, 10);
  if (end == text || *end != '\0' || seconds < 1 || seconds > 1000000) {
    return mps_fail(
        MPS_STATUS_INVALID_ARGUMENT,
        "the environment variable MPSSHIM_MSLC_TIMEOUT is \"%s\", not a number of seconds from 1 to 1000000", text);
  }
  *out_seconds = (uint64_t)seconds;
  return MPS_STATUS_OK;
}

/* Wait for the process, and kill its group when the time is over. A program that reaps all children itself may take the
 * end of this one away: then it is over as well, and `out_end` is not set. */
static bool wait_for_end(pid_t process, uint64_t seconds, int *out_end) {
  const uint64_t second = UINT64_C(1000000000);
  const uint64_t deadline = host_deadline(seconds * second);
  struct timespec pause = {.tv_nsec = 1000000};
  for (;;) {
    pid_t ended = waitpid(process, out_end, WNOHANG);
    if (ended == process || (ended < 0 && errno != EINTR)) {
      return true;
    }
    if (mps_now() >= deadline) {
      kill(-process, SIGKILL);
      waitpid(process, NULL, 0);
      return false;
    }
    nanosleep(&pause, NULL);
  }
}

static mps_status cannot_run(const char *command, int error) {
  if (error == ENOENT) {
    return mps_fail(
        MPS_STATUS_UNAVAILABLE,
        "the host device needs a compiler for Metal source, and there is no command \"%s\" on the PATH: install it "
        "with "
        "pip install 'mpscffi[host]', add the bin directory that it is installed in to the PATH, or name one in the "
        "environment variable MPSSHIM_MSLC",
        command);
  }
  return mps_fail(MPS_STATUS_UNAVAILABLE, "the Metal compiler \"%s\" cannot be run: %s", command, strerror(error));
}

/* Where posix_spawn cannot tell that there is no such program, the child says so by its exit status, as a shell does.
 */
static bool was_not_found(const exchange *files, int end) {
  struct stat log;
  return WIFEXITED(end) && WEXITSTATUS(end) == 127 && stat(files->log, &log) == 0 && log.st_size == 0;
}

static mps_status no_reply(const char *command, const exchange *files) {
  size_t length = 0;
  char *log = read_text(files->log, MAX_LOG, &length);
  mps_status status = mps_fail(MPS_STATUS_INTERNAL, "the Metal compiler \"%s\" ended without a reply%s%s", command,
                               length > 0 ? ":\n" : "", log != NULL ? log : "");
  free(log);
  return status;
}

/* The reply is a line with the status, then the text. */
static mps_status take_reply(const char *command, const exchange *files, host_answer *answer, bool *out_replied) {
  size_t length = 0;
  char *reply = read_text(files->reply, SIZE_MAX, &length);
  if (reply == NULL) {
    return no_reply(command, files);
  }
  char *rest = NULL;
  long status = strtol(reply, &rest, 10);
  if (rest == reply || (*rest != '\n' && *rest != '\r')) {
    free(reply);
    return no_reply(command, files);
  }
  rest += *rest == '\r' ? 1 : 0;
  rest += *rest == '\n' ? 1 : 0;
  mps_status copied = mps_compile_result_set(&answer->result, rest, length - (size_t)(rest - reply));
  free(reply);
  *out_replied = copied == MPS_STATUS_OK;
  return copied == MPS_STATUS_OK ? (mps_status)status : copied;
}

static mps_status run_in(exchange *files, const char *command, const mps_compile_request *request, host_answer *answer,
                         bool *out_replied) {
  char *arguments[MAX_WORDS + 5];
  char words[PATH_MAX];
  uint64_t seconds;
  MPS_TRY(time_limit(&seconds));
  if (!write_request(files->request, request)) {
    return mps_fail(MPS_STATUS_IO, "the Metal compiler's request cannot be written to %s: %s", files->request,
                    strerror(errno));
  }
  snprintf(words, sizeof words, "%s", command);
  if (strlen(command) >= sizeof words || !split_command(words, files, arguments)) {
    return mps_fail(MPS_STATUS_UNAVAILABLE,
                    "MPSSHIM_MSLC holds no command of 1 to %d words: name the Metal compiler there, or unset it",
                    MAX_WORDS);
  }
  pid_t process;
  int error = spawn(&process, arguments, files->log);
  if (error != 0) {
    return cannot_run(arguments[0], error);
  }
  int end = 0;
  if (!wait_for_end(process, seconds, &end)) {
    return mps_fail(MPS_STATUS_TIMEOUT,
                    "the Metal compiler \"%s\" was stopped after %" PRIu64 " seconds; MPSSHIM_MSLC_TIMEOUT allows more",
                    command, seconds);
  }
  return was_not_found(files, end) ? cannot_run(arguments[0], ENOENT) : take_reply(command, files, answer, out_replied);
}

mps_status host_compiler_command(const mps_compile_request *request, host_answer *answer, bool *out_replied) {
  *out_replied = false;
  const char *command = getenv("MPSSHIM_MSLC");
  exchange files;
  MPS_TRY(open_exchange(&files));
  answer->directory = files.directory;
  return run_in(&files, command != NULL ? command : DEFAULT_COMMAND, request, answer, out_replied);
}
