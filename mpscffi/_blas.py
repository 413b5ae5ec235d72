"""Gives the host device its products of matrices: by the BLAS that NumPy brings, else by NumPy itself."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mpscffi._callbacks import EXIT_SECONDS
from mpscffi._ffi import check, ffi, lib
from mpscffi.dtypes import device_dtype
from mpscffi.stream import final_calls

__all__ = ["install"]

_DTYPES = {lib.MPS_DATA_FLOAT: "float32", lib.MPS_DATA_HALF: "float16", lib.MPS_DATA_BFLOAT: "bfloat16"}
#: What the builds of a BLAS call its functions, and whether their integers have 64 bits: NumPy's wheels, then others.
_NAMES = (
    ("scipy_cblas_{}64_", True),
    ("cblas_{}64_", True),
    ("cblas_{}$NEWLAPACK$ILP64", True),
    ("scipy_cblas_{}", False),
    ("cblas_{}", False),
)

_installed = False
_lock = threading.RLock()
#: Threads that compute a product now, by NumPy.
_active: set[int] = set()


def install() -> None:
    """Set the function, once."""
    global _installed
    if _installed:
        return
    with _lock:
        if not _installed:
            set_function()
            final_calls.append(_uninstall)
            _installed = True


def set_function() -> None:
    """Set the best function that there is."""
    if _find_blas():
        check(lib.mps_matmul_set(ffi.addressof(lib, "mpscffi_blas_multiply"), ffi.NULL, lib.MPS_MATMUL_ANY_THREAD))
    else:
        # Not on any thread: Python's signal handlers run on the main one, in the midst of what it does.
        check(lib.mps_matmul_set(lib.mpscffi_matmul, ffi.NULL, 0))


def _find_blas() -> bool:
    """Look for the BLAS that NumPy was linked with: its functions are found by way of the module that uses them."""
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    try:
        library = ctypes.CDLL(core.__file__ if core is not None else None)
    except (OSError, AttributeError):  # linked into the interpreter, say
        return False
    for name, is_64 in _NAMES:
        functions = [getattr(library, name.format(function), None) for function in ("sgemm", "sgemv")]
        if None not in functions:
            addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)  # type: ignore[arg-type]
            lib.mpscffi_blas_use(*addresses, is_64)
            return True
    return False


def _uninstall() -> None:
    """Let no product begin in a process that ends, and those that run end, as far as they do soon."""
    lib.mps_matmul_set(ffi.NULL, ffi.NULL, 0)
    deadline = time.monotonic() + EXIT_SECONDS
    while (_active or lib.mpscffi_blas_active()) and time.monotonic() < deadline:
        time.sleep(0.002)


# ---- by NumPy


def _matrices(matrix: Any, count: int, address: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return NumPy's view of an operand: one matrix, or a batch of them."""
    rows, columns, row_bytes, step = matrix.rows, matrix.columns, matrix.row_bytes, matrix.matrix_bytes
    shape: tuple[int, ...] = (rows, columns)
    strides: tuple[int, ...] = (row_bytes, dtype.itemsize)
    length = rows * row_bytes
    if count > 1 and step:
        shape, strides, length = (count, *shape), (step, *strides), length + (count - 1) * step
    view: npt.NDArray[Any] = np.ndarray(shape, dtype, ffi.buffer(ffi.cast("char *", address), length), 0, strides)
    return view.swapaxes(-1, -2) if matrix.transposed else view


def _multiply(matmul: Any, left: Any, right: Any, result: Any) -> None:
    dtype = device_dtype(_DTYPES[matmul.data_type])
    count = matmul.count
    a = _matrices(matmul.left, count, left, dtype)
    b = _matrices(matmul.right, count, right, dtype)
    out = _matrices(matmul.result, count, result, dtype)
    # NumPy would warn of what is as it should be: infinities and NaN go on to the result.
    with np.errstate(all="ignore"):
        if matmul.data_type == lib.MPS_DATA_FLOAT:
            np.matmul(a, b, out=out)
        else:
            # The sum is rounded to its element type at the end, not at each step.
            out[...] = np.matmul(a.astype(np.float32), b.astype(np.float32))


@ffi.def_extern(error=lib.MPS_STATUS_INTERNAL)  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_matmul(user: Any, matmul: Any, left: Any, right: Any, result: Any) -> int:
    """Compute a product, on a queue's thread."""
    del user
    status: int = lib.MPS_STATUS_OK
    thread = threading.get_ident()
    _active.add(thread)
    try:
        _multiply(matmul, left, right, result)
    except MemoryError:
        status = lib.MPS_STATUS_OUT_OF_MEMORY
    finally:
        _active.discard(thread)
    return status
