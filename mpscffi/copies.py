"""Copies into arrays: on the CPU where it sees both sides, else on the device through a shared array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpscffi._ffi import check, ffi, lib
from mpscffi._warning import casting
from mpscffi.array import Array, _allocate, _contents
from mpscffi.errors import InvalidArgumentError
from mpscffi.stream import current_stream, recordings, refuse_in_recording, wait_for_block
from mpscffi.tracing import count_blocking, cpu_copy

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["copy_into", "duplicate"]


def copy_into(target: Array, source: Any, non_blocking: bool) -> None:
    """Copy an array or array-like; see :meth:`Array.copy_from`."""
    if not non_blocking and recordings:
        refuse_in_recording("a copy that waits", "use .copy_from(array, non_blocking=True)")
    if (
        isinstance(source, Array)
        and source.dtype == target.dtype
        and source.shape == target.shape
        and source.device is target.device
    ):
        staged = source
    else:
        values = _broadcast(source, target.shape)
        if target.storage == "shared" and not non_blocking:
            wait_for_block(target._block)
            with casting("copy_from"), cpu_copy("host to shared", target.nbytes):
                np.copyto(target._host(), values, casting="unsafe")
            return
        _refuse_scattered(target)
        # A snapshot, so that the source may be changed at once.
        staged = _allocate(target.shape, target.dtype, "copy_from", host_bound=True)
        if staged.size:
            with casting("copy_from"), cpu_copy("host to shared", staged.nbytes):
                np.copyto(_contents(staged), values, casting="unsafe")
    if target._strides is None and staged._strides is None:
        if _overlap(staged, target):
            staged = duplicate(staged, staged.storage)
        _queue_copy(target, staged)
        if not non_blocking:
            count_blocking(f"{staged.storage} to {target.storage}")
            wait_for_block(target._block)
        return
    _refuse_scattered(target)
    _refuse_scattered(staged)
    if staged.storage != "shared":
        staged = duplicate(staged, "shared")
    values = staged.numpy()
    if target.storage == "shared":
        wait_for_block(target._block)
        with cpu_copy("shared to shared", target.nbytes):
            np.copyto(target._host(), values)
    else:
        copy_into(target, np.ascontiguousarray(values), non_blocking)


def duplicate(source: Array, storage: str) -> Array:
    """Return a new array in C order with the same contents."""
    _refuse_scattered(source)
    if source.storage == storage == "shared":
        copy = _allocate(source.shape, source.dtype, "copy", host_bound=True)
        if copy.size:
            values = source.numpy()
            with cpu_copy("shared to shared", copy.nbytes):
                np.copyto(_contents(copy), values)
        return copy
    copy = _allocate(source.shape, source.dtype, "copy", private=storage == "private")
    copy_into(copy, source, False)
    return copy


def _broadcast(source: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    values = source.to_host() if isinstance(source, Array) and source.storage == "private" else np.asarray(source)
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InvalidArgumentError(
            f"copy_from: got a source of shape {values.shape}, expected {shape} or one that broadcasts to it"
        ) from None


def _refuse_scattered(array: Array) -> None:
    """The CPU does not see private memory, and the device copies ranges of bytes."""
    if array.storage == "private" and array._strides is not None:
        raise InvalidArgumentError(
            f"copy: a private array of shape {array.shape} with strides {array.strides}, expected C order: copy the "
            "whole array, and take the view of that"
        )


def _overlap(source: Array, target: Array) -> bool:
    """Whether two ranges of one length share bytes, but are not the same."""
    if source._block is target._block:
        apart = abs(source._offset - target._offset)
    elif source.storage == target.storage == "shared":
        # Two arrays may lie over the same host memory.
        apart = abs(source._block.address + source._offset - target._block.address - target._offset)
    else:
        return False
    return 0 < apart < target.nbytes


def _queue_copy(target: Array, source: Array) -> None:
    if not target.size or (source._block is target._block and source._offset == target._offset):
        return
    stream = current_stream()
    stream._use((source._block, target._block))
    if stream._recording is not None:
        stream._recording.take_copy(target, source)
        return
    check(
        lib.mps_queue_copy(
            stream._pointer, source._block.pointer, source._offset, target._block.pointer, target._offset, target.nbytes
        )
    )
    check(lib.mps_queue_commit(stream._pointer, ffi.NULL))
