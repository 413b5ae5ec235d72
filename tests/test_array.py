"""Arrays: views, dtypes, contents, exchange with NumPy."""

from __future__ import annotations

import copy
import gc
import mmap
import operator
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mpscffi
from mpscffi import errors
from mpscffi.array import Array

pytestmark = pytest.mark.usefixtures("device")

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "complex64",
]
UNSUPPORTED = ["float64", "complex128", "longdouble", "datetime64[s]", "timedelta64[s]", "object", "U3", "S3"]
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void fill(device float* x, constant float& v, uint i [[thread_position_in_grid]]) { x[i] = v; }
kernel void copy(device float* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
"""
PAGE = 16384


@pytest.fixture
def kernels(compiled: Any) -> Any:
    return compiled(SOURCE)


def aligned(nbytes: int, dtype: Any = np.float32) -> Any:
    """NumPy memory at a multiple of the page size."""
    raw = np.zeros(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes].view(dtype)


# ---- making arrays


def test_factories_take_sizes_as_torch_does() -> None:
    for sizes, shape in (((), ()), ((3,), (3,)), ((2, 3), (2, 3)), (((2, 3),), (2, 3)), (([2, 3],), (2, 3)),
                         (((),), ()), ((np.int64(4),), (4,)), ((np.array([2, 3]),), (2, 3)),
                         ((True,), (1,))):  # fmt: skip
        for make in (mpscffi.empty, mpscffi.zeros, mpscffi.ones):
            array = make(*sizes)
            assert array.shape == shape
            assert array.dtype == np.float32
    assert mpscffi.full((2, 2), 7).tolist() == [[7, 7], [7, 7]]
    assert mpscffi.full(2, 7, dtype="int8").tolist() == [7, 7]


@pytest.mark.parametrize("dtype", DTYPES)
def test_contents_of_factories(dtype: str) -> None:
    for _ in range(3):  # memory that was used before, too
        for make, value in ((mpscffi.zeros, 0), (mpscffi.ones, 1)):
            array = make(5, 3, dtype=dtype)
            assert array.dtype == np.dtype(dtype)
            assert (array.numpy() == value).all()
            assert array.numpy().shape == (5, 3)
            array.fill_(1)
    assert mpscffi.empty(4, dtype=dtype).numpy().nbytes == 4 * np.dtype(dtype).itemsize


@pytest.mark.parametrize(
    ("sizes", "error"),
    [((-1,), ValueError), ((2, -3), ValueError), ((1.5,), TypeError), (("3",), TypeError), ((None,), TypeError),
     ((2**31, 4, 2**10), MemoryError), ((2**63,), MemoryError), ((2**64, 2**64), MemoryError),
     (((1, (2,)),), TypeError)],
)  # fmt: skip
def test_shapes_that_are_none(sizes: Any, error: type[Exception]) -> None:
    before = mpscffi.current_allocated_memory()
    for make in (mpscffi.empty, mpscffi.zeros, mpscffi.ones, lambda *s: mpscffi.full(s[0] if len(s) == 1 else s, 1)):
        with pytest.raises(error) as caught:
            make(*sizes)
        assert isinstance(caught.value, RuntimeError)
    assert mpscffi.current_allocated_memory() == before


@pytest.mark.parametrize("sizes", [(1,) * 65, (2**62, 0), (2**32, 0, 2**32), (0, 2**70)])
def test_shapes_that_numpy_could_not_show(sizes: tuple[int, ...]) -> None:
    for make in (mpscffi.empty, mpscffi.zeros, mpscffi.ones):
        with pytest.raises(errors.InvalidArgumentError, match=r"no array can have the shape \("):
            make(*sizes)
    for shape in ((1,) * 32, (2**20, 0, 2**20)):
        assert mpscffi.empty(shape).numpy().shape == shape


def test_the_size_of_what_is_too_large_is_told() -> None:
    with pytest.raises(MemoryError, match=str(2**33 * 4)) as caught:
        mpscffi.empty(2**31, 4)
    assert str(mpscffi.current_device().max_buffer_length) in str(caught.value)


@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_dtypes_that_metal_lacks(dtype: str) -> None:
    for make in (
        lambda: mpscffi.empty(2, dtype=dtype),
        lambda: mpscffi.asarray(np.zeros(2, dtype)),
        lambda: mpscffi.from_numpy(np.zeros(2, dtype)),
        lambda: mpscffi.asarray([1, 2], dtype),
        lambda: mpscffi.zeros(2).astype(dtype),
    ):
        with pytest.raises(errors.ArgumentTypeError, match="not one that Metal has"):
            make()


def test_a_hint_for_float64() -> None:
    with pytest.raises(TypeError, match="float64.*convert to float32"):
        mpscffi.asarray(np.zeros(3))


def test_dtypes_that_are_none() -> None:
    for dtype in ("nonsense", 3, object()):
        with pytest.raises(TypeError, match="dtype"):
            mpscffi.empty(2, dtype=dtype)  # type: ignore[call-overload]


def test_python_numbers() -> None:
    for value, dtype in (
        (1.5, "float32"),
        (3, "int64"),
        (True, "bool"),
        (1j, "complex64"),
        ([[1.0, 2], [3, 4]], "float32"),
    ):
        array = mpscffi.asarray(value)
        assert array.dtype == dtype
        assert array.tolist() == value
    assert mpscffi.asarray([1.5], "int8").tolist() == [1]
    with pytest.raises(RuntimeError):
        mpscffi.asarray([[1, 2], [3]])


@pytest.mark.parametrize("kind", [">f4", ">i2", ">u8", ">c8", [("a", ">i4"), ("b", "<f4")]])
def test_byte_order_is_converted(kind: Any) -> None:
    host = np.array([(1, 2)] if isinstance(kind, list) else [1, 2], kind)
    for array in (mpscffi.asarray(host), mpscffi.from_numpy(host, copy=True)):
        assert array.dtype.isnative
        assert array.tolist() == host.tolist()
    assert mpscffi.empty(1, dtype=kind).dtype.isnative
    with pytest.raises(ValueError, match="byte order|multiples of"):
        mpscffi.from_numpy(host, copy=False)


def test_structured_dtypes() -> None:
    fine = np.dtype([("n", "u1"), ("x", "f4", 3), ("in", [("a", "i8")])], align=True)
    array = mpscffi.zeros(4, dtype=fine)
    array[1] = (1, (2, 3, 4), (5,))
    n, x, inner = array[1].item()
    assert (n, x.tolist(), inner) == (1, [2, 3, 4], (5,))
    assert array[0].item()[0] == 0
    packed = np.dtype([("n", "u1"), ("x", "f4")])
    with pytest.raises(TypeError, match="'x' lies at offset 1.*align=True"):
        mpscffi.empty(2, dtype=packed)
    with pytest.raises(TypeError, match="float64"):
        mpscffi.empty(2, dtype=[("x", "f8")])


def test_bfloat16(compiled: Any) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    host = np.array([1.5, -2, 3e38], bfloat16)
    for array in (mpscffi.asarray(host), mpscffi.asarray(host.astype(np.float32), "bfloat16")):
        assert array.dtype == bfloat16
        assert (array.numpy() == host).all()
    kernel = compiled("""
        #include <metal_stdlib>
        kernel void twice(device bfloat* x, uint i [[thread_position_in_grid]]) { x[i] = x[i] + x[i]; }
    """).twice
    small = mpscffi.asarray(np.array([1.5, -2], bfloat16))
    kernel(small)
    assert small.tolist() == [3, -4]


def test_arrays_are_made_by_functions() -> None:
    with pytest.raises(TypeError, match="make one by empty"):
        Array()
    with pytest.raises(TypeError, match="make one by empty"):
        Array.__new__(Array)
    gc.collect()


# ---- views


@st.composite
def views(draw: Any) -> tuple[tuple[int, ...], Any]:
    """A shape and an index of it."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))


@given(views())
def test_views_are_numpys(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    host = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    array = mpscffi.asarray(host)
    view, expected = array[key], np.asarray(host[key])
    assert view.shape == expected.shape
    assert (view.numpy() == expected).all()
    assert view.is_contiguous == expected.flags.c_contiguous
    if not expected.flags.c_contiguous:
        assert view.strides == expected.strides
    assert view.copy().numpy().flags.c_contiguous
    assert (view.T.numpy() == expected.T).all()
    # They share memory, both ways.
    array.fill_(-1)
    assert (view.numpy() == -1).all()
    view.fill_(-2)
    host[...] = -1
    host[key] = -2
    assert (array.numpy() == host).all()


def test_views_of_views() -> None:
    array = mpscffi.asarray(np.arange(60, dtype=np.float32).reshape(3, 4, 5))
    view = array[1:][:, ::2][..., 1:4][1]
    assert (view.numpy() == array.numpy()[1:][:, ::2][..., 1:4][1]).all()
    assert view.offset == (2 * 20 + 1) * 4
    assert array.T.T.is_contiguous
    assert [row.tolist() for row in mpscffi.ones(2, 2)] == [[1, 1], [1, 1]]
    assert len(array) == 3
    with pytest.raises(TypeError):
        len(mpscffi.zeros(()))


def test_views_keep_their_memory_alive(kernels: Any) -> None:
    view = mpscffi.asarray(np.arange(10, dtype=np.float32))[4:6]
    for _ in range(20):
        mpscffi.full(10, -1)
    assert view.tolist() == [4, 5]


@pytest.mark.parametrize("key", [[0, 1], np.array([0]), np.array(True), True, "x", 1.5, (0, [1]), slice(0, 1.5)])
def test_indices_that_make_no_view(key: Any) -> None:
    with pytest.raises(TypeError):
        mpscffi.zeros(3, 3)[key]


def test_indices_out_of_range() -> None:
    array = mpscffi.zeros(3)
    for key in (3, -4, (0, 0)):
        with pytest.raises(IndexError):
            array[key]


def test_membership() -> None:
    array = mpscffi.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert 5.0 in array
    assert 2 in array[:, ::2]
    assert 1 not in array[:, ::2]
    with pytest.raises(errors.UnsupportedError, match="private"):
        assert 3 in mpscffi.empty(2, storage="private")


def test_reshape() -> None:
    array = mpscffi.asarray(np.arange(12, dtype=np.int16))
    assert array.reshape(3, 4).tolist() == np.arange(12).reshape(3, 4).tolist()
    assert array.reshape((2, -1)).shape == (2, 6)
    assert array.reshape(-1).shape == (12,)
    array.reshape(3, 4)[1, 1] = 99
    assert array[5].item() == 99
    for shape in ((5,), (-1, -1), (-1, 5), (-2,)):
        with pytest.raises(ValueError, match="^reshape: (?!reshape)"):
            array.reshape(shape)
    with pytest.raises(ValueError, match=r"strides \(2, 8\) has no view.*copy"):
        array.reshape(3, 4).T.reshape(12)
    with pytest.raises(ValueError, match="transpose"):
        array.transpose(1, 0)


def test_view_of_another_dtype() -> None:
    array = mpscffi.asarray(np.array([1.0, -2.0], np.float32))
    assert array.view("uint32").tolist() == [0x3F800000, 0xC0000000]
    assert array.view(np.uint8).shape == (8,)
    with pytest.raises(ValueError, match="view"):
        array[:1].view("int64")
    with pytest.raises(TypeError, match="float64"):
        array.view("float64")


# ---- writing


def test_setitem() -> None:
    array = mpscffi.zeros(3, 4, dtype=np.int32)
    array[1] = [1, 2, 3, 4]
    array[:, 0] = 7
    array[2, 2:] = mpscffi.asarray(np.array([8, 9], np.int32))
    assert array.tolist() == [[7, 0, 0, 0], [7, 2, 3, 4], [7, 0, 8, 9]]
    with pytest.raises(ValueError):  # noqa: PT011, the text is NumPy's
        array[0] = [1, 2]


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copy_from(kernels: Any, non_blocking: bool) -> None:
    host = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32)
    array = mpscffi.empty(20, 30)
    for source in (host, host.tolist(), host.astype(np.float64), host.T.copy().T, mpscffi.asarray(host),
                   mpscffi.asarray(host.T.copy()).T, mpscffi.asarray(host.astype(np.float16))):  # fmt: skip
        array.fill_(0)
        assert array.copy_from(source, non_blocking=non_blocking) is array
        expected = np.asarray(source).astype(np.float32)
        assert (array.numpy() == expected).all()
        array.T.copy_from(np.asarray(source).T, non_blocking=non_blocking)
        assert (array.numpy() == expected).all()
    array.copy_from(3, non_blocking=non_blocking)
    assert (array.numpy() == 3).all()
    array.copy_from(host[0], non_blocking=non_blocking)
    assert (array.numpy() == host[0]).all()
    for wrong in (np.zeros(7), np.zeros((20, 30, 1))):
        with pytest.raises(ValueError, match=r"copy_from.*\(20, 30\)"):
            array.copy_from(wrong, non_blocking=non_blocking)


def test_copies_that_do_not_block_have_taken_their_source() -> None:
    buffers = [mpscffi.empty(1) for _ in range(300)]
    for i, buffer in enumerate(buffers):
        buffer.copy_from(np.full(1, i, np.float32), non_blocking=True)
    source = np.ones(1000, np.float32)
    target = mpscffi.empty(1000).copy_from(source, non_blocking=True)
    source[:] = 2
    mpscffi.synchronize()
    assert [buffer.item() for buffer in buffers] == list(range(300))
    assert (target.numpy() == 1).all()


def test_a_copy_onto_itself() -> None:
    array = mpscffi.asarray(np.arange(10, dtype=np.float32))
    array.copy_from(array)
    array[1:].copy_from(array[:-1].copy())
    assert array.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_copy_between_parts_that_overlap() -> None:
    for first in (0, 1):
        array = mpscffi.asarray(np.arange(10, dtype=np.float32))
        source, target = array[first : 9 + first], array[1 - first : 10 - first]
        expected = np.arange(10, dtype=np.float32)
        expected[1 - first : 10 - first] = expected[first : 9 + first].copy()
        target.copy_from(source)
        assert array.tolist() == expected.tolist()


# ---- reading


def test_numpy_sees_the_memory(kernels: Any) -> None:
    array = mpscffi.zeros(100)
    view = array.numpy()
    kernels.fill(array, 5.0)
    mpscffi.synchronize()
    assert (view == 5).all()
    view[3] = 7
    out = mpscffi.zeros(100)
    kernels.copy(out, array)
    assert out[3].item() == 7
    assert np.shares_memory(array.numpy(), array[2:].numpy())


def test_numpy_waits_for_the_work(kernels: Any) -> None:
    array, one = mpscffi.zeros(300_000), mpscffi.ones(300_000)
    for i in range(10):
        kernels.fill(one, float(i))
        kernels.copy(array, one)
        assert (array.numpy() == i).all()


def test_numpy_views_keep_the_memory(kernels: Any) -> None:
    for make in (lambda a: a.numpy(), lambda a: np.asarray(a)[2:], lambda a: a[5:].numpy(), lambda a: np.from_dlpack(a),
                 lambda a: np.frombuffer(memoryview(a.numpy()), np.float32)):  # fmt: skip
        array = mpscffi.asarray(np.arange(1000, dtype=np.float32))
        view = make(array)
        expected = view.copy()
        used = mpscffi.current_allocated_memory()
        del array
        gc.collect()
        mpscffi.empty_cache()
        assert mpscffi.current_allocated_memory() == used
        noise = [mpscffi.full(1000, -1) for _ in range(10)]
        assert (view == expected).all()
        del noise
        used = mpscffi.current_allocated_memory()
        del view
        gc.collect()
        assert mpscffi.current_allocated_memory() == used - 4096
    assert np.asarray(mpscffi.ones(3)).tolist() == [1, 1, 1]


def test_array_protocol() -> None:
    array = mpscffi.asarray(np.arange(4, dtype=np.int32))
    assert np.shares_memory(np.asarray(array), array.numpy())
    assert np.array(array).tolist() == [0, 1, 2, 3]
    assert not np.shares_memory(np.array(array, copy=True), array.numpy())
    assert np.asarray(array, dtype=np.float64).dtype == np.float64
    assert np.asarray(array, dtype=np.int32).dtype == np.int32
    with pytest.raises(ValueError, match="copy"):
        array.__array__(np.float64, copy=False)
    assert (np.sin(array) == np.sin(array.numpy())).all()
    assert memoryview(array.numpy()).tolist() == [0, 1, 2, 3]


def test_numbers() -> None:
    assert mpscffi.asarray(2.5).item() == 2.5
    assert float(mpscffi.asarray([2.5])) == 2.5
    assert int(mpscffi.asarray([[3]])) == 3
    assert complex(mpscffi.asarray(1j)) == 1j
    assert bool(mpscffi.asarray([0])) is False
    assert mpscffi.asarray([1, 2, 3]).item(1) == 2
    for convert in (float, bool, lambda a: a.item()):
        with pytest.raises(ValueError, match="item"):
            convert(mpscffi.zeros(2))


def test_repr_shows_no_contents() -> None:
    assert repr(mpscffi.zeros(2, 3)) == f"<mpscffi.Array shape=(2, 3) dtype=float32 device={_device()}>"
    assert "strides=(4, 12)" in repr(mpscffi.zeros(2, 3).T)


def _device() -> str:
    device = mpscffi.current_device()
    return f"{device.backend}:{device.index}"


@pytest.mark.parametrize("clone", [lambda a: pickle.loads(pickle.dumps(a)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pickles_and_copies_hold_the_contents(clone: Any, dtype: str) -> None:
    host = np.arange(24).astype(dtype).reshape(2, 3, 4)
    array = mpscffi.asarray(host)
    for view, expected in (
        (array, host),
        (array[1, ::2].T, host[1, ::2].T),
        (array[0, 0, 0], host[0, 0, 0]),
        (array[:0], host[:0]),
    ):
        other = clone(view)
        assert other.dtype == host.dtype
        assert other.shape == expected.shape
        assert (other.numpy() == expected).all()
        assert not np.shares_memory(other.numpy(), array.numpy())


# ---- DLPack


def test_dlpack_out() -> None:
    for dtype in set(DTYPES):
        array = mpscffi.asarray(np.arange(6).astype(dtype).reshape(2, 3))
        for view in (array, array[1:], array.T, array[:, 1], array[:0]):
            other = np.from_dlpack(view)
            assert (other == view.numpy()).all()
            assert other.shape == view.shape
            assert not view.size or np.shares_memory(other, array.numpy())
    assert mpscffi.zeros(1).__dlpack_device__() == (1, 0)


def test_dlpack_in() -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (host, host.T, host[::-1], host[:0], host > 2, host.astype(np.float16)):
        array = mpscffi.from_dlpack(source, copy=True)
        assert (array.numpy() == source).all()
        assert array.dtype == source.dtype
    array = mpscffi.zeros(2)
    assert mpscffi.from_dlpack(array) is array
    assert mpscffi.from_dlpack(array, copy=True) is not array
    with pytest.raises(TypeError, match="float64"):
        mpscffi.from_dlpack(np.zeros(3))
    with pytest.raises(TypeError, match="__dlpack__"):
        mpscffi.from_dlpack([1, 2])


# ---- host memory without a copy


def test_memory_is_shared_where_it_is_aligned(kernels: Any) -> None:
    host = aligned(2 * PAGE)
    for array in (mpscffi.from_numpy(host), mpscffi.asarray(host, copy=False), mpscffi.from_dlpack(host, copy=False)):
        assert array.is_alias
        host[:] = 3
        out = mpscffi.zeros(host.size)
        kernels.copy(out, array)
        assert (out.numpy() == 3).all()
        kernels.fill(array[1:], 4.0)
        mpscffi.synchronize()
        assert host[0] == 3
        assert (host[1:] == 4).all()
        assert np.shares_memory(array.numpy(), host)


def test_memory_that_is_not_aligned_is_copied_or_refused() -> None:
    host = aligned(2 * PAGE)
    for part, reason in ((host[4:], "multiples of 16384"), (host[: PAGE // 4 - 1], "multiples of 16384"),
                         (host[::2], "strides"), (host[:0], "multiples")):  # fmt: skip
        if part.size:
            with pytest.warns(errors.CopyWarning, match=rf"from_numpy: copied, since .*{reason}"):
                array = mpscffi.from_numpy(part)
        else:
            array = mpscffi.from_numpy(part)
        assert not array.is_alias
        assert (array.numpy() == part).all()
        with pytest.raises(ValueError, match=reason):
            mpscffi.from_numpy(part, copy=False)
    assert not mpscffi.from_numpy(host, copy=True).is_alias
    with pytest.raises(TypeError, match="expected a numpy.ndarray"):
        mpscffi.from_numpy([1.0])  # type: ignore[arg-type]


def test_shared_memory_lives_as_long_as_work_needs_it(kernels: Any) -> None:
    outs = []
    for i in range(20):
        host = aligned(4 * PAGE)
        host[:] = i
        out = mpscffi.empty(host.size)
        kernels.copy(out, mpscffi.from_numpy(host, copy=False))
        outs.append(out)
        del host
    assert [int(out[-1].item()) for out in outs] == list(range(20))


def test_shared_memory_is_let_go() -> None:
    import weakref

    raw = mmap.mmap(-1, 4 * PAGE)
    host = np.frombuffer(raw, np.float32)
    start = -host.ctypes.data % PAGE // 4
    host = host[start : start + PAGE // 4]

    class Owner(np.ndarray):  # can be referred to weakly
        pass

    owner = host.view(Owner)
    reference = weakref.ref(owner)
    array = mpscffi.from_numpy(owner, copy=False)
    view = array[2:]
    del owner, array
    gc.collect()
    assert reference() is not None
    view.fill_(1)
    mpscffi.synchronize()
    del view
    gc.collect()
    assert reference() is None


def test_read_only_memory_is_read_only(kernels: Any) -> None:
    host = aligned(PAGE)
    host.flags.writeable = False
    array = mpscffi.from_numpy(host, copy=False)
    assert not array.is_writable
    assert not array.numpy().flags.writeable
    out = mpscffi.empty(host.size)
    kernels.copy(out, array)
    assert (out.numpy() == 0).all()
    for view in (array, array[3:]):
        with pytest.raises(ValueError, match="read-only"):
            kernels.fill(view, 1.0)
        for write in (lambda v: v.fill_(1), lambda v: v.__setitem__(0, 1), lambda v: v.copy_from(np.ones(1))):
            with pytest.raises(ValueError, match="read-only"):
                write(view)
    assert not host.any()


@pytest.mark.parametrize("make", [
    lambda: np.frombuffer(b"\0\0\x80?" * 4, np.float32),
    lambda: np.broadcast_to(np.float32(1), 4),
    lambda: np.ones(8, np.float32)[::2],
    lambda: np.asfortranarray(np.ones((2, 2), np.float32)).reshape(4),
])  # fmt: skip
def test_other_sources_are_copied(kernels: Any, make: Any) -> None:
    array = mpscffi.from_numpy(make(), copy=True)
    assert array.tolist() == [1] * 4
    kernels.fill(array, 2.0)
    assert array.tolist() == [2] * 4
    assert (make() == 1).all()


# ---- text, comparisons, conversions


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "complex64", "bfloat16"])
def test_print_shows_the_contents(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(mpscffi.zeros(1, dtype=dtype).dtype)
    array = mpscffi.asarray(values)
    assert str(array) == f"{array}" == str(values)
    assert str(array.T) == str(values.T)
    assert str(array[1, 2]) == str(values[1, 2, ...])
    assert repr(array).startswith("<mpscffi.Array")


def test_print_waits(kernels: Any) -> None:
    array = mpscffi.zeros(4)
    kernels.fill(array, 2.5)
    assert str(array) == "[2.5 2.5 2.5 2.5]"


def test_print_without_contents() -> None:
    private = mpscffi.zeros(3, storage="private")
    assert str(private) == f"{private}" == repr(private)
    array = mpscffi.zeros(3)
    with mpscffi.record() as graph:
        array.fill_(0)
        assert str(array) == repr(array)
    graph.replay()
    assert str(array) == "[0. 0. 0.]"


def test_format_of_one_element() -> None:
    array = mpscffi.asarray([1.23456, 7])
    assert f"{array[0]:.2f} {array[1]:>6.1f}" == "1.23    7.0"
    assert f"{mpscffi.asarray(12, dtype='int32'):04d}" == "0012"
    with pytest.raises(TypeError, match=r"shape \(2,\).*array2string"):
        f"{array:.2f}"


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, lambda a, b: a in [b]])
@pytest.mark.parametrize("other", [
    mpscffi.ones, lambda n: 1.0, lambda n: True, lambda n: 1j, lambda n: [1.0] * n, lambda n: (1.0,) * n, range,
])  # fmt: skip
def test_contents_are_not_compared_silently(compare: Any, other: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"\.numpy\(\)"):
        compare(mpscffi.ones(3), other(3))
    with pytest.raises(errors.ArgumentTypeError, match=r"\.numpy\(\)"):
        compare(other(3), mpscffi.ones(3))


def test_comparisons_that_have_an_answer() -> None:
    array, values = mpscffi.asarray([1.0, 2.0]), np.float32([1, 3])
    for same in (array == values, values == array, ~(array != values), ~(values != array)):
        assert same.tolist() == [True, False]
    assert (array == np.float32(2)).tolist() == (np.float32(2) == array).tolist() == [False, True]
    assert (array == None) is (array == "x") is False  # noqa: E711
    assert (array != None) is True  # noqa: E711
    assert {array: 3}[array] == 3
    assert hash(array) != hash(mpscffi.asarray([1.0, 2.0]))
    assert 2.0 in array
    assert 3.0 not in array


def test_functions_of_numpy_take_arrays() -> None:
    array, values = mpscffi.asarray([1.0, 4.0]), np.float32([2, 3])
    assert np.sqrt(array).tolist() == [1, 2]
    assert (values + array).tolist() == np.add(array, values).tolist() == [3, 7]
    assert np.sum(array) == np.add.reduce(array) == 5
    np.negative(values, out=array)
    assert array.tolist() == [-2, -3]
    values *= array
    assert values.tolist() == [-4, -9]
    assert np.matmul(array, array) == 13


@pytest.mark.parametrize("other", [np.eye(2, dtype=np.float32), [[1.0, 0.0], [0.0, 1.0]], 2.0])
def test_products_with_host_memory_are_refused(other: Any) -> None:
    array = mpscffi.ones(2, 2)
    for product in (lambda: array @ other, lambda: other @ array):
        with pytest.raises(errors.ArgumentTypeError, match="asarray"):
            product()


def test_an_integer_without_axes_is_an_index() -> None:
    number = mpscffi.asarray(2, dtype="int32")
    assert [10, 20, 30][number] == 30
    assert mpscffi.asarray([10, 20, 30]).tolist()[number] == 30
    for other in (mpscffi.asarray([2], dtype="int32"), mpscffi.asarray(2.0)):
        with pytest.raises(TypeError, match="expected an integer"):
            [10, 20, 30][other]
    with pytest.raises(TypeError, match="index of type Array"):
        mpscffi.ones(3)[number]


@pytest.mark.parametrize("convert", [
    lambda: mpscffi.zeros(2, dtype="float16").fill_(1e6),
    lambda: mpscffi.zeros(2, dtype="float16").__setitem__(0, 1e6),
    lambda: mpscffi.zeros(2, dtype="float16").copy_from(np.float64([1e6, 0])),
    lambda: mpscffi.full(2, 1e6, dtype="float16"),
    lambda: mpscffi.asarray([1e6], dtype="float16"),
    lambda: mpscffi.asarray([1e300]),
    lambda: mpscffi.asarray([1e6]).astype("float16"),
])  # fmt: skip
def test_warnings_of_conversions_are_the_callers(convert: Any) -> None:
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast") as caught:
        convert()
    assert [warning.filename for warning in caught] == [__file__]
    with np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        convert()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        convert()


def test_read_only_arrays_say_how_to_write(tmp_path: Any, kernels: Any) -> None:
    path = tmp_path / "numbers"
    np.zeros(4, np.float32).tofile(path)
    array = mpscffi.from_file(path)
    for write in (lambda: array.fill_(1), lambda: kernels.fill(array, 1.0)):
        with pytest.raises(errors.InvalidArgumentError, match="read-only.*mode='c'"):
            write()


def test_the_same_shape_again_and_again() -> None:
    shape, none, deep = (3, 5), (4, 0), (1,) * 70
    for _ in range(3):
        arrays = [mpscffi.empty(shape), mpscffi.zeros(shape, dtype="int8"), mpscffi.empty(*shape)]
        assert [(array.shape, array.nbytes) for array in arrays] == [(shape, 60), (shape, 15), (shape, 60)]
        assert len({array.numpy().ctypes.data for array in arrays}) == 3
        assert mpscffi.empty(none).shape == none
        for wrong in (lambda: mpscffi.empty(shape, shape), lambda: mpscffi.empty(shape, 3)):
            with pytest.raises(TypeError, match="expected integers"):
                wrong()
        with pytest.raises(ValueError, match="no array can have the shape"):
            mpscffi.empty(deep)
