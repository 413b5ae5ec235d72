"""The compiler as a whole: what compiles, and what it says of what does not. On every compiler of this machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from mpscffi.mslc import provider
from mpscffi.mslc.provider import CompileError, CompilerMissing, Options, RequestError
from mpscffi.mslc.toolchain import find_toolchain, which

ZIG = next((path for path in (Path(entry, "ziglang", "zig") for entry in sys.path) if path.exists()), None)
CLANG = next((path for path in map(which, ("clang-22", "clang-21", "clang-20", "clang-19")) if path), None)
COMPILERS = [*([f"{ZIG} clang"] if ZIG else []), *([CLANG] if CLANG else [])]

pytestmark = [
    pytest.mark.host_only("its compiler"),
    pytest.mark.skipif(not COMPILERS, reason="no compiler on this machine"),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mslc-cache")


@pytest.fixture(params=COMPILERS, ids=lambda command: Path(command.split()[0]).name)
def compiler(request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MPSCFFI_CXX", request.param)
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(cache))
    return str(request.param)


@pytest.fixture
def any_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CXX", COMPILERS[0])
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(cache))


def log_of(source: str, options: Options | None = None) -> str:
    with pytest.raises(CompileError) as caught:
        provider.check(source, options)
    return caught.value.log


def is_library(path: str) -> bool:
    data = Path(path).read_bytes()
    return data.startswith(b"\x7fELF") and b"mslc_kernel_library" in data


HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


# ---------------------------------------------------------------- what compiles


def test_a_kernel_becomes_a_library(compiler: str) -> None:
    source = HEAD + "kernel void k(device float *x, uint i [[thread_position_in_grid]]) { x[i] = exp(x[i]); }"
    assert provider.check(source).kernels == ["k"]
    assert is_library(provider.build(source, None, "k"))


SOURCES = {
    "no kernel": "float f(float x) { return x; }",
    "nothing": "",
    "comments": "// \u00e9 \u5b57\n/* \u2603 */\n",
    "a kernel without parameters": "kernel void k() {}",
    "no includes": "kernel void k(device float *x) { x[0] = 1; }",
    "python's keywords": "kernel void lambda() {} kernel void None() {} kernel void __class__() {}",
    "lines that end in CR LF": HEAD.replace("\n", "\r\n") + "kernel void k(device float *x) {\r\n  x[0] = 1;\r\n}\r\n",
    **{path.name: path.read_text() for path in sorted(Path(__file__).with_name("msl").glob("*.metal"))},
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_compiles(name: str, compiler: str) -> None:
    source = SOURCES[name]
    for kernel in provider.check(source).kernels:
        assert is_library(provider.build(source, None, kernel))


def test_a_source_of_a_megabyte(any_compiler: None) -> None:
    body = "".join(f"float f{i}(float x) {{ return x * {i}.5 + {i}; }}\n" for i in range(24000))
    source = f"{HEAD}{body}kernel void k(device float *x) {{ x[0] = f7(x[0]); }}"
    assert len(source) > 1_000_000
    assert is_library(provider.build(source, None, "k"))


@pytest.mark.parametrize("math_mode", ["safe", "relaxed", "fast"])
def test_math_modes(math_mode: str, compiler: str) -> None:
    source = HEAD + "kernel void k(device float *x) { x[0] = isnan(x[0]) ? INFINITY : x[0] + x[1] + x[2]; }"
    assert is_library(provider.build(source, Options(math_mode), "k"))


def test_language_versions(any_compiler: None) -> None:
    source = "#if __METAL_VERSION__ != 310\n#error other\n#endif\nkernel void k() {}"
    assert provider.check(source, Options(language_version=(3, 1))).kernels == ["k"]
    assert "error: other" in log_of(source)


def test_macros(any_compiler: None) -> None:
    source = "#ifdef A\nkernel void a(device int *x) { x[0] = B; }\n#endif\nkernel void b() {}"
    assert provider.check(source).kernels == ["b"]
    assert provider.check(source, Options(defines=["A", "B=7"])).kernels == ["a", "b"]


def test_headers_of_the_user(any_compiler: None, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "own.h").write_text('#pragma once\n#include "sub/more.h"\n')
    header = tmp_path / "sub" / "more.h"
    header.write_text("#define NAME first\n")
    options = Options(include_dirs=[str(tmp_path)])
    source = '#include "own.h"\n#include <own.h>\nkernel void NAME() {}'
    assert provider.check(source, options).kernels == ["first"]
    assert provider.check(source, options).kernels == ["first"]
    header.write_text("#define NAME second\n")
    assert provider.check(source, options).kernels == ["second"]
    header.unlink()
    assert "'sub/more.h' file not found" in log_of(source, options)


def test_a_header_that_comes_before_another(any_compiler: None, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "sub").mkdir(parents=True)
    (second / "sub").mkdir(parents=True)
    (second / "sub" / "own.h").write_text("kernel void late() {}")
    options = Options(include_dirs=[str(first), str(second)])
    assert provider.check("#include <sub/own.h>\n", options).kernels == ["late"]
    (first / "sub" / "own.h").write_text("kernel void early() {}")
    assert provider.check("#include <sub/own.h>\n", options).kernels == ["early"]


# ---------------------------------------------------------------- function constants

TILE = HEAD + (
    "constant int tile [[function_constant(3)]]; constant bool on [[function_constant(4)]];"
    "constant bool use = is_function_constant_defined(on) ? on : true;"
    "kernel void a(device int *x) { x[0] = use ? tile : 0; } kernel void b(device int *x) { x[0] = 1; }"
)
INT = 6 | 1 << 8
SEVEN = (INT, (7).to_bytes(4, "little"))


def test_function_constants_make_different_libraries(compiler: str) -> None:
    by_name = provider.build(TILE, None, "a", {"tile": SEVEN})
    assert provider.build(TILE, None, "a", {"tile": SEVEN}) == by_name
    assert provider.build(TILE, None, "a", {3: (INT, b"\1\0\0\0")}) != by_name
    assert is_library(provider.build(TILE, None, "b"))


@pytest.mark.parametrize(
    ("kernel", "constants", "message"),
    [
        ("a", {}, r"kernel 'a' needs a value for function constant 'tile' \(index 3\)"),
        ("a", {"tile": (12 | 1 << 8, b"\0\0\0\0")}, "'tile' is of type int, not float"),
        ("a", {"tile": (INT, b"\0\0")}, "'tile' needs 4 bytes, not 2"),
        ("a", {"other": SEVEN}, "no function constant 'other'"),
        ("a", {9: SEVEN}, "no function constant 9"),
        ("c", {}, "no kernel 'c'; kernels are: 'a', 'b'"),
    ],
)
def test_wrong_requests(
    kernel: str, constants: dict[str | int, tuple[int, bytes]], message: str, any_compiler: None
) -> None:
    with pytest.raises(RequestError, match=message):
        provider.build(TILE, None, kernel, constants)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"math_mode": "exact"}, "safe, relaxed, fast"),
        ({"language_version": (9, 0)}, "language version 9.0"),
        ({"defines": ["1X"]}, "NAME or NAME=VALUE"),
    ],
)
def test_wrong_options(given: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Options(**given)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what does not compile


def test_the_log_shows_the_users_line(compiler: str) -> None:
    log = log_of("What")
    assert log.startswith("program_source:1:1: error: ")
    assert "\nWhat\n^\n" in log


@pytest.mark.parametrize("include", ["#include <metal_stdlib>", "#include <metal_stdlib>\n#define UNUSED"])
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("  x[i]   =  missing + device_value;", "missing"),
        ("  device   float   *p = x; auto q = (half)wrong_name;", "wrong_name"),
        ("  /* é字 */ threadgroup float t[4]; t[0] = 1.0; t[1] = nothing;", "nothing"),
        ("  float a = 1.0, b = 2.0; unknown(a, b);", "unknown"),
    ],
)
def test_lines_and_columns_are_the_users(include: str, line: str, word: str, compiler: str) -> None:
    lines = [
        include,
        *["// filler"] * 30,
        "kernel void k(device float *x, uint i [[thread_position_in_grid]]) {",
        line,
        "}",
    ]
    source = "\n".join(lines)
    number = source.split("\n").index(line) + 1
    log = log_of(source)
    assert f"program_source:{number}:{line.index(word) + 1}: error: " in log
    assert f"\n{line}\n" in log


MISTAKES = {
    "a missing brace": ("kernel void k() {\n", "program_source:"),
    "a brace too many": ("kernel void k() {}\n}", "program_source:2"),
    "a missing semicolon": (
        "kernel void k(device float *x) {\n  x[0] = 1\n}",
        "program_source:2:11: error: expected ';'",
    ),
    "a type of the language": (HEAD + "kernel void k(device float4 *x) { x[0] = int3(1); }", "float4"),
    "double": (
        "float f() { return 1; }\n\ndouble g();",
        "program_source:3:1: error: 'double' is not supported in Metal",
    ),
    "textures": (
        "#include <metal_texture>\nkernel void k(metal::texture2d<float> t) {}",
        "program_source:2:22: error: parameter 't' of type 'texture2d'",
    ),
    "a texture in a helper": (
        HEAD + "float4 f(texture2d<float> t) { return t.read(uint2(0)); }",
        "textures are not supported",
    ),
    "a header of the system": ("#include <stdio.h>", "program_source:1:10: fatal error: 'stdio.h' file not found"),
    "a header that is not there": (
        'int x;\n#include "gone.h"',
        "program_source:2:10: fatal error: 'gone.h' file not found",
    ),
    "ray tracing": ("#include <metal_raytracing>", "program_source:1:10: fatal error: ray tracing is not supported"),
    "tensors": (
        "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>",
        "program_source:1:10: fatal error: tensor operations are not supported",
    ),
    "#error": ("\n#error no such thing", "program_source:2:2: error: no such thing"),
    "a wrong instantiation": (
        HEAD + "template <typename T> kernel void k(device T *x) {}\n\n"
        'template [[host_name("k_f")]] kernel void k<float>(device int *);',
        "program_source:5:1: error: ",
    ),
    "a body that fails when it is instantiated": (
        HEAD + "template <typename T> kernel void k(device T *x) {\n  x[0] = T::none;\n}\n"
        'template [[host_name("k_f")]] kernel void k<float>(device float *);',
        "program_source:4:",
    ),
    "no header": (
        "\nkernel void k(device float *x) { x[0] = metal::sin(x[0]); }",
        "program_source:2:41: error: use of undeclared",
    ),
    "no header, with a macro": ("#define X\nusing namespace metal;", "program_source:2:17: error: use of undeclared"),
    "NUL": ("\nkernel void k() {}\0", "program_source:2: error: the source has a NUL byte"),
    "recursion of templates without end": (
        "template <int N> struct S { static constant constexpr int v = S<N + 1>::v; };\n"
        "kernel void k(device int *x) { x[0] = S<0>::v; }",
        "recursive template instantiation exceeded",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, compiler: str) -> None:
    source, expected = MISTAKES[name]
    log = log_of(source)
    assert expected in log
    for word in ("unit.cpp", "/include/", "mslc::", "aka"):
        assert word not in log


def test_a_mistake_in_a_header_names_the_header(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "own.h").write_text("\n\nfloat f() { return nothing; }\n")
    log = log_of('#include "own.h"\nkernel void k() {}', Options(include_dirs=[str(tmp_path)]))
    assert f"{tmp_path / 'own.h'}:3:20: error: use of undeclared identifier 'nothing'" in log
    assert "\nfloat f() { return nothing; }\n" in log


def test_what_is_called_must_be_defined(compiler: str) -> None:
    source = "float f(float x);\nkernel void k(device float *x) { x[0] = f(x[0]); }"
    with pytest.raises(CompileError, match=r"called but nowhere defined: 'f\(float\)'"):
        provider.build(source, None, "k")


def test_warnings_are_no_errors(compiler: str) -> None:
    assert provider.check("int f() { }\nkernel void k(device int *x) { int unused; x[0] == 1; }").kernels == ["k"]


# ---------------------------------------------------------------- the compiler itself


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MPSCFFI_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(CompilerMissing, match="pip install ziglang"):
        find_toolchain()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler of the test's own, written by the test."""
    path = tmp_path / "fake"
    monkeypatch.setenv("MPSCFFI_CXX", str(path))
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path / "cache"))
    return path


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_compiler_that_is_none(fake: Path) -> None:
    with pytest.raises(CompilerMissing, match="names '.*fake', which is no program"):
        provider.check("kernel void k() {}")
    write_script(fake, "echo 'g++ (GCC) 12.2'")
    with pytest.raises(CompilerMissing, match="is no clang"):
        provider.check("kernel void k() {}")
    os.utime(fake, (1, 1))
    write_script(fake, "echo 'Debian clang version 14.0.6'")
    with pytest.raises(CompilerMissing, match="is clang 14, which is too old"):
        provider.check("kernel void k() {}")


def test_a_compiler_that_never_ends(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(
        fake, f"case $* in *--version*) echo clang version 99.0;; *) sleep 60 & echo $! > {tmp_path}/pid; wait;; esac"
    )
    monkeypatch.setenv("MPSCFFI_COMPILE_TIMEOUT", "0.5")
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"longer than 0\.5 seconds.*MPSCFFI_COMPILE_TIMEOUT"):
        provider.check("kernel void k() {}")
    assert time.monotonic() - start < 20
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().rsplit(")")[1]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process of the compiler is left")


def test_a_time_out_that_is_no_number(any_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_COMPILE_TIMEOUT", "soon")
    with pytest.raises(RequestError, match="MPSCFFI_COMPILE_TIMEOUT must be a number of seconds"):
        provider.check("kernel void time_out() {}")
