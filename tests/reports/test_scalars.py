"""Faults that users of such libraries met with scalars, element types, structs and layouts. One test a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]

#: MSL type, the NumPy type of its value, and values that it holds exactly.
SCALAR_TYPES: dict[str, tuple[str, list[Any]]] = {
    "float": ("f4", [0, 1, -3, 0.5, 1e30]),
    "half": ("f2", [0, 1, -3, 0.5, 1024.0]),
    "bool": ("b1", [False, True]),
    "char": ("i1", [0, 1, -128, 127]),
    "uchar": ("u1", [0, 1, 255]),
    "short": ("i2", [0, -32768, 32767]),
    "ushort": ("u2", [0, 65535]),
    "int": ("i4", [0, -(2**31), 2**31 - 1]),
    "uint": ("u4", [0, 2**32 - 1]),
    "long": ("i8", [0, -(2**63), 2**63 - 1]),
    "ulong": ("u8", [0, 2**64 - 1]),
}

ECHOES = "\n".join(
    f"kernel void echo_{name}(device {name} *out, constant {name} &value) {{ out[0] = value; }}"
    for name in SCALAR_TYPES
)

NUMPY_SCALARS = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
NUMPY_FLOATS = [np.float16, np.float32, np.float64]


@pytest.mark.parametrize("name", SCALAR_TYPES)
def test_python_scalars_take_the_width_of_the_parameter(compiled: Compile, name: str) -> None:
    kernel = compiled(ECHOES)["echo_" + name]
    dtype, values = SCALAR_TYPES[name]
    out = mps.zeros(2, dtype=dtype)
    for value in values:
        kernel(out, value, threads=1)
        result = out.numpy()
        assert result[0] == np.array(value).astype(dtype) and result[1] == 0


@pytest.mark.parametrize("name", SCALAR_TYPES)
@pytest.mark.parametrize("scalar", [*NUMPY_SCALARS, *NUMPY_FLOATS], ids=lambda type_: type_.__name__)
def test_numpy_scalars_come_through_or_raise(compiled: Compile, name: str, scalar: type) -> None:
    kernel = compiled(ECHOES)["echo_" + name]
    dtype = np.dtype(SCALAR_TYPES[name][0])
    out = mps.zeros(1, dtype=dtype)
    for number in (0, 1, 100, -7, 0.5, 70000):
        if scalar(0).dtype.kind != "f" and scalar is not np.bool_ and number != int(number):
            continue
        try:
            with np.errstate(over="ignore"):
                value = scalar(number)
        except OverflowError:
            continue
        try:
            kernel(out, value, threads=1)
        except (errors.InvalidArgumentError, errors.ArgumentTypeError):
            # Refused: right only if the parameter cannot hold the value.
            with np.errstate(all="ignore"):
                back = np.array(float(value)).astype(dtype)
            holds = np.can_cast(value.dtype, dtype, "same_kind") and float(back) == float(value)
            assert not holds, f"{value!r} fits {name} and was refused"
        else:
            assert out.numpy()[0] == value.astype(dtype)


@pytest.mark.parametrize(
    ("name", "value"),
    [("uchar", 256), ("char", -129), ("short", 2**15), ("ushort", -1), ("int", 2**31), ("uint", -1), ("ulong", 2**64)],
)
def test_integers_that_do_not_fit_raise(compiled: Compile, name: str, value: int) -> None:
    out = mps.zeros(1, dtype=SCALAR_TYPES[name][0])
    with pytest.raises(errors.InvalidArgumentError, match=str(value)):
        compiled(ECHOES)["echo_" + name](out, value, threads=1)


@pytest.mark.parametrize("dtype", ["f8", "c16", "M8[s]", "m8[s]", "O", "U4", "S4", "g"])
def test_types_that_metal_lacks_are_refused_before_anything_compiles(dtype: str) -> None:
    for make in (lambda: mps.zeros(4, dtype=dtype), lambda: mps.asarray(np.zeros(4, dtype=dtype))):
        with pytest.raises(TypeError, match=np.dtype(dtype).name.split("[")[0] + "|object|str|bytes|dtype"):
            make()


@pytest.mark.parametrize("dtype", ["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "c8"])
def test_every_type_that_metal_has_is_copied(compiled: Compile, dtype: str) -> None:
    library = compiled("""
        template <typename T> kernel void copy(device T *out, device const T *in, uint i [[thread_position_in_grid]]) {
          out[i] = in[i];
        }
        template [[host_name("copy1")]] kernel void copy<uchar>(device uchar *, device const uchar *, uint);
        template [[host_name("copy2")]] kernel void copy<short>(device short *, device const short *, uint);
        template [[host_name("copy4")]] kernel void copy<int>(device int *, device const int *, uint);
        template [[host_name("copy8")]] kernel void copy<long>(device long *, device const long *, uint);
    """)
    host = np.arange(37).astype(dtype)
    size = host.dtype.itemsize
    plain = {1: "u1", 2: "i2", 4: "i4", 8: "i8"}[size]
    out = mps.zeros(37, dtype=dtype)
    library[f"copy{size}"](out.view(plain), mps.asarray(host).view(plain))
    np.testing.assert_array_equal(out.numpy(), host)


def test_double_is_refused_in_source_with_its_line() -> None:
    with pytest.raises(SyntaxError, match=r"program_source:3:\d+.*\n?.*double"):
        mps.compile_shader("\nkernel void k(device float *x) {\n  double y = x[0];\n  x[0] = y;\n}")


def test_vectors_and_matrices_have_metals_sizes(compiled: Compile) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void sizes(device uint *out) {
          out[0] = sizeof(float3); out[1] = alignof(float3); out[2] = sizeof(half3); out[3] = alignof(half3);
          out[4] = sizeof(bool3); out[5] = alignof(bool3); out[6] = sizeof(int3); out[7] = alignof(int3);
          out[8] = sizeof(packed_float3); out[9] = alignof(packed_float3); out[10] = sizeof(float3x3);
          out[11] = sizeof(packed_half3); out[12] = sizeof(float2); out[13] = sizeof(float4x4);
        }
        kernel void sum3(device const float3 *in, device float *out, uint i [[thread_position_in_grid]]) {
          out[i] = in[i].x + 10 * in[i].y + 100 * in[i].z;
        }
        kernel void sum_packed(device const packed_float3 *in, device float *out, uint i [[thread_position_in_grid]]) {
          out[i] = in[i][0] + 10 * in[i][1] + 100 * in[i][2];
        }
    """)
    out = mps.zeros(14, dtype=np.uint32)
    library.sizes(out, threads=1)
    assert out.tolist() == [16, 16, 8, 8, 4, 4, 16, 16, 12, 4, 48, 6, 8, 64]
    padded = np.arange(32 * 4, dtype=np.float32).reshape(32, 4)
    packed = np.arange(32 * 3, dtype=np.float32).reshape(32, 3)
    weights = np.array([1, 10, 100], np.float32)
    for kernel, host in ((library.sum3, padded), (library.sum_packed, packed)):
        result = mps.zeros(32)
        kernel(mps.asarray(host), result, threads=32)
        np.testing.assert_array_equal(result.numpy(), host[:, :3] @ weights)


