/* A capture of the host device: what it writes, and what it refuses. */
#include "host_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char parent[64], document[128], file[160], text[1 << 20];
static int files;

static mps_status start(const char *path, mps_queue *queue) {
  mps_capture_desc desc = {.struct_size = sizeof desc, .path = path, .queue = queue};
  return mps_capture_start(device, &desc);
}

static bool active(void) {
  uint32_t is_active;
  EXPECT_OK(mps_capture_is_active(device, &is_active));
  return is_active;
}

/* Removes a directory of the document with its files, which are counted in `files`. */
static void remove_files(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", document, name);
  DIR *directory = opendir(path);
  EXPECT(directory != NULL);
  files = 0;
  for (const struct dirent *entry; (entry = readdir(directory));) {
    if (entry->d_name[0] != '.') {
      EXPECT_EQUAL(unlinkat(dirfd(directory), entry->d_name, 0), 0);
      files++;
    }
  }
  closedir(directory);
  EXPECT_EQUAL(rmdir(path), 0);
}

/* Reads the document into `text` and removes it. */
static void read_document(void) {
  FILE *stream = fopen(file, "r");
  EXPECT(stream != NULL);
  text[fread(text, 1, sizeof text - 1, stream)] = '\0';
  fclose(stream);
  EXPECT_EQUAL(unlink(file), 0);
  remove_files("buffers");
  remove_files("libraries");
  char readme[160];
  snprintf(readme, sizeof readme, "%s/README.txt", document);
  EXPECT_EQUAL(unlink(readme), 0);
  EXPECT_EQUAL(rmdir(document), 0);
}

static int lines_with(const char *part) {
  int count = 0;
  for (const char *found = text; (found = strstr(found, part)); found++) {
    count++;
  }
  return count;
}

/* Every line is one of ours from its beginning to its end: none was written into another. */
static void expect_whole_lines(void) {
  static const char *const kinds[] = {"capture", "buffer", "library", "command", "signpost", "stop"};
  char *rest = text;
  for (char *line; (line = strsep(&rest, "\n")) && *line;) {
    size_t length = strlen(line), known = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
      known += strncmp(line, "{\"", 2) == 0 && strncmp(line + 2, kinds[i], strlen(kinds[i])) == 0;
    }
    EXPECT_EQUAL(known, 1);
    EXPECT_EQUAL(line[length - 1], '}');
    EXPECT(strstr(line, "}{") == NULL);
  }
}

