"""The example that loads .safetensors files: against files of the safetensors package, and against hostile ones."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mpscffi as mps

EXAMPLE = Path(__file__).parent.parent / "examples" / "load_safetensors.py"
KINDS = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_safetensors", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors() -> dict[str, Any]:
    import ml_dtypes

    rng = np.random.default_rng(3)
    made = {kind: (rng.random((3, 5)) * 100).astype(kind) for kind in KINDS}
    made["bfloat16"] = rng.standard_normal((7, 3)).astype(ml_dtypes.bfloat16)
    made["number"] = np.array(2.5, np.float32)
    made["nothing"] = np.zeros((0, 4), np.float32)
    made["weights"] = rng.standard_normal((200, 300)).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the safetensors package writes it."""
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    safetensors.save_file(tensors(), path, {"maker": "a test"})
    return path


def test_tensors_are_those_of_the_package(example: ModuleType, file: Path) -> None:
    arrays = example.load(file)
    expected = tensors()
    assert set(arrays) == set(expected)
    for name, values in expected.items():
        array = arrays[name]
        assert (array.dtype, array.shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(array.numpy(), values)
        assert not array.is_writable
    assert example.read_header(file)[1] == {"maker": "a test"}


def test_aligned_tensors_are_the_file_itself(
    example: ModuleType, file: Path, compiled: Callable[[str], mps.ShaderLibrary]
) -> None:
    before = mps.current_allocated_memory()
    arrays = example.load(file)
    aligned = [tensor for tensor in example.read_header(file)[0] if tensor.begin % example.SIZES[tensor.dtype] == 0]
    assert all(arrays[tensor.name].is_alias for tensor in aligned if tensor.begin < tensor.end)
    assert arrays["weights"].is_alias
    copied = sum(array.nbytes for array in arrays.values() if not array.is_alias)
    assert mps.current_allocated_memory() - before <= copied + 16 * len(arrays)
    kernel = compiled("""
        kernel void twice(device const float *in, device float *out, uint i [[thread_position_in_grid]]) {
          out[i] = 2 * in[i];
        }
    """).twice
    out = mps.empty(200, 300)
    kernel(arrays["weights"], out)
    weights = arrays.pop("weights")
    del arrays
    gc.collect()
    np.testing.assert_array_equal(out.numpy(), 2 * tensors()["weights"])
    np.testing.assert_array_equal(weights.numpy(), tensors()["weights"])


def test_bfloat16_weights_reach_a_kernel(
    example: ModuleType, file: Path, compiled: Callable[[str], mps.ShaderLibrary]
) -> None:
    kernel = compiled("""
        #include <metal_stdlib>
        kernel void widen(device const bfloat *in, device float *out, uint i [[thread_position_in_grid]]) {
          out[i] = float(in[i]);
        }
    """).widen
    out = mps.empty(7, 3)
    kernel(example.load(file)["bfloat16"], out)
    np.testing.assert_array_equal(out.numpy(), tensors()["bfloat16"].astype(np.float32))


def test_writes_stay_in_memory(example: ModuleType, file: Path) -> None:
    before = file.read_bytes()
    weights = example.load(file, writable=True)["weights"]
    weights.fill_(1)
    assert (weights.numpy() == 1).all()
    assert file.read_bytes() == before


def test_the_command_lists_tensors(file: Path, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", EXAMPLE, file],
                         capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    assert "weights: float32 [200, 300], 240000 bytes, mapped" in run.stdout.splitlines()
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 20)
    run = subprocess.run([sys.executable, EXAMPLE, broken], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 2 and "the header is said to have 18446744073709551615 bytes" in run.stderr


# ---- files that are wrong


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_file_of_ones_own(example: ModuleType, tmp_path: Path) -> None:
    path = written(tmp_path / "x", {"a": entry()}, np.array([1, 2], "<f4").tobytes())
    assert example.load(path)["a"].tolist() == [1, 2]
    # Not aligned: the header's length is odd, or a byte lies before.
    odd = written(tmp_path / "y", {"b": entry("U8", (1,), (0, 1)), "a": entry(offsets=(1, 9))},
                  b"\7" + np.array([1, 2], "<f4").tobytes())  # fmt: skip
    arrays = example.load(odd)
    assert (arrays["a"].tolist(), arrays["b"].tolist()) == ([1, 2], [7])
    assert example.load(written(tmp_path / "z", {})) == {}


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 200_000, "no JSON"),
        (b'{"a": 1, "a": 2}', "comes twice"),
        ([1], "is a list"),
        ({"a": 3}, "expected dtype, shape and data_offsets"),
        ({"a": {**entry(), "more": 1}}, "expected dtype, shape and data_offsets"),
        ({"a": entry("F64")}, "dtype is 'F64'"),
        ({"a": entry(["F32"])}, "dtype is"),
        ({"a": entry(shape=(-2,))}, "natural numbers"),
        ({"a": entry(shape=(2.0,))}, "natural numbers"),
        ({"a": entry(shape=(True,), offsets=(0, 4))}, "natural numbers"),
        ({"a": entry(shape="2")}, "natural numbers"),
        ({"a": entry(shape=(2**62, 2**62))}, "takes"),
        ({"a": entry(shape=(2**64,))}, "natural numbers"),
        ({"a": entry(shape=(1,) * 65 + (2,))}, "tensor 'a': .* axes"),
        ({"b": entry(shape=(2**40, 0, 2**40), offsets=(0, 0)), "a": entry()}, "tensor 'b': .* too big"),
        ({"a": entry(offsets=(8, 0))}, "takes"),
        ({"a": entry(offsets=(0, 4))}, "takes"),
        ({"a": entry(offsets=(0,))}, "data_offsets"),
        ({"a": entry(offsets=(-8, 0))}, "natural numbers"),
        ({"a": entry(offsets=(8, 16))}, "gap"),
        ({"a": entry(), "b": entry()}, "overlap"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, "overlap"),
        ({"a": entry(shape=(4,), offsets=(0, 16))}, "take 16 bytes, but the file has 8"),
        ({"a": entry(shape=(1,), offsets=(0, 4))}, "take 4 bytes, but the file has 8"),
        ({"__metadata__": {"a": 1}}, "__metadata__"),
        ({"__metadata__": []}, "__metadata__"),
    ],
)
def test_hostile_headers_are_refused(example: ModuleType, tmp_path: Path, header: Any, fault: str) -> None:
    with pytest.raises(example.FormatError, match=fault):
        example.load(written(tmp_path / "file", header, bytes(8)))


@pytest.mark.parametrize("data", [b"", b"1234567", bytes(7) + b"\1", b"\xff" * 8, b"\x09" + bytes(7) + b"{}"])
def test_short_files_are_refused(example: ModuleType, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(example.FormatError, match="the header is said to have"):
        example.load(path)


def test_a_giant_header_is_not_read(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(200_000_100)  # takes no room
    with pytest.raises(example.FormatError, match="more than 100000000"):
        example.load(path)


def test_files_that_are_not_there(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        example.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        example.load(tmp_path)
