"""Big elementwise kernels, 1e7 float32: memory bandwidth and arithmetic."""

from __future__ import annotations

import numpy as np
from common import Case, Report, finish, measure
from peers import pocl

import mpscffi as mps

COUNT = 10_000_000
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device const float *a, device const float *b, device float *c, uint i [[thread_position_in_grid]]) {
  c[i] = a[i] + b[i];
}
kernel void exponential(device const float *a, device float *c, uint i [[thread_position_in_grid]]) {
  c[i] = exp(a[i]);
}
kernel void polynomial(device const float *a, device float *c, uint i [[thread_position_in_grid]]) {
  float x = a[i], sum = 0.0625f;
  for (int k = 0; k < 15; k++) { sum = sum * x + 0.0625f; }
  c[i] = sum;
}
"""


def main() -> None:
    """Measure and print."""
    report = Report("Elementwise, 1e7 float32")
    library = mps.compile_shader(SOURCE)
    rng = np.random.default_rng(1)
    first, second, out = (rng.random(COUNT, dtype=np.float32) for _ in range(3))
    a, b, c = mps.asarray(first), mps.asarray(second), mps.empty(COUNT)

    def run(kernel: mps.Kernel, *arguments: mps.Array) -> None:
        kernel(*arguments, threads=COUNT)
        mps.synchronize()

    cases = [
        Case("add", lambda: run(library.add, a, b, c), peer="numpy.add(out=)", target=0.9),
        Case("exp", lambda: run(library.exponential, a, c), peer="numpy.exp(out=)", target=1.5),
        Case("polynomial of degree 15", lambda: run(library.polynomial, a, c)),
        Case("numpy.add(out=)", lambda: np.add(first, second, out=out)),
        Case("numpy.exp(out=)", lambda: np.exp(first, out=out)),
    ]
    try:
        peer = pocl()
        flags = peer.cl.mem_flags.READ_WRITE | peer.cl.mem_flags.COPY_HOST_PTR
        buffers = [peer.cl.Buffer(peer.context, flags, hostbuf=host) for host in (first, second, out)]
        peer.add.set_args(*buffers)

        def enqueue() -> None:
            peer.cl.enqueue_nd_range_kernel(peer.queue, peer.add, (COUNT,), None)
            peer.queue.finish()

        cases += [
            Case("PoCL add", enqueue, note=peer.version),
            Case("add again", lambda: run(library.add, a, b, c), peer="PoCL add", target=0.9),
        ]
    except ImportError as error:
        report.skip("PoCL", error)
    report.add(measure(cases, rounds=21, slice_seconds=0.02))
    np.testing.assert_array_equal(run_once(library.add, a, b, c), first + second)
    finish(report)


def run_once(kernel: mps.Kernel, a: mps.Array, b: mps.Array, c: mps.Array) -> np.ndarray:
    """Run the kernel once more and return its result, so that what was timed is also checked."""
    kernel(a, b, c, threads=COUNT)
    return c.numpy()


if __name__ == "__main__":
    main()
