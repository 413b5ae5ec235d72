#include "metal.h"

#include <string.h>

mps_status metal_guard(const char *doing, mps_status (^body)(void)) {
  @autoreleasepool {
    @try {
      return body();
    } @catch (NSException *exception) {
      return mps_fail(MPS_STATUS_INTERNAL, "the system raised %s while %s: %s", [[exception name] UTF8String], doing,
                      [[exception reason] UTF8String]);
    }
  }
}

const char *metal_error_text(NSError *error) {
  NSString *text = [error localizedDescription];
  return text != nil ? [text UTF8String] : "the system gives no reason";
}

mps_status metal_fail(mps_status status, const char *what, NSError *error) {
  return mps_fail(status, "%s: %s", what, metal_error_text(error));
}

NSString *metal_string(const char *text, size_t length) {
  return [[[NSString alloc] initWithBytes:text length:length encoding:NSUTF8StringEncoding] autorelease];
}
