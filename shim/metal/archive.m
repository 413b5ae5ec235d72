/* Compiled pipelines on disk, in a MTLBinaryArchive.
 *
 * Two archives of one file: `loaded` is what was there at the start, only read, by any thread; `growing` gets what is
 * new, on a thread of its own, and is written out whenever that has nothing to do. Compiling again is always right, so
 * whatever goes wrong with the file turns the cache off or begins it anew, and is no error. */
#include "metal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file beyond this is begun anew: an archive cannot shrink. */
static const off_t MAX_FILE = 256 << 20;

struct metal_archive {
  id<MTLBinaryArchive> loaded;  /* nil if there was no file */
  id<MTLBinaryArchive> growing; /* on the worker only; nil once something went wrong */
  char *path;
  dispatch_queue_t worker;
  _Atomic uint32_t waiting; /* pipelines on their way to the worker */
};

/* ---- the file ---- */

/* Make a directory, and those above it. */
static bool make_directory(const char *path) {
  if (mkdir(path, 0700) == 0 || errno == EEXIST) {
    return true;
  }
  const char *slash = strrchr(path, '/');
  if (errno != ENOENT || slash == NULL || slash == path) {
    return false;
  }
  char *parent = strndup(path, (size_t)(slash - path));
  bool made = parent != NULL && make_directory(parent) && mkdir(path, 0700) == 0;
  free(parent);
  return made;
}

static char *cache_directory(void) {
  const char *chosen = getenv("MPSCFFI_CACHE_DIR");
  const char *home = getenv("HOME");
  char *path = NULL;
  int length = -1;
  if (chosen != NULL && chosen[0] != '\0') {
    length = asprintf(&path, "%s", chosen);
  } else if (home != NULL && home[0] == '/') {
    length = asprintf(&path, "%s/Library/Caches/mpscffi", home);
  }
  return length < 0 ? NULL : path;
}

/* Compiled code is for one kind of GPU and one system. */
static char *archive_path(id<MTLDevice> gpu) {
  char *directory = cache_directory();
  if (directory == NULL) {
    return NULL;
  }
  char *path = NULL;
  int length = -1;
  if (make_directory(directory)) {
    length = asprintf(&path, "%s/metal-%s-%s.binarchive", directory, [[gpu name] UTF8String],
                      [[[NSProcessInfo processInfo] operatingSystemVersionString] UTF8String]);
  }
  if (length >= 0) {
    for (char *c = path + strlen(directory) + 1; *c != '\0'; c++) {
      *c = strchr(" /()", *c) != NULL ? '_' : *c;
    }
  }
  free(directory);
  return length < 0 ? NULL : path;
}

static bool file_is_usable(const char *path) {
  struct stat found;
  return stat(path, &found) == 0 && found.st_size > 0 && found.st_size <= MAX_FILE;
}

/* An archive, +1, of the file, or an empty one for NULL. */
static id<MTLBinaryArchive> new_archive(id<MTLDevice> gpu, const char *path) {
  MTLBinaryArchiveDescriptor *descriptor = [[[MTLBinaryArchiveDescriptor alloc] init] autorelease];
  NSString *name = path != NULL ? metal_string(path, strlen(path)) : nil;
  if (name != nil) {
    [descriptor setUrl:[NSURL fileURLWithPath:name]];
  }
  return [gpu newBinaryArchiveWithDescriptor:descriptor error:NULL];
}

/* ---- life ---- */

metal_archive *metal_archive_open(id<MTLDevice> gpu) {
  char *path = archive_path(gpu);
  metal_archive *archive = path != NULL ? calloc(1, sizeof *archive) : NULL;
  if (archive == NULL) {
    free(path);
    return NULL;
  }
  archive->path = path;
  if (file_is_usable(path)) {
    archive->loaded = new_archive(gpu, path);
  }
  archive->growing = new_archive(gpu, archive->loaded != nil ? path : NULL);
  archive->worker = dispatch_queue_create("mpscffi.archive", DISPATCH_QUEUE_SERIAL);
  return archive;
}

void metal_archive_close(metal_archive *archive) {
  if (archive == NULL) {
    return;
  }
  dispatch_sync(archive->worker, ^{
    [archive->growing release];
  });
  dispatch_release(archive->worker);
  [archive->loaded release];
  free(archive->path);
  free(archive);
}

/* ---- use ---- */

/* Beside the file and then in its place, so that no other process ever reads half of it. */
static bool write_file(metal_archive *archive) {
  char *partial = NULL;
  if (asprintf(&partial, "%s.%ld", archive->path, (long)getpid()) < 0) {
    return false;
  }
  NSString *name = metal_string(partial, strlen(partial));
  bool written = name != nil && [archive->growing serializeToURL:[NSURL fileURLWithPath:name] error:NULL] &&
                 rename(partial, archive->path) == 0;
  if (!written) {
    unlink(partial);
  }
  free(partial);
  return written;
}

/* On the worker. */
static void add(metal_archive *archive, MTLComputePipelineDescriptor *descriptor) {
  bool last = atomic_fetch_sub_explicit(&archive->waiting, 1, memory_order_relaxed) == 1;
  mps_status status = metal_guard("keeping a compiled pipeline", ^mps_status {
    bool kept = archive->growing != nil &&
                [archive->growing addComputePipelineFunctionsWithDescriptor:descriptor error:NULL] &&
                (!last || write_file(archive));
    return kept ? MPS_STATUS_OK : MPS_STATUS_IO;
  });
  if (status != MPS_STATUS_OK) {
    [archive->growing release];
    archive->growing = nil;
  }
}

static void add_later(metal_archive *archive, MTLComputePipelineDescriptor *descriptor) {
  atomic_fetch_add_explicit(&archive->waiting, 1, memory_order_relaxed);
  dispatch_async(archive->worker, ^{
    @autoreleasepool {
      add(archive, descriptor);
    }
  });
}

id<MTLComputePipelineState> metal_archive_make(metal_archive *archive, id<MTLDevice> gpu,
                                               MTLComputePipelineDescriptor *descriptor,
                                               MTLComputePipelineReflection **reflection, NSError **error) {
  /* By number: the name of the first has changed between the systems' headers. */
  MTLPipelineOption reflect = (MTLPipelineOption)1 | MTLPipelineOptionBufferTypeInfo;
  if (archive != NULL && archive->loaded != nil) {
    [descriptor setBinaryArchives:[NSArray arrayWithObject:archive->loaded]];
    id<MTLComputePipelineState> known =
        [gpu newComputePipelineStateWithDescriptor:descriptor
                                           options:reflect | MTLPipelineOptionFailOnBinaryArchiveMiss
                                        reflection:reflection
                                             error:NULL];
    if (known != nil) {
      return known;
    }
    [descriptor setBinaryArchives:nil];
  }
  id<MTLComputePipelineState> made = [gpu newComputePipelineStateWithDescriptor:descriptor
                                                                        options:reflect
                                                                     reflection:reflection
                                                                          error:error];
  if (made != nil && archive != NULL) {
    add_later(archive, descriptor);
  }
  return made;
}
