#include "image.h"
#include "fiber.h"
#include "status.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- looking at the bytes: what the system's loader gets to see is at least well formed, and ours ---- */

static bool begins_with(const void *data, size_t size, const char *start, size_t length) {
  return size >= length && memcmp(data, start, length) == 0;
}

#define MAGIC_BYTES 4

static mps_status refuse(const char *name, const char *what) {
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                  "%s %s; a kernel library made by mpscffi-mslc for this machine is expected here", name, what);
}

static bool mentions_our_symbol(const char *data, size_t size) {
  const char symbol[] = "\0" MSLC_LIBRARY_SYMBOL; /* as it stands in a table of names, both ends included */
  const char *end = data + size;
  for (const char *at = data; (size_t)(end - at) >= sizeof symbol; at++) {
    at = memchr(at, 0, (size_t)(end - at));
    if (at == NULL || (size_t)(end - at) < sizeof symbol) {
      return false;
    }
    if (memcmp(at, symbol, sizeof symbol) == 0) {
      return true;
    }
  }
  return false;
}

#if defined(__ELF__)

#include <elf.h>

#define OUR_MAGIC ELFMAG

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#endif

static const char *machine_name(unsigned machine) {
  return machine == EM_X86_64 ? "x86-64" : machine == EM_AARCH64 ? "aarch64" : "another processor";
}

/* `count` entries of `entry` bytes at `offset` lie within the file. */
static bool table_fits(uint64_t offset, uint64_t count, uint64_t entry, size_t size) {
  return offset <= size && count * entry <= size - offset;
}

/* The section table stands at the end of a file, and what is loaded before it, so that this finds every truncation. */
static bool is_whole(const char *data, size_t size, const Elf64_Ehdr *header) {
  if (header->e_phentsize != sizeof(Elf64_Phdr) ||
      !table_fits(header->e_phoff, header->e_phnum, sizeof(Elf64_Phdr), size) ||
      !table_fits(header->e_shoff, header->e_shnum, sizeof(Elf64_Shdr), size)) {
    return false;
  }
  for (unsigned number = 0; number < header->e_phnum; number++) {
    Elf64_Phdr segment;
    memcpy(&segment, data + header->e_phoff + number * sizeof segment, sizeof segment);
    if (!table_fits(segment.p_offset, 1, segment.p_filesz, size)) {
      return false;
    }
  }
  return true;
}

/* What makes the system's loader run code of the library, or of any function that it names. */
static bool runs_code(const Elf64_Dyn *entry) {
  switch (entry->d_tag) {
  case DT_INIT:
  case DT_FINI:
    return entry->d_un.d_ptr != 0;
  case DT_INIT_ARRAYSZ:
  case DT_FINI_ARRAYSZ:
  case DT_PREINIT_ARRAYSZ:
    return entry->d_un.d_val != 0;
  default:
    return false;
  }
}

/* Kernels run where a fault of theirs is an error, and where they can be given up. What runs while the library is
 * loaded or unloaded would have neither. */
static mps_status check_no_code_is_run(const char *data, const Elf64_Ehdr *header, const char *name) {
  for (unsigned number = 0; number < header->e_phnum; number++) {
    Elf64_Phdr segment;
    memcpy(&segment, data + header->e_phoff + number * sizeof segment, sizeof segment);
    for (uint64_t at = 0; segment.p_type == PT_DYNAMIC && at + sizeof(Elf64_Dyn) <= segment.p_filesz;
         at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      memcpy(&entry, data + segment.p_offset + at, sizeof entry);
      if (runs_code(&entry)) {
        return refuse(name, "has code that runs when it is loaded or unloaded, outside of any kernel");
      }
    }
  }
  return MPS_STATUS_OK;
}

