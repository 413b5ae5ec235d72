"""What a tiny kernel costs: launch only, and launch and wait."""

from __future__ import annotations

import numpy as np
from common import Case, Report, finish, measure
from peers import pocl

import mpscffi as mps

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void full(device float *x, constant float &value, uint i [[thread_position_in_grid]]) { x[i] = value; }
kernel void looped(device float *x, constant uint &n, uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint k = 0; k < n; k++) { sum += x[i] * 0.5f; }
  x[i] = sum;
}
"""


def main() -> None:
    """Measure and print."""
    report = Report("Launch and wait")
    library = mps.compile_shader(SOURCE)
    x = mps.empty(16)
    names = {"full": library.full, "looped": library.looped, "x": x, "wait": mps.synchronize}
    cases = [
        Case("launch + wait, 16 threads, one line", "full(x, 3.14); wait()", names, "PoCL launch + wait", 1 / 50),
        Case("launch + wait, 16 threads, with a loop", "looped(x, 4); wait()", names, "PoCL launch + wait", 1 / 10),
        Case("launch only", "full(x, 3.14)", names, "PoCL launch only", 0.3),
        Case("wait with nothing to wait for", "wait()", names),
    ]
    try:
        peer = pocl()
        memory = peer.cl.mem_flags
        buffer = peer.cl.Buffer(peer.context, memory.READ_WRITE | memory.COPY_HOST_PTR, hostbuf=np.ones(16, np.float32))
        value = np.float32(3.14)
        names = {"q": peer.queue, "k": peer.full, "b": buffer, "v": value, "enqueue": peer.cl.enqueue_nd_range_kernel}
        launch = "k.set_args(b, v); enqueue(q, k, (16,), None)"
        cases += [
            Case("PoCL launch + wait", launch + "; q.finish()", names, note=peer.version),
            Case("PoCL launch only", launch, names),
        ]
    except ImportError as error:
        report.skip("PoCL", error)
    report.add(measure(cases))
    mps.synchronize()
    finish(report)


if __name__ == "__main__":
    main()
