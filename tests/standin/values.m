/* Strings, numbers, collections, errors, exceptions. */
#import "private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

static bool is_utf8(const unsigned char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    unsigned char lead = text[i++];
    int more = lead < 0x80                   ? 0
               : lead >= 0xc2 && lead < 0xe0 ? 1
               : lead >= 0xe0 && lead < 0xf0 ? 2
               : lead >= 0xf0 && lead < 0xf5 ? 3
                                             : -1;
    if (more < 0) {
      return false;
    }
    for (; more > 0; more--) {
      if (i == length || (text[i] & 0xc0) != 0x80) {
        return false;
      }
      i++;
    }
  }
  return true;
}

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char *)text {
  return [[[self alloc] initWithBytes:text length:strlen(text) encoding:NSUTF8StringEncoding] autorelease];
}
- (instancetype)initWithBytes:(const void *)text length:(NSUInteger)length encoding:(NSStringEncoding)encoding {
  STANDIN_RULE(encoding == NSUTF8StringEncoding, "a string's encoding is %lu", encoding);
  if (!is_utf8(text, length)) {
    [self release];
    return nil;
  }
  bytes = malloc(length + 1);
  memcpy(bytes, text, length);
  bytes[length] = '\0';
  size = (unsigned)length;
  return self;
}
- (const char *)UTF8String {
  return bytes;
}
- (NSUInteger)length {
  return size;
}
- (void)dealloc {
  free(bytes);
  [super dealloc];
}
@end

@implementation NSConstantString
- (instancetype)retain {
  return self;
}
- (oneway void)release {
}
- (instancetype)autorelease {
  return self;
}
@end

@implementation NSNumber
+ (NSNumber *)numberWithUnsignedInteger:(NSUInteger)value {
  NSNumber *number = [[self new] autorelease];
  number->number = value;
  return number;
}
- (NSUInteger)unsignedIntegerValue {
  return number;
}
@end

/* ---- collections ---- */

static void append(NSArray *array, id object) {
  STANDIN_RULE(object != nil, "nil is put into an array");
  if (array->count == array->room) {
    array->room = array->room != 0 ? 2 * array->room : 4;
    array->items = realloc(array->items, array->room * sizeof *array->items);
  }
  array->items[array->count++] = [object retain];
}

@implementation NSArray
+ (instancetype)array {
  return [[self new] autorelease];
}
+ (instancetype)arrayWithObject:(id)object {
  NSArray *array = [[self new] autorelease];
  append(array, object);
  return array;
}
- (NSUInteger)count {
  return count;
}
- (id)objectAtIndex:(NSUInteger)index {
  STANDIN_RULE(index < count, "index %lu is beyond an array of %lu", index, count);
  return items[index];
}
- (NSString *)componentsJoinedByString:(NSString *)separator {
  char *text = NULL;
  size_t size = 0;
  FILE *stream = open_memstream(&text, &size);
  for (NSUInteger i = 0; i < count; i++) {
    fprintf(stream, "%s%s", i > 0 ? [separator UTF8String] : "", [(NSString *)items[i] UTF8String]);
  }
  fclose(stream);
  NSString *joined = [NSString stringWithUTF8String:text];
  free(text);
  return joined;
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id *)objects count:(NSUInteger)size {
  (void)objects;
  (void)size;
  if (state->state != 0) {
    return 0;
  }
  state->state = 1;
  state->itemsPtr = items;
  state->mutationsPtr = &count;
  return count;
}
- (void)dealloc {
  for (NSUInteger i = 0; i < count; i++) {
    [items[i] release];
  }
  free(items);
  [super dealloc];
}
@end

void objc_enumerationMutation(id array);
void objc_enumerationMutation(id array) {
  (void)array;
  standin_broken("a collection is changed while it is enumerated");
}

@implementation NSMutableArray
- (void)addObject:(id)object {
  append(self, object);
}
@end

@implementation NSDictionary
+ (instancetype)dictionary {
  return [[self new] autorelease];
}
- (instancetype)init {
  keys = [NSMutableArray new];
  values = [NSMutableArray new];
  return self;
}
- (NSUInteger)count {
  return [keys count];
}
- (id)objectForKey:(id)key {
  for (NSUInteger i = 0; i < [keys count]; i++) {
    if (strcmp([(NSString *)[keys objectAtIndex:i] UTF8String], [(NSString *)key UTF8String]) == 0) {
      return [values objectAtIndex:i];
    }
  }
  return nil;
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id *)objects count:(NSUInteger)size {
  return [keys countByEnumeratingWithState:state objects:objects count:size];
}
- (void)dealloc {
  [keys release];
  [values release];
  [super dealloc];
}
@end

@implementation NSMutableDictionary
- (void)setObject:(id)object forKey:(id)key {
  STANDIN_RULE(key != nil && object != nil, "nil is put into a dictionary");
  for (NSUInteger i = 0; i < [keys count]; i++) {
    if (strcmp([(NSString *)[keys objectAtIndex:i] UTF8String], [(NSString *)key UTF8String]) == 0) {
      [values->items[i] release];
      values->items[i] = [object retain];
      return;
    }
  }
  [keys addObject:key];
  [values addObject:object];
}
@end

@implementation NSURL
+ (NSURL *)fileURLWithPath:(NSString *)path {
  STANDIN_RULE(path != nil && [path length] > 0, "a URL is made of no path");
  NSURL *url = [[self new] autorelease];
  url->path = [path retain];
  return url;
}
- (NSString *)path {
  return path;
}
- (void)dealloc {
  [path release];
  [super dealloc];
}
@end

/* ---- errors ---- */

NSErrorUserInfoKey const NSLocalizedDescriptionKey = @"NSLocalizedDescription";

@implementation NSError
+ (instancetype)errorWithDomain:(NSErrorDomain)domain code:(NSInteger)code userInfo:(NSDictionary *)userInfo {
  NSError *error = [[self new] autorelease];
  error->domain = [domain retain];
  error->code = code;
  error->userInfo = [userInfo retain];
  return error;
}
- (NSErrorDomain)domain {
  return domain;
}
- (NSInteger)code {
  return code;
}
- (NSDictionary *)userInfo {
  return userInfo;
}
- (NSString *)localizedDescription {
  return [userInfo objectForKey:NSLocalizedDescriptionKey];
}
- (void)dealloc {
  [domain release];
  [userInfo release];
  [super dealloc];
}
@end

NSError *standin_error(NSErrorDomain domain, NSInteger code, const char *text) {
  NSMutableDictionary *info = [NSMutableDictionary dictionary];
  [info setObject:[NSString stringWithUTF8String:text] forKey:NSLocalizedDescriptionKey];
  return [NSError errorWithDomain:domain code:code userInfo:info];
}

void objc_exception_throw(id object) __attribute__((noreturn));

@implementation NSException
+ (NSException *)exceptionWithName:(NSExceptionName)name reason:(NSString *)reason userInfo:(NSDictionary *)userInfo {
  (void)userInfo;
  NSException *exception = [[self new] autorelease];
  exception->name = [name retain];
  exception->reason = [reason retain];
  return exception;
}
- (NSExceptionName)name {
  return name;
}
- (NSString *)reason {
  return reason;
}
- (void)raise {
  objc_exception_throw(self);
}
- (void)dealloc {
  [name release];
  [reason release];
  [super dealloc];
}
@end