static mps_status check_format(const char *data, size_t size, const char *name) {
  Elf64_Ehdr header;
  if (size < sizeof header) {
    return refuse(name, "is cut off");
  }
  memcpy(&header, data, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != OUR_MACHINE) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s is made for %s, and this machine is %s: make it again here", name,
                    header.e_ident[EI_CLASS] != ELFCLASS64 ? "another processor" : machine_name(header.e_machine),
                    machine_name(OUR_MACHINE));
  }
  if (header.e_type != ET_DYN) {
    return refuse(name, "is an object or a program, not a shared object");
  }
  if (!is_whole(data, size, &header)) {
    return refuse(name, "is cut off");
  }
  if (mentions_our_symbol(data, size)) { /* of others, that they are no kernel libraries says more */
    return check_no_code_is_run(data, &header, name);
  }
  return MPS_STATUS_OK;
}

#else

#define OUR_MAGIC "\xcf\xfa\xed\xfe" /* Mach-O of 64 bits */

static mps_status check_format(const char *data, size_t size, const char *name) {
  (void)data, (void)size, (void)name;
  return MPS_STATUS_OK;
}

#endif

bool host_is_metallib(const void *data, size_t size) {
  return begins_with(data, size, "MTLB", 4);
}

/* By the first bytes alone. */
static mps_status check_start(const char *data, size_t size, const char *name) {
  if (size == 0) {
    return refuse(name, "is empty");
  }
  return begins_with(data, size, OUR_MAGIC, MAGIC_BYTES) ? MPS_STATUS_OK : refuse(name, "is no shared object");
}

static mps_status check_bytes(const char *data, size_t size, const char *name) {
  MPS_TRY(check_start(data, size, name));
  MPS_TRY(check_format(data, size, name));
  if (!mentions_our_symbol(data, size)) {
    return refuse(name, "is a shared object without kernels (no symbol " MSLC_LIBRARY_SYMBOL ")");
  }
  return MPS_STATUS_OK;
}

/* ---- loading ---- */

static bool write_all(int file, const char *data, size_t size) {
  while (size > 0) {
    ssize_t written = write(file, data, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    data += written;
    size -= (size_t)written;
  }
  return true;
}

/* The loader must never see one name twice: it would give back what it loaded for the first. A path in /proc is spelled
 * anew for each call, by "/." and "//" for the bits of a counter. */
#define UNIQUE_PATH 128

#if defined(__linux__)
static void spell_descriptor(char path[UNIQUE_PATH], int file) {
  static _Atomic uint32_t counter;
  uint32_t number = atomic_fetch_add(&counter, 1);
  size_t at = (size_t)snprintf(path, UNIQUE_PATH, "/proc/self/fd");
  for (unsigned bit = 0; bit < 32; bit++) {
    path[at++] = '/';
    path[at++] = number >> bit & 1 ? '.' : '/';
  }
  snprintf(path + at, UNIQUE_PATH - at, "/%d", file);
}

static void *load_from_memory(const char *data, size_t size) {
  int file = memfd_create("mslc-kernels", MFD_CLOEXEC);
  if (file < 0) {
    return NULL;
  }
  char path[UNIQUE_PATH];
  spell_descriptor(path, file);
  void *handle = write_all(file, data, size) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(file);
  return handle;
}
#else
static void *load_from_memory(const char *data, size_t size) {
  (void)data, (void)size;
  return NULL;
}
#endif

/* For systems without files in memory, or where they cannot be executed. */
static void *load_from_temporary_file(const char *data, size_t size) {
  const char *directory = getenv("TMPDIR");
  char path[1024];
  if (snprintf(path, sizeof path, "%s/mslc-kernels-XXXXXX", directory != NULL ? directory : "/tmp") >=
      (int)sizeof path) {
    return NULL;
  }
  int file = mkstemp(path);
  if (file < 0) {
    return NULL;
  }
  void *handle = write_all(file, data, size) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(file);
  unlink(path);
  return handle;
}

/* Debuggers find what is loaded by its path, and so do not find what was loaded from memory. */
static bool is_for_debugger(void) {
  const char *value = getenv("MPSCFFI_SHADER_DEBUG");
  return value != NULL && strcmp(value, "1") == 0;
}

static mps_status check_library(const mslc_library *library, const char *name) {
  if (library == NULL || library->magic != MSLC_LIBRARY_MAGIC) {
    return refuse(name, "is a shared object with another " MSLC_LIBRARY_SYMBOL);
  }
  if (library->abi != MSLC_KERNEL_ABI) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s has version %u of the kernel interface, this library version %u: compile it again", name,
                    library->abi, MSLC_KERNEL_ABI);
  }
  return MPS_STATUS_OK;
}

