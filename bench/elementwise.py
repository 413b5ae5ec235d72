"""Big elementwise kernels, 1e7 elements, family by family: memory bandwidth and arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from common import Case, Report, finish, measure
from peers import pocl

import mpscffi as mps

COUNT = 10_000_000
BANDWIDTH, ARITHMETIC = 1.2, 1.5  # what a kernel may take, in times of NumPy's
TYPES = {
    "float": np.float32,
    "half": np.float16,
    "bfloat": np.uint16,
    "int": np.int32,
    "long": np.int64,
    "ulong": np.uint64,
    "short": np.int16,
    "uchar": np.uint8,
}
INTEGERS = "int long ulong short uchar"
# What a kernel computes of a and b, NumPy's function, types, target. NumPy itself has no bfloat16.
FAMILIES: dict[str, tuple[str, Callable[..., object], str, float]] = {
    "add": ("a + b", np.add, f"float half bfloat {INTEGERS}", BANDWIDTH),
    "mul": ("a * b", np.multiply, "float half bfloat int long", BANDWIDTH),
    "div": ("a / b", np.divide, "float half", BANDWIDTH),
    "quotient": ("a / b", np.floor_divide, INTEGERS, BANDWIDTH),
    "remainder": ("a % b", np.remainder, INTEGERS, BANDWIDTH),
    "shift": ("a >> (b & 7)", lambda a, b, out: np.right_shift(a, b & 7, out=out), INTEGERS, BANDWIDTH),
    "bitand": ("a & b", np.bitwise_and, INTEGERS, BANDWIDTH),
    "max": ("max(a, b)", np.maximum, f"float half bfloat {INTEGERS}", BANDWIDTH),
    "pow": ("pow(a, b)", np.power, "float", ARITHMETIC),
    "atan2": ("atan2(a, b)", np.arctan2, "float", ARITHMETIC),
    "neg": ("-a", np.negative, "float half bfloat int long", BANDWIDTH),
    "abs": ("abs(a)", np.abs, "float half int long short", BANDWIDTH),
    "sqrt": ("sqrt(a)", np.sqrt, "float half bfloat", BANDWIDTH),
    "rsqrt": ("rsqrt(a)", lambda a, out: np.reciprocal(np.sqrt(a, out=out), out=out), "float", BANDWIDTH),
    **{
        name: (f"{name}(a)", function, "float half bfloat", ARITHMETIC)
        for name, function in {
            "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin,
            "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
            "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "atanh": np.arctanh,
        }.items()
    },
}  # fmt: skip
POLYNOMIAL = """
kernel void polynomial(device const float *a, device float *c, uint i [[thread_position_in_grid]]) {
  float x = a[i], sum = 0.0625f;
  for (int k = 0; k < 15; k++) { sum = sum * x + 0.0625f; }
  c[i] = sum;
}
"""


def source() -> str:
    """Return Metal text with a kernel for each family and type."""
    text = "#include <metal_stdlib>\nusing namespace metal;\n" + POLYNOMIAL
    for name, (expression, _, types, _) in FAMILIES.items():
        for kind in types.split():
            second = f"device const {kind} *y, " if is_binary(expression) else ""
            value = f"{kind} b = y[i]; " if second else ""
            text += (
                f"kernel void {name}_{kind}(device const {kind} *x, {second}device {kind} *z, "
                f"uint i [[thread_position_in_grid]]) {{ {kind} a = x[i]; {value}z[i] = {expression}; }}\n"
            )
    return text


def is_binary(expression: str) -> bool:
    """Whether an expression is of two operands."""
    return expression.endswith((" b", ", b)", "(b & 7)"))


def run(kernel: mps.Kernel, *arguments: mps.Array) -> None:
    """Run a kernel to its end."""
    kernel(*arguments, threads=COUNT)
    mps.synchronize()


def main() -> None:
    """Measure and print."""
    report = Report("Elementwise, 1e7")
    library = mps.compile_shader(source())
    rng = np.random.default_rng(1)

    for kind, dtype in TYPES.items():
        values = [0.05 + 0.9 * rng.random(COUNT) if kind in ("float", "half") else rng.integers(1, 100, COUNT)] * 2
        first, second = (part.astype(dtype) for part in (values[0], values[1][::-1]))
        if kind == "bfloat":
            first, second = (part.astype(np.float32).view(np.uint32) >> 16 for part in (first, second))
            first, second = first.astype(dtype), second.astype(dtype)
        out = np.empty_like(first)
        a, b, c = (mps.asarray(part) for part in (first, second, out.copy()))
        for name, (expression, function, types, target) in FAMILIES.items():
            if kind not in types.split():
                continue
            given, hosts = ((a, b), (first, second)) if is_binary(expression) else ((a,), (first,))
            kernel, what = getattr(library, f"{name}_{kind}"), f"{name} {kind}"

            ours = partial(run, kernel, *given, c)
            theirs = partial(function, *hosts, out=out)
            if kind == "bfloat":
                report.add(measure([Case(what, ours)], rounds=5, slice_seconds=0.02))
                continue
            ours()
            theirs()
            exact = kind in INTEGERS.split()
            tolerance = 0.0 if exact else 2e-3 if kind == "half" else 2e-6
            np.testing.assert_allclose(c.numpy().astype("f8"), out.astype("f8"), tolerance, tolerance, err_msg=what)
            cases = [Case(what, ours, peer=f"numpy {what}", target=target), Case(f"numpy {what}", theirs)]
            report.add(measure(cases, rounds=5, slice_seconds=0.02))
    measure_pocl(report, library)
    finish(report)


def measure_pocl(report: Report, library: mps.ShaderLibrary) -> None:
    """Compare an addition with PoCL's."""
    first, second, out = (np.random.default_rng(1).random(COUNT, dtype=np.float32) for _ in range(3))
    a, b, c = mps.asarray(first), mps.asarray(second), mps.empty(COUNT)

    report.add(measure([Case("polynomial of degree 15", lambda: run(library.polynomial, a, c))], slice_seconds=0.02))
    try:
        peer = pocl()
    except ImportError as error:
        report.skip("PoCL", error)
        return
    flags = peer.cl.mem_flags.READ_WRITE | peer.cl.mem_flags.COPY_HOST_PTR
    buffers = [peer.cl.Buffer(peer.context, flags, hostbuf=host) for host in (first, second, out)]
    peer.add.set_args(*buffers)  # which does not keep them

    def enqueue() -> None:
        peer.cl.enqueue_nd_range_kernel(peer.queue, peer.add, (COUNT,), None)
        peer.queue.finish()

    cases = [
        Case("add", lambda: run(library.add_float, a, b, c), peer="PoCL add", target=0.9),
        Case("PoCL add", enqueue, note=peer.version),
    ]
    report.add(measure(cases, rounds=11, slice_seconds=0.02))


if __name__ == "__main__":
    main()
