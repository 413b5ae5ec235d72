"""Products of matrices: Metal Performance Shaders on Metal, NumPy's BLAS on the host device, or a kernel of our own.

The kernel, ``kernels/matmul.metal``, takes what the others lack: bfloat16 on Metal, layouts that are neither rows nor
columns, and everything under ``PYTORCH_MPS_PREFER_METAL``.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpscffi import _blas, fallback
from mpscffi._ffi import check, ffi, lib
from mpscffi.array import Array, _allocate, _c_strides, _filled_from, span
from mpscffi.config import settings
from mpscffi.device import Device, current_device
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from mpscffi.kernel import Kernel
from mpscffi.shader import ShaderLibrary, compile_shader
from mpscffi.stream import current_stream

__all__ = ["matmul"]

#: Element types, by their dtypes' names: the C library's, and the kernel's.
_TYPES = {
    "float32": (lib.MPS_DATA_FLOAT, "float"),
    "float16": (lib.MPS_DATA_HALF, "half"),
    "bfloat16": (lib.MPS_DATA_BFLOAT, "bfloat"),
}
_MATMUL = ffi.typeof("mps_matmul *")
_MATMUL_SIZE = ffi.sizeof("mps_matmul")
#: Rows and columns of the kernel's tiles, and threads for each.
_TILE, _THREADS = 32, 128
#: Results of one launch of the kernel: positions in a grid are numbers of 32 bits.
_LAUNCH = 1 << 16


def matmul(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return the product of two matrices, or of each two of two stacks of them.

    Shapes are as for ``numpy.matmul``: the last two axes are the matrices, those before broadcast, and an array of one
    axis is a row on the left and a column on the right, whose axis the result lacks. The work is queued on the current
    stream.

    Parameters
    ----------
    a, b : Array
        Of float32, float16 or bfloat16, both of the same. Transposed views are taken without a copy.
    out : Array, optional
        Where the result goes: of its shape and dtype, and sharing no memory with `a` or `b`.

    Returns
    -------
    Array
        The result, or `out`. Sums are made in float32 and rounded once.

    Raises
    ------
    ArgumentTypeError
        For other dtypes, unless ``PYTORCH_ENABLE_MPS_FALLBACK`` is set: then NumPy multiplies what it can, and a
        :class:`~mpscffi.errors.FallbackWarning` says so.
    """
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Array):
            raise ArgumentTypeError(f"matmul: got {type(operand).__name__} as {name}, expected an mpscffi.Array")
    shape = _result_shape(a.shape, b.shape)
    if out is not None:
        _check_out(out, shape, a, b)
    _check_devices(a, b, *(() if out is None else (out,)))
    if a.dtype != b.dtype or _data_type(a.dtype) is None:
        return _on_cpu(a, b, out)
    result = _allocate((shape,), a.dtype, "matmul") if out is None else out
    if result.size:
        if result.device.backend == "host":
            _blas.install()
        if not _queue_plain(a, b, result):
            _multiply(a, b, result)
    return result


# ---- checks


def _result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    for number, shape in enumerate((a, b)):
        if not shape:
            raise InvalidArgumentError(
                f"matmul: operand {number} does not have enough dimensions: it has 0, at least 1 is required"
            )
    if len(a) == len(b) == 2 and a[1] == b[0]:
        return a[0], b[1]
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise InvalidArgumentError(
            f"matmul: mismatch in the inner dimension of shapes {a} and {b}: size {inner} is different from {a[-1]}"
        )
    try:
        stack = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise InvalidArgumentError(
            f"matmul: operands could not be broadcast together: {a} and {b} have the stacks {a[:-2]} and {b[:-2]}"
        ) from None
    return stack + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def _check_out(out: Array, shape: tuple[int, ...], a: Array, b: Array) -> None:
    if not isinstance(out, Array):
        raise ArgumentTypeError(f"matmul: got {type(out).__name__} as out, expected an mpscffi.Array")
    if out.shape != shape:
        raise InvalidArgumentError(f"matmul: got out of shape {out.shape}, expected {shape}")
    if out.dtype != a.dtype and a.dtype == b.dtype:
        raise ArgumentTypeError(f"matmul: got out of {out.dtype}, expected {a.dtype} as the operands")
    out._check_writable()
    for name, operand in (("a", a), ("b", b)):
        # Two blocks may lie over the same host memory; those of private memory have no addresses to compare.
        is_near = out._block is operand._block or out.storage == operand.storage == "shared"
        if is_near and np.may_share_memory(out._layout(), operand._layout()):
            raise InvalidArgumentError(f"matmul: out and {name} share memory: give out an array of its own")


