/* Files in memory, at addresses that a device can take over. */
#include <sys/mman.h>

#define MPSCFFI_READ 0
#define MPSCFFI_WRITE 1         /* through to the file */
#define MPSCFFI_COPY_ON_WRITE 2 /* for this process alone */

/* Map `length` bytes of a file to a multiple of `page`. The room is whole pages of that size: what lies behind the end
 * of the file cannot be touched. NULL, and errno, on failure. */
static void *map_file(int file, uint64_t offset, uint64_t length, uint64_t page, int access) {
  size_t size = (size_t)((length + page - 1) / page * page);
  char *room = mmap(NULL, size + page, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (room == MAP_FAILED) {
    return NULL;
  }
  size_t head = (size_t)(-(uintptr_t)room & (page - 1));
  if (head > 0) {
    munmap(room, head);
  }
  munmap(room + head + size, page - head);
  int protection = access == MPSCFFI_READ ? PROT_READ : PROT_READ | PROT_WRITE;
  int flags = (access == MPSCFFI_COPY_ON_WRITE ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED;
  if (mmap(room + head, (size_t)length, protection, flags, file, (off_t)offset) == MAP_FAILED) {
    int fault = errno;
    munmap(room + head, size);
    errno = fault;
    return NULL;
  }
  return room + head;
}

/* An mps_release_fn. */
static void unmap(void *user, void *pointer, uint64_t length) {
  (void)user;
  munmap(pointer, (size_t)length);
}

/* Make a buffer over `length` bytes of a file, which stays mapped as long as the buffer lives. An mps_status, or -1 and
 * errno. */
static int mpscffi_map_buffer(mps_device *device, int file, uint64_t offset, uint64_t length, uint64_t page, int access,
                              mps_buffer **out_buffer) {
  char *address = map_file(file, offset, length, page, access);
  if (address == NULL) {
    return -1;
  }
  mps_buffer_desc desc = {.struct_size = sizeof desc, .length = (length + page - 1) / page * page};
  mps_status status = mps_buffer_create_no_copy(device, address, &desc, unmap, NULL, out_buffer);
  if (status != MPS_STATUS_OK) {
    munmap(address, (size_t)desc.length);
  }
  return (int)status;
}
