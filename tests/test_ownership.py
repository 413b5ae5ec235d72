"""The rules of docs/ownership.md, one section each: who keeps memory alive, and when it is given back."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

PAGE = 16384
SOURCE = """
kernel void fill(device float *x, constant float &value, uint i [[thread_position_in_grid]]) { x[i] = value; }
kernel void copy(device float *out, device const float *in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
"""


@pytest.fixture
def library(compiled: Callable[[str], mps.ShaderLibrary]) -> mps.ShaderLibrary:
    return compiled(SOURCE)


class Foreign:
    """Pages of somebody else, and a count of how often, and where, they were given back."""

    def __init__(self, pages: int = 4) -> None:
        self.raw = np.frombuffer(mmap.mmap(-1, (pages + 1) * PAGE), np.uint8)
        start = -self.raw.ctypes.data % PAGE
        self.bytes = self.raw[start : start + pages * PAGE]
        self.address: int = self.bytes.ctypes.data
        self.released: list[int] = []

    def release(self) -> None:
        self.released.append(threading.get_ident())

    def array(self, **options: Any) -> mps.Array:
        return mps.from_pointer(self.address, self.bytes.size // 4, release=self.release, **options)

    def settle(self) -> None:
        """Wait for what a thread of the library's does soon."""
        if not self.released:
            gc.collect()
        deadline = time.monotonic() + 10
        while not self.released and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(self.released) == 1


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    pages = Foreign()
    yield pages
    assert len(pages.released) <= 1


# ---- 1: as long as any user

USERS: dict[str, Callable[[mps.Array], Any]] = {
    "array": lambda a: a,
    "view": lambda a: a[1:],
    "view of a view": lambda a: a.reshape(2, -1)[1].T,
    "numpy": lambda a: a.numpy(),
    "numpy view": lambda a: np.asarray(a)[5:].view(np.uint8),
    "memoryview": lambda a: memoryview(a.numpy()),
    "DLPack": lambda a: np.from_dlpack(a),
    "capsule": lambda a: a.__dlpack__(),
    "alias": lambda a: mps._host_alias_storage(a),
    "array of NumPy's": lambda a: mps.from_numpy(a.numpy()[3:]),
}


@pytest.mark.parametrize("user", USERS)
def test_each_user_keeps_the_memory(foreign: Foreign, user: str) -> None:
    array = foreign.array().fill_(3)
    one = USERS[user](array)
    del array
    gc.collect()
    mps.synchronize()
    mps.empty_cache()
    assert not foreign.released
    del one
    foreign.settle()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("user", USERS)
def test_each_user_keeps_the_allocators_memory(user: str) -> None:
    before = mps.current_allocated_memory()
    array = mps.full(1000, 3)
    held = mps.current_allocated_memory()
    one = USERS[user](array)
    del array
    gc.collect()
    mps.empty_cache()
    assert mps.current_allocated_memory() == held
    noise = [mps.full(1000, -1) for _ in range(4)]
    if isinstance(one, (np.ndarray, mps.Array, memoryview)):
        assert set(np.asarray(one).ravel().view(np.uint8).tolist()) == set(np.float32(3).tobytes())
    del one, noise
    gc.collect()
    assert mps.current_allocated_memory() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_no_order_of_letting_go_is_wrong(foreign: Foreign, order: tuple[int, ...]) -> None:
    array = foreign.array()
    users = [array, array[2:], np.from_dlpack(array), array[4:].numpy()]
    del array
    for number in order:
        assert not foreign.released
        users[number] = None  # type: ignore[call-overload]
    foreign.settle()


# ---- 2: queued work is a user


def test_dropped_memory_is_released_after_the_work(
    foreign: Foreign, gate: Callable[[], None], library: mps.ShaderLibrary
) -> None:
    array = foreign.array()
    library.fill(array, 5.0)
    del array
    gc.collect()
    mps.current_stream().commit()
    time.sleep(0.01)
    assert not foreign.released
    gate()
    mps.synchronize()
    foreign.settle()
    assert (foreign.bytes.view(np.float32) == 5).all()


def test_memory_is_not_given_out_again_before_the_work_is_done(
    gate: Callable[[], None], library: mps.ShaderLibrary
) -> None:
    out, source = mps.zeros(5000), mps.full(5000, 6)
    library.copy(out, source)
    del source
    other = mps.Stream()
    with mps.stream(other):
        noise = [mps.full(5000, -1), mps.zeros(5000), mps.empty(5000)]
        library.fill(noise[2], -2.0)
        other.synchronize()
    gate()
    assert (out.numpy() == 6).all()


def test_from_numpy_may_be_dropped_at_once(gate: Callable[[], None], library: mps.ShaderLibrary) -> None:
    pages = Foreign()
    host = pages.bytes.view(np.float32)
    host[:] = 8
    out = mps.zeros(host.size)
    library.copy(out, mps.from_numpy(host, copy=False))
    del host, pages
    gc.collect()
    gate()
    assert (out.numpy() == 8).all()


# ---- 3: looking waits


def test_every_look_waits_but_the_alias(gate: Callable[[], None], library: mps.ShaderLibrary) -> None:
    array = mps.full(1000, 0)
    alias = mps._host_alias_storage(array)
    library.fill(array, 5.0)
    assert mps._host_alias_storage(array).max() == 0  # does not wait
    threading.Timer(0.05, gate).start()
    assert array.numpy()[999] == 5
    assert alias.view(np.float32)[999] == 5
    for look in (np.asarray, np.from_dlpack, lambda a: a.copy().numpy(), lambda a: a.to_host(), lambda a: a.tolist(),
                 lambda a: np.array(a.__buffer__(0))):  # fmt: skip
        library.fill(array, 6.0)
        assert look(array)[999] == 6
        array.fill_(0)


def test_the_alias_is_bytes_that_cannot_be_resized() -> None:
    array = mps.asarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    alias = mps._host_alias_storage(array)
    assert (alias.dtype, alias.shape, alias.nbytes) == (np.uint8, (12,), array.nbytes)
    assert mps._host_alias_storage(array[1]).tolist() == alias[6:].tolist()
    alias[0] = 9
    assert array[0, 0].item() == 9
    with pytest.raises(ValueError, match="resize"):
        alias.resize(24)
    assert mps._host_alias_storage(mps.empty(0)).shape == (0,)
    with pytest.raises(ValueError, match="strides"):
        mps._host_alias_storage(array.T)
    with pytest.raises(ValueError, match="MPS storage"):
        mps._host_alias_storage(np.zeros(3))  # type: ignore[arg-type]
    for wrong in (None, [1], "x", object()):
        with pytest.raises(TypeError, match="UntypedStorage"):
            mps._host_alias_storage(wrong)  # type: ignore[arg-type]


def test_a_failure_that_the_buffer_protocol_drops_is_not_lost(
    compiled: Callable[[str], mps.ShaderLibrary], reports_faults: None
) -> None:
    del reports_faults
    array = mps.zeros(4)
    wild = compiled("""
        kernel void wild(device float *x, uint i [[thread_position_in_grid]]) { x[i + (1ul << 40)] = 1; }
    """).wild
    wild(array)
    with pytest.raises(errors.ExecutionError, match="wild"):
        array.__buffer__(0)
    with pytest.raises(errors.ExecutionError, match="wild"):
        array.numpy()
    assert array.numpy().tolist() == [0] * 4
    wild(array)
    with pytest.raises(errors.ExecutionError, match="wild"):
        np.asarray(array)
    mps.synchronize()


def test_the_buffer_protocol() -> None:
    array = mps.asarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    for view in (array, array.T, array[:, 1], array[1, 2]):
        exported = memoryview(view) if sys.version_info >= (3, 12) else view.__buffer__(0)  # type: ignore[arg-type]
        assert exported.tolist() == view.tolist() and exported.format == "h"
    exported[()] = 40
    assert array[1, 2].item() == 40
    with pytest.raises(BufferError, match="bfloat16 has no buffer format.*uint16"):
        mps.zeros(2, dtype="bfloat16").__buffer__(0)


# ---- 4: once


def test_release_runs_where_the_last_user_was(
    foreign: Foreign, gate: Callable[[], None], library: mps.ShaderLibrary
) -> None:
    library.fill(foreign.array(), 1.0)
    gate()
    mps.synchronize()
    foreign.settle()
    here = Foreign()
    here.array()
    assert here.released == [threading.get_ident()]


def test_what_release_raises_is_reported(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: seen.append(report.exc_value))

    def release() -> None:
        raise KeyError("of the user's")

    mps.from_pointer(foreign.address, 4096, release=release)
    assert [type(error) for error in seen] == [KeyError]
    assert mps.zeros(1).item() == 0


def test_pointers_that_are_refused_are_not_released(foreign: Foreign) -> None:
    page = mps.current_device().page_size
    for arguments, options, text in (
        ((foreign.address + 16, 4096), {}, rf"address 0x[0-9a-f]+, expected a multiple of {page}"),
        ((foreign.address, 4095), {}, rf"length of 16380 bytes, expected a multiple of {page}.*length="),
        ((foreign.address, 4096), {"length": 100}, "length of 100 bytes"),
        ((foreign.address, 4097), {"length": page}, f"takes 16388 bytes, but length says {page}"),
        ((0, 4096), {}, "address 0x0"),
        ((-page, 4096), {}, "address -0x4000"),
        ((1 << 70, 4096), {}, "address 0x4"),
        ((foreign.address, 0), {}, "length of 0 bytes"),
        ((foreign.address, (-1, 4)), {}, "no length below 0"),
        ((foreign.address, (0, 1 << 70)), {"length": page}, "no array can have the shape"),
        ((foreign.address, 4096), {"length": 1 << 70}, f"length of {1 << 70} bytes, but from"),
        (((1 << 64) - page, 8192), {}, f"length of 32768 bytes, but from .* there are {page} addresses"),
    ):
        with pytest.raises(ValueError, match=text):
            mps.from_pointer(*arguments, release=foreign.release, **options)
    for arguments, options, text in (
        (("0x4000", 4096), {}, "address of type str"),
        ((1.5, 4096), {}, "address of type float"),
        ((foreign.address, 4096, "float64"), {}, "float64"),
        ((foreign.address, 4096), {"release": 3}, "release: got int"),
        ((foreign.address, 4096), {"length": 16384.0}, "length of type float"),
    ):
        with pytest.raises(TypeError, match=text):
            mps.from_pointer(*arguments, **{"release": foreign.release, **options})
    assert not foreign.released


def test_foreign_memory_is_shared(foreign: Foreign, library: mps.ShaderLibrary) -> None:
    array = mps.from_pointer(foreign.address, (5, 10), "float32", length=PAGE, release=foreign.release)
    assert array.is_alias and array.is_writable
    library.fill(array, 2.0)
    mps.synchronize()
    assert (foreign.bytes.view(np.float32)[:50] == 2).all() and foreign.bytes[200:].max() == 0
    foreign.bytes.view(np.float32)[0] = 7
    assert array[0, 0].item() == 7
    fixed = mps.from_pointer(foreign.address, 4096, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        library.fill(fixed, 1.0)
    assert not fixed.numpy().flags.writeable


# ---- 5: threads


def test_arrays_are_made_used_and_dropped_on_any_thread(library: mps.ShaderLibrary) -> None:
    all_pages = [Foreign(1) for _ in range(64)]
    arrays = [pages.array() for pages in all_pages]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not arrays:
                    return
                array = arrays.pop()
            library.fill(array, 3.0)
            view = array.numpy()
            del array
            assert (view == 3).all()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pages in all_pages:
        pages.settle()


# ---- 6: fork

FORK = """
    import mmap, os, sys, gc
    import numpy as np
    import mpscffi as mps
    raw = np.frombuffer(mmap.mmap(-1, 2 * 16384), np.uint8)
    start = raw.ctypes.data + -raw.ctypes.data % 16384
    foreign = mps.from_pointer(start, 4096, release=lambda: print("released", os.getpid() == parent, flush=True))
    parent = os.getpid()
    array = mps.full(3, 5)
    view, capsule = array.numpy(), array.__dlpack__()
    mps.synchronize()
    child = os.fork()
    if child == 0:
        assert view.tolist() == [5, 5, 5]
        view[0] = 6
        for look in (array.numpy, array.tolist, lambda: np.asarray(array), lambda: mps._host_alias_storage(array),
                     array.__dlpack__, lambda: array.copy_from(array), lambda: array[1:], array.copy,
                     lambda: mps.from_pointer(start, 4096), lambda: mps.from_numpy(view)):
            try:
                look()
            except mps.errors.ForkedError:
                continue
            print("not refused", look, flush=True)
        del foreign, array, view, capsule
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert array.tolist() == [5, 5, 5]
    del foreign
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_reads_what_it_had_and_releases_nothing(python: Any, device: mps.Device) -> None:
    run = python(FORK, MPSCFFI_DEVICE=device.backend)
    assert (run.stdout, run.stderr, run.returncode) == ("released True\n", "", 0)


# ---- 7: exit

EXIT = """
    import mmap, sys
    import numpy as np
    import mpscffi as mps
    def foreign(name):
        raw = np.frombuffer(mmap.mmap(-1, 2 * 16384), np.uint8)
        start = raw.ctypes.data + -raw.ctypes.data % 16384
        keep.append(raw)
        return mps.from_pointer(start, 4096, release=lambda: print(name, flush=True))
    keep = []
    library = mps.compile_shader('''
        kernel void slow(device float *x, constant uint &rounds, uint i [[thread_position_in_grid]]) {
          float y = i;
          for (uint k = 0; k < rounds; k++) { y = y * 0.5f + 1; }
          x[i] = y;
        }''')
    library.slow(foreign("dropped"), 5000)
    held = foreign("held")
    library.slow(held, 5000)
"""


def test_exit_waits_for_work_and_calls_nothing_late(python: Any, device: mps.Device) -> None:
    run = python(EXIT, MPSCFFI_DEVICE=device.backend)
    assert (run.stdout, run.stderr, run.returncode) == ("dropped\n", "", 0)


def test_exit_with_exports_of_every_kind(python: Any, device: mps.Device) -> None:
    script = """
        import atexit, threading
        import numpy as np
        import mpscffi as mps
        a = mps.full(1000, 3)
        kept = [a.numpy(), a.__dlpack__(), a.__dlpack__(max_version=(1, 0)), np.from_dlpack(a), memoryview(a.numpy()),
                mps._host_alias_storage(a), a[3:], mps.empty(3, storage="private")]
        cycle = [kept]
        cycle.append(cycle)
        import sys
        sys.modules["somewhere"] = kept
        atexit.register(lambda: a.numpy())
    """
    run = python(script, MPSCFFI_DEVICE=device.backend)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


# ---- files


def test_files_are_mapped_at_any_offset(tmp_path: Path, library: mps.ShaderLibrary) -> None:
    file = tmp_path / "values"
    values = np.arange(30_000, dtype=np.float32)
    file.write_bytes(values.tobytes())
    whole = mps.from_file(file)
    assert whole.is_alias and not whole.is_writable and whole.shape == (30_000,)
    np.testing.assert_array_equal(whole.numpy(), values)
    for first in (0, 1, 1000, PAGE // 4 - 1, PAGE // 4, PAGE // 4 + 1, 29_999):
        part = mps.from_file(str(file), "float32", offset=4 * first)
        np.testing.assert_array_equal(part.numpy(), values[first:])
        out = mps.empty(part.shape)
        library.copy(out, part)
        np.testing.assert_array_equal(out.numpy(), values[first:])
    shaped = mps.from_file(file, np.int32, (2, 3), offset=400)
    np.testing.assert_array_equal(shaped.numpy().view(np.float32), values[100:106].reshape(2, 3))
    odd = mps.from_file(file, "float32", 2, offset=1)
    np.testing.assert_array_equal(odd.numpy(), np.frombuffer(values.tobytes()[1:9], np.float32))
    with pytest.raises(ValueError, match="multiple|align"):
        library.copy(mps.empty(2), odd)
    with pytest.raises(ValueError, match="read-only"):
        whole.fill_(1)


def test_modes_of_files(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(bytes(64))
    here, through = mps.from_file(file, mode="c"), mps.from_file(file, mode="r+")
    here.fill_(5)
    assert file.read_bytes() == bytes(64)
    through[0] = 1
    del through
    gc.collect()
    assert np.fromfile(file, np.float32)[0] == 1
    assert (here.numpy() == 5).all()
    file.unlink()  # the mapping stays
    assert (here.numpy() == 5).all()


def test_views_of_read_only_memory_stay_read_only(tmp_path: Path) -> None:
    """A write would end the process, whose pages of the file are read-only too."""
    file = tmp_path / "values"
    np.ones(10, np.float32).tofile(file)
    array = mps.from_file(file)
    for view in (
        array.numpy(),
        array[2:].numpy(),
        np.asarray(array),
        np.from_dlpack(array),
        mps._host_alias_storage(array),
    ):
        with pytest.raises(ValueError, match=r"read-?only|WRITEABLE"):
            view[0] = 5
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            view.flags.writeable = True


def test_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(bytes(65))
    for arguments, options, text in (
        ((file,), {}, "the 65 bytes of .* no multiple of 4"),
        ((file, "int8", 66), {}, "ends at byte 66, but .* has 65"),
        ((file, "int8", (1 << 62, 1 << 62)), {}, "ends at byte"),
        ((file, "int8"), {"offset": 66}, "offset 66, but"),
        ((file, "int8"), {"offset": -1}, "offset -1"),
        ((file, "int8", -1), {}, "no length below 0"),
        ((file, "int8"), {"mode": "w"}, "mode 'w'"),
    ):
        with pytest.raises(ValueError, match=text):
            mps.from_file(*arguments, **options)
    for arguments, options in (((file, "float64"), {}), ((file, "int8"), {"offset": 1.5}), ((file, "int8", "x"), {})):
        with pytest.raises(TypeError):
            mps.from_file(*arguments, **options)
    with pytest.raises(FileNotFoundError) as caught:
        mps.from_file(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none") and isinstance(caught.value, mps.Error)
    with pytest.raises(OSError, match="directory"):
        mps.from_file(tmp_path, mode="r+")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(ValueError, match=f"{path}' is no regular file"):
            mps.from_file(path)
    empty = tmp_path / "empty"
    empty.touch()
    assert mps.from_file(empty).shape == (0,)
    assert mps.from_file(file, offset=65).shape == (0,)


if sys.platform == "linux":  # which tells what is mapped

    def test_mappings_end_with_their_last_user(tmp_path: Path) -> None:
        file = tmp_path / "values"
        file.write_bytes(bytes(100_000))
        for _ in range(20):
            view = mps.from_file(file)[5:].numpy()
        assert Path("/proc/self/maps").read_text().count(str(file)) == 1
        del view
        gc.collect()
        assert str(file) not in Path("/proc/self/maps").read_text()
