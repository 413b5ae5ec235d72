"""What is built and installed: the exported names, the header, the binding, the files of the package, a C program."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import mpscffi
from mpscffi import _ffi

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "shim" / "include" / "mpsshim.h"
PACKAGE = Path(mpscffi.__file__).resolve().parent
FUNCTION = re.compile(r"^MPS_API [^;]*?\b(mps_\w+)\(", re.MULTILINE)

installed_only = pytest.mark.skipif(
    PACKAGE == ROOT / "mpscffi", reason="an editable install has no files of its own: checked on an installed package"
)


def needs(*commands: str) -> pytest.MarkDecorator:
    missing = [command for command in commands if shutil.which(command) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} here")


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=100, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def declared() -> set[str]:
    return set(FUNCTION.findall(HEADER.read_text()))


def test_every_declaration_is_found() -> None:
    # The expression above must not miss one: each declaration begins with the export macro at the start of a line.
    assert len(declared()) == HEADER.read_text().count("\nMPS_API ")


@needs("nm")
@pytest.mark.linux_only("reads an ELF library")
def test_exactly_the_declared_functions_are_exported() -> None:
    lines = run("nm", "-D", "--defined-only", mpscffi.get_library()).splitlines()
    assert {line.split()[-1] for line in lines} == declared()


def test_export_list_is_the_header() -> None:
    listed = re.findall(r"^\s+(mps_\w+);$", (ROOT / "shim" / "exports.map").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(declared())


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_build_cdef", ROOT / "mpscffi" / "_build_cdef.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_lists_the_header() -> None:
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    page = (ROOT / "docs" / "c-abi.md").read_text(encoding="utf-8").partition("\n## Functions and constants\n")[2]
    listed = re.findall(r"`(mps_\w+|MPS_\w+)`", page)
    assert len(listed) == len(set(listed))
    assert set(listed) == declared() | set(re.findall(r"\bMPS_[A-Z]\w+", code)) - {"MPS_API"}


def test_binding_is_that_of_this_header() -> None:
    fresh = build_script().ffibuilder
    kinds, structs, unions = fresh.list_types()
    assert (sorted(kinds), sorted(structs), sorted(unions)) == tuple(map(sorted, _ffi.ffi.list_types()))
    text = build_script().cdef_of(HEADER.read_text())
    constants = set(re.findall(r"\b(MPS_[A-Z0-9_]+)\b", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    assert declared() | constants == {name for name in dir(_ffi.lib) if name.lower().startswith("mps_")}


@needs("cc")
def test_structs_have_the_compilers_layout(tmp_path: Path) -> None:
    names = re.findall(r"^typedef struct (\w+) \{", HEADER.read_text(), re.MULTILINE)
    assert {"mps_device_info", "mps_dispatch", "mps_live_objects"} <= set(names)
    body = "".join(f'printf("%zu\\n", sizeof({name}));' for name in names)
    source = tmp_path / "sizes.c"
    source.write_text(f"#include <stdio.h>\n#include <mpsshim.h>\nint main(void) {{ {body} return 0; }}\n")
    run("cc", "-I", mpscffi.get_include(), source, "-o", tmp_path / "sizes")
    assert run(tmp_path / "sizes").split() == [str(_ffi.ffi.sizeof(name)) for name in names]


@pytest.mark.parametrize(
    ("compiler", "standard"),
    [
        pytest.param("cc", "c11", marks=needs("cc")),
        pytest.param("cc", "c99", marks=needs("cc")),
        pytest.param("c++", "c++11", marks=needs("c++")),
        pytest.param("c++", "c++20", marks=needs("c++")),
    ],
)
def test_header_compiles(tmp_path: Path, compiler: str, standard: str) -> None:
    source = tmp_path / ("user.c" if compiler == "cc" else "user.cc")
    source.write_text(
        "#include <mpsshim.h>\n#include <mpsshim.h>\n"
        "uint32_t version(void);\nuint32_t version(void) { return MPS_LANGUAGE_VERSION(3, 1) + mps_abi_version(); }\n"
    )
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run(compiler, f"-std={standard}", *flags, "-I", mpscffi.get_include(), "-c", source, "-o", tmp_path / "user.o")


def test_version_has_one_source() -> None:
    found = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
    assert found is not None
    assert mpscffi.__version__ == found[1] == importlib.metadata.version("mpscffi")


@installed_only
def test_package_holds_every_module_and_header() -> None:
    source = ROOT / "mpscffi"
    left_out = {
        "meson.build",
        "_blas.h",
        "_buffers.h",
        "_build_cdef.py",
        "_dlpack.h",
        "_handle.h",
        "_mapping.h",
        "_philox.h",
        "_release.h",
    }
    expected = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in left_out
    }
    expected |= {Path("include/mpsshim.h"), Path("lib/pkgconfig/mpsshim.pc"), Path("py.typed")}
    recorded = importlib.metadata.files("mpscffi")
    assert recorded is not None
    shipped = {Path(*path.parts[1:]) for path in recorded if path.parts[0] == "mpscffi"}
    shipped = {path for path in shipped if "__pycache__" not in path.parts}  # pip compiles after it has installed
    native = {path for path in shipped if path.suffix in {".so", ".dylib"}}
    assert {path.name.split(".")[0] for path in native} == {"_shim", "libmpsshim"}
    assert shipped - native == expected
    assert (PACKAGE / "include" / "mpsshim.h").read_bytes() == HEADER.read_bytes()


@installed_only
@needs("readelf")
@pytest.mark.linux_only("reads ELF files")
def test_run_paths_lead_nowhere_but_into_the_package() -> None:
    def run_paths(path: str | os.PathLike[str]) -> list[str]:
        return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", run("readelf", "-d", Path(path)))

    (extension,) = PACKAGE.glob("_shim.*.so")
    assert run_paths(extension) == ["$ORIGIN/lib"]
    assert run_paths(mpscffi.get_library()) == []
    assert Path(mpscffi.get_library()) == PACKAGE / "lib" / "libmpsshim.so"


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name != "MPSSHIM_MSLC"}
    return {**clean, "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}


@needs("cc")
def test_c_program_compiles_a_kernel_and_runs_it(tmp_path: Path) -> None:
    library = Path(mpscffi.get_library()).parent
    run(
        *("cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", ROOT / "examples" / "c" / "saxpy.c"),
        *("-I", mpscffi.get_include(), "-L", library, "-lmpsshim", f"-Wl,-rpath,{library}", "-lm"),
        *("-o", tmp_path / "saxpy"),
    )
    assert "100003 of 100003 results are right" in run(tmp_path / "saxpy", env=environment())


@installed_only
@needs("cc", "make", "pkg-config")
def test_c_program_builds_through_pkg_config(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "c", tmp_path / "c")
    output = run("make", "-C", tmp_path / "c", "run", f"PYTHON={sys.executable}", env=environment())
    assert "100003 of 100003 results are right" in output


def command(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


def test_command_tells_of_the_installation() -> None:
    report = run(command("mpscffi"), "info")
    assert f"version {mpscffi.__version__}" in report
    assert mpscffi.get_library() in report


@pytest.mark.parametrize(("name", "word"), [("mpscffi", "no-such-command"), ("mpscffi-mslc", "--no-such-option")])
def test_commands_refuse_what_they_do_not_know(name: str, word: str) -> None:
    done = subprocess.run([command(name), word], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert word in done.stderr
