"""Copies between arrays: private memory, overlaps, lengths above 4 GiB, what may happen to the source."""

from __future__ import annotations

import copy
import ctypes
import ctypes.util
import gc
import itertools
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

PAGE = 16384
SOURCE = """
kernel void add(device float *x, constant float &value, uint i [[thread_position_in_grid]]) { x[i] += value; }
kernel void put(device uchar *x, constant uchar &value, uint i [[thread_position_in_grid]]) { x[i] = value; }
"""


@pytest.fixture
def library(compiled: Callable[[str], mps.ShaderLibrary]) -> mps.ShaderLibrary:
    return compiled(SOURCE)


# ---- private memory


def test_private_arrays_are_worked_on(library: mps.ShaderLibrary) -> None:
    array = mps.empty(4, 5, storage="private")
    assert array.storage == "private" and mps.zeros(1).storage == "shared"
    assert "storage=private" in repr(array)
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert array.copy_from(values) is array
    library.add(array, 1.5)
    np.testing.assert_array_equal(array.to_host(), values + 1.5)
    np.testing.assert_array_equal(array.copy().numpy(), values + 1.5)
    library.add(array[1:3], 10.0)
    values[1:3] += 10
    np.testing.assert_array_equal(array.to_host(), values + 1.5)
    assert mps.zeros(3, storage="private").to_host().tolist() == [0, 0, 0]
    mps.fill_uniform(array)
    assert 0 <= array.to_host().min() < array.to_host().max() < 1


def test_copies_between_storages() -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    shared = mps.asarray(values)
    private = shared.copy(storage="private")
    again = private.copy(storage="private")
    for made, storage in ((private, "private"), (again, "private"), (again.copy(), "shared")):
        assert (made.storage, made.dtype, made.shape) == (storage, np.int32, (3, 4))
        np.testing.assert_array_equal(made.to_host(), values)
    target = mps.zeros(3, 4, dtype=np.int32)
    assert (target.copy_from(again).numpy() == values).all()
    assert target.T.copy_from(mps.asarray(values.T.copy()).copy(storage="private"))[1].tolist() == values.T[1].tolist()
    as_float = mps.empty(3, 4, storage="private").copy_from(again)
    np.testing.assert_array_equal(as_float.to_host(), values)
    with pytest.raises(ValueError, match="storage='secret'"):
        shared.copy(storage="secret")
    with pytest.raises(ValueError, match="storage='secret'"):
        mps.empty(1, storage="secret")


def test_views_of_private_arrays() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = mps.asarray(values).copy(storage="private")
    for view, expected in ((array[2], values[2]), (array[1:3], values[1:3]), (array.reshape(-1), values.reshape(-1)),
                           (array.view("uint32")[3], values.view("uint32")[3]), (array[None, 1], values[None, 1]),
                           (array[1, 2], values[1, 2]), (array[:0], values[:0])):  # fmt: skip
        assert view.storage == "private" and view.shape == expected.shape
        np.testing.assert_array_equal(view.to_host(), expected)
    array[1] = 7
    array[2:, :] = np.ones((2, 6))
    values[1], values[2:] = 7, 1
    array[0, 3:5] = mps.asarray(np.array([8, 9], np.float32))
    values[0, 3:5] = 8, 9
    np.testing.assert_array_equal(array.to_host(), values)
    for wrong in (lambda: array.T.to_host(), lambda: array[:, ::2].copy_from(1), lambda: array[:, 1].copy()):
        with pytest.raises(ValueError, match="private array.*strides.*C order"):
            wrong()
    with pytest.raises(NotImplementedError, match="reshape"):
        array.T.reshape(24)
    np.testing.assert_array_equal(array.fill_(5).to_host(), np.full((4, 6), 5))


@pytest.mark.parametrize("look", [
    lambda a: a.numpy(), np.asarray, lambda a: a.item(0), lambda a: a.tolist(), lambda a: a.__array_interface__,
    lambda a: mps._host_alias_storage(a), lambda a: a.astype("int32"), lambda a: float(a[0]),
    lambda a: a.__buffer__(0), np.sin,
])  # fmt: skip
def test_the_cpu_does_not_see_private_memory(look: Callable[[mps.Array], Any]) -> None:
    array = mps.zeros(4, storage="private")
    with pytest.raises(NotImplementedError, match="private memory") as caught:
        look(array)
    assert ".copy()" in str(caught.value)
    assert isinstance(caught.value, mps.Error)


