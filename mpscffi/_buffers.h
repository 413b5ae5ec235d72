/* What the allocator asks of the library at every miss of its cache: one call where Python would make many. */

/* Buffers one after the other in a heap, and where the CPU sees them. Those that exist are in `buffers`, also when a later
 * one fails. */
static mps_status mpscffi_make_buffers(mps_heap *heap, uint64_t offset, uint64_t size, int is_private, uint32_t count,
                                       mps_buffer **buffers, uintptr_t *addresses) {
  mps_buffer_desc desc = {.struct_size = sizeof desc,
                          .length = size,
                          .storage_mode = is_private ? MPS_STORAGE_PRIVATE : MPS_STORAGE_SHARED};
  for (uint32_t i = 0; i < count; i++) {
    mps_status status = mps_buffer_create_in_heap(heap, &desc, offset + i * size, &buffers[i]);
    void *contents = NULL;
    if (status == MPS_STATUS_OK && !is_private) {
      status = mps_buffer_contents(buffers[i], &contents);
    }
    if (status != MPS_STATUS_OK) {
      return status;
    }
    addresses[i] = (uintptr_t)contents;
  }
  return MPS_STATUS_OK;
}

/* Release those that exist. */
static void mpscffi_drop_buffers(mps_buffer **buffers, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    mps_buffer *buffer = buffers[i];
    buffers[i] = NULL;
    mps_buffer_release(buffer);
  }
}

/* The bytes that the device holds for this process; UINT64_MAX after an error. */
static uint64_t mpscffi_allocated_size(mps_device *device) {
  uint64_t bytes;
  return mps_device_allocated_size(device, &bytes) == MPS_STATUS_OK ? bytes : UINT64_MAX;
}