def _check_devices(*arrays: Array) -> None:
    device = current_device()
    for array in arrays:
        if array.device is not device:
            raise InvalidArgumentError(
                f"matmul: an array is on {array.device}, the device in use is {device}: call set_device first"
            )


# ---- on the CPU, by NumPy


def _on_cpu(a: Array, b: Array, out: Array | None) -> Array:
    if a.dtype != b.dtype:
        raise ArgumentTypeError(
            f"matmul: got dtypes {a.dtype} and {b.dtype}, expected the same of both: convert one, as by astype"
        )
    if a.dtype.kind not in "biufc" or not fallback.allows("matmul", a.dtype):
        raise ArgumentTypeError(
            f"matmul: got arrays of {a.dtype}, expected {', '.join(_TYPES)}: convert them, as by astype, "
            "or set PYTORCH_ENABLE_MPS_FALLBACK=1 for a product on the CPU"
        )
    with fallback.marked(f"matmul {a.dtype}"):
        product = np.matmul(a.numpy(), b.numpy())
        return _filled_from(product) if out is None else out.copy_from(product)


# ---- operands as matrices


class _Rows(NamedTuple):
    """How the C library takes a matrix: as rows of itself, or of its transpose."""

    row_bytes: int
    transposed: bool


class _Matrix(NamedTuple):
    """An operand or the result, as matrices of one shape. Steps and offsets are bytes."""

    array: Array
    rows: int
    columns: int
    down: int
    along: int
    #: From one matrix to the next, along each axis of the stack.
    steps: tuple[int, ...]

    @property
    def T(self) -> _Matrix:
        """The transposes of the same matrices."""
        return self._replace(rows=self.columns, columns=self.rows, down=self.along, along=self.down)

    def is_aligned(self) -> bool:
        """Tell whether all elements lie at multiples of their size."""
        size = self.array.itemsize
        return not any(step % size for step in (self.array._offset, self.down, self.along, *self.steps))

    def as_rows(self, stack: tuple[int, ...]) -> _Rows | None:
        """Return how the C library takes it; None if it cannot."""
        size = self.array.itemsize
        if not self.is_aligned() or min(self.steps, default=0) < 0:
            return None
        reach = sum((length - 1) * step for length, step in zip(stack, self.steps, strict=True))
        # The gap behind the last row has to be there, too.
        room = self.array._block.length - self.array._offset - reach
        for matrix in (self, self.T):
            row = matrix.columns * size
            row_bytes = matrix.down if matrix.rows > 1 else row
            if (matrix.columns == 1 or matrix.along == size) and row <= row_bytes and matrix.rows * row_bytes <= room:
                return _Rows(row_bytes, matrix is not self)
        return None


class _Product(NamedTuple):
    left: _Matrix
    right: _Matrix
    result: _Matrix
    stack: tuple[int, ...]
    is_transposed: bool = False

    @property
    def T(self) -> _Product:
        """The product of the transposes, which is the transposed one."""
        return _Product(self.right.T, self.left.T, self.result.T, self.stack, not self.is_transposed)


def _product(a: Array, b: Array, result: Array) -> _Product:
    # An array of one axis is a row on the left and a column on the right.
    rows, down = (a.shape[-2], a.strides[-2]) if a.ndim > 1 else (1, 0)
    columns, along = (b.shape[-1], b.strides[-1]) if b.ndim > 1 else (1, 0)
    inner, inner_down = (b.shape[-2], b.strides[-2]) if b.ndim > 1 else (b.shape[0], b.strides[0])
    depth = result.ndim - (a.ndim > 1) - (b.ndim > 1)
    left = _Matrix(a, rows, inner, down, a.strides[-1], _steps(a, depth))
    right = _Matrix(b, inner, columns, inner_down, along, _steps(b, depth))
    strides = result.strides
    down = strides[depth] if a.ndim > 1 else 0
    along = strides[-1] if b.ndim > 1 else 0
    target = _Matrix(result, rows, columns, down, along, strides[:depth])
    return _Product(left, right, target, result.shape[:depth])


def _steps(array: Array, depth: int) -> tuple[int, ...]:
    """Return the steps along a stack of so many axes that the array's own stack broadcasts to."""
    own = [0 if length == 1 else step for length, step in zip(array.shape[:-2], array.strides[:-2], strict=True)]
    return (0,) * (depth - len(own)) + tuple(own)


class _Run(NamedTuple):
    """Products that lie at equal distances: how many, the steps of the three matrices, and where the first ones lie."""

    length: int
    steps: tuple[int, ...]
    offsets: tuple[int, ...]