static void test_commands(void) {
  mps_queue *queue = make_queue("a \"named\" queue"), *other = make_queue("other");
  mps_pipeline *add = make_pipeline("add"), *wild = make_pipeline("wild");
  mps_buffer *buffer = make_buffer(400000);
  uint32_t one = 1;
  uint64_t id;
  EXPECT_OK(start(document, NULL));
  EXPECT(active());
  EXPECT_FAIL(start(file, NULL), INVALID_ARGUMENT, ".gputrace");
  run(queue, add, buffer, &one, 300);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  run(other, add, buffer, &one, 100000);
  EXPECT_OK(mps_queue_wait(other, MPS_FOREVER));
  EXPECT_OK(mps_queue_fill(queue, buffer, 0, 12, 0));
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS, "half\nway"));
  EXPECT_OK(mps_signpost_begin(MPS_SIGNPOST_INTERVALS, "step", &id));
  EXPECT_OK(mps_signpost_end(id, "step"));
  run(queue, wild, NULL, NULL, 1);
  EXPECT_FAIL(mps_queue_wait(queue, MPS_FOREVER), EXECUTION_FAILED, "wild");
  EXPECT_OK(mps_capture_stop(device));
  EXPECT(!active());
  run(queue, add, buffer, &one, 1);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  read_document();
  EXPECT_EQUAL(files, 1); /* libraries */
  EXPECT_EQUAL(lines_with("{\"capture\": 1, "), 1);
  EXPECT_EQUAL(lines_with("\n{\"stop\": "), 1);
  EXPECT_EQUAL(lines_with("\n{\"command\": "), 4);
  EXPECT_EQUAL(lines_with("\n{\"buffer\": 1, \"length\": 400000, \"storage\": \"shared\", \"label\": null}\n"), 1);
  EXPECT_EQUAL(lines_with("\n{\"buffer\": "), 1);
  EXPECT_EQUAL(lines_with("\n{\"library\": 1, \"file\": \"libraries/1.kernels\""), 1);
  EXPECT_EQUAL(
      lines_with("\"queue\": \"a \\\"named\\\" queue\", \"what\": \"kernel 'add'; grid 300 x 1 x 1, group 256 x 1 "
                 "x 1\""),
      1);
  EXPECT_EQUAL(lines_with("\"kernel\": \"add\", \"label\": \"add\", \"library\": 1, \"constants\": [], "
                          "\"grid\": [300, 1, 1], \"group\": [256, 1, 1], \"arguments\": "
                          "[{\"slot\": 0, \"buffer\": 1, \"offset\": 0, \"length\": 0}, "
                          "{\"slot\": 1, \"bytes\": \"01000000\"}], "
                          "\"buffers\": [{\"buffer\": 1, \"before\": 1, \"after\": 2}]}\n"),
               1);
  EXPECT_EQUAL(lines_with("\"queue\": \"other\", \"what\": \"kernel 'add'; grid 100000 x 1 x 1"), 1);
  EXPECT_EQUAL(
      lines_with("\"failed\": null, \"kind\": \"fill\", \"length\": 12, \"value\": 0, \"target\": "
                 "{\"buffer\": 1, \"offset\": 0}, \"buffers\": [{\"buffer\": 1, \"before\": 3, \"after\": 4}]}\n"),
      1);
  EXPECT_EQUAL(lines_with("\"failed\": \"wrote"), 1);
  EXPECT_EQUAL(lines_with("\"category\": \"events\", \"id\": 0, \"message\": \"half\\u000away\"}\n"), 1);
  EXPECT_EQUAL(lines_with("{\"signpost\": \"begin\", "), 1);
  EXPECT_EQUAL(lines_with("{\"signpost\": \"end\", "), 1);

  EXPECT_OK(start(document, other)); /* of one queue */
  run(queue, add, buffer, &one, 1);
  run(other, add, buffer, &one, 2);
  EXPECT_OK(mps_queue_wait(other, MPS_FOREVER));
  EXPECT_OK(mps_queue_release(other)); /* the capture keeps it */
  EXPECT_OK(mps_capture_stop(device));
  read_document();
  EXPECT_EQUAL(lines_with("\n{\"command\": "), 1);
  EXPECT_EQUAL(lines_with("\"grid\": [2, 1, 1]"), 1);

  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_pipeline_release(wild));
  EXPECT_OK(mps_queue_release(queue));
}

static void test_refusals(void) {
  uint32_t supported;
  EXPECT_OK(mps_capture_is_supported(device, &supported));
  EXPECT_EQUAL(supported, 1);
  EXPECT_FAIL(mps_capture_stop(device), INVALID_STATE, "");
  EXPECT_EQUAL(mkdir(document, 0700), 0);
  EXPECT_FAIL(start(document, NULL), IO, document);
  EXPECT_EQUAL(rmdir(document), 0);
  char missing[160];
  snprintf(missing, sizeof missing, "%s/missing/x.gputrace", parent);
  EXPECT_FAIL(start(missing, NULL), IO, missing);
  EXPECT(!active());
  EXPECT_OK(start(document, NULL));
  snprintf(missing, sizeof missing, "%s/second.gputrace", parent);
  EXPECT_FAIL(start(missing, NULL), INVALID_STATE, "");
  EXPECT(access(missing, F_OK) != 0);
  EXPECT_OK(mps_capture_stop(device));
  read_document();
  EXPECT_EQUAL(lines_with("\n{\"command\": "), 0);
}

/* ---- several threads ---- */

typedef struct worker {
  pthread_t thread;
  mps_pipeline *add;
  mps_buffer *shared;
} worker;

static void *run_commands(void *argument) {
  const worker *own = argument;
  mps_queue *queue = make_queue("worker");
  uint32_t one = 1;
  for (int i = 0; i < 20; i++) {
    mps_buffer *buffer = make_buffer(64);
    EXPECT_OK(mps_queue_fill(queue, buffer, 0, 64, 0));
    run(queue, own->add, buffer, &one, 16);
    EXPECT_OK(mps_queue_copy(queue, own->shared, 0, buffer, 32, 32));
    EXPECT_OK(mps_signpost_event(MPS_SIGNPOST_EVENTS, "round"));
    EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
    EXPECT_EQUAL(words(buffer)[0], 1);
    EXPECT_EQUAL(words(buffer)[8], 0);
    EXPECT_OK(mps_buffer_release(buffer));
  }
  EXPECT_OK(mps_queue_release(queue));
  return NULL;
}

