"""DLPack, both ways: capsules of either kind, what they say, who ends them."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

PAGE = 16384
CODES = {"bool": (6, 8), "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8),
         "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64), "float16": (2, 16), "float32": (2, 32),
         "complex64": (5, 64)}  # fmt: skip


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


new_capsule = python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
name_of = python("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
pointer_of = python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

NAMES = {True: b"dltensor_versioned", False: b"dltensor"}


def opened(capsule: Any) -> Any:
    """The struct in a capsule."""
    name = name_of(capsule)
    kind = {b"dltensor": Legacy, b"dltensor_versioned": Versioned}[name]
    struct: Any = kind.from_address(pointer_of(capsule, name))
    struct.capsule = capsule  # which ends it
    return struct


class Producer:
    """Another package's array, which counts what is done with it."""

    def __init__(self, array: np.ndarray, versioned: bool = True, code: tuple[int, int] | None = None) -> None:
        self.array, self.deleted = array, 0
        self.struct = (Versioned if versioned else Legacy)()
        if versioned:
            self.struct.major, self.struct.minor = 1, 1
        tensor = self.struct.tensor
        tensor.data, tensor.device_type, tensor.ndim = array.ctypes.data, 1, array.ndim
        (tensor.code, tensor.bits), tensor.lanes = code or CODES[array.dtype.name], 1
        tensor.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        if not array.flags.c_contiguous:
            strides = [stride // array.itemsize for stride in array.strides]
            tensor.strides = (ctypes.c_int64 * array.ndim)(*strides)
        self.struct.deleter = Deleter(self.delete)
        self.capsule = new_capsule(ctypes.addressof(self.struct), NAMES[versioned], None)
        self.asked: dict[str, Any] = {}

    def delete(self, pointer: int) -> None:
        assert pointer == ctypes.addressof(self.struct)
        self.deleted += 1

    @property
    def consumed(self) -> bool:
        return bytes(name_of(self.capsule)).startswith(b"used_")

    def __dlpack__(self, **options: Any) -> Any:
        self.asked = options
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.struct.tensor.device_type, self.struct.tensor.device_id


@pytest.fixture
def pages() -> Iterator[Callable[[Any], np.ndarray]]:
    """Makes arrays of four whole pages."""
    made = []

    def make(dtype: Any = np.float32) -> np.ndarray:
        raw = np.frombuffer(mmap.mmap(-1, 5 * PAGE), np.uint8)
        start = -raw.ctypes.data % PAGE
        made.append(raw)
        return raw[start : start + 4 * PAGE].view(dtype)

    yield make
    made.clear()


# ---- in


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", CODES)
def test_both_kinds_of_capsule_are_taken(dtype: str, versioned: bool) -> None:
    host = np.arange(12).astype(dtype).reshape(3, 4)
    for layout in (host, host.T, host[::-1], host[:, ::-2], host[1:2], host[:0], np.asarray(host[0, 0])):
        producer = Producer(layout, versioned)
        array = mps.from_dlpack(producer, copy=True)
        assert (array.dtype, array.shape) == (layout.dtype, layout.shape)
        np.testing.assert_array_equal(array.numpy(), layout)
        assert producer.consumed and producer.deleted == 1
    assert producer.asked == {"max_version": (1, 0)}


def test_bfloat16_comes_in() -> None:
    import ml_dtypes

    host = np.array([1.5, -2], ml_dtypes.bfloat16)
    array = mps.from_dlpack(Producer(host, code=(4, 16)), copy=True)
    assert array.dtype == ml_dtypes.bfloat16 and array.tolist() == [1.5, -2]


@pytest.mark.parametrize("versioned", [True, False])
def test_whole_pages_are_shared_and_ended_once(pages: Callable[..., np.ndarray], versioned: bool) -> None:
    host = pages()
    host[:] = 5
    producer = Producer(host, versioned)
    array = mps.from_dlpack(producer, copy=False)
    assert array.is_alias and array.is_writable and producer.consumed
    host[3] = 6
    assert array[3].item() == 6
    view = array[2:].numpy()
    del array
    gc.collect()
    assert producer.deleted == 0
    del view
    gc.collect()
    assert producer.deleted == 1


def test_queued_work_is_a_user(
    pages: Callable[..., np.ndarray],
    gate: Callable[[], None],
    compiled: Callable[[str], mps.ShaderLibrary],
) -> None:
    producer = Producer(pages())
    array = mps.from_dlpack(producer, copy=False)
    library = compiled("kernel void two(device float *x, uint i [[thread_position_in_grid]]) { x[i] = 2; }")
    library.two(array)
    del array
    gc.collect()
    assert producer.deleted == 0
    gate()
    mps.synchronize()
    assert (producer.array == 2).all()
    _settle(lambda: producer.deleted == 1)


def _settle(done: Callable[[], bool]) -> None:
    """Wait for what a thread of the library's does soon."""
    import time

    deadline = time.monotonic() + 10
    while not done() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert done()


def test_flags_are_obeyed(pages: Callable[..., np.ndarray]) -> None:
    producer = Producer(pages())
    producer.struct.flags = 1
    array = mps.from_dlpack(producer, copy=False)
    assert not array.is_writable and not array.numpy().flags.writeable
    copied = Producer(pages())
    copied.struct.flags = 2
    with pytest.raises(ValueError, match="the producer made a copy"):
        mps.from_dlpack(copied, copy=False)
    assert copied.asked["copy"] is False
    assert not copied.consumed and not copied.deleted
    assert mps.from_dlpack(copied).is_alias


def test_a_copy_that_was_not_asked_for_is_told() -> None:
    producer = Producer(np.ones(3, np.float32))
    with pytest.warns(errors.CopyWarning, match="from_dlpack: copied, since its address"):
        array = mps.from_dlpack(producer)
    assert array.tolist() == [1, 1, 1] and producer.deleted == 1


def _change(producer: Producer, **values: Any) -> None:
    for name, value in values.items():
        setattr(producer.struct if hasattr(producer.struct, name) else producer.struct.tensor, name, value)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"major": 2}, BufferError, "DLPack 2.1, expected 1.x"),
        ({"major": 0}, BufferError, "DLPack 0.1"),
        ({"device_type": 2, "device_id": 1}, BufferError, r"device 2 \(CUDA\), number 1"),
        ({"device_type": 99}, BufferError, "unknown"),
        ({"bits": 64}, TypeError, "float64"),
        ({"code": 2, "bits": 8}, TypeError, "float8"),
        ({"code": 77}, TypeError, "type 77, 32"),
        ({"lanes": 4}, TypeError, "float32 x 4"),
        ({"lanes": 0}, TypeError, "float32 x 0"),
        ({"data": None}, BufferError, "no memory"),
        ({"ndim": -1}, BufferError, "-1 axes"),
        ({"shape": (ctypes.c_int64 * 1)(-5)}, BufferError, r"shape is \(-5,\)"),
    ],
)
def test_what_cannot_be_taken_stays_unconsumed(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    producer = Producer(np.ones(5, np.float32))
    _change(producer, **changes)
    for obj in (producer, producer.capsule):
        with pytest.raises(error, match=text) as caught:
            mps.from_dlpack(obj, copy=True)
        assert isinstance(caught.value, mps.Error)
        assert not producer.consumed and producer.deleted == 0


def test_a_refused_copy_leaves_the_capsule() -> None:
    for host in (np.ones(5, np.float32), np.ones((4, 4), np.float32).T[1:]):
        producer = Producer(host)
        with pytest.raises(ValueError, match="without a copy: its (address|strides)"):
            mps.from_dlpack(producer, copy=False)
        assert not producer.consumed and producer.deleted == 0


def test_a_capsule_is_consumed_once() -> None:
    producer = Producer(np.ones(2, np.float32))
    assert mps.from_dlpack(producer.capsule, copy=True).tolist() == [1, 1]
    for capsule in (producer.capsule, new_capsule(1, b"something", None)):
        with pytest.raises(BufferError, match="nobody has consumed"):
            mps.from_dlpack(capsule)
    assert producer.deleted == 1


def test_producers_from_before_versions() -> None:
    class Old(Producer):
        def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]
            return self.capsule

    old = Old(np.ones(2, np.float32), versioned=False)
    assert mps.from_dlpack(old, copy=True).tolist() == [1, 1]
    for wrong in (3, [1.0], None):
        with pytest.raises(TypeError, match="__dlpack__"):
            mps.from_dlpack(wrong)


