/* Libraries and functions: compiled by the host device's own functions, on a mps_library that the core does not know.
 */
#include "gpu.h"

#include "status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sel_getName(SEL selector); /* of libobjc */

NSErrorDomain const MTLLibraryErrorDomain = @"MTLLibraryErrorDomain";

/* ---- types ---- */

static const struct {
  MTLDataType metal;
  mps_data_base base;
  size_t size;
} types[] = {
    {MTLDataTypeBool, MPS_DATA_BOOL, 1},     {MTLDataTypeChar, MPS_DATA_CHAR, 1},
    {MTLDataTypeUChar, MPS_DATA_UCHAR, 1},   {MTLDataTypeShort, MPS_DATA_SHORT, 2},
    {MTLDataTypeUShort, MPS_DATA_USHORT, 2}, {MTLDataTypeInt, MPS_DATA_INT, 4},
    {MTLDataTypeUInt, MPS_DATA_UINT, 4},     {MTLDataTypeLong, MPS_DATA_LONG, 8},
    {MTLDataTypeULong, MPS_DATA_ULONG, 8},   {MTLDataTypeHalf, MPS_DATA_HALF, 2},
    {MTLDataTypeBFloat, MPS_DATA_BFLOAT, 2}, {MTLDataTypeFloat, MPS_DATA_FLOAT, 4},
};

enum { TYPES = sizeof types / sizeof types[0] };

uint32_t standin_data_type(MTLDataType type) {
  for (int i = 0; i < TYPES; i++) {
    if (type >= types[i].metal && type < types[i].metal + 4) {
      return types[i].base | (uint32_t)(type - types[i].metal + 1) << 8;
    }
  }
  return MPS_DATA_NONE;
}

MTLDataType standin_metal_type(uint32_t data_type) {
  for (int i = 0; i < TYPES; i++) {
    if (types[i].base == (data_type & 255)) {
      return types[i].metal + (data_type >> 8) - 1;
    }
  }
  switch (data_type & 255) {
  case MPS_DATA_STRUCT:
    return MTLDataTypeStruct;
  case MPS_DATA_POINTER:
    return MTLDataTypePointer;
  default:
    return MTLDataTypeNone;
  }
}

size_t standin_constant_size(MTLDataType type) {
  for (int i = 0; i < TYPES; i++) {
    if (type >= types[i].metal && type < types[i].metal + 4) {
      NSUInteger lanes = type - types[i].metal + 1;
      return types[i].size * (lanes == 3 ? 4 : lanes);
    }
  }
  return 0;
}

@implementation MTLCompileOptions
- (BOOL)respondsToSelector:(SEL)selector {
  const char *name = sel_getName(selector);
  bool is_new = strcmp(name, "setMathMode:") == 0 || strcmp(name, "setEnableLogging:") == 0;
  return is_new && standin_get("os_major") < 15 ? NO : [super respondsToSelector:selector];
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
  languageVersion = version;
}
- (void)setMathMode:(MTLMathMode)mode {
  STANDIN_RULE(standin_get("os_major") >= 15, "setMathMode: is of macOS 15");
  mathMode = mode;
}
- (void)setEnableLogging:(BOOL)enabled {
  STANDIN_RULE(standin_get("os_major") >= 15, "setEnableLogging: is of macOS 15");
  enableLogging = enabled;
}
- (void)setFastMathEnabled:(BOOL)enabled {
  mathMode = enabled ? MTLMathModeFast : MTLMathModeSafe;
}
- (instancetype)init {
  mathMode = MTLMathModeFast; /* Metal's default */
  return self;
}
- (void)setPreprocessorMacros:(NSDictionary *)macros {
  [macros retain];
  [preprocessorMacros release];
  preprocessorMacros = macros;
}
- (void)dealloc {
  [preprocessorMacros release];
  [super dealloc];
}
@end

@implementation MTLFunctionConstant
- (NSString *)name {
  return name;
}
- (MTLDataType)type {
  return type;
}
- (NSUInteger)index {
  return index;
}
- (BOOL)required {
  return required;
}
- (void)dealloc {
  [name release];
  [super dealloc];
}
@end

@implementation StandinConstantValue
@end

@implementation MTLFunctionConstantValues
- (instancetype)init {
  values = [NSMutableArray new];
  return self;
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  size_t size = standin_constant_size(type);
  STANDIN_RULE(size > 0 && value != NULL, "a function constant of type %lu", type);
  StandinConstantValue *added = [[StandinConstantValue new] autorelease];
  added->type = type;
  added->index = index;
  memcpy(added->bytes, value, size);
  [values addObject:added];
}
- (void)dealloc {
  [values release];
  [super dealloc];
}
@end

/* ---- libraries ---- */

