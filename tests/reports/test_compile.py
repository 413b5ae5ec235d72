"""Faults that users of such libraries met when compiling, caching and naming kernels. One test a fault."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]
Run = Callable[..., subprocess.CompletedProcess[str]]

PROBE = "kernel void probe(device float *x) {{ x[0] = {}; }}"

SCRIPT = """
import mpscffi as mps
x = mps.zeros(1)
mps.compile_shader("kernel void probe(device float *x) { x[0] = SALT; }").probe(x, threads=1)
print(x.item())
"""


def test_compile_errors_are_syntax_errors_with_the_users_line() -> None:
    with pytest.raises(SyntaxError, match=r"program_source:1:\d+: error.*What"):
        mps.compile_shader("What")
    lines = [f"// line {i}" for i in range(1, 41)]
    lines[6] = "kernel void k(device float *x) { x[0] = undeclared_name; }"
    with pytest.raises(SyntaxError) as raised:
        mps.compile_shader("\n".join(lines))
    text = str(raised.value)
    assert "program_source:7:" in text and "undeclared_name" in text and lines[6] in text
    assert "mslc/include" not in text


def test_warnings_do_not_raise(compiled: Compile) -> None:
    x = mps.zeros(1)
    compiled("kernel void k(device float *x) { int unused; x[0] = 1; if (x[0] = 2) { } }").k(x, threads=1)
    assert x.item() == 2


@pytest.mark.host_only("include directories are the host device's")
def test_error_in_a_header_names_the_header(tmp_path: Path, device: mps.Device) -> None:
    (tmp_path / "helper.h").write_text("\n\ninline float helper() { return nonsense; }\n")
    with pytest.raises(SyntaxError, match=r"helper\.h:3:\d+: error"):
        mps.compile_shader('#include "helper.h"\nkernel void k(device float *x) {}', include_dirs=[tmp_path])


def test_failed_compile_leaves_no_library_to_trip_over(tmp_path: Path) -> None:
    from mpscffi._ffi import ffi, lib

    device, library, pipeline = mps.current_device().handle, ffi.new("mps_library **"), ffi.new("mps_pipeline **")
    source = b"this is not Metal"
    assert lib.mps_library_create_from_source(device, source, len(source), ffi.NULL, library) != lib.MPS_STATUS_OK
    assert library[0] == ffi.NULL
    desc = ffi.new("mps_pipeline_desc *", {"struct_size": ffi.sizeof("mps_pipeline_desc")})
    dispatch = ffi.new("mps_dispatch *", {"struct_size": ffi.sizeof("mps_dispatch")})
    for status in (
        lib.mps_pipeline_create(library[0], desc, pipeline),
        lib.mps_library_kernel_count(library[0], ffi.new("uint32_t *")),
        lib.mps_queue_dispatch(mps.current_stream().handle, dispatch),
    ):
        assert status == lib.MPS_STATUS_INVALID_HANDLE
        assert ffi.string(lib.mps_error_message())
    assert lib.mps_library_release(ffi.NULL) == lib.MPS_STATUS_OK


def test_kernels_of_one_name_keep_their_own_code() -> None:
    x, y = mps.zeros(3), mps.zeros(1)
    first, second = mps.compile_shader(PROBE.format("1.0f")), mps.compile_shader(PROBE.format("2.0f"))
    for i, library in enumerate((first, second, first)):
        library.probe(x[i:], threads=1)
    assert x.tolist() == [1, 2, 1]
    for i in range(20):
        mps.compile_shader(PROBE.format(f"{i}.0f")).probe(y, threads=1)
        assert y.item() == i


@pytest.fixture(params=["read-only home", "a file instead of the directory", "no home", "no temporary directory"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which there is no usable cache."""
    environment = {"MPSCFFI_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": str(tmp_path)}
    if request.param == "read-only home":
        tmp_path.chmod(0o500)
    elif request.param == "a file instead of the directory":
        (tmp_path / "file").write_text("not a directory")
        environment["MPSCFFI_CACHE_DIR"] = str(tmp_path / "file")
    elif request.param == "no home":
        environment["HOME"] = "/nonexistent"
    else:
        environment["TMPDIR"] = str(tmp_path / "missing")
    yield environment
    tmp_path.chmod(0o700)


def test_unusable_cache_is_no_error(python: Run, hostile: dict[str, str]) -> None:
    finished = python(SCRIPT.replace("SALT", "4.5f"), **hostile)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "4.5"
    assert finished.stderr.count("Warning") <= 1


