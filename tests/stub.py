"""Writes the type stub of the compiled binding, ``mpscffi/_shim.pyi``: ``python tests/stub.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mpscffi import get_include
from mpscffi._ffi import ffi, lib

STUB = Path(__file__).parent.parent / "mpscffi" / "_shim.pyi"

_HEAD = '''\
"""The compiled binding of libmpsshim. Written by tests/stub.py from the binding itself."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

CData: TypeAlias = Any
_F = TypeVar("_F", bound=Callable[..., Any])

class FFI:
    NULL: CData
    errno: int
    def addressof(self, cdata: Any, *fields: str) -> CData: ...
    def buffer(self, cdata: CData, size: int = -1) -> Any: ...
    def cast(self, cdecl: str, source: Any) -> CData: ...
    def def_extern(self, name: str = ..., error: Any = ..., onerror: Any = ...) -> Callable[[_F], _F]: ...
    def from_buffer(self, source: Any, require_writable: bool = False) -> CData: ...
    def gc(self, cdata: CData, destructor: Callable[..., Any] | None, size: int = 0) -> CData: ...
    def list_types(self) -> tuple[list[str], list[str], list[str]]: ...
    def new(self, cdecl: str, init: Any = None) -> CData: ...
    def sizeof(self, cdecl: str | CData) -> int: ...
    def string(self, cdata: CData, maxlen: int = -1) -> bytes: ...
    def typeof(self, cdecl: str | CData) -> Any: ...
    def unpack(self, cdata: CData, length: int) -> list[Any]: ...

class Lib:
'''


def python_type(ctype: Any, pointer: str) -> str:
    """Return what stands for a C type: a number, None, or what is given for pointers."""
    return {"primitive": "int", "enum": "int", "void": "None"}.get(ctype.kind, pointer)


def parameter_names(header: str) -> dict[str, list[str]]:
    """Return the names of each function's parameters, which the binding itself does not know."""
    names = {}
    for function, parameters in re.findall(r"MPS_API [^;(]*?(\w+)\(([^)]*)\);", header):
        names[function] = re.findall(r"(\w+)(?:,|$)", parameters.replace("\n", " ")) if parameters != "void" else []
    return names


def stub() -> str:
    """Return the text of the stub."""
    names = parameter_names((Path(get_include()) / "mpsshim.h").read_text(encoding="utf-8"))
    lines = []
    for name in sorted(dir(lib), key=lambda name: (name.isupper(), name)):
        value = getattr(lib, name)
        if name.startswith("mpscffi_"):
            lines.append(f"    {name}: CData")
        elif isinstance(value, int):
            lines.append(f"    {name}: int")
        else:
            signature = ffi.typeof(value)
            parameters = ["self"]
            for parameter, ctype in zip(names[name], signature.args, strict=True):
                parameters.append(f"{parameter}: {python_type(ctype, 'Any')}")
            result = python_type(signature.result, "CData")
            lines.append(f"    def {name}({', '.join(parameters)}) -> {result}: ...")
    return _HEAD + "\n".join(lines) + "\n\nffi: FFI\nlib: Lib\n"


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
