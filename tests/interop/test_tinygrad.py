"""tinygrad computes through this package: the kernels that it writes for Metal give what its own CPU device gives."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import packages
import pytest

import mpscffi

if TYPE_CHECKING:
    from tinygrad import Tensor

pytestmark = pytest.mark.interop

VERSION = "0.14.0"


# ---- tinygrad, with this package as its METAL device


def _c_compiler(directory: Path) -> str:
    """Return a clang for tinygrad's CPU device, which takes the name of a program only."""
    clang = shutil.which("clang")
    if clang is None:
        from mpscffi.mslc.toolchain import find_toolchain

        script = directory / "clang"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(find_toolchain().compiler)} -w "$@"\n')
        script.chmod(0o755)
        clang = str(script)
    return clang


@pytest.fixture(scope="session")
def tinygrad(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package, which finds :mod:`tinygrad_metal` where its own METAL device would be."""
    if sys.version_info < (3, 11):
        pytest.skip(f"tinygrad {VERSION} needs Python 3.11")
    directory = tmp_path_factory.mktemp("tinygrad")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", _c_compiler(directory))
        patch.setenv("CACHEDB", str(directory / "cache.db"))
        patch.setenv("PARALLEL", "0")  # else kernels are written in processes that know of no METAL device
        patch.syspath_prepend(str(packages.installed("tinygrad", VERSION)))
        import tinygrad
        import tinygrad_metal

        patch.setitem(sys.modules, "tinygrad.runtime.ops_metal", tinygrad_metal)
        yield tinygrad


@pytest.fixture
def metal(tinygrad: Any, device: mpscffi.Device) -> str:
    """What tinygrad calls the device under test."""
    return f"METAL:{mpscffi.devices().index(device)}"


class Operands:
    """Tensors on one device; their values follow from the order in which they are asked for."""

    def __init__(self, tinygrad: Any, device: str) -> None:
        self.device = device
        self.dtypes = tinygrad.dtypes
        self.Tensor = tinygrad.Tensor
        self._random = np.random.default_rng(20)
        self.Tensor.manual_seed(20)

    def floats(self, *shape: int, low: float = -2, high: float = 2) -> Tensor:
        return self._on_device(self._random.uniform(low, high, shape).astype(np.float32))

    def halves(self, *shape: int) -> Tensor:
        return self._on_device(self._random.uniform(-1, 1, shape).astype(np.float16))

    def ints(self, *shape: int, low: int = -100, high: int = 100, dtype: str = "int32") -> Tensor:
        return self._on_device(self._random.integers(low, high, shape, dtype=dtype))

    def small_bfloats(self, *shape: int) -> Tensor:
        return self.ints(*shape, low=-8, high=9).cast(self.dtypes.bfloat16)

    def values(self, *values: float, dtype: str = "float32") -> Tensor:
        return self._on_device(np.array(values, dtype))

    def _on_device(self, array: np.ndarray) -> Tensor:
        return self.Tensor(array, device=self.device).realize()


def launched(tinygrad: Any, metal: str) -> list[str]:
    """Sources of the kernels that ran since the last call."""
    sources = list(tinygrad.Device[metal].launched)
    tinygrad.Device[metal].launched.clear()
    return sources


Expression = Callable[[Operands], "Tensor"]

ELEMENTWISE: dict[str, Expression] = {
    "add": lambda t: t.floats(33, 65) + t.floats(33, 65),
    "broadcast": lambda t: t.floats(33, 1) * t.floats(1, 65) - t.floats(65),
    "divide": lambda t: t.floats(1000) / t.floats(1000, low=0.5),
    "exp": lambda t: t.floats(1000, low=-20, high=20).exp(),
    "log": lambda t: t.floats(1000, low=1e-6, high=1e6).log(),
    "sin": lambda t: t.floats(1000, low=-30, high=30).sin(),
    "sqrt": lambda t: t.floats(1000, low=0, high=1e6).sqrt(),
    "power": lambda t: t.floats(500, low=0.1, high=4) ** t.floats(500, low=-3, high=3),
    "tanh": lambda t: t.floats(1000, low=-9, high=9).tanh(),
    "sigmoid": lambda t: t.floats(1000, low=-30, high=30).sigmoid(),
    "gelu": lambda t: t.floats(17, 63).gelu(),
    "relu and clip": lambda t: t.floats(1000).relu() + t.floats(1000).clip(-0.5, 0.5),
    "round": lambda t: t.floats(1000, low=-9, high=9).round() + t.values(-2.5, -0.5, 0.5, 1.5, 2.5).round().sum(),
    "floor and ceil": lambda t: t.floats(1000, low=-9, high=9).floor() * t.floats(1000, low=-9, high=9).ceil(),
    "maximum": lambda t: t.floats(1000).maximum(t.floats(1000)),
    "compare": lambda t: t.floats(1000) < t.floats(1000),
    "where": lambda t: (t.floats(40, 25) > 0).where(t.floats(40, 25), t.floats(25)),
    "not a number": lambda t: t.values(1, np.nan, np.inf, -np.inf, 0).isnan(),
    "infinity": lambda t: t.values(1, np.nan, np.inf, -np.inf, 0).isinf(),
    "half": lambda t: t.halves(31, 33) * t.halves(31, 33) + t.halves(33),
    "bfloat": lambda t: (t.floats(500).cast(t.dtypes.bfloat16) * t.floats(500).cast(t.dtypes.bfloat16)).float(),
}

INTEGERS: dict[str, Expression] = {
    "add": lambda t: t.ints(1000) + t.ints(1000),
    "overflow": lambda t: t.ints(1000, low=-(2**31), high=2**31) * t.ints(1000, low=-(2**31), high=2**31),
    "long": lambda t: t.ints(500, low=-(2**62), high=2**62, dtype="int64") * 3 + t.ints(500, dtype="int64"),
    "divide": lambda t: t.ints(1000) // t.ints(1000, low=1, high=9),
    "modulo": lambda t: t.ints(1000) % t.ints(1000, low=1, high=9),
    "bits": lambda t: (t.ints(1000) & 0x5A) | (t.ints(1000) ^ t.ints(1000)),
    "shift": lambda t: (t.ints(1000, low=0, dtype="uint32") << 5) + (t.ints(1000, low=0, dtype="uint32") >> 3),
    "bytes": lambda t: t.ints(1000, low=0, high=256, dtype="uint8") + t.ints(1000, low=0, high=256, dtype="uint8"),
    "shorts": lambda t: t.ints(999, low=-(2**15), high=2**15, dtype="int16") * 7,
    "float to int": lambda t: t.floats(1000, low=-1000, high=1000).cast(t.dtypes.int32),
    "int to half": lambda t: t.ints(1000).cast(t.dtypes.half),
    "float to bool": lambda t: t.values(0, -0.0, 1e-30, np.nan, 3).cast(t.dtypes.bool),
    "bits of a float": lambda t: t.floats(1000).bitcast(t.dtypes.int32) & 0x7FFFFF,
    "logical not": lambda t: (t.ints(1000) > 3).logical_not(),
    "random bits": lambda t: (t.Tensor.rand(777, device=t.device) * 2**24).cast(t.dtypes.int32),
}

REDUCTIONS: dict[str, Expression] = {
    "sum of all": lambda t: t.floats(100, 77).sum(),
    "sum of rows": lambda t: t.floats(45, 300).sum(axis=1),
    "sum of columns": lambda t: t.floats(300, 45).sum(axis=0),
    "sum by groups": lambda t: t.floats(2, 4096).sum(axis=1),
    "sum of halves": lambda t: t.halves(8, 512).sum(axis=1),
    "sum of ints": lambda t: t.ints(16, 1024).sum(axis=1),
    "mean": lambda t: t.floats(33, 257).mean(axis=1),
    "variance": lambda t: t.floats(33, 257).var(axis=1),
    "product": lambda t: t.floats(64, 16, low=0.5, high=1.5).prod(axis=1),
    "max": lambda t: t.floats(4, 2048).max(axis=1),
    "min of ints": lambda t: t.ints(7, 900).min(axis=1),
    "argmax": lambda t: t.floats(16, 333).argmax(axis=1),
    "argmin": lambda t: t.ints(16, 333).argmin(axis=0),
    "all": lambda t: (t.ints(9, 500) < 99).all(axis=1),
    "any": lambda t: (t.ints(9, 500) == 99).any(axis=1),
    "softmax": lambda t: t.floats(32, 1024, low=-9, high=9).softmax(axis=1),
    "log softmax": lambda t: t.floats(31, 100, low=-9, high=9).log_softmax(axis=0),
    "logsumexp": lambda t: t.floats(4, 2048, low=-9, high=9).logsumexp(axis=1),
    "layer norm": lambda t: t.floats(16, 512).layernorm(),
    "cumulative sum": lambda t: t.floats(5, 700).cumsum(axis=1),
    "cumulative max": lambda t: t.ints(5, 300).cummax(axis=1)[0],
    "standard deviation": lambda t: t.floats(3, 5, 257).std(axis=(1, 2)),
    "norm of halves": lambda t: t.halves(16, 512).float().square().mean(axis=1).sqrt().half(),
    "cross entropy": lambda t: t.floats(64, 10).sparse_categorical_crossentropy(t.ints(64, low=0, high=10)),
}

MATRICES: dict[str, Expression] = {
    "square": lambda t: t.floats(64, 64) @ t.floats(64, 64),
    "odd sizes": lambda t: t.floats(37, 19) @ t.floats(19, 53),
    "halves": lambda t: t.halves(64, 96) @ t.halves(96, 64),
    "halves into floats": lambda t: t.halves(64, 64).matmul(t.halves(64, 64), dtype=t.dtypes.float),
    # Of numbers whose products are bfloats too, since tinygrad's CPU device rounds the products.
    "bfloats": lambda t: t.small_bfloats(32, 40).matmul(t.small_bfloats(40, 24), dtype=t.dtypes.float),
    "transposed": lambda t: t.floats(64, 32).T @ t.floats(64, 96),
    "batched": lambda t: t.floats(3, 32, 40) @ t.floats(3, 40, 24),
    "vector": lambda t: t.floats(1, 512) @ t.floats(512, 128),
    "ints": lambda t: t.ints(24, 24) @ t.ints(24, 24),
    "einsum": lambda t: t.Tensor.einsum("bij,bkj->bik", t.floats(2, 16, 24), t.floats(2, 8, 24)),
    "linear and relu": lambda t: (t.floats(32, 64).linear(t.floats(64, 48), t.floats(48))).relu(),
    "attention": lambda t: t.floats(2, 16, 32).scaled_dot_product_attention(t.floats(2, 16, 32), t.floats(2, 16, 32)),
    "conv": lambda t: t.floats(2, 4, 14, 14).conv2d(t.floats(8, 4, 3, 3), t.floats(8), padding=1),
    "conv with strides": lambda t: t.floats(1, 3, 17, 17).conv2d(t.floats(6, 3, 5, 5), stride=2, dilation=2),
    "conv by groups": lambda t: t.floats(2, 8, 10, 10).conv2d(t.floats(8, 1, 3, 3), groups=8),
    "conv transposed": lambda t: t.floats(1, 4, 7, 7).conv_transpose2d(t.floats(4, 6, 3, 3), stride=2),
    "conv of halves": lambda t: t.halves(1, 16, 16, 16).conv2d(t.halves(16, 16, 3, 3)),
}

LAYOUT: dict[str, Expression] = {
    "transpose": lambda t: t.floats(33, 65).T.contiguous(),
    "permute": lambda t: t.ints(5, 7, 11).permute(2, 0, 1).contiguous(),
    "flip": lambda t: t.ints(13, 17).flip(axis=(0, 1)),
    "pad": lambda t: t.floats(5, 9).pad(((1, 2), (3, 0)), value=7),
    "slices": lambda t: t.ints(40, 50)[3:33:4, ::-2].contiguous(),
    "concatenate": lambda t: t.floats(3, 5).cat(t.floats(4, 5), t.floats(2, 5), dim=0),
    "stack": lambda t: t.ints(3, 5).stack(t.ints(3, 5), dim=-1),
    "repeat": lambda t: t.ints(3, 5).repeat(2, 3),
    "roll": lambda t: t.ints(6, 7).roll((2, -3), (0, 1)),
    "gather": lambda t: t.floats(20, 30).gather(1, t.ints(20, 12, low=0, high=30)),
    "fancy indices": lambda t: t.floats(50, 6)[t.ints(20, low=0, high=50)],
    "one hot": lambda t: t.ints(40, low=0, high=9).one_hot(9),
    "scatter": lambda t: t.Tensor.zeros(10, 8, device=t.device).scatter(0, t.ints(5, 8, low=0, high=1), t.floats(5, 8)),
    "triangle": lambda t: t.floats(33, 33).tril() + t.floats(33, 33).triu(1),
    "arange": lambda t: t.Tensor.arange(777) * t.ints(777),
    "sort": lambda t: t.floats(3, 40).sort(dim=1)[0],
    "max pool": lambda t: t.floats(2, 3, 15, 15).max_pool2d((3, 3), stride=2),
    "mean pool": lambda t: t.floats(2, 3, 16, 16).avg_pool2d((2, 2)),
    "interpolate": lambda t: t.floats(1, 2, 9, 9).interpolate((15, 21), mode="linear"),
}

GROUPS = {
    "elementwise": ELEMENTWISE,
    "integers": INTEGERS,
    "reductions": REDUCTIONS,
    "matrices": MATRICES,
    "layout": LAYOUT,
}
EXPRESSIONS = [
    pytest.param(expression, id=f"{group}: {name}")
    for group, expressions in GROUPS.items()
    for name, expression in expressions.items()
]
#: Relative errors: sums in another order, and functions that are correct to some units in the last place.
TOLERANCE = {np.dtype("float16"): 4e-3, np.dtype("float32"): 2e-5}


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    tolerance = TOLERANCE.get(actual.dtype)
    if tolerance is None:
        np.testing.assert_array_equal(actual, expected)
    else:
        finite = expected[np.isfinite(expected)]
        scale = float(np.abs(finite).mean()) if finite.size else 0.0
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression(expression: Expression, tinygrad: Any, metal: str) -> None:
    expected = expression(Operands(tinygrad, "CPU")).numpy()
    launched(tinygrad, metal)
    actual = expression(Operands(tinygrad, metal)).numpy()
    assert launched(tinygrad, metal), "nothing ran on the device"
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("expression", "used"),
    [
        pytest.param(MATRICES["square"], "simdgroup_multiply_accumulate", id="simdgroup matrices of float"),
        pytest.param(MATRICES["halves"], "simdgroup_half8x8", id="simdgroup matrices of half"),
        pytest.param(REDUCTIONS["sum by groups"], "threadgroup_barrier", id="barriers"),
        pytest.param(REDUCTIONS["softmax"], "threadgroup __attribute__", id="threadgroup memory"),
    ],
)
def test_kernels_use_what_only_gpus_have(expression: Expression, used: str, tinygrad: Any, metal: str) -> None:
    launched(tinygrad, metal)
    expression(Operands(tinygrad, metal)).realize()
    assert any(used in source for source in launched(tinygrad, metal))


def test_sizes_known_at_launch_only(tinygrad: Any, metal: str) -> None:
    operand = Operands(tinygrad, metal).floats(10, 40)
    launched(tinygrad, metal)
    for rows in (2, 5, 9):
        bound = tinygrad.Variable("rows", 1, 10).bind(rows)
        np.testing.assert_allclose(operand[:bound].sum(axis=0).numpy(), operand.numpy()[:rows].sum(axis=0), rtol=1e-5)
    # One kernel, given each number of rows as an argument.
    assert len(set(launched(tinygrad, metal))) == 1


def test_replay_of_recorded_kernels(tinygrad: Any, metal: str) -> None:
    @tinygrad.TinyJit
    def step(x: Tensor) -> Tensor:
        return (x @ x.T).relu().softmax().realize()

    for seed in range(5):
        values = np.random.default_rng(seed).normal(size=(24, 24)).astype(np.float32)
        product = np.maximum(values @ values.T, 0)
        powers = np.exp(product - product.max(axis=1, keepdims=True))
        actual = step(tinygrad.Tensor(values, device=metal).realize()).numpy()
        np.testing.assert_allclose(actual, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_training(tinygrad: Any, metal: str) -> None:
    def train(device: str) -> np.ndarray:
        t = Operands(tinygrad, device)
        inputs, labels = t.floats(64, 12), t.ints(64, low=0, high=5)
        weights = [t.floats(12, 32) * 0.3, t.floats(32, 5) * 0.3]
        losses = []
        for _ in range(6):
            loss = (inputs.dot(weights[0]).relu().dot(weights[1])).sparse_categorical_crossentropy(labels)
            gradients = loss.gradient(*weights)
            weights = [
                (weight - 0.5 * gradient).detach().realize()
                for weight, gradient in zip(weights, gradients, strict=True)
            ]
            losses.append(loss.item())
        return np.array(losses)

    losses = train(metal)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, train("CPU"), rtol=1e-4)
