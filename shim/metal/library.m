#include "metal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(MPS_LANGUAGE_VERSION(3, 0) == (int)MTLLanguageVersion3_0, "language versions are Metal's");

/* ---- what is in a library ---- */

static void forget_contents(mps_library *library) {
  for (uint32_t i = 0; i < library->kernel_count; i++) {
    free(library->kernel_names[i]);
  }
  for (uint32_t i = 0; i < library->constant_count; i++) {
    free((char *)library->constants[i].name);
  }
  free(library->kernel_names);
  free(library->constants);
  library->kernel_names = NULL;
  library->constants = NULL;
  library->kernel_count = library->constant_count = 0;
}

static bool has_constant(const mps_library *library, NSUInteger index) {
  for (uint32_t i = 0; i < library->constant_count; i++) {
    if (library->constants[i].index == index) {
      return true;
    }
  }
  return false;
}

static bool add_constant(mps_library *library, MTLFunctionConstant *constant) {
  size_t size = (library->constant_count + 1) * sizeof *library->constants;
  mps_constant_info *constants = realloc(library->constants, size);
  if (constants == NULL) {
    return false;
  }
  library->constants = constants;
  char *name = mps_text_copy([[constant name] UTF8String]);
  if (name == NULL) {
    return false;
  }
  constants[library->constant_count++] = (mps_constant_info){
      .struct_size = sizeof *constants,
      .name = name,
      .index = (uint32_t)[constant index],
      .data_type = metal_data_type_from([constant type]),
      .required = [constant required] ? 1 : 0,
  };
  return true;
}

static bool add_function(mps_library *library, id<MTLFunction> function) {
  NSDictionary<NSString *, MTLFunctionConstant *> *constants = [function functionConstantsDictionary];
  for (NSString *name in constants) {
    MTLFunctionConstant *constant = [constants objectForKey:name];
    if (!has_constant(library, [constant index]) && !add_constant(library, constant)) {
      return false;
    }
  }
  char *name = mps_text_copy([[function name] UTF8String]);
  if (name == NULL) {
    return false;
  }
  library->kernel_names[library->kernel_count++] = name;
  return true;
}

static bool list_contents(mps_library *library, id<MTLLibrary> impl) {
  NSArray<NSString *> *names = [impl functionNames];
  library->kernel_names = calloc([names count] + 1, sizeof *library->kernel_names);
  if (library->kernel_names == NULL) {
    return false;
  }
  for (NSString *name in names) {
    id<MTLFunction> function = [[impl newFunctionWithName:name] autorelease];
    if ([function functionType] == MTLFunctionTypeKernel && !add_function(library, function)) {
      return false;
    }
  }
  return true;
}

/* Takes over a library of Metal's. */
static mps_status finish(mps_library *library, id<MTLLibrary> impl) {
  if (!list_contents(library, impl)) {
    forget_contents(library);
    [impl release];
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the list of a library's kernels");
  }
  library->impl = impl;
  return MPS_STATUS_OK;
}

/* ---- compiling ---- */

/* false on systems before macOS 15, and with headers from before it. */
static bool set_math_mode(MTLCompileOptions *options, uint32_t mode) {
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (@available(macOS 15.0, *)) {
    _Static_assert(MPS_MATH_SAFE == (int)MTLMathModeSafe, "math modes are Metal's");
    _Static_assert(MPS_MATH_RELAXED == (int)MTLMathModeRelaxed, "math modes are Metal's");
    _Static_assert(MPS_MATH_FAST == (int)MTLMathModeFast, "math modes are Metal's");
    if ([options respondsToSelector:@selector(setMathMode:)]) {
      [options setMathMode:(MTLMathMode)mode];
      return true;
    }
  }
#endif
  return false;
}

