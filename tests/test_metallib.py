"""The container of metallibs: every version, damage of every kind, and the ways to give one to the library."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from air_modules import Body, Constant, Kernel, assembled, device, given, metallib

import mpscffi
from mpscffi import errors
from mpscffi.mslc import cli
from mpscffi.mslc.errors import CompileError, CompilerMissing, RequestError
from mpscffi.mslc.metallib import MetallibError, build, describe, table
from mpscffi.mslc.metallib.container import Metallib, data_type, unwrapped
from mpscffi.mslc.metallib.writer import ConstantEntry, Format, FunctionEntry, write_metallib
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("its compiler")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

CODE = b"BC\xc0\xde" + bytes(range(40))
FORMS = [
    Format((2, 2), (2, 0), (2, 0), system=0, system_version=(0, 0), with_extension=False, reversed_tags=True),
    Format((2, 3), (1, 8), (1, 1), system=0, with_extension=False),
    *(Format((2, minor), (2, minor - 1), (3, minor - 5)) for minor in range(5, 10)),
    Format((2, 7), library_type=2, reversed_tags=True),
]


def plain(form: Format | None = None) -> bytes:
    return write_metallib(
        [
            FunctionEntry("first", CODE, "kernel", [ConstantEntry("flag", 3, 53), ConstantEntry("size", 4, 33, False)]),
            FunctionEntry("v", CODE + b"v", "vertex"),
            FunctionEntry("f", CODE + b"fff", "fragment"),
            FunctionEntry("last", CODE * 9, "kernel"),
        ],
        form,
    )


def square(name: str = "square") -> Kernel:
    body = Body()
    x = body.load("float", "%0", "%1")
    body.store("float", body.value(f"fmul float {x}, {x}"), "%0", "%1")
    return Kernel(name, [device("x", 0), given("thread_position_in_grid")], body.text)


@pytest.fixture(scope="module")
def library() -> bytes:
    """A kernel, and a function that is none."""
    kernel = square()
    other = Kernel("shade", kernel.parameters, kernel.body, kind="vertex")
    return metallib([kernel, other])


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.version[0]}.{form.version[1]}")
def test_every_version_is_read(form: Format) -> None:
    library = Metallib(plain(form))
    assert library.version == form.version
    assert library.library_type == form.library_type
    assert list(library.functions) == ["first", "v", "f", "last"]
    assert [function.type for function in library.functions.values()] == ["kernel", "vertex", "fragment", "kernel"]
    first, *_, last = library.functions.values()
    assert first.air_version == form.air
    assert first.language_version == form.language
    assert last.bitcode() == CODE * 9
    assert len(last.blob()) % 16 == 0
    assert hashlib.sha256(last.blob()).digest() == last.digest
    assert [(item.name, item.index, item.data_type, item.required) for item in first.constants] == [
        ("flag", 3, 1 | 1 << 8, True),
        ("size", 4, 7 | 1 << 8, False),
    ]
    assert last.constants == []
    assert ("UUID" in library.extension) == form.with_extension


def test_header_is_laid_out_as_apples() -> None:
    data = plain(Format((2, 8), system_version=(15, 1)))
    assert data[:4] == b"MTLB"
    assert struct.unpack_from("<3H2B2H", data, 4) == (0x8001, 2, 8, 0, 0x81, 15, 1)
    size, functions, functions_size, public, *_ = struct.unpack_from("<9Q", data, 16)
    assert size == len(data)
    assert functions == 88
    assert struct.unpack_from("<I", data, functions) == (4,)
    # The size leaves out the count, so the tags about the library begin 4 bytes behind the end.
    assert data[functions + functions_size + 4 :].startswith(b"UUID")
    assert data[public - 4 : public] == b"ENDT"


def test_an_empty_library() -> None:
    library = Metallib(write_metallib([]))
    assert library.functions == {}
    assert describe(write_metallib([])).kernels == []


def test_darwins_wrapper_is_taken_off_and_put_on() -> None:
    wrapped = struct.pack("<5I", 0x0B17C0DE, 0, 20, len(CODE), 7) + CODE + bytes(12)
    assert unwrapped(wrapped, "x") == CODE
    assert Metallib(write_metallib([FunctionEntry("k", wrapped)])).functions["k"].bitcode() == CODE
    for bad in (b"", b"BC", b"\x7fELF" + CODE, struct.pack("<5I", 0x0B17C0DE, 0, 20, 1 << 30, 7) + CODE):
        with pytest.raises(MetallibError, match="'k'"):
            unwrapped(bad, "function 'k'")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (3, 12 | 1 << 8),
        (6, 12 | 4 << 8),
        (16, 10 | 1 << 8),
        (29, 6 | 1 << 8),
        (34, 7 | 2 << 8),
        (53, 1 | 1 << 8),
        (81, 8 | 1 << 8),
        (88, 9 | 4 << 8),
        (121, 11 | 1 << 8),
        (7, 0),
        (0, 0),
        (2, 0),
        (255, 0),
    ],
)
def test_types_of_constants(kind: int, expected: int) -> None:
    assert data_type(kind) == expected


def test_names_are_bytes() -> None:
    data = plain().replace(b"last\0", b"la\xfft\0")
    name = list(Metallib(data).functions)[-1]
    assert os.fsencode(name) == b"la\xfft"
    assert describe(data).kernels[-1] == "la\\xfft"
    with pytest.raises(RequestError, match="cannot have the name"):
        describe(plain().replace(b"last\0", b"la\nt\0"))


def test_two_functions_of_one_name() -> None:
    with pytest.raises(MetallibError, match="second function of the name 'first'"):
        Metallib(write_metallib([FunctionEntry("first", CODE)] * 2))


def test_a_big_library_is_listed_at_once() -> None:
    constants = [ConstantEntry("align_M", 200, 53), ConstantEntry("align_N", 201, 53)]
    names = [f"steel_gemm_fused_nn_float32_float32_bm64_bn64_bk16_wm2_wn2_{number}" for number in range(17000)]
    data = write_metallib([FunctionEntry(name, CODE, "kernel", constants) for name in names])
    start = time.perf_counter()
    assert describe(data).kernels == names
    assert time.perf_counter() - start < 3.0  # about 0.3 s on an idle machine


# ---------------------------------------------------------------- damage


def test_every_truncation_is_an_error() -> None:
    data = plain()
    for length in range(len(data)):
        with pytest.raises(MetallibError):
            Metallib(data[:length])
        # A header that agrees with what is left must not help.
        if length >= 88:
            cut = data[:16] + struct.pack("<Q", length) + data[24:length]
            with pytest.raises(MetallibError):
                _read_all(cut)


def _read_all(data: bytes) -> None:
    for function in Metallib(data).functions.values():
        function.bitcode()
        _ = function.constants


def test_trailing_bytes_are_an_error() -> None:
    with pytest.raises(MetallibError, match="damaged: the header tells of"):
        Metallib(plain() + b"\0")


@pytest.mark.parametrize(
    ("offset", "replacement", "text"),
    [
        (0, b"MTLX", "begins with b'MTLX'"),
        (6, b"\3", "format version 3"),
        (24, b"\xff" * 8, "section of functions"),
        (72, b"\xff" * 8, "section of bitcode"),
        (80, b"\xff" * 8, "section of bitcode"),
        (88, b"\xff\xff\xff\xff", "function 4 of 4294967295"),
        (92, b"\0\0\0\0", "function 0 of 4 at byte 92: a size of 0 bytes"),
        (92, b"\xff\xff\xff\x7f", "function 0 of 4 at byte 92"),
        (96, b"NAMX", "it has no NAME tag"),
        (100, b"\xff\xff", "beyond its end"),
    ],
)
def test_what_is_wrong_and_where(offset: int, replacement: bytes, text: str) -> None:
    data = bytearray(plain())
    data[offset : offset + len(replacement)] = replacement
    with pytest.raises(MetallibError, match=text):
        Metallib(bytes(data))


def test_checksums_are_checked(library: bytes) -> None:
    build(library, "square")  # what is kept on disk must not hide the damage
    data = bytearray(library)
    blob = Metallib(library).functions["square"]
    data[blob.start + 40] ^= 1
    assert "square" in describe(bytes(data)).kernels
    with pytest.raises(MetallibError, match=f"'square': its {blob.size} bytes at byte {blob.start}"):
        build(bytes(data), "square")


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """Damage at random: bytes, numbers, lengths, pieces taken out or put in twice; checksums are made right again."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at : at + 4] = struct.pack("<I", chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data))))
            case 3:
                del changed[at : at + chance.randrange(1, 9)]
            case 4:
                changed[at:at] = changed[at : at + chance.randrange(1, 33)]
            case 5:
                other = chance.randrange(len(changed))
                changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


