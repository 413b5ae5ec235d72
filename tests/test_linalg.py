"""Products of matrices, against NumPy's in float64, whichever way they are computed."""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import mpscffi
from mpscffi import config, errors, fallback

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(bfloat16)]
#: Half the distance from 1 to the next number.
EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _use(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setattr(config, "_settings", config.settings()._replace(**changes))


@pytest.fixture(params=["library", "kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: mpscffi.Device) -> str:
    """Products by the system's library, and by our kernel."""
    del device
    _use(monkeypatch, prefer_metal=request.param == "kernel")
    return str(request.param)


def assert_product(given: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    """Compare with the exact product, allowing for what sums in float32 of k products, rounded once, may be off."""
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert given.shape == exact.shape
    assert given.dtype == a.dtype
    epsilon = EPSILON[a.dtype.name]
    magnitude = np.matmul(abs(a.astype(np.float64)), abs(b.astype(np.float64)))
    smallest = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}[a.dtype.name]
    bound = (a.shape[-1] + 1) * EPSILON["float32"] * magnitude * 1.01 + 1.01 * epsilon * abs(exact) + smallest
    assert (abs(given.astype(np.float64) - exact) <= bound).all()


def _numbers(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


SHAPES = [
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((1, 1), (1, 1)),
    ((3, 4), (4, 5)),
    ((33, 17), (17, 65)),
    ((64, 64), (64, 64)),
    ((6, 3, 4), (4, 2)),
    ((6, 3, 4), (6, 4, 2)),
    ((3, 4), (6, 4, 2)),
    ((4,), (6, 4, 2)),
    ((6, 3, 4), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((2, 5, 3, 4), (1, 5, 4, 2)),
    ((2, 1, 3, 1, 3, 4), (2, 2, 1, 3, 4, 2)),
    ((2, 3, 4), (5, 1, 4, 2)),
    ((1, 200), (200, 1)),
    ((1000, 1), (1, 3)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shapes(way: str, dtype: np.dtype[Any], left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _numbers(left, dtype), _numbers(right, dtype, 1)
    product = mpscffi.asarray(a) @ mpscffi.asarray(b)
    assert product.is_contiguous
    assert_product(product.numpy(), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_numbers(way: str, dtype: np.dtype[Any]) -> None:
    a = np.arange(6).reshape(2, 3).astype(dtype)
    b = np.array([[1, 0], [0, 1], [10, -1]], dtype)
    assert (mpscffi.asarray(a) @ mpscffi.asarray(b)).tolist() == [[20, -1], [53, -1]]


def test_sums_are_rounded_once(way: str) -> None:
    """2048 + 1 + 1 is 2050 as a half; rounded after each sum it would be 2048."""
    a = mpscffi.asarray(np.array([[2048, 1, 1]], np.float16))
    assert (a @ mpscffi.ones(3, 1, dtype="float16")).tolist() == [[2050]]


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 0), (0, 2)), ((0, 4), (4, 2)), ((3, 4), (4, 0)), ((0,), (0,)), ((5, 3, 0), (0, 2)), ((0, 3, 4), (4, 2))],
)
def test_lengths_of_zero(way: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    product = mpscffi.zeros(*left) @ mpscffi.zeros(*right)
    expected = np.zeros(left, np.float32) @ np.zeros(right, np.float32)
    assert product.shape == expected.shape
    assert not product.numpy().any()


def test_a_stride_of_nothing_between_sums_leaves_the_gaps(way: str) -> None:
    out = mpscffi.ones(3, 5)
    mpscffi.matmul(mpscffi.zeros(3, 0), mpscffi.zeros(0, 4), out=out[:, :4])
    assert out.tolist() == [[0, 0, 0, 0, 1]] * 3


def test_what_is_not_finite(way: str) -> None:
    a = np.array([[np.inf, 1], [np.nan, 1], [0, 1], [1, 2]], np.float32)
    b = np.array([[0, 1, -np.inf], [1, 1, 1]], np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal((mpscffi.asarray(a) @ mpscffi.asarray(b)).numpy(), expected)


def test_an_overflow_is_an_infinity(way: str) -> None:
    a = mpscffi.full((2, 2), 300, dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (a @ a).tolist() == [[math.inf, math.inf]] * 2


# ---- layouts

VIEWS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.T.copy().T,
    "last columns": lambda x: np.pad(x, ((0, 0), (3, 0)), constant_values=np.nan)[:, 3:],
    "first columns": lambda x: np.pad(x, ((0, 0), (0, 3)), constant_values=np.nan)[:, :-3],
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "both backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


def _on_device(view: np.ndarray[Any, Any]) -> mpscffi.Array:
    """Return an array with the layout of a NumPy view."""
    base = view if view.base is None else view.base
    whole = mpscffi.asarray(base)
    taken = whole._view(
        np.ndarray(
            view.shape,
            view.dtype,
            whole._host(),
            view.__array_interface__["data"][0] - base.__array_interface__["data"][0],
            view.strides,
        )
    )
    assert taken.strides == view.strides or taken.is_contiguous
    return taken


@pytest.mark.parametrize("right", VIEWS)
@pytest.mark.parametrize("left", VIEWS)
def test_layouts(way: str, left: str, right: str) -> None:
    a, b = VIEWS[left](_numbers((7, 5), DTYPES[0])), VIEWS[right](_numbers((5, 6), DTYPES[0], 1))
    assert_product((_on_device(a) @ _on_device(b)).numpy(), a, b)


@pytest.mark.parametrize("layout", VIEWS)
def test_layouts_of_results(way: str, layout: str) -> None:
    a, b = _numbers((7, 5), DTYPES[0]), _numbers((5, 6), DTYPES[0], 1)
    out = _on_device(VIEWS[layout](np.zeros((7, 6), np.float32)))
    before = (out if out._base is None else out._base).numpy().copy()
    assert mpscffi.matmul(mpscffi.asarray(a), mpscffi.asarray(b), out=out) is out
    assert_product(out.numpy(), a, b)
    # What lies between is as it was.
    out.fill_(0)
    np.testing.assert_array_equal((out if out._base is None else out._base).numpy(), before)


def test_a_stack_that_lies_inside_its_matrices(way: str) -> None:
    a, b = _numbers((3, 4, 5), DTYPES[0]), _numbers((3, 5, 2), DTYPES[0], 1)
    left = mpscffi.asarray(np.ascontiguousarray(a.transpose(1, 0, 2))).transpose(1, 0, 2)
    right = mpscffi.asarray(np.ascontiguousarray(b.transpose(1, 2, 0))).transpose(2, 0, 1)
    out = mpscffi.zeros(4, 3, 2).transpose(1, 0, 2)
    assert_product(mpscffi.matmul(left, right, out=out).numpy(), a, b)
    assert_product((left @ right).numpy(), a, b)


def test_rows_that_end_with_their_buffer(way: str, device: mpscffi.Device) -> None:
    """The gap behind the last row is not there."""
    pages = np.zeros(2 * device.page_size // 4, np.float32)
    pages[:] = np.arange(pages.size) % 7
    whole = mpscffi.asarray(pages)
    width = pages.size // 4
    a = whole.reshape(4, width)[:, width - 3 :]
    b = mpscffi.asarray(_numbers((3, 2), DTYPES[0]))
    assert_product((a @ b).numpy(), a.numpy(), b.numpy())


@st.composite
def _cases(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two stacks with strides of any kind, that fit."""
    rows, inner, columns = (draw(st.integers(1, 40)) for _ in range(3))
    stack = draw(st.lists(st.integers(1, 3), max_size=2))
    dtype = draw(st.sampled_from(DTYPES))

    def operand(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        own = [draw(st.sampled_from([length, 1])) for length in stack[draw(st.integers(0, len(stack))) :]]
        shape = (*own, *shape)
        order = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
        stored = tuple(shape[axis] * abs(steps[axis]) for axis in order)
        values = _numbers(stored, dtype, draw(st.integers(0, 100)))
        return values.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]

    return operand((rows, inner)), operand((inner, columns))


@given(case=_cases())
@settings(max_examples=60)
def test_any_stacks(
    case: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], way_of_all: Callable[[], Iterator[str]]
) -> None:
    a, b = case
    for _ in way_of_all():
        assert_product((_on_device(a) @ _on_device(b)).numpy(), a, b)


@pytest.fixture(scope="module")
def way_of_all(_backend: str) -> Callable[[], Iterator[str]]:
    """As `way`, one after the other for each of hypothesis's examples."""

    def ways() -> Iterator[str]:
        mpscffi.set_device(_backend)
        before = config._settings
        try:
            for way in ("library", "kernel"):
                config._settings = config.settings()._replace(prefer_metal=way == "kernel")
                yield way
        finally:
            config._settings = before

    return ways


# ---- as other work


def test_order_and_lifetime(way: str, gate: Callable[[], None]) -> None:
    a = mpscffi.asarray(np.eye(50, dtype=np.float32))
    b = mpscffi.zeros(50, 50)
    product = a @ b
    assert not mpscffi.current_stream().query()
    del a
    b.copy_from(mpscffi.ones(50, 50), non_blocking=True)
    second = product.copy_from(product @ mpscffi.ones(50, 50), non_blocking=True)
    third = mpscffi.asarray(np.eye(50, dtype=np.float32)) @ b
    gate()
    assert not second.numpy().any()
    assert (third.numpy() == 1).all()


def test_streams(way: str) -> None:
    a = mpscffi.asarray(_numbers((60, 60), DTYPES[0]))
    streams = [mpscffi.Stream() for _ in range(3)]
    products = [a]
    for i in range(9):
        with mpscffi.stream(streams[i % 3]):
            products.append(a @ products[-1])
            products[-1] = mpscffi.matmul(products[-1], mpscffi.full((60, 60), 0.1), out=mpscffi.empty(60, 60))
    expected = a.numpy().astype(np.float64)
    for _ in range(9):
        expected = a.numpy().astype(np.float64) @ expected @ np.full((60, 60), 0.1)
    np.testing.assert_allclose(products[-1].numpy(), expected, rtol=1e-3, atol=1e-3 * abs(expected).max())


def test_graphs(way: str) -> None:
    a, b = mpscffi.asarray(_numbers((3, 4), DTYPES[0])), mpscffi.asarray(_numbers((4, 5), DTYPES[0], 1))
    out, seen = mpscffi.zeros(3, 5), mpscffi.zeros(5, 3)
    with mpscffi.record() as graph:
        product = mpscffi.matmul(a, b, out=out)
        mpscffi.matmul(product.T, a[:, :3].T, out=seen.T.T[:5])
    assert len(graph) == 2
    assert not out.numpy().any()
    for factor in (1, 2):
        a.copy_from(_numbers((3, 4), DTYPES[0]) * factor)
        graph.replay()
        assert_product(out.numpy(), a.numpy(), b.numpy())
        assert_product(seen.numpy(), out.numpy().T, a.numpy()[:, :3].T)
    if way == "library":
        other = mpscffi.asarray(_numbers((3, 4), DTYPES[0], 2))
        graph[0].set(a=other)
        graph.replay()
        assert_product(out.numpy(), other.numpy(), b.numpy())
        with pytest.raises(errors.InvalidArgumentError, match="mismatch"):
            graph[0].set(a=b)
        with pytest.raises(errors.ArgumentTypeError, match="expected one of a, b, out"):
            graph[0].set(c=b)


def test_graphs_with_stacks_at_several_distances(way: str) -> None:
    a, b = _numbers((2, 1, 3, 4), DTYPES[0]), _numbers((5, 4, 2), DTYPES[0], 1)
    out = mpscffi.zeros(2, 5, 3, 2)
    left, right = mpscffi.asarray(a), mpscffi.asarray(b)
    with mpscffi.record() as graph:
        mpscffi.matmul(left, right, out=out)
    graph.replay()
    assert_product(out.numpy(), a, b)
    if way == "library":
        with pytest.raises(errors.StateError, match="several commands"):
            graph[0].set(a=left)


def test_read_only_operands(way: str, device: mpscffi.Device) -> None:
    size = device.page_size
    mapped = np.frombuffer(mmap.mmap(-1, 2 * size), np.uint8)
    start = -mapped.ctypes.data % size
    memory = mapped[start : start + size].view(np.float32)
    memory[:] = 2
    memory.flags.writeable = False
    a = mpscffi.from_numpy(memory, copy=False).reshape(4, -1)
    assert (a @ mpscffi.ones(size // 16, 2)).tolist() == [[size // 8] * 2] * 4
    with pytest.raises(errors.InvalidArgumentError, match="read-only"):
        mpscffi.matmul(mpscffi.ones(4, 4), mpscffi.ones(4, size // 16), out=a)


# ---- refusals


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        ((3, 4), (5, 2), r"mismatch in .* shapes \(3, 4\) and \(5, 2\): size 5 is different from 4"),
        ((4,), (5,), "size 5 is different from 4"),
        ((), (4,), "operand 0 does not have enough dimensions"),
        ((4,), (), "operand 1 does not have enough dimensions"),
        ((2, 3, 4), (3, 4, 2), r"could not be broadcast together.*\(2,\) and \(3,\)"),
    ],
)
def test_shapes_that_do_not_fit(
    device: mpscffi.Device, left: tuple[int, ...], right: tuple[int, ...], text: str
) -> None:
    with pytest.raises(ValueError, match="matmul: Input operand|could not be broadcast"):
        np.matmul(np.zeros(left), np.zeros(right))
    with pytest.raises(errors.InvalidArgumentError, match=text):
        mpscffi.matmul(mpscffi.zeros(left), mpscffi.zeros(right))


def test_arguments_that_cannot_be(device: mpscffi.Device) -> None:
    a = mpscffi.ones(3, 3)
    with pytest.raises(errors.ArgumentTypeError, match="got ndarray as b, expected an mpscffi.Array"):
        mpscffi.matmul(a, np.ones((3, 3)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got int beside an mpscffi.Array"):
        a @ 3  # type: ignore[operator]
    with pytest.raises(errors.ArgumentTypeError, match="float32 and float16, expected the same"):
        a @ mpscffi.ones(3, 3, dtype="float16")
    for dtype in ("int32", "uint8", "bool", "complex64"):
        with pytest.raises(TypeError, match=f"arrays of {dtype}, expected float32, float16, bfloat16.*FALLBACK"):
            mpscffi.ones(3, 3, dtype=dtype) @ mpscffi.ones(3, 3, dtype=dtype)


def test_results_that_cannot_be(device: mpscffi.Device) -> None:
    a, b = mpscffi.ones(3, 3), mpscffi.ones(3, 3)
    both = mpscffi.zeros(6, 3)
    for out, text in [
        (mpscffi.empty(3, 2), r"out of shape \(3, 2\), expected \(3, 3\)"),
        (mpscffi.empty(3, 3, dtype="float16"), "out of float16, expected float32"),
        (np.zeros((3, 3), np.float32), "got ndarray as out"),
        (a, "out and a share memory"),
        (b.T, "out and b share memory"),
    ]:
        with pytest.raises((errors.InvalidArgumentError, errors.ArgumentTypeError), match=text):
            mpscffi.matmul(a, b, out=out)  # type: ignore[arg-type]
    assert (a.numpy() == 1).all()
    # Side by side in one buffer is no harm.
    mpscffi.matmul(both[3:], b, out=both[:3])
    with pytest.raises(errors.InvalidArgumentError, match="out and a share memory"):
        mpscffi.matmul(both[3:], b, out=both[1:4])
    page = device.page_size
    pages = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
    address = -(-pages.ctypes.data // page) * page
    one, other = (mpscffi.from_pointer(address, (3, 3), length=page) for _ in range(2))
    with pytest.raises(errors.InvalidArgumentError, match="out and a share memory"):
        mpscffi.matmul(one, b, out=other)
    private = mpscffi.empty(6, 3, storage="private")
    private.copy_from(np.ones((6, 3), np.float32))
    with pytest.raises(errors.InvalidArgumentError, match="out and a share memory"):
        mpscffi.matmul(private[3:], b, out=private[1:4])
    assert (mpscffi.matmul(private[3:], b, out=private[:3]).to_host() == 3).all()


# ---- what Metal lacks, on the CPU


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, device: mpscffi.Device) -> None:
    del device
    _use(monkeypatch, enable_fallback=True)
    monkeypatch.setattr(fallback, "_warned", set())


def test_products_of_what_metal_lacks(on_cpu: None) -> None:
    with pytest.warns(errors.FallbackWarning, match="matmul of int32, which Metal lacks, runs on the CPU") as caught:
        product = mpscffi.ones(2, 3, dtype="int32") @ mpscffi.full((3, 2), 5, dtype="int32")
    assert [warning.filename for warning in caught] == [__file__]
    assert product.dtype == np.int32
    assert product.tolist() == [[15, 15]] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        out = mpscffi.zeros(2, 2, dtype="complex64").T
        given = mpscffi.asarray(np.array([[1j, 2], [3, 4]], np.complex64))
        assert mpscffi.matmul(given, given, out=out) is out
    np.testing.assert_array_equal(out.numpy(), given.numpy() @ given.numpy())
    with pytest.raises(errors.ArgumentTypeError, match="expected the same of both"):
        mpscffi.ones(3, 3, dtype="int32") @ mpscffi.ones(3, 3)


def test_arrays_of_what_metal_lacks(on_cpu: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a = mpscffi.asarray(np.array([[0.1, 0.2]]))
        assert a.dtype == np.float64
        assert a.tolist() == [[0.1, 0.2]]
        assert (a @ a.T).item() == pytest.approx(0.05, abs=1e-16)
        assert mpscffi.zeros(3, dtype="complex128").dtype == np.complex128
        assert a.astype(np.float32).astype("float64").tolist() == [[np.float32(0.1), np.float32(0.2)]]
        assert mpscffi.empty(1, 2, dtype="float64").copy_from(a, non_blocking=True).tolist() == a.tolist()
    assert [str(one.message).split(" of ")[0] for one in caught] == ["an array", "matmul"]


def test_random_numbers_of_what_metal_lacks(on_cpu: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generator = mpscffi.Generator(7)
        state = generator.get_state()
        a = mpscffi.rand(1000, dtype="float64", generator=generator).numpy()
    assert "a random array of float64" in str(caught[-1].message)
    assert ((a >= 0) & (a < 1)).all()
    assert abs(a.mean() - 0.5) < 0.05
    assert (a * 2**24 % 1).any()  # finer than floats
    generator.set_state(state)
    np.testing.assert_array_equal(mpscffi.rand(1000, dtype="float64", generator=generator).numpy(), a)
    assert abs(mpscffi.randn(1000, dtype="float64", generator=generator).numpy().std() - 1) < 0.2
    assert mpscffi.exponential(1000, lambd=2, dtype="float64", generator=generator).numpy().min() >= 0
    assert set(mpscffi.bernoulli(0.5, 100, dtype="float64", generator=generator).tolist()) == {0, 1}
    assert mpscffi.bernoulli([0.0, 1.0], dtype="float64", generator=generator).tolist() == [0, 1]
    counts = mpscffi.poisson([[0.0], [30.0]], 2, 200, dtype="float64", generator=generator).numpy()
    assert not counts[0].any() and abs(counts[1].mean() - 30) < 3
    numbers = mpscffi.randint(-3, 4, (500,), dtype="float64", generator=generator)
    assert set(numbers.tolist()) == set(range(-3, 4))
    with pytest.raises(errors.InvalidArgumentError, match="low to be at most high"):
        mpscffi.fill_uniform(mpscffi.empty(3, dtype="float64"), 2, 1)


def test_kernels_never_fall_back(on_cpu: None, compiled: Callable[[str], mpscffi.ShaderLibrary]) -> None:
    library = compiled("kernel void one(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }")
    with pytest.warns(errors.FallbackWarning):
        array = mpscffi.zeros(4, dtype="float64")
    with pytest.raises(errors.ArgumentTypeError, match="float64"):
        library.one(array)


def test_without_the_variable_what_metal_lacks_is_refused(device: mpscffi.Device) -> None:
    with pytest.raises(TypeError, match="float64.*convert to float32"):
        mpscffi.zeros(3, dtype="float64")


# ---- processes


def test_the_variables(python: Any, device: mpscffi.Device) -> None:
    script = """
        import warnings, numpy, mpscffi
        from mpscffi import linalg
        a = mpscffi.ones(3, 3)
        print((a @ a).item(0), len(linalg._libraries))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                b = mpscffi.ones(3, 3, dtype="int64")
                print((b @ b).item(0), (b @ b).dtype, len(caught), caught[0].category.__name__)
            except TypeError as error:
                print(type(error).__name__)
    """
    own = {"PYTORCH_MPS_PREFER_METAL": "1", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    for changes, expected in [({}, "3.0 0 ArgumentTypeError"), (own, "3.0 1 3 int64 1 FallbackWarning")]:
        environment = dict.fromkeys(own, "") | {"MPSCFFI_DEVICE": device.backend} | changes
        result = python(script, **environment)
        assert result.stdout.split() == expected.split(), result.stderr


def test_an_exit_amid_products(python: Any, device: mpscffi.Device) -> None:
    script = """
        import threading, mpscffi
        a = mpscffi.ones(100, 100)
        def work(n):
            with mpscffi.stream(mpscffi.Stream()):
                for i in range(n):
                    b = a @ a
                    mpscffi.current_stream().commit()
        threads = [threading.Thread(target=work, args=(5,)) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        work(10)  # which nobody waits for, and which nothing went wrong with
        print("end")
    """
    result = python(script, MPSCFFI_DEVICE=device.backend)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


#: What multiplies `a`, of ones, by itself, 5 times and into `out` at the end, in several ways.
_LAST_WORK = {
    "queued": "chain()",
    "committed": "chain(); mpscffi.current_stream().commit()",
    "another stream": "with mpscffi.stream(mpscffi.Stream()): chain()",
    "behind a callback": "mpscffi.current_stream().add_callback(lambda: time.sleep(0.2)); chain()",
    "of a callback": "mpscffi.current_stream().add_callback(with_a_stream)",
    "a graph": """
with mpscffi.record() as graph:
    chain()
graph.replay()""",
}


@pytest.mark.parametrize("work", _LAST_WORK)
def test_products_that_are_queued_at_the_exit_are_done(
    python: Any, device: mpscffi.Device, tmp_path: Path, work: str
) -> None:
    script = f"""
import time, mpscffi
a = mpscffi.ones(200, 200)
out = mpscffi.from_file({str(tmp_path / "out")!r}, shape=(200, 200), mode="r+")
def chain():
    b = a
    for _ in range(4):
        b = b @ a
    mpscffi.matmul(b, a, out=out)
def with_a_stream():
    with mpscffi.stream(other):
        chain()
other = mpscffi.Stream()
{_LAST_WORK[work]}
"""
    np.zeros((200, 200), np.float32).tofile(tmp_path / "out")
    result = python(script, MPSCFFI_DEVICE=device.backend)
    assert (result.returncode, result.stderr) == (0, "")
    np.testing.assert_allclose(np.fromfile(tmp_path / "out", np.float32), np.float32(200.0**5), rtol=1e-5)


@pytest.mark.host_only("Metal's products need no interpreter")
def test_products_that_are_left_behind_say_so(python: Any, device: mpscffi.Device) -> None:
    script = """
        import sys, mpscffi
        from mpscffi import _callbacks
        _callbacks.EXIT_SECONDS = 0.05
        a, gate = mpscffi.ones(20, 30), mpscffi.Event()
        gate.wait(value=1)
        b = a @ a.T
        mpscffi.current_stream().commit()
        sys.modules["mpscffi.stream"].final_calls.append(gate.signal)  # too late for the product
    """
    result = python(script, MPSCFFI_DEVICE=device.backend)
    assert result.returncode == 0
    assert result.stderr.startswith("mpscffi: matmul of 20 x 30 by 30 x 20, float failed")
    assert "call mpscffi.synchronize() before the program ends" in result.stderr


@pytest.mark.host_only("the function is the host device's")
def test_a_product_without_a_function(device: mpscffi.Device) -> None:
    from mpscffi import _blas
    from mpscffi._ffi import check, ffi, lib

    a = mpscffi.ones(2, 2)
    assert (a @ a).item(0) == 2
    check(lib.mps_matmul_set(ffi.NULL, ffi.NULL, 0))
    try:
        with pytest.raises(errors.UnsupportedError, match="mps_matmul_set"):
            a @ a
    finally:
        _blas.set_function()
    assert (a @ a).item(0) == 2


@pytest.fixture(params=["by the BLAS", "by NumPy"])
def multiplier(request: pytest.FixtureRequest, device: mpscffi.Device) -> Iterator[None]:
    """Have the host device multiply in one of its two ways."""
    from mpscffi import _blas
    from mpscffi._ffi import check, ffi, lib

    _blas.install()
    if request.param == "by NumPy":
        check(lib.mps_matmul_set(lib.mpscffi_matmul, ffi.NULL, 0))
    yield
    _blas.set_function()


@pytest.mark.host_only("the host device's functions")
@pytest.mark.usefixtures("multiplier")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 4, 5), (1, 40, 33), (33, 40, 1), (1, 40, 1), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("turned", ["neither", "left", "right", "both"])
def test_both_functions_for_products(sizes: tuple[int, int, int], dtype: Any, turned: str) -> None:
    rows, inner, columns = sizes
    numbers = np.random.default_rng(rows + 10 * inner)
    # Small integers, so that all sums are exact in each type.
    left = numbers.integers(-3, 4, (3, rows, inner)).astype(dtype)
    right = numbers.integers(-1, 2, (3, inner, columns)).astype(dtype)
    a, b = (
        mpscffi.asarray(np.ascontiguousarray(x.swapaxes(1, 2))).transpose(0, 2, 1) if turn else mpscffi.asarray(x)
        for x, turn in ((left, turned in ("left", "both")), (right, turned in ("right", "both")))
    )
    expected = np.matmul(left.astype(np.float32), right.astype(np.float32)).astype(dtype)
    for product, result in ((a[0], b[0]), expected[0]), ((a, b), expected), ((a, b[1]), left @ right[1]):
        # NaN in what is overwritten must not count.
        out = mpscffi.full(result.shape, float("nan"), dtype=dtype)
        mpscffi.matmul(*product, out=out)
        np.testing.assert_array_equal(out.numpy(), result.astype(dtype))


@pytest.mark.host_only("the host device's functions")
@pytest.mark.usefixtures("multiplier")
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_all_numbers_of_16_bits_are_multiplied_by_one(dtype: Any) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 1)
    product = (mpscffi.asarray(numbers) @ mpscffi.ones(1, 1, dtype=dtype)).numpy()
    np.testing.assert_array_equal(product.astype(np.float32), numbers.astype(np.float32))


@pytest.mark.host_only("the host device's functions")
@pytest.mark.usefixtures("multiplier")
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_sums_are_rounded_to_16_bits_as_numpy_rounds(dtype: Any) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    numbers = numbers[np.isfinite(numbers.astype(np.float32))].astype(np.float32)
    numbers = numbers[np.abs(numbers) != np.max(numbers)]  # the one without a next number
    # Halfway to the next number, and a little beside that: sums of two terms that are exact in float32.
    for part in (0.5, 0.25, 0.75):
        steps = (np.nextafter(numbers.astype(dtype), dtype(np.inf)).astype(np.float32) - numbers).astype(dtype)
        pairs = np.stack([numbers.astype(dtype), steps], 1)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (numbers + steps.astype(np.float32) * np.float32(part)).astype(dtype)
        weights = mpscffi.asarray(np.array([[1], [part]], dtype))
        product = (mpscffi.asarray(pairs) @ weights).numpy()[:, 0]
        np.testing.assert_array_equal(product.astype(np.float32), expected.astype(np.float32))
