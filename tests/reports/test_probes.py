"""Probes of the reports about kernels that no other module has: each a thing that went wrong for somebody."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi as mps

THREAD = "uint i [[thread_position_in_grid]]"
Compile = Callable[[str], mps.ShaderLibrary]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_vectors_of_three_take_rows_of_four_and_packed_ones_rows_of_three(compiled: Compile) -> None:
    library = compiled(f"""{HEAD}
kernel void sums(device float *out, device const float3 *a, device const packed_float3 *b, {THREAD}) {{
  out[i] = a[i].x + a[i].y + a[i].z + 100 * (b[i].x + b[i].y + b[i].z);
}}""")
    a = np.arange(32 * 4, dtype="f4").reshape(32, 4)
    b = np.arange(32 * 3, dtype="f4").reshape(32, 3)
    out = mps.zeros(32)
    library.sums(out, mps.asarray(a), mps.asarray(b), threads=32)
    np.testing.assert_array_equal(out.numpy(), a[:, :3].sum(1) + 100 * b.sum(1))


@pytest.mark.parametrize(("size", "align", "name"), [
    (8, 8, "half3"), (4, 4, "bool3"), (4, 4, "uchar3"), (8, 8, "short3"), (16, 16, "int3"), (32, 32, "long3"),
    (16, 16, "float3"),
    (6, 2, "packed_half3"), (3, 1, "packed_char3"), (12, 4, "packed_int3"), (48, 16, "float3x3"), (24, 8, "half3x3"),
    (64, 16, "float4x4"), (16, 8, "float2x2"), (8, 8, "bfloat4"), (1, 1, "bool"), (8, 8, "size_t"),
])  # fmt: skip
def test_every_advertised_type_compiles_with_metals_layout(size: int, align: int, name: str) -> None:
    library = mps.compile_shader(
        f"{HEAD}kernel void k(device uint *o) {{ o[0] = sizeof({name}); o[1] = alignof({name}); }}"
    )
    out = mps.zeros(2, dtype="uint32")
    library.k(out, threads=1)
    assert out.tolist() == [size, align]


def test_dynamic_threadgroup_memory(compiled: Compile) -> None:
    library = compiled(f"{HEAD}kernel void k(device float *x, threadgroup float *t) {{ t[0] = 1; x[0] = t[0]; }}")
    x = mps.zeros(1)
    for memory, error in (
        (None, mps.errors.InvalidArgumentError),
        (8, mps.errors.InvalidArgumentError),
        (32784, mps.errors.LimitExceededError),
    ):
        with pytest.raises(error, match="threadgroup"):
            library.k(x, threads=1, threadgroup_memory=memory)
    for memory in (16, 32768):
        x.fill_(0)
        library.k(x, threads=1, threadgroup_memory=memory)
        assert x.item() == 1


@pytest.mark.host_only("validates kernels")
def test_dynamic_threadgroup_memory_of_no_bytes_is_found_by_validation(device: mps.Device) -> None:
    source = f"{HEAD}kernel void k(device float *x, threadgroup float *t) {{ t[0] = 1; x[0] = t[0]; }}"
    library = mps.compile_shader(source, validate=True)
    library.k(mps.zeros(1), threads=1, threadgroup_memory=0)
    with pytest.raises(mps.errors.ExecutionError, match="threadgroup argument 't'.* of 0 bytes"):
        mps.synchronize()


def test_a_source_that_is_edited_again_and_again_runs_as_it_stands() -> None:
    x = mps.zeros(1)
    for i in range(50):
        mps.compile_shader(f"kernel void probe(device float *x) {{ x[0] = {i}; }} // edited").probe(x, threads=1)
        assert x.item() == i


def test_endless_recursion_is_an_exception(compiled: Compile, reports_faults: None) -> None:
    library = compiled(f"""{HEAD}
