/* What kernels log on a GPU: Metal keeps it in a log state, one for each queue, and gives it back a command buffer at a
 * time. */
#include "queue.h"

#include "log.h"

#include <stdatomic.h>

/* Whether any library was compiled to log. A log state takes memory, and capture does not work beside one. */
static atomic_bool expected;

#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000

static const char *text_of(NSString *text) {
  return text != nil ? [text UTF8String] : "";
}

static void hand_on(NSString *subsystem, NSString *category, NSInteger level, NSString *message) {
  if (mps_log_wants((uint32_t)level)) {
    mps_log_add(&(mps_log_message){.struct_size = sizeof(mps_log_message),
                                   .level = (uint32_t)level,
                                   .subsystem = text_of(subsystem),
                                   .category = text_of(category),
                                   .kernel = "",
                                   .message = text_of(message)});
    mps_log_flush();
  }
}

void metal_log_enable(MTLCompileOptions *options) {
  if (@available(macOS 15.0, *)) {
    if ([options respondsToSelector:@selector(setEnableLogging:)]) {
      [options setEnableLogging:YES];
      atomic_store(&expected, true);
    }
  }
}

void metal_log_attach(metal_queue *queue) {
  if (queue->log_state != nil || !atomic_load_explicit(&expected, memory_order_relaxed)) {
    return;
  }
  if (@available(macOS 15.0, *)) {
    _Static_assert(MPS_LOG_DEBUG == (int)MTLLogLevelDebug, "levels are Metal's");
    _Static_assert(MPS_LOG_FAULT == (int)MTLLogLevelFault, "levels are Metal's");
    MTLLogStateDescriptor *descriptor = [[[MTLLogStateDescriptor alloc] init] autorelease];
    [descriptor setLevel:MTLLogLevelDebug];
    [descriptor setBufferSize:(NSInteger)mps_log_room()];
    id<MTLLogState> state = [queue->gpu newLogStateWithDescriptor:descriptor error:NULL];
    [state addLogHandler:^(NSString *subsystem, NSString *category, MTLLogLevel level, NSString *message) {
      hand_on(subsystem, category, level, message);
    }];
    [queue->descriptor setLogState:state];
    queue->log_state = state;
  }
}

#else

void metal_log_enable(MTLCompileOptions *options) {
  (void)options;
  (void)expected;
}

void metal_log_attach(metal_queue *queue) {
  (void)queue;
}

#endif