# ---- out


def test_a_capsule_is_as_new_as_the_consumer() -> None:
    array = mps.zeros(2, 3)
    for version, name in ((None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"),
                          ((1, 3), b"dltensor_versioned"), ((2, 0), b"dltensor_versioned")):  # fmt: skip
        assert name_of(array.__dlpack__(max_version=version)) == name
    struct = opened(array.__dlpack__(max_version=(1, 3)))
    assert (struct.major, struct.minor, struct.flags) == (1, 0, 0)
    for wrong in (1, "x", (1,), ("a", "b")):
        with pytest.raises(TypeError, match="max_version"):
            array.__dlpack__(max_version=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", CODES)
def test_what_a_capsule_says(dtype: str) -> None:
    array = mps.asarray(np.arange(12).astype(dtype).reshape(3, 4))
    for view in (array, array[1:], array.T, array[::-1, 1::2], array[:0], array[2, 3]):
        capsules = [view.__dlpack__(), view.__dlpack__(max_version=(1, 0))]
        for capsule in capsules:
            tensor = opened(capsule).tensor
            assert (tensor.device_type, tensor.device_id) == view.__dlpack_device__() == (1, 0)
            assert (tensor.code, tensor.bits, tensor.lanes) == (*CODES[dtype], 1)
            assert tuple(tensor.shape[: tensor.ndim]) == view.shape
            assert tuple(s * array.itemsize for s in tensor.strides[: tensor.ndim]) == view.strides
            assert tensor.byte_offset == 0
            assert tensor.data == (view.numpy().__array_interface__["data"][0] if view.size else None)
        other = np.from_dlpack(view)
        np.testing.assert_array_equal(other, view.numpy())
        assert np.shares_memory(other, array.numpy()) or not view.size


def test_bfloat16_goes_out() -> None:
    capsule = mps.zeros(2, dtype="bfloat16").__dlpack__()
    tensor = opened(capsule).tensor
    assert (tensor.code, tensor.bits) == (4, 16)


def test_read_only_arrays_need_a_version(pages: Callable[..., np.ndarray]) -> None:
    host = pages()
    host.flags.writeable = False
    array = mps.from_numpy(host)
    with pytest.raises(BufferError, match=r"max_version=\(1, 0\)"):
        array.__dlpack__()
    capsule = array.__dlpack__(max_version=(1, 0))
    assert opened(capsule).flags == 1
    assert opened(array.__dlpack__(copy=True, max_version=(1, 0))).flags == 2
    assert not np.from_dlpack(array).flags.writeable


def test_copies_are_made_on_request_only() -> None:
    array = mps.zeros(4)
    copied, shared = (np.from_dlpack(Asked(array, copy=copy)) for copy in (True, False))
    array.fill_(3)
    assert copied.tolist() == [0] * 4 and shared.tolist() == [3] * 4


class Asked:
    """Passes on options that NumPy itself does not."""

    def __init__(self, array: mps.Array, **options: Any) -> None:
        self.array, self.options = array, options

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**{**options, **self.options})

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_options_that_are_refused(device: mps.Device) -> None:
    array = mps.zeros(4)
    with pytest.raises(ValueError, match="stream=1"):
        array.__dlpack__(stream=1)
    for wrong in ((2, 0), (1, 1), (8, 7)):
        with pytest.raises(BufferError, match="dl_device"):
            array.__dlpack__(dl_device=wrong)
    with pytest.raises(TypeError, match="dl_device"):
        array.__dlpack__(dl_device=3)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="no type for elements"):
        mps.zeros(4, dtype=[("a", "f4"), ("b", "i4")]).__dlpack__()
    whole = mps.zeros(4, dtype=[("a", "f4"), ("b", "i2"), ("c", "i2")])
    np.testing.assert_array_equal(np.from_dlpack(whole.view("float32")[::2]), np.zeros(4))
    if device.backend == "host":
        with pytest.raises(BufferError, match="host device, not on a Metal one"):
            array.__dlpack__(dl_device=(8, 0))