@pytest.mark.linux_only("mounts a file system")
def test_full_disk_is_no_error(python: Run) -> None:
    if not Path("/dev/full").exists() or os.geteuid() != 0:
        pytest.skip("a small file system can only be made by root")
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("a file system cannot be mounted here")
        try:
            finished = python(SCRIPT.replace("SALT", "5.5f"), MPSCFFI_CACHE_DIR=place)
        finally:
            subprocess.run(["umount", place], check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "5.5"


def test_many_processes_share_an_empty_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "MPSCFFI_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT.replace("SALT", "6.5f"))]
    running = [
        subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for process in running:
        output, noise = process.communicate(timeout=120)
        assert process.returncode == 0, noise
        assert output.strip() == "6.5"
        assert noise == ""


@pytest.mark.parametrize("damage", ["truncate", "zero", "garbage"])
def test_damaged_cache_files_are_compiled_again(python: Run, tmp_path: Path, damage: str) -> None:
    script = SCRIPT.replace("SALT", "7.5f")
    assert python(script, MPSCFFI_CACHE_DIR=str(tmp_path)).returncode == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(
            {"truncate": content[: len(content) // 2], "zero": bytes(len(content)), "garbage": b"\x7fELF" * 100}[damage]
        )
    finished = python(script, MPSCFFI_CACHE_DIR=str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "7.5"


@pytest.mark.parametrize("header", ["metal_stdlib", "metal_atomic", "metal_simdgroup", "metal_math", "simd/simd.h"])
def test_metals_headers_are_found(header: str) -> None:
    assert dir(mps.compile_shader(f"#include <{header}>\nkernel void k(device float *x) {{}}")) == ["k"]


def test_users_headers_are_found_and_missing_ones_named(tmp_path: Path, device: mps.Device) -> None:
    with pytest.raises(SyntaxError, match=r"program_source:2:.*missing_header\.h"):
        mps.compile_shader('\n#include "missing_header.h"\nkernel void k(device float *x) {}')
    for header in ("stdio.h", "vector", "unistd.h"):
        with pytest.raises(SyntaxError, match=header):
            mps.compile_shader(f"#include <{header}>\nkernel void k(device float *x) {{}}")
    if device.backend == "host":
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "value.h").write_text('#pragma once\n#include "other.h"\n#define VALUE OTHER\n')
        (tmp_path / "sub" / "other.h").write_text("#define OTHER 2.5f\n")
        x = mps.zeros(1)
        source = '#include "sub/value.h"\nkernel void k(device float *x) { x[0] = VALUE; }'
        mps.compile_shader(source, include_dirs=[tmp_path]).k(x, threads=1)
        assert x.item() == 2.5
        (tmp_path / "sub" / "other.h").write_text("#define OTHER 3.5f\n")
        mps.compile_shader(source, include_dirs=[tmp_path]).k(x, threads=1)
        assert x.item() == 3.5


def test_library_files_that_are_none_give_distinct_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        mps.load_metallib(tmp_path / "missing.metallib")
    texts = set()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "random").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "cut").write_bytes(b"MTLB")
    (tmp_path / "elf").write_bytes(b"\x7fELF" + bytes(60))
    for name in ("", "empty", "random", "cut", "elf"):
        with pytest.raises(errors.Error) as raised:
            mps.load_metallib(str(tmp_path / name))
        assert not isinstance(raised.value, FileNotFoundError)
        texts.add(str(raised.value).replace(str(tmp_path / name), ""))
    assert len(texts) == 5
    for data in (b"", b"MTLB", bytes(100)):
        with pytest.raises(errors.Error):
            mps.load_metallib(data)
    for other in (3, memoryview(b"MTLB"), None, [b"MTLB"]):
        with pytest.raises(TypeError, match=type(other).__name__):
            mps.load_metallib(other)  # type: ignore[arg-type]


def test_dropped_libraries_give_their_memory_back(python: Run, tmp_path: Path) -> None:
    finished = python(
        """
        import gc, os, resource
        import mpscffi as mps
        x = mps.zeros(1)
        def maps():
            return sum(1 for line in open("/proc/self/maps") if ".so" in line)
        def rounds(first, count):
            for i in range(first, first + count):
                mps.compile_shader("kernel void k(device float *x) { x[0] = %d; }" % i).k(x, threads=1)
                assert x.item() == i
            gc.collect()
            mps.synchronize()
            mps.empty_cache()
        rounds(0, 5)
        before = maps(), len(os.listdir("/proc/self/fd"))
        rounds(5, 40)
        after = maps(), len(os.listdir("/proc/self/fd"))
        assert after[0] <= before[0] + 8 and after[1] <= before[1] + 1, (before, after)
        rounds(0, 5)
        """,
        MPSCFFI_CACHE_DIR=str(tmp_path),
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr


def test_nan_tests_follow_the_math_mode() -> None:
    source = """
        #include <metal_stdlib>
        using namespace metal;
        kernel void probe(device const float *x, device uint *out, uint i [[thread_position_in_grid]]) {
          out[i] = isnan(x[i]) | (x[i] != x[i]) << 1 | isinf(x[i]) << 2 | signbit(x[i]) << 3 | (-x[i] == x[i]) << 4;
        }
    """
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], np.float32)
    expected = [np.isnan(v) | (v != v) << 1 | np.isinf(v) << 2 | np.signbit(v) << 3 | (-v == v) << 4 for v in values]
    out = mps.zeros(values.size, dtype=np.uint32)
    mps.compile_shader(source).probe(mps.asarray(values), out)
    assert [int(value) & ~8 for value in out.numpy()] == [int(value) & ~8 for value in expected]
    assert [int(value) & 8 for value in out.numpy()][1:] == [int(value) & 8 for value in expected][1:]
    # In fast mode NaN and infinities need not be told apart, but ordinary numbers must.
    mps.compile_shader(source, math_mode="fast").probe(mps.asarray(values), out)
    assert out.numpy()[5] == 0


def test_denormals_are_flushed_as_on_a_gpu(compiled: Compile) -> None:
    tiny = np.float32(1e-39)
    x = mps.asarray(np.array([tiny, 1.0], np.float32))
    compiled("kernel void half_of(device float *x, uint i [[thread_position_in_grid]]) { x[i] *= 0.5f; }").half_of(x)
    assert x.tolist() == [0.0, 0.5]
    assert np.float32(1e-39) * np.float32(0.5) != 0  # the caller's own mode is as before
