"""Metal's own objects: buffers of somebody else's taken in, by DLPack and by address, and ours given out."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from objc import PRIVATE, SHARED, MetalBuffer, gpu
from test_dlpack import Asked, Producer, _settle

import mpscffi as mps
from mpscffi import errors

METAL = 8
LENGTH = 1000

ADD_ONE = "kernel void add_one(device float *x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"


class MetalProducer(Producer):
    """A tensor of another package's in a Metal buffer, laid out as `like` is."""

    def __init__(
        self, buffer: MetalBuffer, like: npt.NDArray[Any], offset: int = 0, versioned: bool = True, number: int = 0
    ) -> None:
        super().__init__(like, versioned)
        buffer.tensors.append(self)  # as a producer keeps what its deleter needs
        tensor = self.struct.tensor
        tensor.data, tensor.byte_offset = buffer.pointer, offset
        tensor.device_type, tensor.device_id = METAL, number


@pytest.fixture
def foreign(metal_device: mps.Device) -> Iterator[Callable[..., MetalBuffer]]:
    """Makes Metal buffers, of which only the makers' references may be left at the end."""
    made: list[MetalBuffer] = []

    def make(length: int = LENGTH, options: int = SHARED) -> MetalBuffer:
        made.append(MetalBuffer(metal_device, length, options))
        return made[-1]

    yield make
    gc.collect()
    mps.synchronize()
    for buffer in made:
        _settle(lambda buffer=buffer: buffer.references == 1)
        buffer.release()


Foreign = Callable[..., MetalBuffer]
Compiled = Callable[[str], mps.ShaderLibrary]


# ---- by DLPack


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("copy", [None, False])
def test_a_metal_tensor_is_used_in_place(
    foreign: Foreign, compiled: Compiled, versioned: bool, copy: bool | None
) -> None:
    buffer = foreign()
    floats = buffer.memory.view(np.float32)
    floats[:] = np.arange(250)
    producer = MetalProducer(buffer, floats[10:100], 40, versioned)
    array = mps.from_dlpack(producer, copy=copy)
    assert producer.consumed and array.is_alias and array.is_writable
    assert (array.shape, array.offset, array.native) == ((90,), 40, buffer.pointer)
    compiled(ADD_ONE).add_one(array)
    np.testing.assert_array_equal(array.numpy(), np.arange(11, 101))
    np.testing.assert_array_equal(floats, [*range(10), *range(11, 101), *range(100, 250)])
    view = array[2:].numpy()
    del array
    gc.collect()
    assert producer.deleted == 0
    del view
    assert producer.deleted == 1


def test_the_deleter_comes_after_queued_work(foreign: Foreign, compiled: Compiled, gate: Callable[[], None]) -> None:
    buffer = foreign()
    floats = buffer.memory.view(np.float32)
    producer = MetalProducer(buffer, floats)
    array = mps.from_dlpack(producer)
    compiled(ADD_ONE).add_one(array)
    del array
    gc.collect()
    assert producer.deleted == 0 and buffer.references > 1
    gate()
    mps.synchronize()
    assert (floats == 1).all()
    _settle(lambda: producer.deleted == 1)


def test_any_layout(foreign: Foreign) -> None:
    buffer = foreign()
    grid = buffer.memory[:480].view(np.int16).reshape(12, 20)
    grid[:] = np.arange(240).reshape(12, 20)
    start = grid.ctypes.data
    for like in (
        grid.T,
        grid[::-1],
        grid[2:5, ::-3],
        grid[4:5],
        grid[3:4, 7:8].reshape(()),
        np.broadcast_to(grid[:1], (4, 20)),
    ):
        array = mps.from_dlpack(MetalProducer(buffer, like, like.ctypes.data - start))
        assert (array.shape, array.is_contiguous) == (like.shape, like.flags.c_contiguous)
        np.testing.assert_array_equal(array.numpy(), like)


def test_copies_and_flags(foreign: Foreign) -> None:
    buffer = foreign()
    floats = buffer.memory.view(np.float32)
    floats[:] = 3
    producer = MetalProducer(buffer, floats)
    copied = mps.from_dlpack(producer, copy=True)
    assert producer.consumed and producer.deleted == 1
    floats[:] = 4
    assert (copied.numpy() == 3).all() and not copied.is_alias
    producer = MetalProducer(buffer, floats)
    producer.struct.flags = 1
    assert not mps.from_dlpack(producer).is_writable
    producer = MetalProducer(buffer, floats)
    producer.struct.flags = 2
    with pytest.raises(ValueError, match="the producer made a copy"):
        mps.from_dlpack(producer, copy=False)
    assert not producer.consumed
    assert producer.deleted == 0


def test_no_elements(foreign: Foreign) -> None:
    producer = MetalProducer(foreign(), np.empty((3, 0), np.float32))
    producer.struct.tensor.data = None
    assert mps.from_dlpack(producer).shape == (3, 0)
    assert producer.deleted == 1


