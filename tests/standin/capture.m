/* GPU captures: a folder with a list of the command buffers. */
#include "gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

NSErrorDomain const MTLCaptureErrorDomain = @"MTLCaptureErrorDomain";

@implementation MTLCaptureDescriptor
- (instancetype)init {
  destination = MTLCaptureDestinationDeveloperTools;
  return self;
}
- (void)setCaptureObject:(id)object {
  [object retain];
  [captureObject release];
  captureObject = object;
}
- (void)setDestination:(MTLCaptureDestination)where {
  destination = where;
}
- (void)setOutputURL:(NSURL *)url {
  [url retain];
  [outputURL release];
  outputURL = url;
}
- (void)dealloc {
  [captureObject release];
  [outputURL release];
  [super dealloc];
}
@end

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MTLCaptureDescriptor *running;
static FILE *document;

static NSError *capture_error(MTLCaptureError code, const char *text) {
  return standin_error(MTLCaptureErrorDomain, code, text);
}

/* nil if the document is begun. */
static NSError *begin(MTLCaptureDescriptor *descriptor) {
  const char *enabled = getenv("MTL_CAPTURE_ENABLED");
  if (enabled == NULL || strcmp(enabled, "1") != 0) {
    return capture_error(MTLCaptureErrorNotSupported, "captures are not enabled");
  }
  if (running != nil) {
    return capture_error(MTLCaptureErrorAlreadyCapturing, "a capture is running");
  }
  if (descriptor->captureObject == nil || descriptor->outputURL == nil) {
    return capture_error(MTLCaptureErrorInvalidDescriptor, "the descriptor lacks an object or a URL");
  }
  char path[4096];
  snprintf(path, sizeof path, "%s", [[descriptor->outputURL path] UTF8String]);
  if (mkdir(path, 0777) != 0) {
    return capture_error(MTLCaptureErrorInvalidDescriptor, strerror(errno));
  }
  strncat(path, "/commands", sizeof path - strlen(path) - 1);
  document = fopen(path, "w");
  if (document == NULL) {
    return capture_error(MTLCaptureErrorInvalidDescriptor, strerror(errno));
  }
  running = [descriptor retain];
  return nil;
}

void standin_captured(StandinCommandBuffer *commands) {
  pthread_mutex_lock(&lock);
  bool wanted = running != nil && ([running->captureObject isKindOfClass:[StandinQueue class]] == NO ||
                                   running->captureObject == commands->queue);
  for (NSUInteger i = 0; wanted && i < [commands->entries count]; i++) {
    StandinEntry *entry = [commands->entries objectAtIndex:i];
    fprintf(document, "%s: %s\n", [[commands label] UTF8String],
            entry->encoder != nil ? [[entry->encoder label] UTF8String]
            : entry->signals      ? "signal"
                                  : "wait");
  }
  pthread_mutex_unlock(&lock);
}

@implementation MTLCaptureManager
+ (MTLCaptureManager *)sharedCaptureManager {
  static MTLCaptureManager *manager;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    manager = standin_immortal([self new]);
  });
  return manager;
}
- (BOOL)supportsDestination:(MTLCaptureDestination)destination {
  const char *enabled = getenv("MTL_CAPTURE_ENABLED");
  return destination == MTLCaptureDestinationGPUTraceDocument && enabled != NULL && strcmp(enabled, "1") == 0;
}
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)descriptor error:(NSError **)error {
  pthread_mutex_lock(&lock);
  NSError *failed = begin(descriptor);
  pthread_mutex_unlock(&lock);
  if (failed != nil && error != NULL) {
    *error = failed;
  }
  return failed == nil;
}
- (void)stopCapture {
  pthread_mutex_lock(&lock);
  STANDIN_RULE(running != nil, "a capture is stopped, and none runs");
  fclose(document);
  [running release];
  running = nil;
  pthread_mutex_unlock(&lock);
}
- (BOOL)isCapturing {
  pthread_mutex_lock(&lock);
  BOOL is = running != nil;
  pthread_mutex_unlock(&lock);
  return is;
}
@end
