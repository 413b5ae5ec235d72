/* DLPack's structs (https://dmlc.github.io/dlpack), and the ends of their lives, which come on any thread. */
#include <Python.h>

#include <stdlib.h>
#include <string.h>

/* cdef: begin */
typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* Where a tensor is kept until a capsule owns it. */
typedef struct {
  void *tensor; /* a DLManagedTensorVersioned or a DLManagedTensor */
  int versioned;
} mpscffi_tensor;
/* cdef: end */

/* ---- tensors that are given away: manager_ctx is the token of what keeps the memory ---- */

static void delete_plain(DLManagedTensor *self) {
  void *token = self->manager_ctx;
  free(self);
  mpscffi_let_go(token, NULL, 0);
}

static void delete_versioned(DLManagedTensorVersioned *self) {
  void *token = self->manager_ctx;
  free(self);
  mpscffi_let_go(token, NULL, 0);
}

/* Make a tensor. `numbers` are shape and strides, one after the other, and copied. 0 without memory. */
static int mpscffi_new_tensor(mpscffi_tensor *cell, int versioned, uint64_t flags, DLDevice device, uint8_t code,
                              uint8_t bits, uintptr_t data, uint64_t byte_offset, int32_t ndim, const int64_t *numbers,
                              void *token) {
  size_t size = versioned ? sizeof(DLManagedTensorVersioned) : sizeof(DLManagedTensor);
  size_t bytes = 2 * (size_t)ndim * sizeof *numbers;
  char *tensor = malloc(size + bytes);
  if (tensor == NULL) {
    return 0;
  }
  int64_t *kept = (int64_t *)(void *)(tensor + size);
  memcpy(kept, numbers, bytes);
  DLTensor described = {(void *)data, device, ndim, {code, bits, 1}, kept, kept + ndim, byte_offset};
  if (versioned) {
    *(DLManagedTensorVersioned *)(void *)tensor =
        (DLManagedTensorVersioned){{1, 0}, token, delete_versioned, flags, described};
  } else {
    *(DLManagedTensor *)(void *)tensor = (DLManagedTensor){described, token, delete_plain};
  }
  *cell = (mpscffi_tensor){tensor, versioned};
  return 1;
}

/* ---- tensors that were taken: their own deleter ends them ---- */

static void mpscffi_delete_tensor(void *user, void *pointer, uint64_t length) {
  (void)pointer, (void)length;
  DLManagedTensor *tensor = user;
  if (tensor->deleter != NULL && enter()) {
    tensor->deleter(tensor);
    leave();
  }
}

static void mpscffi_delete_versioned(void *user, void *pointer, uint64_t length) {
  (void)pointer, (void)length;
  DLManagedTensorVersioned *tensor = user;
  if (tensor->deleter != NULL && enter()) {
    tensor->deleter(tensor);
    leave();
  }
}

/* ---- tensors on the way into a capsule ---- */

static void mpscffi_drop_tensor(mpscffi_tensor *cell) {
  if (cell->tensor != NULL) {
    (cell->versioned ? mpscffi_delete_versioned : mpscffi_delete_tensor)(cell->tensor, NULL, 0);
  }
}

/* ---- capsules: the consumer of one renames it, and then owns the tensor ---- */

static const char mpscffi_name[] = "dltensor";
static const char mpscffi_name_versioned[] = "dltensor_versioned";
static const char mpscffi_used[] = "used_dltensor";
static const char mpscffi_used_versioned[] = "used_dltensor_versioned";

/* A PyCapsule_Destructor. A capsule that nobody consumed still owns its tensor. */
static void mpscffi_capsule_end(PyObject *capsule) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (PyCapsule_IsValid(capsule, mpscffi_name)) {
    mpscffi_delete_tensor(PyCapsule_GetPointer(capsule, mpscffi_name), NULL, 0);
  } else if (PyCapsule_IsValid(capsule, mpscffi_name_versioned)) {
    mpscffi_delete_versioned(PyCapsule_GetPointer(capsule, mpscffi_name_versioned), NULL, 0);
  }
  PyErr_Restore(type, value, trace);
}

/* What follows is called with the GIL held, and so in one piece: no exception of a signal handler comes in between. */

/* Return a capsule that owns the tensor of a cell from here on; NULL and an exception without memory. */
static void *mpscffi_capsule(mpscffi_tensor *cell) {
  const char *name = cell->versioned ? mpscffi_name_versioned : mpscffi_name;
  PyObject *capsule = PyCapsule_New(cell->tensor, name, mpscffi_capsule_end);
  if (capsule != NULL) {
    cell->tensor = NULL;
  }
  return capsule;
}

/* Consume a capsule that nobody has consumed, and end its tensor. */
static void mpscffi_capsule_spend(void *object) {
  if (PyCapsule_IsValid(object, mpscffi_name)) {
    void *tensor = PyCapsule_GetPointer(object, mpscffi_name);
    PyCapsule_SetName(object, mpscffi_used);
    mpscffi_delete_tensor(tensor, NULL, 0);
  } else {
    void *tensor = PyCapsule_GetPointer(object, mpscffi_name_versioned);
    PyCapsule_SetName(object, mpscffi_used_versioned);
    mpscffi_delete_versioned(tensor, NULL, 0);
  }
}
