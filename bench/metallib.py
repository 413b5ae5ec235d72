"""Elementwise kernels of a precompiled library, MLX's from its wheel for the Mac: what `load_metallib` makes of AIR."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from common import Case, Report, finish, measure

import mpscffi as mps

COUNT = 10_000_000
BANDWIDTH, ARITHMETIC = 1.2, 1.5  # what a kernel may take, in times of NumPy's
# Where `pytest -m corpus` puts the library.
CORPUS = Path(os.environ.get("MPSCFFI_TEST_CORPUS") or Path(tempfile.gettempdir(), "mpscffi-corpus"))
BINARY: dict[str, tuple[Callable[..., object], float]] = {
    "Add": (np.add, BANDWIDTH), "Multiply": (np.multiply, BANDWIDTH), "Maximum": (np.maximum, BANDWIDTH),
    "Power": (np.power, ARITHMETIC), "ArcTan2": (np.arctan2, ARITHMETIC),
}  # fmt: skip
UNARY: dict[str, tuple[Callable[..., object], float]] = {
    "Abs": (np.abs, BANDWIDTH), "Negative": (np.negative, BANDWIDTH), "Square": (np.square, BANDWIDTH),
    "Sqrt": (np.sqrt, BANDWIDTH),
    **{
        name: (function, ARITHMETIC)
        for name, function in {
            "Exp": np.exp, "Log": np.log, "Log2": np.log2, "Log10": np.log10, "Log1p": np.log1p, "Sin": np.sin,
            "Cos": np.cos, "Tan": np.tan, "ArcSin": np.arcsin, "ArcCos": np.arccos, "ArcTan": np.arctan,
            "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "ArcSinh": np.arcsinh, "ArcTanh": np.arctanh,
        }.items()
    },
}  # fmt: skip
TYPES = {"float32": np.float32, "float16": np.float16, "int32": np.int32}


def run(kernel: mps.Kernel, *arguments: mps.Array) -> None:
    """Run a kernel to its end."""
    kernel(*arguments, COUNT, threads=COUNT)
    mps.synchronize()


def measure_type(report: Report, library: mps.ShaderLibrary, kind: str) -> None:
    """Compare the kernels of one type with NumPy."""
    rng = np.random.default_rng(1)
    is_integer = kind.startswith("int")
    values = rng.integers(1, 100, COUNT) if is_integer else 0.05 + 0.9 * rng.random(COUNT)
    first = values.astype(TYPES[kind])
    second, out = first[::-1].copy(), np.empty_like(first)
    a, b, c = (mps.asarray(part) for part in (first, second, out.copy()))
    for name, (function, target) in {**BINARY, **UNARY}.items():
        kernel = f"vv_{name}{kind}" if name in BINARY else f"v_{name}{kind}{kind}"
        if kernel not in library or (is_integer and target == ARITHMETIC):
            continue
        given, hosts = ((a, b), (first, second)) if name in BINARY else ((a,), (first,))
        ours, theirs = partial(run, library[kernel], *given, c), partial(function, *hosts, out=out)
        ours()
        theirs()
        tolerance = 0.0 if is_integer else 2e-3 if kind == "float16" else 3e-6
        np.testing.assert_allclose(c.numpy().astype("f8"), out.astype("f8"), tolerance, tolerance, err_msg=kernel)
        cases = [Case(kernel, ours, peer=f"numpy {kernel}", target=target), Case(f"numpy {kernel}", theirs)]
        report.add(measure(cases, rounds=5, slice_seconds=0.02))


def main() -> None:
    """Measure and print."""
    report = Report("Elementwise kernels of a metallib, 1e7")
    path = CORPUS / "mlx" / "lib" / "mlx.metallib"
    if path.exists():
        library = mps.load_metallib(path)
        for kind in TYPES:
            measure_type(report, library, kind)
    else:
        report.skip("MLX", f"{path} is not there: `pytest -m corpus tests/test_mlx_metallib.py` downloads it")
    finish(report)


if __name__ == "__main__":
    main()
