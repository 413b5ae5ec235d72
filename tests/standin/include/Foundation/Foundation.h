/* The part of Foundation that the Metal device uses, on GCC's libobjc, for tests on Linux. Declared by us, with Apple's
 * selectors, as tests/test_metal_fidelity.py checks.
 *
 * The runtime's base types are declared here too: gcc's private include folder, where objc/objc.h is, must stay off
 * clang's path, since it would also replace <stdatomic.h>. Properties are declared as methods: the fragile ABI has no
 * automatic synthesis. */
#ifndef STANDIN_FOUNDATION_H
#define STANDIN_FOUNDATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define __MAC_OS_X_VERSION_MAX_ALLOWED 150000

typedef struct objc_class *Class;
typedef struct objc_object {
  Class kind;
} *id;
typedef struct objc_selector *SEL;
typedef unsigned char BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)

typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef double CFTimeInterval;

typedef struct {
  NSUInteger location;
  NSUInteger length;
} NSRange;

static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  return (NSRange){location, length};
}

typedef struct {
  NSInteger majorVersion;
  NSInteger minorVersion;
  NSInteger patchVersion;
} NSOperatingSystemVersion;

typedef struct {
  unsigned long state;
  id *itemsPtr;
  unsigned long *mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

typedef NSUInteger NSStringEncoding;
enum { NSUTF8StringEncoding = 4 };

@class NSString;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
- (BOOL)respondsToSelector:(SEL)selector;
- (BOOL)isKindOfClass:(Class)kind;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class kind;
}
+ (instancetype)alloc;
+ (instancetype)new;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
  NSAutoreleasePool *outer;
  id *items;
  NSUInteger count, room;
}
- (void)drain;
@end

/* The layout is what clang makes of @"". */
@interface NSString : NSObject {
  char *bytes;
  unsigned size;
}
+ (instancetype)stringWithUTF8String:(const char *)text;
- (instancetype)initWithBytes:(const void *)text length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (const char *)UTF8String;
- (NSUInteger)length;
@end

@interface NSConstantString : NSString
@end

@interface NSNumber : NSObject {
  NSUInteger number;
}
+ (NSNumber *)numberWithUnsignedInteger:(NSUInteger)value;
- (NSUInteger)unsignedIntegerValue;
@end

@interface NSArray<ObjectType> : NSObject {
@public
  id *items;
  NSUInteger count, room;
}
+ (instancetype)array;
+ (instancetype)arrayWithObject:(ObjectType)object;
- (NSUInteger)count;
- (ObjectType)objectAtIndex:(NSUInteger)index;
- (NSString *)componentsJoinedByString:(NSString *)separator;
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id *)objects count:(NSUInteger)room;
@end

@interface NSMutableArray<ObjectType> : NSArray <ObjectType>
- (void)addObject:(ObjectType)object;
@end

/* Keys are strings. */
@interface NSDictionary<KeyType, ObjectType> : NSObject {
@public
  NSMutableArray *keys;
  NSMutableArray *values;
}
+ (instancetype)dictionary;
- (NSUInteger)count;
- (ObjectType)objectForKey:(KeyType)key;
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id *)objects count:(NSUInteger)room;
@end

@interface NSMutableDictionary<KeyType, ObjectType> : NSDictionary <KeyType, ObjectType>
- (void)setObject:(ObjectType)object forKey:(KeyType)key;
@end

@interface NSURL : NSObject {
  NSString *path;
}
+ (NSURL *)fileURLWithPath:(NSString *)path;
- (NSString *)path;
@end

typedef NSString *NSErrorDomain;
typedef NSString *NSErrorUserInfoKey;
extern NSErrorUserInfoKey const NSLocalizedDescriptionKey;

@interface NSError : NSObject {
  NSErrorDomain domain;
  NSInteger code;
  NSDictionary *userInfo;
}
+ (instancetype)errorWithDomain:(NSErrorDomain)domain code:(NSInteger)code userInfo:(NSDictionary *)userInfo;
- (NSErrorDomain)domain;
- (NSInteger)code;
- (NSDictionary *)userInfo;
- (NSString *)localizedDescription;
@end

typedef NSString *NSExceptionName;

@interface NSException : NSObject {
  NSString *name;
  NSString *reason;
}
+ (NSException *)exceptionWithName:(NSExceptionName)name reason:(NSString *)reason userInfo:(NSDictionary *)userInfo;
- (NSExceptionName)name;
- (NSString *)reason;
- (void)raise;
@end

@interface NSProcessInfo : NSObject
+ (NSProcessInfo *)processInfo;
- (NSString *)operatingSystemVersionString;
- (BOOL)isOperatingSystemAtLeastVersion:(NSOperatingSystemVersion)version;
@end

NSUInteger NSPageSize(void);

void *_Block_copy(const void *block);
void _Block_release(const void *block);
#define Block_copy(...) ((__typeof(__VA_ARGS__))_Block_copy((const void *)(__VA_ARGS__)))
#define Block_release(...) _Block_release((const void *)(__VA_ARGS__))

#include <dispatch/dispatch.h>

#endif