def test_metal_buffers_are_exported_by_handle_and_offset(device: mps.Device) -> None:
    array = mps.zeros(64)
    private = mps.zeros(64, storage="private")
    if device.backend == "host":
        for member in (private.__dlpack__, private.__dlpack_device__):
            with pytest.raises(BufferError, match="private"):
                member()
        return
    from mpscffi._ffi import ffi, lib

    for one in (array, private):
        native = ffi.new("void **")
        lib.mps_buffer_native(one.handle, native)
        capsule = one[16:].__dlpack__(dl_device=(8, device.index), max_version=(1, 0))
        tensor = opened(capsule).tensor
        assert (tensor.device_type, tensor.device_id) == (8, device.index)
        assert tensor.data == int(ffi.cast("uintptr_t", native[0]))
        assert tensor.byte_offset == one[16:].offset
    assert private.__dlpack_device__() == (8, device.index)
    assert opened(private.__dlpack__()).tensor.device_type == 8


def test_private_memory_is_no_cpus() -> None:
    private = mps.zeros(4, storage="private")
    with pytest.raises(NotImplementedError, match="private memory"):
        private.__dlpack__(dl_device=(1, 0))
    copied = private.__dlpack__(dl_device=(1, 0), copy=True, max_version=(1, 0))
    assert opened(copied).flags == 2


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_memory_goes_back_however_a_capsule_ends(version: Any) -> None:
    before = mps.current_allocated_memory()
    # Nobody consumes it.
    capsule = mps.zeros(1000).__dlpack__(max_version=version)
    assert mps.current_allocated_memory() > before
    del capsule
    assert mps.current_allocated_memory() == before
    # A consumer ends it, on a thread that never saw Python.
    capsule = mps.zeros(1000).__dlpack__(max_version=version)
    struct = opened(capsule)
    rename(capsule, b"used_" + name_of(capsule))
    address = pointer_of(capsule, name_of(capsule))
    deleter = struct.deleter
    del capsule, struct
    assert mps.current_allocated_memory() > before
    thread = threading.Thread(target=deleter, args=(address,))
    thread.start()
    thread.join()
    assert mps.current_allocated_memory() == before


def test_a_round_trip_through_numpy_stays_in_place() -> None:
    array = mps.asarray(np.arange(PAGE, dtype=np.float32))
    numpys = np.from_dlpack(array)
    assert numpys.flags.writeable
    numpys[0] = 9
    assert array[0].item() == 9