def _runs(product: _Product) -> Iterator[_Run]:
    """Cut a stack into as few runs as there can be."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    by_axis = zip(product.left.steps, product.right.steps, product.result.steps, strict=True)
    for length, steps in zip(reversed(product.stack), reversed(list(by_axis)), strict=True):
        if length == 1:
            continue
        if axes and steps == tuple(axes[-1][0] * step for step in axes[-1][1]):
            axes[-1] = (axes[-1][0] * length, axes[-1][1])
        else:
            axes.append((length, steps))
    count, inner = axes[0] if axes else (1, (0, 0, 0))
    for place in itertools.product(*(range(length) for length, _ in axes[1:])):
        offsets = (sum(i * steps[n] for i, (_, steps) in zip(place, axes[1:], strict=True)) for n in range(3))
        yield _Run(count, inner, tuple(offsets))


# ---- by whom


def _multiply(a: Array, b: Array, result: Array) -> None:
    """Queue a product that has elements."""
    product = _product(a, b, result)
    if not product.left.columns:
        result.copy_from(np.zeros((), np.float32), non_blocking=True)
        return
    on_metal = result.device.backend == "metal"
    own = settings().prefer_metal or (on_metal and _is_bfloat(a.dtype))
    if not own and _by_library(product):
        return
    if (own or on_metal) and all(matrix.is_aligned() for matrix in product[:3]):
        _by_kernel(product)
        return
    packed = result if _is_packed(result) else _allocate((result.shape,), result.dtype, "matmul")
    _multiply(a if _is_packed(a) else a.copy(), b if _is_packed(b) else b.copy(), packed)
    if packed is not result:
        result.copy_from(packed)


def _is_bfloat(dtype: np.dtype[Any]) -> bool:
    return _data_type(dtype) == lib.MPS_DATA_BFLOAT


def _is_packed(array: Array) -> bool:
    """Tell whether an array can be taken in every way."""
    return array.is_contiguous and array._offset % array.itemsize == 0


# ---- by the C library


def _by_library(product: _Product) -> bool:
    """Queue a product as a command of its own; False if a layout is not one for it."""
    rows = [matrix.as_rows(product.stack) for matrix in product[:3]]
    left, right, result = rows
    if left is None or right is None or result is None:
        return False
    if result.transposed:
        return _by_library(product.T)
    whole = product.result.rows * result.row_bytes
    if any(length > 1 and step < whole for length, step in zip(product.stack, product.result.steps, strict=True)):
        return False  # results lie in each other's gaps
    call = _call(product, (left, right, result))
    stream = current_stream()
    stream._use(matrix.array._block for matrix in product[:3])
    runs = list(_runs(product))
    for run in runs:
        _aim(call, product, run)
        if stream._recording is not None:
            kept = ffi.new("mps_matmul *", call[0])
            stream._recording.take_product(kept, _by_name(product), is_whole=len(runs) == 1)
        else:
            check(lib.mps_queue_matmul(stream._pointer, call))
    return True


@functools.cache
def _data_type(dtype: np.dtype[Any]) -> int | None:
    """Return the C library's number of an element type, None if it has no products of it."""
    return _TYPES[dtype.name][0] if dtype.name in _TYPES else None


class _Stored(NamedTuple):
    """Matrices without gaps, as the C library takes them."""

    rows: int
    columns: int
    row_bytes: int
    matrix_bytes: int
    transposed: int


@functools.lru_cache(maxsize=1024)
def _plain(
    a: tuple[int, ...],
    a_strides: tuple[int, ...] | None,
    b: tuple[int, ...],
    b_strides: tuple[int, ...] | None,
    size: int,
) -> tuple[int, _Stored, _Stored, _Stored] | None:
    """Return how many products there are of arrays of two shapes, and operands and result; None if it is less plain.

    Strides are None for C order; `size` is an element's. One of them may be a single matrix for the other's stack.
    """
    if len(a) < 2 or len(b) < 2 or not a[-1] or (a[:-2] and b[:-2] and a[:-2] != b[:-2]):
        return None
    left, right = _stored(a, a_strides, size), _stored(b, b_strides, size)
    if left is None or right is None:
        return None
    count, rows, columns = math.prod(a[:-2] or b[:-2]), a[-2], b[-1]
    if not b[:-2] and not left.transposed:  # the left matrices are the rows of a single one
        rows *= count
        left = left._replace(rows=rows)
        count = 1
    return count, left, right, _Stored(rows, columns, columns * size, rows * columns * size, 0)


def _stored(shape: tuple[int, ...], strides: tuple[int, ...] | None, size: int) -> _Stored | None:
    """Return how an array's matrices are stored, if they and their stack have no gaps."""
    *stack, rows, columns = shape
    each = rows * columns * size if stack else 0
    if strides is None:
        return _Stored(rows, columns, columns * size, each, 0)
    *steps, along, down = _c_strides((*stack, columns, rows), size)
    return _Stored(columns, rows, rows * size, each, 1) if strides == (*steps, down, along) else None


