"""Faults that users met with memory that is shared: exports, imports, copies, clones, files. One test a fault."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import pickle
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]
PAGE = 16384

SOURCE = """
kernel void copy(device float *out, device const float *in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
kernel void fill(device float *out, constant float &value, uint i [[thread_position_in_grid]]) { out[i] = value; }
"""


@pytest.fixture
def library(compiled: Compile) -> mps.ShaderLibrary:
    return compiled(SOURCE)


def pages(count: int, offset: int = 0) -> np.ndarray:
    """Host memory of NumPy that begins `offset` bytes behind a page's start."""
    raw = np.frombuffer(mmap.mmap(-1, (count + 2) * PAGE), np.uint8)
    start = -raw.ctypes.data % PAGE + offset
    return raw[start : start + count * PAGE]


# ---- an export's offset went into the handle


def test_an_export_with_an_offset_changes_no_handle(library: mps.ShaderLibrary) -> None:
    array = mps.asarray(np.arange(10, dtype=np.float32))
    handle = array.handle
    for first in (0, 3, 9):
        view = array[first:]
        np.testing.assert_array_equal(np.from_dlpack(view), np.arange(first, 10))
        assert view.handle == handle and view.offset == 4 * first
        out = mps.empty(10 - first)
        library.copy(out, view)
        np.testing.assert_array_equal(out.numpy(), np.arange(first, 10))
    assert array.handle == handle


# ---- a pointer into a temporary that was freed


def test_temporaries_are_kept_for_asynchronous_work(library: mps.ShaderLibrary, gate: Callable[[], None]) -> None:
    x = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    outputs = [mps.empty(200, 200) for _ in range(10)]
    for i, out in enumerate(outputs):
        if i % 2:
            library.copy(out, mps.asarray(x.T + i))
        else:
            out.copy_from(x.T.copy() + i, non_blocking=True)
    noise = [np.full((200, 200), -1, np.float32) for _ in range(20)]
    more = [mps.full((200, 200), -2) for _ in range(20)]
    gc.collect()
    gate()
    mps.synchronize()
    for i, out in enumerate(outputs):
        np.testing.assert_array_equal(out.numpy(), x.T + i)
    del noise, more


# ---- an asynchronous copy read what came after its source


def test_copies_that_do_not_block_read_their_source_before_it_changes() -> None:
    buffers = [mps.empty(1) for _ in range(1000)]
    for i, buffer in enumerate(buffers):
        buffer.copy_from(np.full(1, i, np.float32), non_blocking=True)
    mps.synchronize()
    assert [buffer.item() for buffer in buffers] == list(range(1000))
    # The rule: host memory is the caller's again as soon as the call returns.
    for storage in ("shared", "private"):
        source, target = np.arange(1000, dtype=np.float32), mps.empty(1000, storage=storage)
        target.copy_from(source, non_blocking=True)
        source[:] = -1
        np.testing.assert_array_equal(target.to_host(), np.arange(1000))


# ---- writable views, read-only sources, bfloat16


def test_read_only_sources_are_inputs_only(library: mps.ShaderLibrary, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4 * PAGE))
    fixed = pages(1).view(np.float32)
    fixed.flags.writeable = False
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sources = [np.frombuffer(bytes(64), np.float32), np.broadcast_to(np.float32(0), 16), fixed,
               np.frombuffer(mapped, np.float32)]  # fmt: skip
    for source in sources:
        copied = mps.asarray(source)
        library.fill(copied, 1.0)
        assert not source.any() and (copied.numpy() == 1).all()
    for array in (mps.from_numpy(fixed, copy=False), mps.from_file(tmp_path / "file")):
        out = mps.ones(array.shape)
        library.copy(out, array)
        assert not out.numpy().any()
        for write in (lambda a: library.fill(a, 1.0), lambda a: a.fill_(1), lambda a: a.copy_from(1),
                      lambda a: mps.fill_uniform(a), lambda a: a[1:].__setitem__(0, 1)):  # fmt: skip
            with pytest.raises(ValueError, match="read-only"):
                write(array)
        for view in (array.numpy(), np.asarray(array), np.from_dlpack(array), mps._host_alias_storage(array)):
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1