def _children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


MUTATIONS = int(os.environ.get("MPSCFFI_TEST_MUTATIONS", "150"))


@pytest.mark.timeout(max(120, MUTATIONS))
def test_hostile_libraries(library: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the bytes are, there is an answer or an exception, in time, and no process is left."""
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path))
    chance = random.Random(20240229)
    before = _children() if sys.platform == "linux" else set()
    code = Metallib(library).functions["square"].bitcode()
    outcomes = {"container": 0, "bitcode": 0, "built": 0}
    for number in range(MUTATIONS):
        if number % 3:
            data = _mutated(library, chance)
        else:  # the container is right, and what it holds is not
            damaged = _mutated(code, chance)
            start = damaged.find(b"BC\xc0\xde")
            data = write_metallib([FunctionEntry("square", damaged if start == 0 else code[:4] + damaged)])
        try:
            describe(data)
            build(data, "square")
            outcomes["built"] += 1
        except CompileError as error:
            outcomes["bitcode"] += str(error).startswith("kernel 'square'")
        except RequestError as error:
            outcomes["container"] += bool(str(error))
    assert sum(outcomes.values()) == MUTATIONS
    assert min(outcomes["container"], outcomes["bitcode"]) > MUTATIONS // 10, outcomes
    if sys.platform == "linux":
        assert _children() == before


# ---------------------------------------------------------------- use


@pytest.fixture
def host() -> None:
    mpscffi.set_device("host")


@pytest.mark.usefixtures("host")
def test_from_path_and_bytes(library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "squares.metallib"
    path.write_bytes(library)
    for source in (library, bytearray(library), path, str(path), os.fspath(path)):
        loaded = mpscffi.load_metallib(source)
        assert dir(loaded) == ["shade", "square"]
        x = mpscffi.asarray(np.arange(5, dtype=np.float32))
        loaded.square(x)
        assert x.tolist() == [0, 1, 4, 9, 16]
    # What was loaded does not need the file.
    path.unlink()
    x = mpscffi.asarray([3.0])
    loaded.square(x)
    assert x.item() == 9


@pytest.mark.usefixtures("host")
def test_functions_that_are_no_kernels_are_refused_by_name(library: bytes) -> None:
    loaded = mpscffi.load_metallib(library)
    with pytest.raises(RuntimeError, match="'shade' is a vertex function; only kernels can be run"):
        loaded.shade(mpscffi.zeros(1))
    with pytest.raises(AttributeError, match="no kernel 'absent'"):
        _ = loaded.absent


@pytest.mark.usefixtures("host")
def test_errors_tell_the_file(library: bytes, tmp_path: Path) -> None:
    texts = set()
    for name, data in {
        "magic": b"MTLB",
        "short": library[:60],
        "cut": library[:-1],
        "version": library[:6] + b"\7\0" + library[8:],
    }.items():
        path = tmp_path / f"{name}.metallib"
        path.write_bytes(data)
        with pytest.raises(errors.Error, match=f"{name}\\.metallib: ") as raised:
            mpscffi.load_metallib(path)
        assert isinstance(raised.value, ValueError)
        texts.add(str(raised.value).partition(": ")[2])
        with pytest.raises(errors.Error, match="^the metallib: "):
            mpscffi.load_metallib(data)
    assert len(texts) == 4


@pytest.mark.usefixtures("host")
def test_kernels_are_kept_on_disk(library: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path))
    path = build(library, "square")
    assert path.startswith(str(tmp_path))
    written = os.stat(path).st_mtime_ns
    assert build(library, "square") == path
    assert os.stat(path).st_mtime_ns == written
    # The same function in another library is the same kernel.
    assert build(metallib([square(), square("other")]), "square") == path


def test_the_command_lists_and_compiles(library: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "squares.metallib"
    path.write_bytes(library)
    assert cli.main([str(path), "--list"]) == 0
    output = capsys.readouterr().out
    assert output == "kernel\tsquare\tAIR 2.7\tMetal 3.2\nvertex\tshade\tAIR 2.7\tMetal 3.2\n" == table(library)
    assert cli.main([str(path), "--kernel", "square", "-o", str(tmp_path / "square.so")]) == 0
    mpscffi.set_device("host")
    x = mpscffi.asarray([7.0])
    mpscffi.load_metallib(tmp_path / "square.so").square(x)
    assert x.item() == 49
    for form, mark in (("air", "!air.kernel"), ("llvm", "@mslc_kernel_library"), ("asm", "mslc_kernel_library:")):
        assert cli.main([str(path), "--kernel", "square", "--emit", form, "-o", str(tmp_path / form)]) == 0
        assert mark in (tmp_path / form).read_text()
    assert cli.main([str(path), "--kernel", "shade"]) == 2
    assert "'shade' is a vertex function" in capsys.readouterr().err
    assert cli.main([str(path)]) == 2
    assert "there are: square, shade" in capsys.readouterr().err
    assert cli.main([str(path), "--kernel", "square", "--emit", "cpp"]) == 2


def test_the_command_takes_function_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = Constant("n", 7, "i32", "int", 29)
    body = Body()
    value = body.value(f"load i32, ptr addrspace(2) {constant.variable}")
    body.store("i32", value, "%0", "%1")
    parameters = [device("x", 0, "int"), given("thread_position_in_grid")]
    path = tmp_path / "constants.metallib"
    path.write_bytes(metallib([Kernel("fill", parameters, body.text, constants=[constant])]))
    assert cli.main([str(path), "--list"]) == 0
    assert "n: int = 7" in capsys.readouterr().out
    mpscffi.set_device("host")
    for text in ("n=-5", "7=0x10"):
        assert cli.main([str(path), "--constant", text]) == 0
        x = mpscffi.zeros(2, dtype="int32")
        mpscffi.load_metallib(path.with_suffix(".so")).fill(x)
        assert x.tolist() == [int(text.partition("=")[2], 0)] * 2
    assert cli.main([str(path)]) == 2
    assert "needs a value for function constant 'n' (index 7)" in capsys.readouterr().err
    for bad in ("n=x", "n=5000000000", "m=1", "n", "n=1,2"):
        assert cli.main([str(path), "--constant", bad]) == 2
        assert "'n'" in (text := capsys.readouterr().err) or "are: n" in text


def test_c_programs_are_answered(library: bytes, tmp_path: Path) -> None:
    """By the command's protocol, whose requests hold the bytes as they are."""

    def ask(*fields: tuple[str, bytes]) -> list[str]:
        request = b"".join(b"%s %d\n%s\n" % (name.encode(), len(value), value) for name, value in fields)
        (tmp_path / "request").write_bytes(request)
        command = ["--request", str(tmp_path / "request"), "--reply", str(tmp_path / "reply")]
        assert cli.main(command) == 0
        return (tmp_path / "reply").read_text().split("\n")

    head = [("version", b"1"), ("source", library)]
    assert ask(*head, ("action", b"check")) == ["0", "kernel square", "kernel shade", ""]
    status, path = ask(*head, ("action", b"build"), ("kernel", b"square"))
    assert status == "0"
    assert Path(path).read_bytes().startswith(b"\x7fELF")
    assert ask(*head, ("action", b"build"), ("kernel", b"shade"))[0] == "1"
    assert ask(("version", b"1"), ("source", b"MTLB"), ("action", b"check"))[0] == "1"


def test_bitcode_of_the_writers_own() -> None:
    """What LLVM assembles comes back as it was."""
    code = unwrapped(assembled(square().text()), "square")
    library = Metallib(write_metallib([FunctionEntry("square", code)]))
    assert library.functions["square"].bitcode() == code


def test_no_compiler_is_needed_to_list(library: bytes, tmp_path: Path) -> None:
    (tmp_path / "squares.metallib").write_bytes(library)
    script = "import sys; from mpscffi.mslc import cli; sys.exit(cli.main(sys.argv[1:]))"
    arguments = [str(tmp_path / "squares.metallib")]
    environment = {**os.environ, "MPSCFFI_CXX": "/nowhere/clang"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *arguments, *more]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60, cwd=tmp_path, check=False
        )

    listed = run("--list")
    assert listed.returncode == 0
    assert "square" in listed.stdout
    built = run("--kernel", "square")
    assert built.returncode == 2
    assert "MPSCFFI_CXX names '/nowhere/clang'" in built.stderr