def _queue_plain(a: Array, b: Array, result: Array) -> bool:
    """Queue the product of arrays without gaps, the usual case, quickly; False if it is not that."""
    size = a.dtype.itemsize
    plain = _plain(a.shape, a._strides, b.shape, b._strides, size) if result._strides is None else None
    stream = current_stream()
    if plain is None or (a._offset | b._offset | result._offset) % size or stream._recording is not None:
        return False
    if settings().prefer_metal or (result.device.backend == "metal" and _is_bfloat(a.dtype)):
        return False
    left, right, target = a._block, b._block, result._block
    count, of_left, of_right, of_target = plain
    call = ffi.new(
        _MATMUL,
        (
            _MATMUL_SIZE,
            _data_type(a.dtype),
            0,
            count,
            (left.pointer, a._offset, *of_left),
            (right.pointer, b._offset, *of_right),
            (target.pointer, result._offset, *of_target),
        ),
    )
    stream._use((left, right, target))
    check(lib.mps_queue_matmul(stream._pointer, call))
    return True


def _call(product: _Product, layouts: tuple[_Rows, _Rows, _Rows]) -> Any:
    """Return an ``mps_matmul``, filled in but for where a run's matrices lie."""
    call = ffi.new(_MATMUL)
    call.struct_size = _MATMUL_SIZE
    call.data_type = _data_type(product.result.array.dtype)
    targets = (call.left, call.right, call.result)
    for target, matrix, layout in zip(targets, product[:3], layouts, strict=True):
        target.buffer = matrix.array._block.pointer
        target.rows, target.columns = matrix.rows, matrix.columns
        target.row_bytes = layout.row_bytes
        if layout.transposed:
            target.rows, target.columns = matrix.columns, matrix.rows
            target.transposed = 1
    return call


def _aim(call: Any, product: _Product, run: _Run) -> None:
    """Fill in where a run's matrices lie."""
    targets = (call.left, call.right, call.result)
    for target, matrix, step, offset in zip(targets, product[:3], run.steps, run.offsets, strict=True):
        target.matrix_bytes = step
        target.offset = matrix.array._offset + offset
    height = product.result.rows
    call.count = run.length
    if run.length > 1 and _is_tall(call, height):
        # One right matrix for all: the left ones are the rows of a single one.
        height *= run.length
        call.count = 1
    call.result.rows = height
    if not call.left.transposed:
        call.left.rows = height


def _by_name(product: _Product) -> dict[str, Array]:
    """Return the arrays by their names as arguments of :func:`matmul`."""
    operands = (product.right, product.left) if product.is_transposed else (product.left, product.right)
    return {"a": operands[0].array, "b": operands[1].array, "out": product.result.array}


def _is_tall(call: Any, rows: int) -> bool:
    left, result = call.left, call.result
    return (
        not call.right.matrix_bytes
        and not left.transposed
        and left.matrix_bytes == rows * left.row_bytes
        and result.matrix_bytes == rows * result.row_bytes
    )


# ---- by the kernel

_libraries: dict[Device, ShaderLibrary] = {}
_lock = threading.Lock()


def _kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel for elements of a dtype, on the device in use."""
    device = current_device()
    with _lock:
        library = _libraries.get(device)
        if library is None:
            source = Path(__file__).with_name("kernels") / "matmul.metal"
            library = _libraries[device] = compile_shader(source.read_text(encoding="utf-8"), math_mode="safe")
    name = f"matmul_{_TYPES[dtype.name][1]}"
    if name not in dir(library):
        raise UnsupportedError(f"matmul: {dtype} needs Metal 3.1, which came with macOS 14")
    return library[name]


def _by_kernel(product: _Product) -> None:
    """Queue a product, of any layout, as runs of our kernel."""
    kernel = _kernel(product.result.array.dtype)
    size = product.result.array.itemsize
    matrices = product[:3]
    memories = [span(matrix.array, matrix.array.dtype) for matrix in matrices]
    lengths = struct.pack("<4I", product.result.rows, product.result.columns, product.left.columns, 0)
    tiles = (-(-product.result.columns // _TILE), -(-product.result.rows // _TILE))
    for run in _runs(product):
        for first in range(0, run.length, _LAUNCH):
            parts = [lengths]
            for matrix, (_, start), step, offset in zip(matrices, memories, run.steps, run.offsets, strict=True):
                places = (start + offset + first * step, step, matrix.down, matrix.along)
                parts.append(struct.pack("<4q", *(place // size for place in places)))
            kernel(
                *(memory for memory, _ in memories),
                b"".join(parts),
                threadgroups=(*tiles, min(run.length - first, _LAUNCH)),
                group_size=(_THREADS, 1, 1),
            )
