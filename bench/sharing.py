"""Sharing memory: aliases of any size, copies of 1 GiB, an output that the pool gives, weights from a file."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
from common import Case, Report, finish, measure

import mpscffi as mps
from mpscffi._ffi import ffi

COUNT = 10_000_000
GIB = 1 << 30
SOURCE = """
kernel void add(device const float *a, device const float *b, device float *c, uint i [[thread_position_in_grid]]) {
  c[i] = a[i] + b[i];
}
"""


def aliases(report: Report) -> None:
    """A view of an array's memory, small and big, against NumPy's own over a cffi buffer. One thread: CPU time."""
    small, big = mps.zeros(128, 128), mps.empty(GIB // 4)
    element = np.dtype("f4")
    address = small.numpy().ctypes.data
    raw = ffi.buffer(ffi.cast("char *", address), small.nbytes)
    peer = "np.ndarray(shape, f4, cffi buffer)"
    cases = [
        Case("numpy()", "a.numpy()", {"a": small}, peer=peer, target=1.5),
        Case("numpy() of 1 GiB", "a.numpy()", {"a": big}, peer="numpy()", target=1.05),
        Case(
            "numpy() of a fresh view", "a[1:].numpy()", {"a": small}, note="makes the view, too", peer=peer, target=None
        ),
        Case("np.asarray(a)", "np.asarray(a)", {"np": np, "a": small}, peer=peer),
        Case("np.from_dlpack(a)", "np.from_dlpack(a)", {"np": np, "a": small}, peer="np.from_dlpack(ndarray)"),
        Case("_host_alias_storage(a)", "alias(a)", {"alias": mps._host_alias_storage, "a": small}, peer=peer),
        Case(peer, "ndarray((128, 128), f4, raw)", {"ndarray": np.ndarray, "f4": element, "raw": raw}),
        Case("np.from_dlpack(ndarray)", "np.from_dlpack(a)", {"np": np, "a": small.numpy()}),
    ]
    try:
        import torch

        tensor = torch.zeros(128, 128)
        cases.append(Case("numpy() again", "a.numpy()", {"a": small}, peer="torch's tensor.numpy()"))
        cases.append(Case("torch's tensor.numpy()", "t.numpy()", {"t": tensor}))
    except ImportError as error:
        report.skip("torch", error)
    report.add(measure(cases, cpu_time=True))


def copies(report: Report) -> None:
    """1 GiB from one array to another, warm."""
    source, target = mps.zeros(GIB // 4), mps.zeros(GIB // 4)
    source.fill_(1)
    target.fill_(2)
    here, there = source.numpy(), target.numpy()
    half = here.size // 2

    def two_threads() -> None:
        other = threading.Thread(target=np.copyto, args=(there[:half], here[:half]))
        other.start()
        np.copyto(there[half:], here[half:])
        other.join()

    def blit() -> None:
        target.copy_from(source)

    cases = [
        Case("copy_from, 1 GiB", blit, peer="np.copyto", target=0.8, note="0.8 needs a second core that is free"),
        Case("np.copyto by two threads", two_threads, peer="np.copyto"),
        Case("copy_from again", blit, peer="np.copyto by two threads"),
        Case("np.copyto", lambda: np.copyto(there, here)),
    ]
    try:
        import torch

        a, b = torch.from_numpy(here), torch.from_numpy(there)
        cases += [
            Case("copy_from once more", blit, peer="torch's copy_"),
            Case("torch's copy_", lambda: b.copy_(a)),
        ]
    except ImportError as error:
        report.skip("torch", error)
    report.add(measure(cases, rounds=15, slice_seconds=0.01))


def pooled_outputs(report: Report) -> None:
    """c = a + b with a new output each time."""
    library = mps.compile_shader(SOURCE)
    rng = np.random.default_rng(1)
    first, second = (rng.random(COUNT, dtype=np.float32) for _ in range(2))
    a, b = mps.asarray(first), mps.asarray(second)

    def ours() -> mps.Array:
        c = mps.empty(COUNT)
        library.add(a, b, c)
        mps.synchronize()
        return c

    cases = [
        Case("empty() and add, 1e7", ours, peer="numpy a + b", target=0.6),
        Case("numpy a + b", lambda: first + second),
    ]
    try:
        import torch

        left, right = torch.from_numpy(first), torch.from_numpy(second)
        cases += [
            Case("empty() and add again", ours, peer="torch a + b", target=0.35),
            Case("torch a + b", lambda: left + right, note=f"{torch.get_num_threads()} threads"),
        ]
    except ImportError as error:
        report.skip("torch", error)
    report.add(measure(cases, rounds=15, slice_seconds=0.02))
    np.testing.assert_array_equal(ours().numpy(), first + second)


def files(report: Report) -> None:
    """256 MiB of a file, in the page cache, as an array: mapped, and read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        np.ones(64 << 20, np.float32).tofile(path)
        report.add(
            measure(
                [
                    Case("from_file", lambda: mps.from_file(path), peer="np.fromfile"),
                    Case("np.fromfile", lambda: np.fromfile(path, np.float32)),
                    Case("np.memmap", lambda: np.memmap(path, np.float32, "r")),
                ],
                rounds=9,
            )
        )


def main() -> None:
    """Measure and print."""
    report = Report("Sharing memory")
    for topic in (aliases, copies, pooled_outputs, files):
        topic(report)
    finish(report)


if __name__ == "__main__":
    main()