static MTLCompileOptions *compile_options(const mps_compile_options *given) {
  MTLCompileOptions *options = [[[MTLCompileOptions alloc] init] autorelease];
  if (given->language_version != 0) {
    [options setLanguageVersion:(MTLLanguageVersion)given->language_version];
  }
  if (!set_math_mode(options, given->math_mode)) {
    /* All or nothing, and "relaxed" must keep NaN. */
    [options setFastMathEnabled:given->math_mode == MPS_MATH_FAST];
  }
  NSMutableDictionary<NSString *, NSObject *> *macros = [NSMutableDictionary dictionary];
  for (uint32_t i = 0; i < given->define_count; i++) {
    const char *define = given->defines[i];
    const char *equals = strchr(define, '=');
    size_t length = equals != NULL ? (size_t)(equals - define) : strlen(define);
    NSString *name = metal_string(define, length);
    NSString *value = equals != NULL ? metal_string(equals + 1, strlen(equals + 1)) : @"1";
    if (name == nil || value == nil) {
      mps_fail(MPS_STATUS_INVALID_ARGUMENT, "defines[%" PRIu32 "] is no UTF-8 text", i);
      return nil;
    }
    [macros setObject:value forKey:name];
  }
  [options setPreprocessorMacros:macros];
  if (given->flags & MPS_COMPILE_LOGGING) {
    metal_log_enable(options);
  }
  return options;
}

static mps_status refuse_options(const mps_compile_options *options) {
  if (options->include_dir_count > 0) {
    return mps_fail(MPS_STATUS_UNSUPPORTED,
                    "Metal compiles one text and knows no include_dirs: put the included text into the source");
  }
  if (options->flags & MPS_COMPILE_VALIDATE) {
    return mps_fail(MPS_STATUS_UNSUPPORTED, "MPS_COMPILE_VALIDATE is for the host device: on Metal start the process "
                                            "with MTL_SHADER_VALIDATION=1 in the environment");
  }
  return MPS_STATUS_OK;
}

mps_status metal_library_from_source(mps_library *library, const char *source, size_t length,
                                     const mps_compile_options *given) {
  MPS_TRY(refuse_options(given));
  return metal_guard("compiling", ^mps_status {
    NSString *text = metal_string(source, length);
    if (text == nil) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "the source is no UTF-8 text");
    }
    MTLCompileOptions *options = compile_options(given);
    if (options == nil) {
      return MPS_STATUS_INVALID_ARGUMENT;
    }
    /* Warnings come as an error beside the library: only the library counts. */
    NSError *error = nil;
    id<MTLLibrary> impl = [metal_gpu(library->device) newLibraryWithSource:text options:options error:&error];
    if (impl == nil) {
      const char *log = metal_error_text(error);
      return mps_fail_text(MPS_STATUS_COMPILE_FAILED, log, strlen(log));
    }
    return finish(library, impl);
  });
}

/* ---- opening ---- */

static mps_status check_file(const char *path) {
  struct stat found;
  if (stat(path, &found) != 0) {
    return mps_fail(errno == ENOENT || errno == ENOTDIR ? MPS_STATUS_NOT_FOUND : MPS_STATUS_IO,
                    "library '%s' cannot be opened: %s", path, strerror(errno));
  }
  if (S_ISDIR(found.st_mode)) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "library '%s' is a directory", path);
  }
  if (access(path, R_OK) != 0) {
    return mps_fail(MPS_STATUS_IO, "library '%s' cannot be opened: %s", path, strerror(errno));
  }
  return MPS_STATUS_OK;
}

mps_status metal_library_from_file(mps_library *library, const char *path) {
  MPS_TRY(check_file(path));
  return metal_guard("opening a library", ^mps_status {
    NSString *name = metal_string(path, strlen(path));
    if (name == nil) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "the path of the library is no UTF-8 text");
    }
    NSError *error = nil;
    id<MTLLibrary> impl = [metal_gpu(library->device) newLibraryWithURL:[NSURL fileURLWithPath:name] error:&error];
    if (impl == nil) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "'%s' is no library that Metal can open: %s", path,
                      metal_error_text(error));
    }
    return finish(library, impl);
  });
}

mps_status metal_library_from_data(mps_library *library, const void *data, size_t size) {
  return metal_guard("opening a library", ^mps_status {
    dispatch_data_t bytes = dispatch_data_create(data, size, NULL, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
    NSError *error = nil;
    id<MTLLibrary> impl = [metal_gpu(library->device) newLibraryWithData:bytes error:&error];
    dispatch_release(bytes);
    if (impl == nil) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "these %zu bytes are no library that Metal can open: %s", size,
                      metal_error_text(error));
    }
    return finish(library, impl);
  });
}

void metal_library_close(mps_library *library) {
  @autoreleasepool {
    [(id<MTLLibrary>)library->impl release];
  }
}
