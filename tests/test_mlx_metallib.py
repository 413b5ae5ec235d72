"""MLX's precompiled kernels, from its wheel for the Mac: all of them translate, and some are run against NumPy.

Not part of a normal run: `pytest -m corpus`. The wheel is downloaded with pip into MPSCFFI_TEST_CORPUS, by default a
directory `mpscffi-corpus` among the temporary files, unless it is there already.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mpscffi
from mpscffi.mslc.air.translate import translate
from mpscffi.mslc.errors import CompileError, CompilerMissing
from mpscffi.mslc.metallib.container import Metallib
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("its compiler"), pytest.mark.corpus, pytest.mark.timeout(900)]

try:
    COMPILER = find_toolchain().compiler
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

CORPUS = Path(os.environ.get("MPSCFFI_TEST_CORPUS") or Path(tempfile.gettempdir(), "mpscffi-corpus"))
BATCH = 64
bfloat16 = ml_dtypes.bfloat16
TYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": bfloat16, "int8": np.int8, "int16": np.int16,
    "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32,
    "uint64": np.uint64,
}  # fmt: skip
TOLERANCES = {np.float32: 3e-6, np.float16: 2e-3, bfloat16: 1.6e-2}


@pytest.fixture(scope="session")
def path() -> Path:
    """MLX's library."""
    library = CORPUS / "mlx" / "lib" / "mlx.metallib"
    if not library.exists():
        CORPUS.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--platform", "macosx_14_0_arm64", "--only-binary=:all:", "--python-version", "3.12"]
        command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(CORPUS), "mlx-metal"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if finished.returncode:
            pytest.skip(f"the wheel cannot be downloaded: {finished.stderr.strip()[-200:]}")
        (wheel,) = CORPUS.glob("mlx_metal-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract("mlx/lib/mlx.metallib", CORPUS)
    return library


# ---------------------------------------------------------------- translating all


def _printed(directory: str, names: Sequence[str]) -> str:
    """Have LLVM read and print some modules; its errors."""
    command = [*COMPILER, "-cc1", "-w", "-emit-llvm", "-disable-llvm-passes", "-x", "ir", *names]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False).stderr