int down(int n, thread const int *above, device const int *x) {{
  int here[32];
  for (int i = 0; i < 32; i++) {{ here[i] = above[i & 1] + 1; }}
  return n < x[0] ? down(n + 1, here, x) + here[n & 31] : 0;
}}
kernel void k(device int *x) {{ int none[2] = {{0, 0}}; x[1] = down(0, none, x); }}""")
    x, endless = mps.asarray(np.array([10, 0], "i4")), mps.asarray(np.array([1 << 30, 0], "i4"))
    library.k(x, threads=1)
    assert x.tolist() == [10, sum(range(1, 11))]
    library.k(endless, threads=1)
    with pytest.raises(mps.errors.ExecutionError, match="kernel 'k'"):
        mps.synchronize()
    library.k(x, threads=1)
    assert x.tolist() == [10, sum(range(1, 11))]


def test_one_buffer_as_input_and_output(compiled: Compile) -> None:
    library = compiled(f"{HEAD}kernel void k(device float *a, device const float *b, {THREAD}) {{ a[i] += b[i]; }}")
    x = mps.ones(1000)
    library.k(x, x)
    assert (x.numpy() == 2).all()


def test_positions_of_sixteen_bits(compiled: Compile) -> None:
    library = compiled(f"""{HEAD}
kernel void k(device uint *x, ushort3 p [[thread_position_in_grid]], ushort3 n [[threads_per_grid]]) {{
  x[p.x + n.x * (p.y + n.y * p.z)] = p.x + 10 * p.y + 100 * p.z;
}}""")
    x = mps.zeros((2, 3, 4), dtype="uint32")
    library.k(x, threads=(4, 3, 2))
    z, y, w = np.indices((2, 3, 4))
    np.testing.assert_array_equal(x.numpy(), w + 10 * y + 100 * z)


def test_kernels_are_listed_in_the_order_of_the_source(device: mps.Device) -> None:
    names = ["zeta", "alpha", "mid", "beta"]
    library = mps.compile_shader("\n".join(f"kernel void {name}() {{}}" for name in names))
    assert sorted(library) == sorted(names)
    if device.backend == "host":
        assert list(library) == names


def test_a_source_with_instantiated_and_renamed_kernels() -> None:
    library = mps.compile_shader(f"""{HEAD}
template <typename T> kernel void fill(device T *x, constant T &v) {{ x[0] = v; }}
template [[host_name("fill_f")]] kernel void fill<float>(device float *, constant float &);
template [[host_name("fill.int")]] kernel void fill<int>(device int *, constant int &);
""")
    assert set(library) == {"fill_f", "fill.int"}
    x = mps.zeros(1, dtype="int32")
    library["fill.int"](x, 7, threads=1)
    assert x.item() == 7


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("resource.RLIMIT_NOFILE, (64, 64)", id="64 open files"),
        pytest.param("resource.RLIMIT_AS, (6 << 30, 6 << 30)", id="6 GiB of addresses"),
    ],
)
@pytest.mark.host_only("the host device's compiler")
def test_little_is_enough_to_compile_and_run(python: Run, tmp_path: Path, limit: str) -> None:
    script = f"""
        import resource
        resource.setrlimit({limit})
        import mpscffi as mps
        for i in range(80):
            x = mps.zeros(1)
            mps.compile_shader(f"kernel void k(device float *x) {{{{ x[0] = {{i % 20}}; }}}}").k(x, threads=1)
            assert x.item() == i % 20
        print("done")
    """
    finished = python(script, timeout=110, MPSCFFI_CACHE_DIR=str(tmp_path), MPSCFFI_DEVICE="host")
    assert finished.stdout == "done\n", finished.stderr


def test_arguments_as_people_give_them(compiled: Compile) -> None:
    library = compiled(f"""{HEAD}
kernel void k(device float *out, device const float *in, constant float &scale, {THREAD}) {{
  out[i] = in[i] * scale;
}}""")
    out, values = mps.zeros(4), mps.ones(4)
    attempts: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((out, np.ones(4, "f4"), 2.0), {}, TypeError, "mpscffi.asarray"),
        ((out, mps.ones((4, 4))[:, 1], 2.0), {}, ValueError, "C order"),
        ((out, mps.ones(4, dtype="int32"), 2.0), {}, TypeError, "int32"),
        ((out, values, "2"), {}, TypeError, "str"),
        ((out, values), {}, ValueError, "got 2 buffer arguments, expected 3"),
        ((out, values, 2.0, 3.0), {}, ValueError, "got 4 buffer arguments, expected 3"),
        ((out, values), {"scale": 2.0, "more": 1}, TypeError, "more"),
        ((out, 1.0, 2.0), {"threads": 4, "group_size": 0}, ValueError, "group_size"),
    ]
    for args, named, error, text in attempts:
        with pytest.raises(error, match=text):
            library.k(*args, **named)
    mps.synchronize()
    assert out.tolist() == [0, 0, 0, 0]
    library.k(out, scale=np.float64(2.5), **{"in": values})
    assert out.tolist() == [2.5] * 4