mps_status host_image_open(const void *data, size_t size, const char *name, host_image **out_image) {
  MPS_TRY(check_bytes(data, size, name));
  host_image *image = calloc(1, sizeof *image);
  if (image == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to load %s", name);
  }
  image->handle = is_for_debugger() ? NULL : load_from_memory(data, size);
  if (image->handle == NULL) {
    image->handle = load_from_temporary_file(data, size);
  }
  if (image->handle == NULL) {
    const char *reason = dlerror();
    mps_status status = mps_fail(MPS_STATUS_IO, "%s could not be loaded: %s", name,
                                 reason != NULL ? reason : "no temporary file can be written");
    free(image);
    return status;
  }
  atomic_init(&image->references, 1);
  image->library = dlsym(image->handle, MSLC_LIBRARY_SYMBOL);
  mps_status status = check_library(image->library, name);
  if (status != MPS_STATUS_OK) {
    host_image_drop(image);
    return status;
  }
  *image->library->runtime = &host_runtime;
  *out_image = image;
  return MPS_STATUS_OK;
}

static mps_status read_file(int file, size_t size, const char *path, char **out_data) {
  char *data = malloc(size + 1);
  if (data == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to read the %zu bytes of %s", size, path);
  }
  size_t done = 0;
  while (done < size) {
    ssize_t got = read(file, data + done, size - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      free(data);
      return got == 0 ? mps_fail(MPS_STATUS_IO, "%s became shorter while it was read", path)
                      : mps_fail(MPS_STATUS_IO, "%s cannot be read: %s", path, strerror(errno));
    }
    done += (size_t)got;
  }
  *out_data = data;
  return MPS_STATUS_OK;
}

static mps_status read_descriptor(int file, const char *path, char **out_data, size_t *out_size) {
  struct stat about;
  if (fstat(file, &about) != 0) {
    return mps_fail(MPS_STATUS_IO, "%s cannot be read: %s", path, strerror(errno));
  }
  if (S_ISDIR(about.st_mode)) {
    return refuse(path, "is a directory");
  }
  if (!S_ISREG(about.st_mode)) {
    return refuse(path, "is no regular file");
  }
  char start[MAGIC_BYTES];
  ssize_t length = pread(file, start, sizeof start, 0);
  if (length < 0) {
    return mps_fail(MPS_STATUS_IO, "%s cannot be read: %s", path, strerror(errno));
  }
  if (!host_is_metallib(start, (size_t)length)) {
    MPS_TRY(check_start(start, (size_t)length, path)); /* before a file of any size is read */
  }
  *out_size = (size_t)about.st_size;
  return read_file(file, *out_size, path, out_data);
}

mps_status host_library_read(const char *path, char **out_data, size_t *out_size) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    mps_status status = errno == ENOENT || errno == ENOTDIR ? MPS_STATUS_NOT_FOUND : MPS_STATUS_IO;
    return mps_fail(status, "%s cannot be opened: %s", path, strerror(errno));
  }
  mps_status status = read_descriptor(file, path, out_data, out_size);
  close(file);
  return status;
}

mps_status host_image_open_file(const char *path, host_image **out_image) {
  char *data = NULL;
  size_t size = 0;
  MPS_TRY(host_library_read(path, &data, &size));
  mps_status status = host_image_open(data, size, path, out_image);
  free(data);
  return status;
}

void host_image_hold(host_image *image) {
  atomic_fetch_add_explicit(&image->references, 1, memory_order_relaxed);
}

void host_image_drop(host_image *image) {
  if (atomic_fetch_sub_explicit(&image->references, 1, memory_order_acq_rel) == 1) {
    dlclose(image->handle);
    free(image);
  }
}

const mslc_kernel *host_image_kernel(const host_image *image, const char *name) {
  for (unsigned number = 0; number < image->library->kernel_count; number++) {
    if (strcmp(image->library->kernels[number]->name, name) == 0) {
      return image->library->kernels[number];
    }
  }
  return NULL;
}