def _translated(path: str, first: int) -> tuple[int, list[str]]:
    """Translate a batch of functions, and have LLVM verify what comes out: how many passed, and what is wrong."""
    with open(path, "rb") as file:
        library = Metallib(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    functions = list(library.functions.values())[first : first + BATCH]
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for number, function in enumerate(functions):
            Path(directory, f"{number}.bc").write_bytes(function.bitcode())
        errors = _printed(directory, [f"{number}.bc" for number in range(len(functions))])
        assert not errors, errors
        done = []
        for number, function in enumerate(functions):
            text = Path(directory, f"{number}.ll").read_text(encoding="utf-8", errors="surrogateescape")
            values = {item.name: (item.data_type, bytes([1]) + bytes(7)) for item in function.constants}
            try:
                Path(directory, f"out{number}.ll").write_text(translate(text, function.name, values))
                done.append(f"out{number}.ll")
            except CompileError as error:
                wrong.append(str(error))
        errors = _printed(directory, done)
        if errors:
            wrong.append(errors)
    return len(functions) - len(wrong), wrong


def test_every_kernel_translates(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(path, "rb") as file:
        start = time.perf_counter()
        functions = Metallib(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).functions
        listed = time.perf_counter() - start
    assert listed < 1.0
    start = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(_translated, [str(path)] * len(functions), range(0, len(functions), BATCH)))
    seconds = time.perf_counter() - start
    passed = sum(count for count, _ in results)
    with capsys.disabled():
        print(f"\n{passed} of {len(functions)} kernels translate, in {seconds:.0f} s; listed in {listed:.2f} s")
    assert [text for _, wrong in results for text in wrong] == []
    assert passed == len(functions) > 17000


# ---------------------------------------------------------------- running some


@pytest.fixture(scope="module")
def mlx(path: Path) -> mpscffi.ShaderLibrary:
    mpscffi.set_device("host")
    return mpscffi.load_metallib(path)


def run(kernel: mpscffi.Kernel, *arguments: Any, **options: Any) -> list[np.ndarray]:
    """Run a kernel; its arrays afterwards. None stands for a buffer that it does not look at."""
    given = []
    arrays = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            plain = argument.view(np.uint16) if argument.dtype == bfloat16 else argument
            arrays.append((mpscffi.asarray(plain), argument.dtype))
            given.append(arrays[-1][0])
        else:
            given.append(mpscffi.zeros(4) if argument is None else argument)
    kernel(*given, **options)
    return [array.numpy().copy().view(dtype) for array, dtype in arrays]


COUNT = 1003


def operands(dtype: Any, low: float, high: float, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        values = chance.integers(1 if np.issubdtype(dtype, np.unsignedinteger) else -50, 51, COUNT)
        values[values == 0] = 3
        return values.astype(dtype)
    return chance.uniform(low, high, COUNT).astype(dtype)


BINARY: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Subtract": np.subtract, "Multiply": np.multiply, "Maximum": np.maximum, "Minimum": np.minimum,
    "Divide": lambda a, b: np.trunc(a.astype(float) / b) if np.issubdtype(a.dtype, np.integer) else a / b,
    "Power": np.power, "Remainder": np.mod, "ArcTan2": np.arctan2, "LogAddExp": np.logaddexp, "Equal": np.equal,
    "NotEqual": np.not_equal, "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater,
    "GreaterEqual": np.greater_equal, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("type_name", TYPES)
def test_binary_family(mlx: mpscffi.ShaderLibrary, type_name: str) -> None:
    dtype = TYPES[type_name]
    is_integer = np.issubdtype(dtype, np.integer)
    ran = 0
    for name, function in BINARY.items():
        if f"vv_{name}{type_name}" not in mlx:
            continue
        a, b = operands(dtype, 0.1, 2.0, 1), operands(dtype, 0.1, 2.0, 2)
        if name == "Power" and is_integer:
            a, b = a % 4, b % 4
        with np.errstate(all="ignore"):
            expected = function(*((a, b) if is_integer else (a.astype(float), b.astype(float))))
        out = np.zeros(COUNT, np.bool_ if expected.dtype == np.bool_ else dtype)
        found = run(mlx[f"vv_{name}{type_name}"], a, b, out, COUNT, threads=COUNT)[2]
        if is_integer or expected.dtype == np.bool_:
            np.testing.assert_array_equal(found, expected.astype(out.dtype), name)
        else:
            tolerance = TOLERANCES[dtype]
            np.testing.assert_allclose(found.astype(float), expected, tolerance, tolerance, err_msg=name)
        ran += 1
    assert ran >= 12


UNARY: dict[str, tuple[float, float, Callable[..., Any]]] = {
    "Abs": (-2, 2, np.abs), "ArcCos": (-0.9, 0.9, np.arccos), "ArcCosh": (1.1, 3, np.arccosh),
    "ArcSin": (-0.9, 0.9, np.arcsin), "ArcSinh": (-2, 2, np.arcsinh), "ArcTan": (-2, 2, np.arctan),
    "ArcTanh": (-0.9, 0.9, np.arctanh), "Ceil": (-2, 2, np.ceil), "Cos": (-2, 2, np.cos), "Cosh": (-2, 2, np.cosh),
    "Exp": (-2, 2, np.exp), "Floor": (-2, 2, np.floor), "Log": (0.1, 3, np.log), "Log2": (0.1, 3, np.log2),
    "Log10": (0.1, 3, np.log10), "Log1p": (0.1, 3, np.log1p), "Negative": (-2, 2, np.negative),
    "Round": (-2, 2, np.rint), "Rsqrt": (0.1, 3, lambda x: 1 / np.sqrt(x)), "Sign": (-2, 2, np.sign),
    "Sigmoid": (-2, 2, lambda x: 1 / (1 + np.exp(-x))), "Sin": (-2, 2, np.sin), "Sinh": (-2, 2, np.sinh),
    "Sqrt": (0.1, 3, np.sqrt), "Square": (-2, 2, np.square), "Tan": (-1, 1, np.tan), "Tanh": (-2, 2, np.tanh),
}  # fmt: skip


@pytest.mark.parametrize("type_name", ["float32", "float16", "bfloat16", "int32", "int8"])
def test_unary_family(mlx: mpscffi.ShaderLibrary, type_name: str) -> None:
    dtype = TYPES[type_name]
    ran = 0
    for name, (low, high, function) in UNARY.items():
        if f"v_{name}{type_name}{type_name}" not in mlx:
            continue
        x = operands(dtype, low, high, 3)
        found = run(mlx[f"v_{name}{type_name}{type_name}"], x, np.zeros(COUNT, dtype), COUNT, threads=COUNT)[1]
        tolerance = TOLERANCES.get(dtype, 0)
        expected = function(x.astype(float) if tolerance else x).astype(float)
        np.testing.assert_allclose(found.astype(float), expected, tolerance, tolerance, err_msg=name)
        ran += 1
    assert ran >= (5 if "int" in type_name else 27)


def test_casts(mlx: mpscffi.ShaderLibrary) -> None:
    for source in TYPES:
        for target in TYPES:
            values = np.arange(100).astype(TYPES[source])
            kernel = mlx[f"v_copy{source}{target}"]
            found = run(kernel, values, np.zeros(100, TYPES[target]), 100, threads=100)[1]
            np.testing.assert_array_equal(found, values.astype(TYPES[target]), f"{source} to {target}")


def normalized(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


@pytest.mark.parametrize(("type_name", "tolerance"), [("float32", 2e-6), ("float16", 2e-3), ("bfloat16", 1.6e-2)])
def test_rows(mlx: mpscffi.ShaderLibrary, type_name: str, tolerance: float) -> None:
    """Softmax, and normalisation with weights."""
    dtype = TYPES[type_name]
    chance = np.random.default_rng(4)
    x = chance.standard_normal((64, 1000)).astype(dtype)
    out = np.zeros_like(x)
    found = run(mlx[f"block_softmax_{type_name}"], x, out, 1000, threads=64 * 256, group_size=256)[1]
    np.testing.assert_allclose(found.astype(float), normalized(x.astype(float)), tolerance, tolerance)
    x = chance.standard_normal((16, 4096)).astype(dtype)
    w, b = (chance.standard_normal(4096).astype(dtype) for _ in range(2))
    exact, weights, offsets = x.astype(float), w.astype(float), b.astype(float)
    grid = {"threads": 16 * 1024, "group_size": 1024}  # four values a thread
    found = run(mlx[f"rms{type_name}"], x, w, np.zeros_like(x), 1e-5, 4096, 1, **grid)[2].astype(float)
    expected = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5) * weights
    np.testing.assert_allclose(found, expected, 4 * tolerance, 4 * tolerance)
    grid = {"threads": 16 * 512, "group_size": 512}  # eight: a thread without any would write in front of its own array
    found = run(mlx[f"layer_norm{type_name}"], x, w, b, np.zeros_like(x), 1e-5, 4096, 1, 1, **grid)[3].astype(float)
    centred = exact - exact.mean(1, keepdims=True)
    expected = centred / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * weights + offsets
    np.testing.assert_allclose(found, expected, 4 * tolerance, 4 * tolerance)


@pytest.mark.parametrize("type_name", ["float32", "float16", "bfloat16", "int32", "int64", "uint8"])
def test_reductions(mlx: mpscffi.ShaderLibrary, type_name: str) -> None:
    dtype = TYPES[type_name]
    x = np.random.default_rng(6).integers(0, 3, 4000).astype(dtype)
    for name, function in (("sum", np.sum), ("min", np.min), ("max", np.max)):
        kernel = mlx[f"all_reduce_{name}{type_name}"]
        arguments = [item for item in kernel.arguments if item.name == "out"]
        out = np.zeros(1, {"int": np.int32, "uint": np.uint32}.get(arguments[0].type_name, dtype))
        found = run(kernel, x, out, x.size, x.size, threads=1024, group_size=1024)[1]
        expected = function(x.astype(float))
        assert abs(float(found[0]) - expected) <= TOLERANCES.get(dtype, 0) * expected
    x = np.random.default_rng(6).integers(1, 3, 12).astype(dtype)
    kernel = mlx[f"all_reduce_prod{type_name}"]
    arguments = [item for item in kernel.arguments if item.name == "out"]
    out = np.zeros(1, {"int": np.int32, "uint": np.uint32}.get(arguments[0].type_name, dtype))
    assert run(kernel, x, out, 12, 12, threads=32, group_size=32)[1].item() == x.astype(int).prod()


@pytest.mark.parametrize("type_name", ["float32", "float16", "int32", "uint8"])
def test_sort(mlx: mpscffi.ShaderLibrary, type_name: str) -> None:
    x = np.random.default_rng(7).integers(0, 120, (10, 1000)).astype(TYPES[type_name])
    kernel = mlx[f"c_block_sort_{type_name}_{type_name}_bn256_tn4"]
    found = run(kernel, x, np.zeros_like(x), 1000, 1, 1, 1000, 1000, threadgroups=(1, 10, 1), group_size=(256, 1, 1))[1]
    np.testing.assert_array_equal(found, np.sort(x, 1))


@pytest.mark.parametrize("kind", ["inclusive", "exclusive"])
@pytest.mark.parametrize("type_name", ["float32", "int32"])
def test_scan(mlx: mpscffi.ShaderLibrary, type_name: str, kind: str) -> None:
    x = np.random.default_rng(8).integers(-5, 6, (10, 1000)).astype(TYPES[type_name])
    kernel = mlx[f"contig_scan_{kind}_sum_{type_name}_{type_name}"]
    found = run(kernel, x, np.zeros_like(x), 1000, threads=(256, 10, 1), group_size=(256, 1, 1))[1]
    expected = np.cumsum(x, 1)
    if kind == "exclusive":
        expected = np.concatenate([np.zeros((10, 1)), expected[:, :-1]], 1)
    np.testing.assert_array_equal(found, expected)


def test_gemv(mlx: mpscffi.ShaderLibrary) -> None:
    chance = np.random.default_rng(9)
    matrix, vector = chance.standard_normal((200, 300)).astype("f"), chance.standard_normal(300).astype("f")
    kernel = mlx.gemv_float32_bm4_bn1_sm1_sn32_tm4_tn4_nc0_axpby0
    batch = [1, np.ones(1, np.int32), *(np.zeros(1, np.int64) for _ in range(3))]
    arguments = [matrix, vector, None, np.zeros(200, "f"), 300, 200, 300, 1.0, 0.0, *batch, 1]
    found = run(kernel, *arguments, threadgroups=(13, 1, 1), group_size=(32, 1, 4))[2]
    np.testing.assert_allclose(found, matrix.astype(float) @ vector, atol=1e-4)


GEMM = "steel_gemm_fused_{layout}_{type}_{type}_bm32_bn32_bk16_wm2_wn2"


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("type_name", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 45, 37), (128, 96, 80), (1, 33, 17)], ids=str)
def test_gemm(mlx: mpscffi.ShaderLibrary, layout: str, type_name: str, shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    dtype = TYPES[type_name]
    chance = np.random.default_rng(10)
    a = chance.uniform(-1, 1, (rows, depth)).astype(dtype)
    b = chance.uniform(-1, 1, (depth, columns)).astype(dtype)
    stored = b if layout == "nn" else np.ascontiguousarray(b.T)
    tiles = (-(-columns // 32), -(-rows // 32), 1)
    numbers = [rows, columns, depth, depth, stored.shape[1], columns, *tiles[:2]]
    packed = struct.pack("<8i3q3i4x", *numbers, rows * depth, depth * columns, rows * columns, 0, depth // 16, 1)
    constants = {
        "has_batch": False, "use_out_source": False, "do_axpby": False,
        "align_M": rows % 32 == 0, "align_N": columns % 32 == 0, "align_K": depth % 16 == 0,
    }  # fmt: skip
    kernel = mlx[GEMM.format(layout=layout, type=type_name)].specialize(constants)
    assert [item.name for item in kernel.arguments] == ["A", "B", "D", "params"]
    parameters = np.frombuffer(packed, np.uint8).copy()
    arguments = [a, stored, None, np.zeros((rows, columns), dtype), parameters]
    found = _run_with_gap(kernel, arguments, tiles)
    tolerance = 2e-5 if type_name == "float32" else 2e-2
    np.testing.assert_allclose(found.astype(float), a.astype(float) @ b.astype(float), atol=tolerance)


def _run_with_gap(kernel: mpscffi.Kernel, arguments: list[Any], tiles: tuple[int, int, int]) -> np.ndarray:
    """Run a kernel that has no buffer 2; buffer 3 afterwards."""
    arrays = [None if item is None else mpscffi.asarray(item) for item in arguments]
    kernel(*arrays, threadgroups=tiles, group_size=(32, 2, 2))
    return arrays[3].numpy().copy()