/* Captures begin and end while four queues are at work. */
static void test_threads(void) {
  enum { WORKERS = 4, CAPTURES = 5 };
  worker workers[WORKERS];
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *shared = make_buffer(32);
  memset(words(shared), 0, 32);
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (worker){.add = add, .shared = shared};
    EXPECT_EQUAL(pthread_create(&workers[i].thread, NULL, run_commands, &workers[i]), 0);
  }
  for (int i = 0; i < CAPTURES; i++) {
    EXPECT_OK(start(document, NULL));
    sleep_ms(2);
    EXPECT_OK(mps_capture_stop(device));
    sleep_ms(5); /* commands that were running write their lines */
    read_document();
    expect_whole_lines();
  }
  for (int i = 0; i < WORKERS; i++) {
    EXPECT_EQUAL(pthread_join(workers[i].thread, NULL), 0);
  }
  EXPECT_OK(mps_buffer_release(shared));
  EXPECT_OK(mps_pipeline_release(add));
}

/* The capture has read the word that the gate waits for, and another thread's write to it is what a program should not
 * do while kernels run: here it is the only way to let this one end. */
__attribute__((no_sanitize("thread"))) static void let_go(barrier_gate gate) {
  *(volatile uint32_t *)words(gate.buffer) = 1;
  EXPECT_OK(mps_buffer_release(gate.buffer));
  EXPECT_OK(mps_pipeline_release(gate.pipeline));
}

/* Behind a kernel that does not end, the stop returns, and so does what waited for its turn. */
static void test_kernel_that_hangs(void) {
  mps_queue *hanging = make_queue("hanging"), *queue = make_queue("behind");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(64);
  memset(words(buffer), 0, 64);
  uint32_t one = 1;
  EXPECT_OK(start(document, NULL));
  barrier_gate gate = gate_close(hanging);
  while (!in_use(gate.buffer)) {
    sleep_ms(1);
  }
  sleep_ms(20);
  run(queue, add, buffer, &one, 16);
  EXPECT_FAIL(mps_queue_wait(queue, 20000000), TIMEOUT, ""); /* captured commands run one at a time */
  EXPECT_OK(mps_capture_stop(device));
  EXPECT_OK(mps_queue_wait(queue, 30 * SECOND));
  EXPECT_EQUAL(words(buffer)[15], 1);
  let_go(gate);
  EXPECT_OK(mps_queue_wait(hanging, MPS_FOREVER));
  read_document();
  expect_whole_lines();
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
  EXPECT_OK(mps_queue_release(hanging));
}

/* What does not fit is left out, and the stop says so. */
static void test_full_disk(void) {
  mps_queue *queue = make_queue("writer");
  mps_pipeline *add = make_pipeline("add");
  mps_buffer *large = make_buffer(400000), *small = make_buffer(64);
  uint32_t one = 1;
  struct rlimit before, limit;
  EXPECT_EQUAL(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = before;
  limit.rlim_cur = 300000;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  EXPECT_OK(start(document, NULL));
  EXPECT_EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
  run(queue, add, large, &one, 16);
  run(queue, add, small, &one, 16);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
  run(queue, add, large, &one, 32);
  EXPECT_OK(mps_queue_wait(queue, MPS_FOREVER));
  EXPECT_FAIL(mps_capture_stop(device), IO, "write all of the capture");
  EXPECT(!active());
  signal(SIGXFSZ, handler);
  read_document();
  EXPECT_EQUAL(lines_with("\n{\"command\": "), 3);
  EXPECT_EQUAL(lines_with("\"before\": -1, \"after\": -1}"), 1);
  EXPECT_EQUAL(lines_with("\"buffers\": [{\"buffer\": 1, \"before\": 1, \"after\": 2}]"), 1);
  EXPECT_EQUAL(lines_with("\"buffers\": [{\"buffer\": 2, \"before\": 1, \"after\": 2}]"), 1);
  EXPECT_OK(mps_buffer_release(large));
  EXPECT_OK(mps_buffer_release(small));
  EXPECT_OK(mps_pipeline_release(add));
  EXPECT_OK(mps_queue_release(queue));
}

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  snprintf(parent, sizeof parent, "/tmp/mps-capture-XXXXXX");
  EXPECT(mkdtemp(parent) != NULL);
  snprintf(document, sizeof document, "%s/run.gputrace", parent);
  snprintf(file, sizeof file, "%s/commands.jsonl", document);
  test_commands();
  test_refusals();
  test_threads();
  test_kernel_that_hangs();
  test_full_disk();
  EXPECT_EQUAL(rmdir(parent), 0);
  fixture_close();
  return 0;
}
