"""Faults that users of such libraries met with views, offsets, strides and lifetimes of arguments. One test a fault."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]

SOURCE = """
kernel void copy(device float *out, device const float *in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
kernel void fill(device float *out, constant float &value, uint i [[thread_position_in_grid]]) { out[i] = value; }
kernel void row_major_sum(device const float *in, device float *out, constant uint &n) {
  float sum = 0;
  for (uint i = 0; i < n; i++) { sum += float(i + 1) * in[i]; }
  out[0] = sum;
}
kernel void second(device const float *in, device float *out) { out[0] = in[1]; }
"""


@pytest.fixture
def library(compiled: Compile) -> mps.ShaderLibrary:
    return compiled(SOURCE)


@pytest.mark.parametrize("view", [lambda a: a[4:5], lambda a: a[4:5].reshape(()), lambda a: a[4], lambda a: a[2:][2]])
def test_offset_of_a_scalar_view_is_kept(library: mps.ShaderLibrary, view: Callable[[mps.Array], mps.Array]) -> None:
    array = mps.asarray(np.arange(8, dtype=np.float32))
    out = mps.zeros(1)
    library.copy(out, view(array), threads=1)
    assert out.numpy()[0] == 4.0


def test_offset_of_an_output_view_is_bound(library: mps.ShaderLibrary) -> None:
    buffer = mps.full(12, -1.0)
    library.fill(buffer[2:10], 7.0)
    library.fill(buffer[2:10][3:5], 9.0)
    np.testing.assert_array_equal(buffer.numpy(), [-1, -1, 7, 7, 7, 9, 9, 7, 7, 7, -1, -1])


def test_exported_view_begins_at_its_offset_and_handles_are_no_addresses() -> None:
    array = mps.asarray(np.arange(10, dtype=np.float32))
    before = array.handle
    np.testing.assert_array_equal(np.from_dlpack(array[3:]), np.arange(3, 10))
    assert array[3:].handle == before == array.handle


def test_column_slices_write_nothing_beside_their_output(library: mps.ShaderLibrary) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        rows = int(rng.integers(3, 40))
        left, output, right = mps.full(rows * 46, 1.5), mps.zeros(rows, 46), mps.full(rows * 46, 2.5)
        wide = rng.random((rows, 64)).astype(np.float32)
        columns = mps.asarray(wide)[:, 4:50]
        with pytest.raises(errors.InvalidArgumentError, match="contiguous|strides"):
            library.copy(output, columns)
        library.copy(output, columns.copy())
        np.testing.assert_array_equal(output.numpy(), wide[:, 4:50])
        assert (left.numpy() == 1.5).all() and (right.numpy() == 2.5).all()


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: a.T,
    "every second": lambda a: a[::2],
    "backwards": lambda a: a[::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], (4, *a.shape[1:])),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "c8"])
def test_every_layout_of_every_dtype_copies_in_or_is_refused_by_name(
    library: mps.ShaderLibrary, dtype: str, layout: str
) -> None:
    host = LAYOUTS[layout](np.arange(24).reshape(4, 6).astype(dtype))
    array = mps.asarray(host)
    np.testing.assert_array_equal(array.numpy(), host)
    assert array.dtype == host.dtype
    # The same layouts as views of an array of ours: contents are right, a kernel wants contiguous ones and says so.
    base = mps.asarray(np.arange(24).reshape(4, 6).astype(dtype))
    for view, expected in ((base.T, base.numpy().T), (base[::2], base.numpy()[::2]), (base[::-1], base.numpy()[::-1])):
        np.testing.assert_array_equal(view.copy().numpy(), expected)
        if dtype == "f4":
            with pytest.raises(errors.InvalidArgumentError, match="strides|contiguous"):
                library.copy(mps.empty(expected.shape), view)


def test_offset_and_stride_together_are_not_mixed_up(library: mps.ShaderLibrary) -> None:
    host = np.arange(60, dtype=np.float32).reshape(6, 10)
    view, out = mps.asarray(host)[3:, ::2].T, mps.zeros(1)
    expected = np.ascontiguousarray(host[3:, ::2].T).ravel()
    with pytest.raises(errors.InvalidArgumentError, match="strides|contiguous"):
        library.row_major_sum(view, out, expected.size, threads=1)
    library.row_major_sum(view.copy(), out, expected.size, threads=1)
    assert out.item() == np.dot(np.arange(1, expected.size + 1), expected)


def test_offsets_are_bytes_checked_for_alignment_and_range(library: mps.ShaderLibrary) -> None:
    array, out = mps.asarray(np.arange(4, dtype=np.float32)), mps.zeros(1)
    assert array[1:].offset - array.offset == 4
    library.second(array[1:], out, threads=1)
    assert out.item() == 2.0
    misaligned = mps.zeros(16, dtype=np.uint8)[2:10]
    with pytest.raises(errors.ArgumentTypeError, match="dtype"):
        library.second(misaligned, out, threads=1)
    with pytest.raises(errors.InvalidArgumentError, match="multiple|align"):
        library.second(misaligned.view(np.float32), out, threads=1)


def test_temporaries_live_until_the_work_that_reads_them_is_done(library: mps.ShaderLibrary) -> None:
    host = np.arange(5000, dtype=np.float32).reshape(50, 100)
    outputs = []
    for i in range(100):
        out = mps.empty(100, 50)
        library.copy(out, mps.asarray((host + i).T.copy()))
        outputs.append(out)
        mps.full((50, 100), -1.0)
        if i % 20 == 0:
            gc.collect()
    mps.synchronize()
    for i, out in enumerate(outputs):
        np.testing.assert_array_equal(out.numpy(), (host + i).T)


def test_source_of_a_queued_copy_stays_as_it_was() -> None:
    arrays = [mps.empty(1) for _ in range(1000)]
    for i, array in enumerate(arrays):
        array.copy_from(np.full(1, i, np.float32), non_blocking=True)
    mps.synchronize()
    assert [array.item() for array in arrays] == list(range(1000))
    source = np.arange(100000, dtype=np.float32)
    target = mps.empty(100000)
    target.copy_from(source, non_blocking=True)
    source[:] = -1  # allowed as soon as copy_from returns
    np.testing.assert_array_equal(target.numpy(), np.arange(100000))


def test_read_only_memory_is_an_input_and_never_an_output(library: mps.ShaderLibrary, tmp_path: Path) -> None:
    values = np.arange(8192, dtype=np.float32)
    frozen = values.copy()
    frozen.flags.writeable = False
    file = tmp_path / "values"
    file.write_bytes(values.tobytes())
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        sources = [np.frombuffer(values.tobytes(), np.float32), frozen, np.frombuffer(mapped, np.float32)]
        for source in [*sources, np.broadcast_to(np.float32(2), (8192,))]:
            expected = np.array(source)
            out, array = mps.empty(8192), mps.from_numpy(source, copy=None if source.ctypes.data % 16384 == 0 else True)
            library.copy(out, array)
            np.testing.assert_array_equal(out.numpy(), expected)
            if not array.is_writable:
                with pytest.raises(errors.InvalidArgumentError, match="read-only"):
                    library.fill(array, 1.0)
                with pytest.raises(errors.InvalidArgumentError, match="read-only"):
                    array[0] = 1.0
            np.testing.assert_array_equal(source, expected)
            del out, array
            gc.collect()
            mps.synchronize()
        del source, sources


def test_bfloat16_reaches_numpy_as_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = np.array([1.0, -2.5, 3.140625], dtype=ml_dtypes.bfloat16)
    array = mps.asarray(host)
    assert array.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(array.numpy(), host)
    np.testing.assert_array_equal(array.view(np.uint16).numpy(), host.view(np.uint16))


def test_default_grid_of_a_vector_parameter_stays_inside_the_array(compiled: Compile) -> None:
    library = compiled("""
        struct Pair { float a, b; };
        kernel void fours(device float4 *x, uint i [[thread_position_in_grid]]) { x[i] = float4(7); }
        kernel void threes(device packed_float3 *x, uint i [[thread_position_in_grid]]) { x[i] = float3(5); }
        kernel void pairs(device Pair *x, uint i [[thread_position_in_grid]]) { x[i].a = 1; x[i].b = 2; }
    """)
    left, x, right = mps.zeros(16, 4), mps.zeros(16, 4), mps.zeros(16, 4)
    library.fours(x)
    assert (x.numpy() == 7).all()
    library.threes(x)
    assert (x.numpy().ravel()[:63] == 5).all() and x[15, 3].item() == 7
    pairs = mps.zeros(9, dtype=[("a", "f4"), ("b", "f4")])
    library.pairs(pairs)
    assert (pairs.numpy()["a"] == 1).all() and (pairs.numpy()["b"] == 2).all()
    assert not left.numpy().any() and not right.numpy().any()
