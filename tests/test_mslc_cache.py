"""Results of the compiler on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from mpscffi.mslc import provider
from mpscffi.mslc.cache import Cache, cache_directory, read_whole
from mpscffi.mslc.provider import CompilerMissing, RequestError
from mpscffi.mslc.toolchain import find_toolchain

Python = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = "kernel void k(device float *x, uint i [[thread_position_in_grid]]) { x[i] = 1; }"

pytestmark = pytest.mark.host_only("its compiler")

try:
    find_toolchain()
    needs_compiler = pytest.mark.skipif(False, reason="")
except CompilerMissing as missing:
    needs_compiler = pytest.mark.skip(reason=str(missing))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Cache:
    return Cache("salt")


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "trimmed")


# ---------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MPSCFFI_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/mpscffi"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/mpscffi"),
        ({"HOME": "/c"}, "/c/.cache/mpscffi"),
    ],
)
def test_directories(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPSCFFI_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == expected


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPSCFFI_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    assert cache_directory() == "" or os.path.isabs(cache_directory())


# ---------------------------------------------------------------- files


def test_what_is_stored_is_found(cache: Cache) -> None:
    key = cache.key("a", "b")
    assert cache.find(key, ".so") is None
    path = cache.store_bytes(key, ".so", b"content")
    assert cache.find(key, ".so") == path
    assert cache.read(key, ".so") == b"content"
    assert cache.read(key, ".txt") is None


def test_keys_tell_their_parts_apart(cache: Cache) -> None:
    keys = {
        cache.key("a", "b"),
        cache.key("ab"),
        cache.key("ab", ""),
        cache.key("b", "a"),
        Cache("other").key("a", "b"),
    }
    assert len(keys) == 5
    assert cache.key("\ud800") != cache.key("?")


@pytest.mark.parametrize("damage", ["empty", "cut", "zeroed", "flipped", "longer", "foreign"])
def test_damaged_files_are_not_taken(damage: str, cache: Cache) -> None:
    key = cache.key("x")
    path = Path(cache.store_bytes(key, ".so", bytes(range(256)) * 8))
    data = bytearray(path.read_bytes())
    if damage == "empty":
        data.clear()
    elif damage == "cut":
        del data[-100:]
    elif damage == "zeroed":
        data[512:1024] = bytes(512)
    elif damage == "flipped":
        data[7] ^= 1
    elif damage == "longer":
        data += b"\0"
    else:
        data[:] = b"\x7fELF" * 100
    path.write_bytes(data)
    assert cache.find(key, ".so") is None
    cache.store_bytes(key, ".so", b"again")
    assert cache.read(key, ".so") == b"again"


def test_a_file_in_place_of_the_directory(directory: Path) -> None:
    directory.write_text("in the way")
    cache = Cache("")
    with pytest.warns(RuntimeWarning, match=r"cannot be used.*Set MPSCFFI_CACHE_DIR"):
        first = cache.store_bytes("aa1", ".so", b"1")
    second = cache.store_bytes("aa2", ".so", b"2")  # warns no more
    assert read_whole(first) == b"1"
    assert cache.find("aa2", ".so") == second


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(directory: Path) -> None:
    directory.mkdir(mode=0o500)
    with pytest.warns(RuntimeWarning, match="Permission denied"):
        path = Cache("").store_bytes("aa", ".so", b"1")
    assert read_whole(path) == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a directory of another user")
def test_a_directory_of_another_user(directory: Path) -> None:
    directory.mkdir()
    os.chown(directory, 12345, 12345)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        path = Cache("").store_bytes("aa", ".so", b"1")
    assert not path.startswith(str(directory))


def test_the_least_recently_used_files_go(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_SIZE", "5000")
    cache = Cache("")
    for number in range(9):
        path = cache.store_bytes(f"{number:02}", ".so", bytes(1000))
        os.utime(path, (number, number))
    (directory / "trimmed").unlink()
    assert cache.find("02", ".so") is not None  # used again
    cache.store_bytes("99", ".so", bytes(1000))
    assert [path.stem for path in files(directory)] == ["02", "07", "08", "99"]
    stats = cache.stats()
    assert (stats.directory, stats.files, stats.limit) == (str(directory), 4, 5000)
    assert 4000 < stats.size < 5000
    cache.clear()
    assert cache.stats().files == 0


def test_a_size_that_is_no_number(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_SIZE", "much")
    with pytest.raises(RequestError, match="MPSCFFI_CACHE_SIZE must be a number of bytes, not 'much'"):
        Cache("")


# ---------------------------------------------------------------- with the compiler


@needs_compiler
def test_damaged_libraries_are_built_again(directory: Path) -> None:
    path = Path(provider.build(SOURCE, None, "k"))
    good = path.read_bytes()
    for bad in (b"", good[: len(good) // 2], bytes(len(good))):
        path.write_bytes(bad)
        assert provider.build(SOURCE, None, "k") == str(path)
        assert read_whole(str(path)) is not None


@needs_compiler
def test_a_damaged_prelude_is_built_again(directory: Path) -> None:
    provider.check(SOURCE)
    for path in directory.rglob("*.pch"):
        path.write_bytes(path.read_bytes()[:-5000])
    assert provider.check(SOURCE + " // another").kernels == ["k"]


@needs_compiler
def test_without_a_cache_it_works_with_one_warning(directory: Path) -> None:
    directory.write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        first = provider.build(SOURCE, None, "k")
    assert provider.build(SOURCE, None, "k") == first  # warns no more
    assert not provider.is_kept(first)


@needs_compiler
def test_results_depend_on_the_source_the_options_and_the_kernel(directory: Path) -> None:
    two = SOURCE + "kernel void l(device float *x) { x[0] = 2; }"
    paths = {
        provider.build(SOURCE, None, "k"),
        provider.build(SOURCE + "\n", None, "k"),
        provider.build(SOURCE, provider.Options("fast"), "k"),
        provider.build(two, None, "k"),
        provider.build(two, None, "l"),
    }
    assert len(paths) == 5


@needs_compiler
def test_many_processes_at_once(directory: Path, python: Python, tmp_path: Path) -> None:
    script = f"""
    from mpscffi.mslc import provider
    from mpscffi.mslc.cache import read_whole
    source = {SOURCE!r}
    path = provider.build(source, None, "k")
    assert read_whole(path) is not None
    print(path)
    """
    environment = {**os.environ, "MPSCFFI_CACHE_DIR": str(directory)}
    program = "\n".join(line.strip() for line in script.strip().splitlines())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(16)
    ]
    outputs = [process.communicate(timeout=110)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len(set(outputs)) == 1
    assert not [path for path in files(directory) if path.suffix not in (".so", ".pch", ".txt")]


@needs_compiler
def test_a_result_from_the_cache_runs_no_compiler(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = provider.build(SOURCE, None, "k")

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert provider.build(SOURCE, None, "k") == path


@needs_compiler
def test_a_result_from_the_cache_is_quick(directory: Path, python: Python) -> None:
    provider.build(SOURCE, None, "k")
    script = f"""
    import sys, types
    package = types.ModuleType("mpscffi")  # the package's own imports are another matter
    package.__path__ = {[str(Path(provider.__file__).parent.parent)]!r}
    sys.modules["mpscffi"] = package
    before = set(sys.modules)
    from mpscffi.mslc import provider
    provider.check({SOURCE!r})
    provider.build({SOURCE!r}, None, "k")
    heavy = {{"numpy", "re", "subprocess", "json", "typing", "hashlib", "tempfile", "dataclasses", "pathlib"}}
    print(sorted((set(sys.modules) - before) & heavy), sum("mslc" in name for name in sys.modules))
    """
    assert python(script, MPSCFFI_CACHE_DIR=str(directory)).stdout.split() == ["[]", "7"]