def test_bfloat16_is_never_taken_for_something_else() -> None:
    import ml_dtypes

    array = mps.asarray(np.array([1.5, -2], np.float32), "bfloat16")
    for seen in (array.numpy(), np.asarray(array), np.array(array), array.to_host()):
        assert seen.dtype == ml_dtypes.bfloat16 and seen.tolist() == [1.5, -2]
    assert array.view("uint16").tolist() == [0x3FC0, 0xC000]
    assert memoryview(array.view("uint16").numpy()).format == "H"
    with pytest.raises(BufferError, match="bfloat16"):
        array.__buffer__(0)


# ---- pickle, copy, deepcopy were undefined


def test_clones_are_copies_or_refused() -> None:
    base = mps.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    for array in (base, base[1:, ::2], base.T, base[1, 1], base[:0], base.copy(storage="private"),
                  mps.from_numpy(pages(1).view(np.float32), copy=False)):  # fmt: skip
        for clone in (copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))):
            other = clone(array)
            np.testing.assert_array_equal(other.to_host(), array.to_host())
            assert (other.dtype, other.shape, other.storage) == (array.dtype, array.shape, array.storage)
            assert not other.is_alias and other.is_writable
    for thing in (mps.current_device(), mps.current_stream(), mps.Event()):
        for clone in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle or copy"):
                clone(thing)


# ---- a no-copy buffer came out as nil


def test_memory_off_a_page_is_copied_or_refused_by_name() -> None:
    page = mps.current_device().page_size
    assert page == (4096 if platform.system() == "Darwin" and platform.machine() == "x86_64" else PAGE)
    misplaced = pages(1, offset=16).view(np.float32)
    short = pages(1)[:-16].view(np.float32)
    for host in (misplaced, short):
        with pytest.warns(errors.CopyWarning, match=f"multiples of {page}"):
            array = mps.from_numpy(host)
        assert not array.is_alias
        array.fill_(1)
        assert not host.any()
        for strict in (lambda h: mps.from_numpy(h, copy=False), lambda h: mps.asarray(h, copy=False),
                       lambda h: mps.from_dlpack(h, copy=False),
                       lambda h: mps.from_pointer(h.ctypes.data, h.size)):  # fmt: skip
            with pytest.raises(ValueError, match=str(page)):
                strict(host)
    assert mps.from_numpy(pages(1).view(np.float32), copy=False).is_alias


# ---- NumPy's view outlived its array


def test_a_view_outlives_its_array() -> None:
    for make in (np.asarray, lambda a: a.numpy(), np.from_dlpack, lambda a: mps._host_alias_storage(a).view("f4")):
        array = mps.asarray(np.arange(4096, dtype=np.float32))
        view = make(array)
        del array
        gc.collect()
        mps.empty_cache()
        noise = [mps.full(4096, -1) for _ in range(8)]
        np.testing.assert_array_equal(view, np.arange(4096))
        del noise
    assert np.asarray(mps.ones(5)).tolist() == [1] * 5


# ---- the rules of DLPack consumers (each rule by itself: tests/test_dlpack.py)


def test_numpys_arrays_come_in_by_dlpack_whatever_they_are() -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    fixed = host.copy()
    fixed.flags.writeable = False
    for source in (host, fixed, host[:, ::2], host[::-1], host.T, host[:0], host > 3, host.astype("f2"),
                   host.astype("c8"), host[1, 1:2].reshape(())):  # fmt: skip
        array = mps.from_dlpack(source, copy=True)
        assert array.dtype == source.dtype and array.shape == source.shape
        np.testing.assert_array_equal(array.numpy(), source)
    with pytest.raises(TypeError, match="float64"):
        mps.from_dlpack(host.astype("f8"))
    shared = pages(1).view(np.float32)
    assert mps.from_dlpack(shared).is_alias
    shared.flags.writeable = False
    assert not mps.from_dlpack(shared).is_writable


# ---- what an exported pointer means


def test_exports_are_the_cpus_and_numpy_reads_them() -> None:
    array = mps.asarray(np.arange(6, dtype=np.float32))
    assert array.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(array), np.arange(6))
    # The host address as such, by a call that says so and keeps the owner.
    view = array[2:].numpy()
    del array
    gc.collect()
    assert ctypes.c_float.from_address(view.ctypes.data).value == 2


