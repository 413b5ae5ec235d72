"""The only importer of the compiled binding: everything else takes ``ffi``, ``lib`` and ``check`` from here."""

from __future__ import annotations

try:
    from mpscffi._shim import ffi, lib
except ModuleNotFoundError as error:
    if error.name != "mpscffi._shim":
        raise
    raise ImportError(
        f"mpscffi was imported from {__file__.rpartition('/')[0]}, a source tree that is not built. Install it "
        "(pip install .), then start Python in another folder: in this one, the source hides what is installed",
        name=error.name,
    ) from None

__all__ = ["check", "error_message", "ffi", "lib"]


def _in_main_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = __import__(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _in_main_interpreter():
    raise ImportError(
        "mpscffi works in Python's main interpreter only: the C library's calls back (callbacks, the host device's "
        "compiler) come to that one. Use threads, or processes started by spawn"
    )

if lib.mps_abi_version() != lib.MPS_ABI_VERSION:
    raise ImportError(
        f"mpscffi was built for version {lib.MPS_ABI_VERSION} of the libmpsshim interface, but the library that was "
        f"loaded ({ffi.string(lib.mps_shim_path()).decode(errors='replace')}) has version {lib.mps_abi_version()}: "
        "reinstall mpscffi"
    )


def error_message() -> str:
    """Return the calling thread's last error text; empty before the first error."""
    text: bytes = ffi.string(lib.mps_error_message())
    return text.decode("utf-8", "replace")


def check(status: int) -> None:
    """Raise the exception that stands for a status, with the library's message.

    Parameters
    ----------
    status : int
        What a function of the library returned.
    """
    if status:
        # Imported on the way out only: errors are rare, and errors.py itself takes names from here.
        from mpscffi.errors import error_for

        raise error_for(status, error_message())
