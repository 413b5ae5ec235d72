/* Log states: what kernels log is kept by the command buffer, and given away when that is complete. */
#include "gpu.h"

#include "kernel_log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct log_line {
  struct log_line *next;
  uint32_t level;
  char *subsystem, *category, *message;
} log_line;

static _Thread_local StandinCommandBuffer *running;

@implementation MTLLogStateDescriptor
- (instancetype)init {
  level = MTLLogLevelDebug;
  bufferSize = 1 << 10;
  return self;
}
- (void)setLevel:(MTLLogLevel)given {
  level = given;
}
- (void)setBufferSize:(NSInteger)size {
  bufferSize = size;
}
@end

@implementation StandinLogState
- (instancetype)init {
  handlers = [NSMutableArray new];
  return self;
}
- (void)addLogHandler:(void (^)(NSString *, NSString *, MTLLogLevel, NSString *))block {
  block = Block_copy(block);
  [handlers addObject:(id)block];
  Block_release(block);
}
- (void)dealloc {
  [handlers release];
  [super dealloc];
}
@end

/* In place of mps_log_add. */
static void keep(const mps_log_message *message) {
  if (running == nil || running->logState == nil) {
    return;
  }
  log_line *line = calloc(1, sizeof *line);
  line->level = message->level;
  line->subsystem = strdup(message->subsystem);
  line->category = strdup(message->category);
  line->message = strdup(message->message);
  *running->loggedEnd = line;
  running->loggedEnd = &line->next;
}

void standin_log_from(StandinCommandBuffer *commands) {
  atomic_store(&host_log_to, keep);
  running = commands;
}

void standin_log_deliver(StandinCommandBuffer *commands) {
  while (commands->logged != NULL) {
    log_line *line = commands->logged;
    commands->logged = line->next;
    NSString *subsystem = [NSString stringWithUTF8String:line->subsystem];
    NSString *category = [NSString stringWithUTF8String:line->category];
    NSString *message = [NSString stringWithUTF8String:line->message];
    for (id handler in commands->logState->handlers) {
      ((void (^)(NSString *, NSString *, MTLLogLevel, NSString *))handler)(subsystem, category,
                                                                           (MTLLogLevel)line->level, message);
    }
    free(line->subsystem);
    free(line->category);
    free(line->message);
    free(line);
  }
  commands->loggedEnd = &commands->logged;
}