def test_private_memory_refuses_the_cpu_on_every_device() -> None:
    array = mps.zeros(4, storage="private")
    for look in (array.numpy, lambda: np.asarray(array), lambda: mps._host_alias_storage(array),
                 lambda: array.__dlpack__(dl_device=(1, 0))):  # fmt: skip
        with pytest.raises(NotImplementedError, match="private"):
            look()


# ---- wishes: no copies in and out, memory that is not reused too early, copies with a clear lifetime


def test_weights_go_from_a_file_to_a_kernel_and_to_numpy_without_a_copy(
    library: mps.ShaderLibrary, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).random(100_000, dtype=np.float32)
    (tmp_path / "weights").write_bytes(bytes(40) + values.tobytes())
    before = mps.current_allocated_memory()
    weights = mps.from_file(tmp_path / "weights", offset=40)
    seen = weights.numpy()
    assert mps.current_allocated_memory() == before
    out = mps.empty(100_000)
    library.copy(out, weights)
    del weights
    np.testing.assert_array_equal(out.numpy(), values)
    np.testing.assert_array_equal(seen, values)


def test_memory_is_not_reused_across_streams_too_early(library: mps.ShaderLibrary, gate: Callable[[], None]) -> None:
    source, out = mps.full(10_000, 4), mps.zeros(10_000)
    library.copy(out, source)  # behind the gate
    del source
    other = mps.Stream()
    with mps.stream(other):
        arrays = [mps.empty(10_000) for _ in range(4)]
        for array in arrays:
            library.fill(array, -1.0)
        done = other.record_event()
    opener = threading.Timer(0.05, gate)
    opener.start()
    done.synchronize(timeout=60)
    opener.join()
    assert (out.numpy() == 4).all()


def test_an_array_over_a_foreign_allocation_gives_it_back_once(library: mps.ShaderLibrary) -> None:
    released: list[Any] = []
    memory = pages(2)
    array = mps.from_pointer(memory.ctypes.data, 2 * PAGE // 4, release=lambda: released.append(memory))
    library.fill(array, 3.0)
    assert (array.numpy() == 3).all() and not released
    del array
    gc.collect()
    assert len(released) == 1


def test_little_memory_is_an_error_and_not_the_end(python: Any, device: mps.Device) -> None:
    run = python(
        """
        import resource
        import numpy as np
        import mpscffi as mps
        mps.zeros(1).fill_(1)
        used = int(open("/proc/self/statm").read().split()[0]) * 4096 if __import__("sys").platform == "linux" else 0
        limit = used + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        kept = []
        try:
            for _ in range(100):
                kept.append(mps.empty(64 << 20, dtype="uint8"))
                if not used:
                    raise MemoryError("not limited here")
        except MemoryError as error:
            assert str(error)
        assert len(kept) < 100
        del kept
        mps.empty_cache()
        a = mps.full(1 << 20, 3)
        assert (a.numpy() == 3).all()
        try:
            mps.empty(1 << 40, dtype="uint8", storage="private")
        except MemoryError:
            print("fine")
        """,
        MPSCFFI_DEVICE=device.backend,
    )
    assert (run.stdout, run.stderr, run.returncode) == ("fine\n", "", 0)


@pytest.mark.parametrize("shape", [(2**31, 4, 2**10), (2**63,), (2**64, 2**64), (2**40,)])
@pytest.mark.parametrize("storage", ["shared", "private"])
def test_sizes_beyond_all_memory_are_told_as_they_are(shape: tuple[int, ...], storage: str) -> None:
    size = 4
    for length in shape:
        size *= length
    before = mps.current_allocated_memory()
    with pytest.raises(MemoryError, match=str(size)):
        mps.empty(*shape, storage=storage)
    with pytest.raises(ValueError, match="no length below 0"):
        mps.empty(-1, storage=storage)
    with pytest.raises(TypeError, match="integers"):
        mps.empty(1.5, storage=storage)  # type: ignore[call-overload]
    assert mps.current_allocated_memory() == before
