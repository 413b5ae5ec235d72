"""Build script of ``mpscffi._shim``, the compiled binding of libmpsshim.

The C header is the only description of the interface. What stands between its two ``cdef`` marks is given to cffi,
after the export macro and the macros that take parameters are dropped, and constants are left to the C compiler. The
types of this package's own headers are read in the same way.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

#: Python functions that C calls. Each gets an integer token as its ``user`` pointer, never a handle of an object.
CALLBACKS = """
extern "Python" {
  mps_status mpscffi_compile(void *user, const mps_compile_request *request, mps_compile_result *result);
  mps_status mpscffi_matmul(void *user, const mps_matmul *matmul, const void *left, const void *right, void *result);
  void mpscffi_callback(void *user);
  void mpscffi_handler(void *user, const mps_command_info *info);
  void mpscffi_log(void *user, const mps_log_message *message);
  void mpscffi_release(void *user, void *pointer, uint64_t length);
}
"""

#: Functions of ``_philox.h`` for Python.
PHILOX = """
void mpscffi_philox(uint64_t seed, uint64_t index, uint32_t purpose, uint32_t *words);
uint64_t mpscffi_stream_take(mpscffi_stream *stream, uint64_t blocks);
uint64_t mpscffi_stream_offset(mpscffi_stream *stream);
void mpscffi_stream_set(mpscffi_stream *stream, uint64_t seed, uint64_t offset);
void mpscffi_bitgen_attach(uintptr_t address, mpscffi_stream *stream);
"""

#: Functions of ``_buffers.h`` for Python.
BUFFERS = """
mps_status mpscffi_make_buffers(mps_heap *heap, uint64_t offset, uint64_t size, int is_private, uint32_t count,
                                mps_buffer **buffers, uintptr_t *addresses);
void mpscffi_drop_buffers(mps_buffer **buffers, uint32_t count);
uint64_t mpscffi_allocated_size(mps_device *device);
"""

#: Functions of ``_handle.h`` for Python.
HANDLES = """
void mpscffi_drop_device(mps_device **cell);
void mpscffi_drop_buffer(mps_buffer **cell);
void mpscffi_drop_queue(mps_queue **cell);
void mpscffi_drop_event(mps_event **cell);
void mpscffi_drop_library(mps_library **cell);
void mpscffi_drop_pipeline(mps_pipeline **cell);
"""

#: Functions of ``_blas.h`` for Python.
BLAS = """
void mpscffi_blas_use(uintptr_t sgemm, uintptr_t sgemv, int is_64);
int mpscffi_blas_active(void);
mps_status mpscffi_blas_multiply(void *user, const mps_matmul *matmul, const void *left, const void *right,
                                 void *result);
"""

#: Functions and constants of ``_release.h``, ``_dlpack.h`` and ``_mapping.h`` for Python.
MEMORY = """
void mpscffi_close(void);
void mpscffi_let_go(void *user, void *pointer, uint64_t length);
int mpscffi_new_tensor(mpscffi_tensor *cell, int versioned, uint64_t flags, DLDevice device, uint8_t code, uint8_t bits,
                       uintptr_t data, uint64_t byte_offset, int32_t ndim, const int64_t *numbers, void *token);
void mpscffi_drop_tensor(mpscffi_tensor *cell);
void mpscffi_delete_tensor(void *user, void *pointer, uint64_t length);
void mpscffi_delete_versioned(void *user, void *pointer, uint64_t length);
static const char mpscffi_name[];
static const char mpscffi_name_versioned[];
static const char mpscffi_used[];
static const char mpscffi_used_versioned[];
void *mpscffi_capsule(mpscffi_tensor *cell);
void mpscffi_capsule_spend(void *object);
#define MPSCFFI_READ ...
#define MPSCFFI_WRITE ...
#define MPSCFFI_COPY_ON_WRITE ...
int mpscffi_map_buffer(mps_device *device, int file, uint64_t offset, uint64_t length, uint64_t page, int access,
                       mps_buffer **out_buffer);
"""


def cdef_of(header: str) -> str:
    """Return the declarations that cffi is to parse.

    Parameters
    ----------
    header : str
        The text of a header.

    Returns
    -------
    str
        C declarations.
    """
    begin, end = re.search(r"/\* cdef: begin.*?\*/", header), re.search(r"/\* cdef: end \*/", header)
    if begin is None or end is None:
        raise ValueError("the header lacks the marks 'cdef: begin' and 'cdef: end'")
    text = header[begin.end() : end.start()]
    text = text.replace("MPS_API ", "")
    text = re.sub(r"^#define\s+\w+\([^\n]*\n", "", text, flags=re.M)
    return re.sub(r"^(#define\s+\w+)\s[^\n]*", r"\1 ...", text, flags=re.M)


def header_path() -> Path:
    """Return where the header lies in the source tree."""
    return Path(__file__).resolve().parent.parent / "shim" / "include" / "mpsshim.h"


PHILOX_H, BUFFERS_H, HANDLE_H, RELEASE_H, DLPACK_H, MAPPING_H, BLAS_H = (
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("_philox.h", "_buffers.h", "_handle.h", "_release.h", "_dlpack.h", "_mapping.h", "_blas.h")
)

ffibuilder = FFI()
ffibuilder.cdef(cdef_of(header_path().read_text(encoding="utf-8")) + CALLBACKS + HANDLES)
ffibuilder.cdef(cdef_of(PHILOX_H) + PHILOX + BUFFERS + cdef_of(DLPACK_H) + MEMORY + BLAS)
ffibuilder.set_source(
    "mpscffi._shim",
    '#include "mpsshim.h"\n' + PHILOX_H + BUFFERS_H + HANDLE_H + RELEASE_H + DLPACK_H + MAPPING_H + BLAS_H,
)