def test_clones_of_private_arrays_are_private() -> None:
    array = mps.asarray([1.0, 2.0]).copy(storage="private")
    for clone in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert clone.storage == "private" and clone.to_host().tolist() == [1, 2]
        clone.fill_(0)
    assert array.to_host().tolist() == [1, 2]


@pytest.mark.usefixtures("settled")
def test_private_memory_is_counted_and_given_back() -> None:
    current, driver = mps.current_allocated_memory(), mps.driver_allocated_memory()
    array = mps.empty(1 << 20, storage="private")
    assert mps.current_allocated_memory() - current >= 4 << 20
    del array
    assert mps.current_allocated_memory() == current
    mps.synchronize()
    mps.empty_cache()
    assert mps.driver_allocated_memory() == driver


# ---- overlaps


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("length", [50, 3_000_000])
def test_ranges_that_overlap(length: int, non_blocking: bool) -> None:
    for distance in (1, 7, length // 2, length - 1):
        for forward in (True, False):
            values = np.arange(length, dtype=np.int32)
            array = mps.asarray(values)
            low, high = slice(0, length - distance), slice(distance, length)
            target, source = (high, low) if forward else (low, high)
            array[target].copy_from(array[source], non_blocking=non_blocking)
            values[target] = values[source].copy()
            np.testing.assert_array_equal(array.numpy(), values)


def test_ranges_of_host_memory_that_overlap_under_two_arrays() -> None:
    raw = np.frombuffer(mmap.mmap(-1, 20 * PAGE), np.uint8)
    start = -raw.ctypes.data % PAGE
    host = raw[start : start + 18 * PAGE].view(np.int32)
    host[:] = np.arange(host.size)
    step = PAGE // 4
    lower = mps.from_numpy(host[: 16 * step], copy=False)
    upper = mps.from_numpy(host[step : 17 * step], copy=False)
    upper.copy_from(lower)
    np.testing.assert_array_equal(host[step : 17 * step], np.arange(16 * step))


# ---- above 4 GiB

GIB = 1 << 30


class Wide:
    """More address space than memory: one small file is mapped again and again, but for some windows of their own."""

    def __init__(self, size: int, windows: list[int]) -> None:
        block = 64 << 20
        if sys.platform == "linux":
            self.file = os.memfd_create("wide")  # of which pages are mapped ten times as fast as of a file on a disk
        else:
            with tempfile.TemporaryFile() as file:
                self.file = os.dup(file.fileno())
        os.truncate(self.file, block + PAGE * len(windows))
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap = libc.mmap, libc.munmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        anonymous = 0x1000 if sys.platform == "darwin" else 0x20
        self.room, self.size = self._mmap(None, size + PAGE, 0, 2 | anonymous, -1, 0), size
        self.address = -(-self.room // PAGE) * PAGE
        for place in range(0, size, block):
            self._map(place, min(block, size - place), 0)
        for number, place in enumerate(windows):
            self._map(place, PAGE, block + number * PAGE)

    def _map(self, place: int, length: int, offset: int) -> None:
        flags = 0x11 if sys.platform == "darwin" else 0x8011  # MAP_SHARED | MAP_FIXED, and MAP_POPULATE: it is quicker
        at = self._mmap(self.address + place, length, 3, flags, self.file, offset)
        assert at == self.address + place, ctypes.get_errno()

    def window(self, place: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * PAGE).from_address(self.address + place))

    def close(self) -> None:
        self._munmap(self.room, self.size + PAGE)
        os.close(self.file)


def test_copies_above_4_gib() -> None:
    size = 4 * GIB + 5 * PAGE
    windows = [0, GIB, 2 * GIB - PAGE, 2 * GIB, 4 * GIB - PAGE, 4 * GIB, size - PAGE]
    source, target = Wide(size, windows), Wide(size, windows)
    for number, place in enumerate(windows):
        source.window(place)[:] = number + 1
    released: list[str] = []
    a = mps.from_pointer(source.address, size, "uint8", release=lambda: released.append("source"))
    b = mps.from_pointer(target.address, size, "uint8", release=lambda: released.append("target"))
    b.copy_from(a, non_blocking=True)
    del a
    gc.collect()
    mps.synchronize()
    for number, place in enumerate(windows):
        np.testing.assert_array_equal(target.window(place), np.full(PAGE, number + 1, np.uint8))
    assert target.window(5 * PAGE).max() == 0
    # Nor is a place above 4 GiB taken for one below it.
    b[4 * GIB : 4 * GIB + 8].copy_from(np.full(8, 99, np.uint8))
    assert target.window(4 * GIB)[:9].tolist() == [99] * 8 + [6] and target.window(0)[0] == 1
    del b
    gc.collect()
    assert sorted(released) == ["source", "target"]
    source.close()
    target.close()


def test_arrays_of_more_than_two_to_the_31_elements(library: mps.ShaderLibrary) -> None:
    gc.collect()
    mps.synchronize()
    mps.empty_cache()
    before = mps.driver_allocated_memory()
    array = mps.zeros((1 << 31) + 64, dtype="uint8")  # few of its pages are ever touched
    library.put(array[1 << 31 :], 7, threads=64)
    assert array[(1 << 31) - 2 : (1 << 31) + 2].tolist() == [0, 0, 7, 7]
    assert array.numpy()[-1] == 7 and array.size == (1 << 31) + 64
    del array
    gc.collect()
    mps.synchronize()
    mps.empty_cache()
    assert mps.driver_allocated_memory() == before


# ---- what may happen to the source


@pytest.fixture
def pages() -> np.ndarray:
    raw = np.frombuffer(mmap.mmap(-1, 9 * PAGE), np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + 8 * PAGE].view(np.float32)


def test_the_source_may_be_dropped(gate: Callable[[], None], pages: np.ndarray) -> None:
    pages[:] = 4
    targets = [mps.empty(pages.size) for _ in range(4)]
    sources = [np.full(pages.size, 1, np.float32), mps.full(pages.size, 2), mps.full(pages.size, 3),
               mps.from_numpy(pages, copy=False)]  # fmt: skip
    for target, source in zip(targets, sources, strict=True):
        target.copy_from(source, non_blocking=True)
    del source, sources
    gc.collect()
    noise = [mps.full(pages.size, -1) for _ in range(8)]
    gate()
    assert [target.numpy().tolist() == [value] * pages.size for value, target in enumerate(targets, 1)] == [True] * 4
    del noise


def test_host_memory_may_be_changed_at_once(gate: Callable[[], None]) -> None:
    source = np.arange(5000, dtype=np.float32)
    targets = [mps.empty(5000), mps.empty(5000, storage="private"), mps.empty(5000, dtype="int16")]
    for target in targets:
        target.copy_from(source, non_blocking=True)
    source[:] = -1
    gate()
    for target in targets:
        np.testing.assert_array_equal(target.to_host(), np.arange(5000))


def test_an_array_may_be_changed_by_later_work(gate: Callable[[], None], library: mps.ShaderLibrary) -> None:
    source, target = mps.zeros(5000), mps.empty(5000)
    target.copy_from(source, non_blocking=True)
    library.add(source, 5.0)
    gate()
    source[...] = 9  # waits
    assert not target.numpy().any()


def test_all_pairs_of_layouts_and_storages() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    makers: list[Callable[[], mps.Array]] = [
        lambda: mps.asarray(values),
        lambda: mps.asarray(values.T.copy()).T,
        lambda: mps.asarray(np.repeat(values, 2, axis=1))[:, ::2],
        lambda: mps.asarray(values[::-1].copy())[::-1],
        lambda: mps.asarray(values).copy(storage="private"),
    ]
    for make_source, make_target, non_blocking in itertools.product(makers, makers, (False, True)):
        target = make_target()
        target.fill_(-1) if target.storage == "shared" else target.copy_from(-1)
        target.copy_from(make_source(), non_blocking=non_blocking)
        np.testing.assert_array_equal(target.to_host(), values)


def test_errors_change_nothing() -> None:
    array = mps.full(3, 2)
    for wrong in (np.zeros(4), mps.zeros(4), "text", [[1, 2, 3], [4, 5, 6]]):
        for target in (array, array.copy(storage="private")):
            with pytest.raises((errors.InvalidArgumentError, ValueError)):
                target.copy_from(wrong)
            assert target.to_host().tolist() == [2, 2, 2]


def test_widening_and_narrowing_copies_leave_nothing() -> None:
    values = (np.arange(100_000) % 2048).astype(np.float16)

    def there_and_back() -> int:
        wide = np.empty(values.shape, np.float32)
        wide[:] = mps.asarray(values)
        narrow = mps.empty(values.shape, dtype="float16").copy_from(wide)
        np.testing.assert_array_equal(narrow.numpy(), values)
        del narrow
        gc.collect()
        mps.synchronize()
        mps.empty_cache()
        return mps.driver_allocated_memory()

    assert there_and_back() == there_and_back()
