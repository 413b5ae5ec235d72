"""The command's answer to a C program: `mpscffi-mslc --request FILE --reply FILE`, see docs/c-abi.md."""

from __future__ import annotations

import os
import shutil

from . import provider

# mps_status of mpsshim.h.
_OK = 0
_INVALID_ARGUMENT = 1
_UNAVAILABLE = 4
_COMPILE_FAILED = 7
_IO = 13
_INTERNAL = 14

_VERSION = "1"
_FLAG_VALIDATE = 1


def serve(request: str, reply: str) -> None:
    """Read a request, do it, and write the reply.

    Parameters
    ----------
    request, reply : str
        Paths.
    """
    try:
        with open(request, "rb") as file:
            fields = read_fields(file.read())
        status, text = _OK, _answer(fields, os.path.dirname(os.path.abspath(reply)))
    except provider.CompileError as error:
        status, text = _COMPILE_FAILED, error.log
    except provider.CompilerMissing as error:
        status, text = _UNAVAILABLE, str(error)
    except provider.RequestError as error:
        status, text = _INVALID_ARGUMENT, str(error)
    except OSError as error:
        status, text = _IO, str(error)
    except Exception as error:
        status, text = _INTERNAL, f"the Metal compiler failed: {type(error).__name__}: {error}"
    with open(reply, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.write(f"{status}\n{text}")


def read_fields(data: bytes) -> dict[str, list[bytes]]:
    """Return the values of each field of a request.

    Raises
    ------
    RequestError
        If it is not a request.
    """
    fields: dict[str, list[bytes]] = {}
    place = 0
    while place < len(data):
        end = data.find(b"\n", place)
        name, _, length = data[place : end if end >= 0 else len(data)].partition(b" ")
        if end < 0 or not length.isdigit() or data[end + 1 + int(length) : end + 2 + int(length)] != b"\n":
            raise provider.RequestError(f"the request is not well formed at byte {place}")
        fields.setdefault(name.decode("utf-8", "replace"), []).append(data[end + 1 : end + 1 + int(length)])
        place = end + 2 + int(length)
    return fields


def _answer(fields: dict[str, list[bytes]], directory: str) -> str:
    if _one(fields, "version") != _VERSION:
        raise provider.RequestError(f"requests of version {_one(fields, 'version')} are not understood, {_VERSION} is")
    source = fields.get("source", [b""])[0]
    action = _one(fields, "action")
    if action not in ("check", "build"):
        raise provider.RequestError(f"the action must be check or build, not '{action}'")
    if source.startswith(b"MTLB"):
        from . import metallib

        if action == "check":
            return metallib.describe(source).text()
        kernel, constants, validate = _one(fields, "kernel"), _constants(fields), _validates(fields)
        return _kept(metallib.build(source, kernel, constants, validate=validate), directory)
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise provider.CompileError(f"program_source:{line}: error: the source is not UTF-8\n") from None
    options = _options(fields)
    if action == "check":
        return provider.check(text, options).text()
    return _kept(provider.build(text, options, _one(fields, "kernel"), _constants(fields)), directory)


def _constants(fields: dict[str, list[bytes]]) -> dict[str | int, tuple[int, bytes]]:
    """Return the values of function constants, by name or, without one, by index."""
    constants: dict[str | int, tuple[int, bytes]] = {}
    for value in fields.get("constant", ()):
        parts = value.decode("utf-8", "surrogateescape").split(" ", 3)
        if len(parts) < 3 or not parts[0].isdigit() or not parts[1].isdigit():
            raise provider.RequestError(f"a constant must be 'INDEX DATA_TYPE HEX NAME', not '{' '.join(parts)}'")
        name = parts[3] if len(parts) > 3 else ""
        constants[name or int(parts[0])] = int(parts[1]), bytes.fromhex(parts[2])
    return constants


def _kept(path: str, directory: str) -> str:
    """Return the path of a kernel library that outlives this process."""
    if not provider.is_kept(path):
        # It would be gone with this process.
        path = shutil.copy(path, os.path.join(directory, "kernel.so"))
    return path


def _options(fields: dict[str, list[bytes]]) -> provider.Options:
    language = _one(fields, "language_version", "0")
    major, _, minor = language.partition(".")
    if not major.isdigit() or (minor and not minor.isdigit()):
        raise provider.RequestError(f"the language version must be MAJOR.MINOR or 0, not '{language}'")
    return provider.Options(
        math_mode=_one(fields, "math_mode", "safe"),
        defines=[value.decode("utf-8", "surrogateescape") for value in fields.get("define", ())],
        include_dirs=[value.decode("utf-8", "surrogateescape") for value in fields.get("include_dir", ())],
        language_version=(int(major), int(minor or 0)) if int(major) else None,
        validate=_validates(fields),
    )


def _validates(fields: dict[str, list[bytes]]) -> bool:
    return bool(int(_one(fields, "flags", "0")) & _FLAG_VALIDATE)


def _one(fields: dict[str, list[bytes]], name: str, default: str | None = None) -> str:
    values = fields.get(name)
    if not values:
        if default is None:
            raise provider.RequestError(f"the request has no field '{name}'")
        return default
    return values[0].decode("utf-8", "surrogateescape")
