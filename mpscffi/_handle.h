/* Cells for handles. A function that creates an object writes its handle into a cell that is there before; when the
 * cell goes, the object is released. Both happen in C, so that no exception of a signal handler comes in between. */
#define MPSCFFI_CELL(noun)                                                                                             \
  static void mpscffi_drop_##noun(mps_##noun **cell) {                                                                 \
    mps_##noun##_release(*cell);                                                                                       \
  }

MPSCFFI_CELL(device)
MPSCFFI_CELL(buffer)
MPSCFFI_CELL(queue)
MPSCFFI_CELL(event)
MPSCFFI_CELL(library)
MPSCFFI_CELL(pipeline)
