"""Products of matrices against NumPy's and torch's, which come of a BLAS too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from common import Case, Report, finish, measure

import mpscffi as mps
from mpscffi import config

SHAPES = [((16, 16), (16, 16)), ((256, 256), (256, 256)), ((1024, 1024), (1024, 1024)), ((64, 128, 128), (128, 128))]


def _product(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> Callable[[], object]:
    a, b, out = mps.asarray(left), mps.asarray(right), mps.asarray(left @ right)

    def run() -> None:
        mps.matmul(a, b, out=out)
        mps.synchronize()

    return run


def _own(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> Callable[[], object]:
    """Return the same by our kernel, as PYTORCH_MPS_PREFER_METAL has it."""
    run = _product(left, right)

    def run_kernel() -> None:
        before = config.settings()
        config._settings = before._replace(prefer_metal=True)
        run()
        config._settings = before

    return run_kernel


def main() -> None:
    """Measure and print."""
    report = Report("Products of matrices, float32")
    try:
        import torch
    except ImportError as error:
        torch = None
        report.skip("torch", error)
    for left_shape, right_shape in SHAPES:
        numbers = np.random.default_rng(0)
        left, right = (numbers.standard_normal(shape, np.float32) for shape in (left_shape, right_shape))
        out = left @ right
        size = " x ".join(map(str, left_shape))
        names = {"matmul": np.matmul, "a": left, "b": right, "out": out}
        cases = [
            Case(f"ours, {size}", _product(left, right), peer=f"NumPy, {size}"),
            Case(f"NumPy, {size}", "matmul(a, b, out=out)", names),
        ]
        if torch is not None:
            names = {"matmul": torch.matmul, "a": torch.from_numpy(left), "b": torch.from_numpy(right)}
            names["out"] = torch.from_numpy(out.copy())
            cases.append(Case(f"torch, {size}", "matmul(a, b, out=out)", names, peer=f"NumPy, {size}"))
        if left.size <= 256 * 256:
            cases.append(Case(f"our kernel, {size}", _own(left, right), peer=f"NumPy, {size}"))
        report.add(measure(cases))
    finish(report)


if __name__ == "__main__":
    main()