static uint64_t hash(const void *data, size_t size, uint64_t seed) {
  uint64_t value = seed;
  for (size_t i = 0; i < size; i++) {
    value = (value ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
  }
  return value;
}

/* What the host device's function said, as Metal would. */
static NSError *library_error(mps_status status) {
  MTLLibraryError code = status == MPS_STATUS_COMPILE_FAILED ? MTLLibraryErrorCompileFailure : MTLLibraryErrorInternal;
  return standin_error(MTLLibraryErrorDomain, (NSInteger)code, mps_error_message());
}

static StandinLibrary *finish(mps_library *contents, mps_status status, const char *source, uint64_t identity,
                              NSError **error) {
  if (status != MPS_STATUS_OK) {
    free(contents);
    if (error != NULL) {
      *error = library_error(status);
    }
    return nil;
  }
  StandinLibrary *library = [StandinLibrary new];
  library->contents = contents;
  library->source = source != NULL ? strdup(source) : NULL;
  library->identity = identity;
  return library;
}

id<MTLLibrary> standin_new_library(NSString *source, MTLCompileOptions *options, NSError **error) {
  STANDIN_RULE(source != nil, "a library of no source");
  mps_compile_options given = {.struct_size = sizeof given, .math_mode = MPS_MATH_FAST};
  NSUInteger count = options != nil ? [options->preprocessorMacros count] : 0;
  char **defines = calloc(count + 1, sizeof *defines);
  if (options != nil) {
    given.language_version = (uint32_t)options->languageVersion;
    given.math_mode = (uint32_t)options->mathMode;
    for (NSString *name in options->preprocessorMacros) {
      NSString *value = [options->preprocessorMacros objectForKey:name];
      if (asprintf(&defines[given.define_count++], "%s=%s", [name UTF8String], [value UTF8String]) < 0) {
        standin_broken("no memory");
      }
    }
    given.defines = (const char *const *)defines;
  }
  mps_library *contents = calloc(1, sizeof *contents);
  const char *text = [source UTF8String];
  uint64_t identity = hash(text, [source length], 0xcbf29ce484222325u + given.math_mode);
  mps_status status = host_library_from_source(contents, text, [source length], &given);
  for (uint32_t i = 0; i < given.define_count; i++) {
    identity = hash(defines[i], strlen(defines[i]), identity);
    free(defines[i]);
  }
  free(defines);
  StandinLibrary *library = finish(contents, status, text, identity, error);
  if (library != nil) {
    library->logs = options != nil && options->enableLogging;
  }
  return library;
}

id<MTLLibrary> standin_open_library(const char *path, NSError **error) {
  mps_library *contents = calloc(1, sizeof *contents);
  mps_status status = host_library_from_file(contents, path);
  return finish(contents, status, NULL, hash(path, strlen(path), 1), error);
}

id<MTLLibrary> standin_read_library(const void *data, size_t size, NSError **error) {
  mps_library *contents = calloc(1, sizeof *contents);
  mps_status status = host_library_from_data(contents, data, size);
  return finish(contents, status, NULL, hash(data, size, 2), error);
}

static bool has_kernel(const mps_library *contents, const char *name) {
  for (uint32_t i = 0; i < contents->kernel_count; i++) {
    if (strcmp(contents->kernel_names[i], name) == 0) {
      return true;
    }
  }
  return false;
}

@implementation StandinLibrary
- (NSArray *)functionNames {
  NSMutableArray *names = [NSMutableArray array];
  for (uint32_t i = 0; i < contents->kernel_count; i++) {
    [names addObject:[NSString stringWithUTF8String:contents->kernel_names[i]]];
  }
  return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
  STANDIN_RULE(name != nil, "a function of no name");
  if (standin_take("fail_functions") || !has_kernel(contents, [name UTF8String])) {
    return nil;
  }
  StandinFunction *function = [StandinFunction new];
  function->library = [self retain];
  function->name = [name retain];
  return function;
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error {
  STANDIN_RULE(values != nil, "no values of function constants");
  StandinFunction *function = [self newFunctionWithName:name];
  if (function == nil) {
    *error = standin_error(MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound, "there is no such function");
    return nil;
  }
  function->values = [values retain];
  return function;
}
- (void)dealloc {
  host_library_close(contents);
  for (uint32_t i = 0; i < contents->kernel_count; i++) {
    free(contents->kernel_names[i]);
  }
  for (uint32_t i = 0; i < contents->constant_count; i++) {
    free((char *)contents->constants[i].name);
  }
  free(contents->kernel_names);
  free(contents->constants);
  free(contents);
  free(source);
  [super dealloc];
}
@end

@implementation StandinFunction
- (NSString *)name {
  return name;
}
- (MTLFunctionType)functionType {
  return MTLFunctionTypeKernel;
}
- (NSDictionary *)functionConstantsDictionary {
  NSMutableDictionary *constants = [NSMutableDictionary dictionary];
  const mps_library *contents = library->contents;
  for (uint32_t i = 0; i < contents->constant_count; i++) {
    const mps_constant_info *info = &contents->constants[i];
    if (standin_reaches(library->source, [name UTF8String], info -> name)) {
      MTLFunctionConstant *constant = [[MTLFunctionConstant new] autorelease];
      constant->name = [[NSString stringWithUTF8String:info->name] retain];
      constant->type = standin_metal_type(info->data_type);
      constant->index = info->index;
      constant->required = info->required ? YES : NO;
      [constants setObject:constant forKey:constant->name];
    }
  }
  return constants;
}
- (void)dealloc {
  [library release];
  [name release];
  [values release];
  [super dealloc];
}
@end
