/* Pipelines with their reflection, and binary archives. */
#include "gpu.h"

#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

NSErrorDomain const MTLBinaryArchiveDomain = @"MTLBinaryArchiveDomain";

@implementation MTLComputePipelineDescriptor
- (void)setComputeFunction:(id<MTLFunction>)function {
  [function retain];
  [computeFunction release];
  computeFunction = function;
}
- (void)setLabel:(NSString *)text {
  STANDIN_RULE(text != nil, "a label is nil");
  [text retain];
  [label release];
  label = text;
}
- (void)setBinaryArchives:(NSArray *)archives {
  [archives retain];
  [binaryArchives release];
  binaryArchives = archives;
}
- (void)dealloc {
  [computeFunction release];
  [label release];
  [binaryArchives release];
  [super dealloc];
}
@end

/* ---- reflection ---- */

@interface StandinBinding : NSObject <MTLBufferBinding, MTLThreadgroupBinding> {
@public
  mps_argument_info info; /* texts borrowed until `name` is made */
  NSString *name;
  MTLBindingType type;
  BOOL argument;
}
@end

@implementation StandinBinding
- (NSString *)name {
  return name;
}
- (MTLBindingType)type {
  return type;
}
- (MTLBindingAccess)access {
  return info.access == MPS_ACCESS_READ ? MTLBindingAccessReadOnly : MTLBindingAccessReadWrite;
}
- (NSUInteger)index {
  return info.index;
}
- (BOOL)isUsed {
  return info.is_used ? YES : NO;
}
- (BOOL)isArgument {
  return argument;
}
- (NSUInteger)bufferAlignment {
  return info.data_align;
}
- (NSUInteger)bufferDataSize {
  return info.data_size;
}
- (MTLDataType)bufferDataType {
  return standin_metal_type(info.data_type);
}
- (NSUInteger)threadgroupMemoryAlignment {
  return info.data_align;
}
- (NSUInteger)threadgroupMemoryDataSize {
  return info.data_size;
}
- (void)dealloc {
  [name release];
  [super dealloc];
}
@end

@implementation MTLComputePipelineReflection
- (instancetype)init {
  bindings = [NSMutableArray new];
  return self;
}
- (NSArray *)bindings {
  return bindings;
}
- (void)dealloc {
  [bindings release];
  [super dealloc];
}
@end

static StandinBinding *add_binding(MTLComputePipelineReflection *reflection, const char *name, MTLBindingType type) {
  StandinBinding *binding = [[StandinBinding new] autorelease];
  binding->name = [[NSString stringWithUTF8String:name] retain];
  binding->type = type;
  binding->argument = YES;
  [reflection->bindings addObject:binding];
  return binding;
}

static MTLComputePipelineReflection *reflect(const mps_pipeline *contents) {
  MTLComputePipelineReflection *reflection = [[MTLComputePipelineReflection new] autorelease];
  for (uint32_t i = 0; i < contents->info.argument_count; i++) {
    const mps_argument_info *info = &contents->arguments[i];
    bool threadgroup = info->kind == MPS_ARGUMENT_THREADGROUP;
    StandinBinding *binding =
        add_binding(reflection, info->name, threadgroup ? MTLBindingTypeThreadgroupMemory : MTLBindingTypeBuffer);
    binding->info = *info;
  }
  /* Metal tells of the memory that a kernel declares itself, as no argument. */
  if (contents->info.static_threadgroup_memory > 0) {
    add_binding(reflection, "shared", MTLBindingTypeThreadgroupMemory)->argument = NO;
  }
  if (standin_get("missing_argument") != 0) {
    add_binding(reflection, "image", MTLBindingTypeTexture);
  }
  return reflection;
}

/* ---- pipeline ---- */

static void free_contents(mps_pipeline *contents) {
  for (uint32_t i = 0; i < contents->info.argument_count; i++) {
    free((char *)contents->arguments[i].name);
    free((char *)contents->arguments[i].type_name);
  }
  free(contents->arguments);
  free(contents->kernel);
  free(contents->label);
  free(contents);
}

/* Constants of the values given, for the host device. */
static mps_constant_value *constants_of(MTLFunctionConstantValues *values) {
  NSUInteger count = values != nil ? [values->values count] : 0;
  mps_constant_value *constants = calloc(count + 1, sizeof *constants);
  for (NSUInteger i = 0; i < count; i++) {
    StandinConstantValue *value = [values->values objectAtIndex:i];
    constants[i] = (mps_constant_value){
        .index = (uint32_t)value->index,
        .data_type = standin_data_type(value->type),
        .value = value->bytes,
    };
  }
  return constants;
}

