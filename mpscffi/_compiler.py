"""Gives the host device its Metal compiler: :mod:`mpscffi.mslc`, called in this process.

Without it, the C library would run the command ``mpscffi-mslc`` for each compile.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from mpscffi import shader_log
from mpscffi._ffi import check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpscffi.mslc import provider

__all__ = ["check_compile", "install"]


class _Interrupt(threading.local):
    error: BaseException | None = None


_interrupt = _Interrupt()
_installed = False
_lock = threading.RLock()


def install() -> None:
    """Set the compiler function, and where kernels log to, once."""
    global _installed
    with _lock:
        if not _installed:
            check(lib.mps_compiler_set(lib.mpscffi_compile, ffi.NULL))
            shader_log.install()
            _installed = True


def check_compile(status: int) -> None:
    """Check the status of a call that may compile; what stopped that from outside, as Ctrl-C does, is raised itself."""
    if status:
        error, _interrupt.error = _interrupt.error, None
        if error is not None:
            raise error
        check(status)


def _texts(array: Any, count: int) -> list[str]:
    return [ffi.string(array[i]).decode("utf-8", "surrogateescape") for i in range(count)]


def _answer(request: Any) -> str:
    from mpscffi.mslc import provider

    given = request.options
    options = provider.Options(
        language_version=(given.language_version >> 16, given.language_version & 0xFFFF)
        if given.language_version
        else None,
        math_mode={lib.MPS_MATH_SAFE: "safe", lib.MPS_MATH_RELAXED: "relaxed"}.get(given.math_mode, "fast"),
        validate=bool(given.flags & lib.MPS_COMPILE_VALIDATE),
        defines=tuple(_texts(given.defines, given.define_count)),
        include_dirs=tuple(_texts(given.include_dirs, given.include_dir_count)),
    )
    data = ffi.buffer(request.source, request.source_length)
    check: Callable[[], provider.Listing]
    build: Callable[[str, dict[str | int, tuple[int, bytes]]], str]
    if data[:4] == b"MTLB":
        from mpscffi.mslc import metallib

        check = partial(metallib.describe, data)
        build = partial(metallib.build, data, validate=options.validate)
    else:
        source = bytes(data).decode("utf-8", "replace")
        check, build = partial(provider.check, source, options), partial(provider.build, source, options)
    if not request.kernel:
        return check().text()
    constants: dict[str | int, tuple[int, bytes]] = {}
    for i in range(request.constant_count):
        value = request.constants[i]
        key = ffi.string(value.name).decode("utf-8", "replace") if value.name else value.index
        constants[key] = value.data_type, bytes(ffi.buffer(value.value, _value_size(value.data_type)))
    return build(ffi.string(request.kernel).decode("utf-8", "replace"), constants)


def _value_size(data_type: int) -> int:
    from mpscffi.scalars import SCALARS

    lanes = data_type >> 8 or 1
    return SCALARS[data_type & 0xFF].size * (4 if lanes == 3 else lanes)


def _keep_interrupt(kind: Any, error: BaseException, trace: Any) -> None:
    """Keep what came up outside of the callback's own handler, as Ctrl-C may, for :func:`check_compile`."""
    del kind, trace
    _interrupt.error = error


@ffi.def_extern(error=lib.MPS_STATUS_INTERNAL, onerror=_keep_interrupt)  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_compile(user: Any, request: Any, result: Any) -> int:
    """Check or build Metal source. No exception leaves: each becomes a status with a text."""
    del user
    from mpscffi.mslc import provider

    status: int = lib.MPS_STATUS_OK
    try:
        text = _answer(request)
    except provider.CompileError as error:
        status, text = lib.MPS_STATUS_COMPILE_FAILED, str(error)
    except provider.CompilerMissing as error:
        status, text = lib.MPS_STATUS_UNAVAILABLE, str(error)
    except provider.RequestError as error:
        status, text = lib.MPS_STATUS_INVALID_ARGUMENT, str(error)
    except Exception as error:
        status, text = lib.MPS_STATUS_INTERNAL, f"the Metal compiler failed: {type(error).__name__}: {error}"
    except BaseException as error:  # KeyboardInterrupt and its like go to the caller of the compile
        _interrupt.error = error
        status, text = lib.MPS_STATUS_INTERNAL, f"the compile was stopped by {type(error).__name__}"
    data = text.encode("utf-8", "replace")
    return lib.mps_compile_result_set(result, data, len(data)) or status