def test_structs_with_arrays_and_nested_structs_keep_their_fields(compiled: Compile) -> None:
    library = compiled("""
        struct Inner { short a; float b[3]; };
        struct Outer { char tag; long big; Inner inner; uchar tail[5]; };
        kernel void echo(constant Outer &in, device float *out) {
          out[0] = in.tag; out[1] = in.big; out[2] = in.inner.a;
          for (int i = 0; i < 3; i++) { out[3 + i] = in.inner.b[i]; }
          for (int i = 0; i < 5; i++) { out[6 + i] = in.tail[i]; }
        }
        kernel void second(device const Outer *in, device float *out) { out[0] = in[1].big + in[1].inner.b[2]; }
    """)
    inner = np.dtype([("a", "i2"), ("b", "f4", 3)], align=True)
    outer = np.dtype([("tag", "i1"), ("big", "i8"), ("inner", inner), ("tail", "u1", 5)], align=True)
    value = np.zeros((), dtype=outer)
    value["tag"], value["big"], value["inner"]["a"] = -3, 1 << 40, 12
    value["inner"]["b"], value["tail"] = [1.5, 2.5, 3.5], [1, 2, 3, 4, 255]
    out = mps.zeros(11)
    library.echo(value[()], out, threads=1)
    assert out.tolist() == [-3, float(1 << 40), 12, 1.5, 2.5, 3.5, 1, 2, 3, 4, 255]
    library.echo(value, out, threads=1)
    assert out[1].item() == float(1 << 40)
    packed = np.zeros((), dtype=np.dtype([("tag", "i1"), ("big", "i8"), ("tail", "u1", 5)]))
    with pytest.raises((errors.InvalidArgumentError, errors.ArgumentTypeError), match=r"bytes|size"):
        library.echo(packed[()], out, threads=1)


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u8"])
def test_big_endian_data_is_converted_or_refused(compiled: Compile, dtype: str) -> None:
    host = np.array([1, 2, 300 if dtype != ">i2" else 30], dtype=dtype)
    try:
        array = mps.asarray(host)
    except errors.ArgumentTypeError:
        pass
    else:
        assert array.dtype.isnative
        np.testing.assert_array_equal(array.numpy(), host)
    name = {">f4": "float", ">i2": "short", ">u8": "ulong"}[dtype]
    out = mps.zeros(1, dtype=SCALAR_TYPES[name][0])
    try:
        compiled(ECHOES)["echo_" + name](out, host[2], threads=1)
    except errors.ArgumentTypeError:
        pass
    else:
        assert out.item() == host[2]


def test_struct_with_a_big_endian_field_is_converted() -> None:
    host = np.array([(1, 2.5), (-3, 4.5)], dtype=[("a", "<i4"), ("b", ">f4")])
    array = mps.asarray(host)
    assert array.dtype["b"].isnative and array.dtype["b"] == np.float32
    assert array.view(np.int32).numpy()[[0, 2]].tolist() == [1, -3]
    assert array.view(np.float32).numpy()[[1, 3]].tolist() == [2.5, 4.5]