StandinPipelineState *standin_new_pipeline(StandinFunction *function, NSString *label,
                                           MTLComputePipelineReflection **reflection, NSError **error) {
  STANDIN_RULE(function != nil, "a pipeline of no function");
  STANDIN_RULE(function->values != nil || [[function functionConstantsDictionary] count] == 0,
               "'%s' has function constants, and is not specialised", [function->name UTF8String]);
  mps_constant_value *constants = constants_of(function->values);
  mps_pipeline_desc desc = {
      .struct_size = sizeof desc,
      .kernel = [function->name UTF8String],
      .constants = constants,
      .constant_count = function->values != nil ? (uint32_t)[function->values->values count] : 0,
  };
  mps_pipeline *contents = calloc(1, sizeof *contents);
  contents->library = function->library->contents;
  contents->kernel = strdup(desc.kernel);
  contents->label = strdup(label != nil ? [label UTF8String] : desc.kernel);
  mps_status status = host_pipeline_open(contents, &desc);
  free(constants);
  if (status != MPS_STATUS_OK) {
    if (error != NULL) {
      *error = standin_error(MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, mps_error_message());
    }
    free_contents(contents);
    return nil;
  }
  StandinPipelineState *state = [StandinPipelineState new];
  state->contents = contents;
  state->library = [function->library retain];
  if (reflection != NULL) {
    *reflection = reflect(contents);
  }
  return state;
}

@implementation StandinPipelineState
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return contents->info.max_total_threads_per_threadgroup;
}
- (NSUInteger)threadExecutionWidth {
  return contents->info.thread_execution_width;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return contents->info.static_threadgroup_memory;
}
- (void)dealloc {
  host_pipeline_close(contents);
  free_contents(contents);
  [library release];
  [super dealloc];
}
@end

/* ---- archives: a file with a line for each pipeline ---- */

static const char ARCHIVE_HEADER[] = "stand-in archive\n";

@implementation MTLBinaryArchiveDescriptor
- (void)setUrl:(NSURL *)given {
  [given retain];
  [url release];
  url = given;
}
- (void)dealloc {
  [url release];
  [super dealloc];
}
@end

@interface StandinArchive : NSObject <MTLBinaryArchive> {
@public
  char **keys;
  NSUInteger keyCount;
}
@end

static bool has_key(const StandinArchive *archive, const char *key) {
  for (NSUInteger i = 0; i < archive->keyCount; i++) {
    if (strcmp(archive->keys[i], key) == 0) {
      return true;
    }
  }
  return false;
}

static void add_key(StandinArchive *archive, const char *key) {
  if (!has_key(archive, key)) {
    archive->keys = realloc(archive->keys, (archive->keyCount + 1) * sizeof *archive->keys);
    archive->keys[archive->keyCount++] = strdup(key);
  }
}

NSString *standin_pipeline_key(StandinFunction *function) {
  char text[1024];
  int used = snprintf(text, sizeof text, "%016llx %s", (unsigned long long)function->library->identity,
                      [function->name UTF8String]);
  NSUInteger count = function->values != nil ? [function->values->values count] : 0;
  for (NSUInteger i = 0; i < count && used < (int)sizeof text - 100; i++) {
    StandinConstantValue *value = [function->values->values objectAtIndex:i];
    used += snprintf(text + used, sizeof text - (size_t)used, " %lu=", value->index);
    for (size_t byte = 0; byte < standin_constant_size(value->type); byte++) {
      used += snprintf(text + used, sizeof text - (size_t)used, "%02x", value->bytes[byte]);
    }
  }
  return [NSString stringWithUTF8String:text];
}

static bool read_keys(StandinArchive *archive, const char *path) {
  FILE *file = fopen(path, "r");
  char line[1100];
  bool good = file != NULL && fgets(line, sizeof line, file) != NULL && strcmp(line, ARCHIVE_HEADER) == 0;
  while (good && fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    add_key(archive, line);
  }
  if (file != NULL) {
    fclose(file);
  }
  return good;
}

id<MTLBinaryArchive> standin_new_archive(MTLBinaryArchiveDescriptor *descriptor, NSError **error) {
  StandinArchive *archive = [StandinArchive new];
  if (descriptor->url != nil && !read_keys(archive, [[descriptor->url path] UTF8String])) {
    if (error != NULL) {
      *error = standin_error(MTLBinaryArchiveDomain, MTLBinaryArchiveErrorInvalidFile, "the file is no archive");
    }
    [archive release];
    return nil;
  }
  return archive;
}

bool standin_archive_has(id<MTLBinaryArchive> archive, NSString *key) {
  return has_key((const StandinArchive *)archive, [key UTF8String]);
}

@implementation StandinArchive
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor error:(NSError **)error {
  if (standin_take("fail_archives")) {
    if (error != NULL) {
      *error = standin_error(MTLBinaryArchiveDomain, MTLBinaryArchiveErrorInternalError, "told to fail");
    }
    return NO;
  }
  add_key(self, [standin_pipeline_key((StandinFunction *)descriptor->computeFunction) UTF8String]);
  return YES;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error {
  FILE *file = fopen([[url path] UTF8String], "w");
  if (file == NULL) {
    if (error != NULL) {
      *error = standin_error(MTLBinaryArchiveDomain, MTLBinaryArchiveErrorInternalError, "the file cannot be written");
    }
    return NO;
  }
  fputs(ARCHIVE_HEADER, file);
  for (NSUInteger i = 0; i < keyCount; i++) {
    fprintf(file, "%s\n", keys[i]);
  }
  return fclose(file) == 0;
}
- (void)dealloc {
  for (NSUInteger i = 0; i < keyCount; i++) {
    free(keys[i]);
  }
  free(keys);
  [super dealloc];
}
@end
