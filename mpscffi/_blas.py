"""Gives the host device its products of matrices: NumPy's, which are those of a BLAS."""

from __future__ import annotations

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

_installed = False
_lock = threading.RLock()
#: Threads that compute a product now.
_active: set[int] = set()


def install() -> None:
    """Set the function, once."""
    global _installed
    with _lock:
        if not _installed:
            check(lib.mps_matmul_set(lib.mpscffi_matmul, ffi.NULL))
            final_calls.append(_uninstall)
            _installed = True


def _uninstall() -> None:
    """Let no product begin in an interpreter that ends, and those that run end, as far as they do soon."""
    lib.mps_matmul_set(ffi.NULL, ffi.NULL)
    deadline = time.monotonic() + EXIT_SECONDS
    while _active and time.monotonic() < deadline:
        time.sleep(0.002)


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