def test_private_memory(foreign: Foreign, compiled: Compiled) -> None:
    buffer = foreign(LENGTH, PRIVATE)
    array = mps.from_dlpack(MetalProducer(buffer, np.empty(250, np.float32)))
    assert array.storage == "private"
    array.copy_from(np.arange(250))
    compiled(ADD_ONE).add_one(array)
    np.testing.assert_array_equal(array.to_host(), np.arange(1, 251))


def test_what_cannot_be_taken_stays_unconsumed(foreign: Foreign, metal_device: mps.Device) -> None:
    buffer = foreign()
    floats = buffer.memory.view(np.float32)
    cases: list[tuple[MetalProducer, type[Exception], str]] = [
        (MetalProducer(buffer, floats, 4), BufferError, "takes bytes 4 to 1004 of a Metal buffer that has 1000"),
        (MetalProducer(buffer, floats[::-1], 992), BufferError, "takes bytes -4 to 996"),
        (MetalProducer(buffer, floats, number=5), BufferError, r"\(Metal\), number 5, expected .* number 0"),
        (MetalProducer(buffer, floats), ValueError, "an object of another kind"),
        (MetalProducer(buffer, floats), ValueError, "no address of an object"),
        (MetalProducer(buffer, floats), BufferError, "no memory"),
    ]
    cases[3][0].struct.tensor.data = gpu(metal_device)
    cases[4][0].struct.tensor.data = buffer.pointer + 4  # as the address of an element of the tensor
    cases[5][0].struct.tensor.data = None
    for producer, kind, text in cases:
        for obj in (producer, producer.capsule):
            with pytest.raises(kind, match=text) as caught:
                mps.from_dlpack(obj)
            assert isinstance(caught.value, mps.Error)
            assert not producer.consumed and producer.deleted == 0
    assert buffer.references == 1


def test_an_array_comes_back(metal_device: mps.Device) -> None:
    array = mps.asarray(np.arange(100, dtype=np.float32))
    again = mps.from_dlpack(Exported(array[10:20], metal_device))
    assert again.native == array.native
    again.fill_(7)
    assert array[9:21].tolist() == [9, *[7] * 10, 20]


class Exported(Asked):
    """An array that says that it lies on its Metal device."""

    def __init__(self, array: mps.Array, device: mps.Device) -> None:
        super().__init__(array, dl_device=(METAL, device.index))

    def __dlpack_device__(self) -> tuple[int, int]:
        return METAL, self.array.device.index


def test_the_host_device_takes_no_metal_tensor(host_device: mps.Device) -> None:
    producer = Producer(np.ones(3, np.float32))
    producer.struct.tensor.device_type = METAL
    with pytest.raises(BufferError, match="since the host device is in use"):
        mps.from_dlpack(producer)
    assert not producer.consumed


# ---- by address


def test_a_buffer_by_its_address(foreign: Foreign, compiled: Compiled) -> None:
    buffer = foreign()
    released: list[str] = []
    array = mps.from_native(buffer.pointer, (2, 5), offset=400, release=lambda: released.append("once"))
    compiled(ADD_ONE).add_one(array)
    assert array.tolist() == [[1] * 5] * 2
    assert buffer.memory.view(np.float32).tolist() == [0] * 100 + [1] * 10 + [0] * 140
    view = array[1].numpy()
    del array
    assert not released
    del view
    assert released == ["once"]
    assert not mps.from_native(buffer.pointer, 3, "int32", writable=False).is_writable


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shape": 251}, "takes 1004 bytes, but from offset 0 on the buffer of 1000 bytes"),
        ({"shape": 250, "offset": 1}, "from offset 1"),
        ({"shape": 1, "offset": -4}, "from offset -4"),
        ({"native": 0}, "expected that of an id<MTLBuffer>"),
        ({"native": 1 << 64}, "expected that of an id<MTLBuffer>"),
        ({"native": "x"}, "address of type str"),
        ({"offset": 1.0}, "offset of type float"),
        ({"release": 3}, "expected a callable"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_wrong_addresses(foreign: Foreign, arguments: dict[str, Any], text: str) -> None:
    buffer = foreign()
    with pytest.raises((ValueError, TypeError), match=text) as caught:
        mps.from_native(**{"native": buffer.pointer, "shape": 3, **arguments})
    assert isinstance(caught.value, mps.Error)
    assert buffer.references == 1


def test_a_refused_buffer_is_not_released(foreign: Foreign, metal_device: mps.Device) -> None:
    released: list[str] = []
    with pytest.raises(errors.InvalidArgumentError, match="another kind"):
        mps.from_native(gpu(metal_device), 3, release=lambda: released.append("wrong"))
    assert not released


def test_our_buffers_are_metals_own(device: mps.Device) -> None:
    array = mps.ones(1000)
    if device.backend == "host":
        assert array.native is None
        with pytest.raises(errors.UnsupportedError, match="host device"):
            mps.from_native(1 << 20, 3)
        return
    assert array.native is not None
    from objc import send

    assert send(array.native, "length", result=ctypes.c_size_t) >= 4000
    assert send(array.native, "contents") == array.numpy().ctypes.data - array.offset
    assert array[10:].native == array.native
