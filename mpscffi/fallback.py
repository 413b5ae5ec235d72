"""What runs on the CPU because Metal lacks its element type, if ``PYTORCH_ENABLE_MPS_FALLBACK`` allows that.

Kernels never do: a kernel that is given an array of float64 is an error whatever the variable says.
"""

from __future__ import annotations

import threading
import warnings

from mpscffi._ffi import lib
from mpscffi._warning import outside
from mpscffi.config import settings
from mpscffi.errors import FallbackWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpscffi import profiler

__all__ = ["allows", "marked"]

_warned: set[str] = set()
_lock = threading.Lock()


def allows(operation: str, dtype: object) -> bool:
    """Tell whether an operation may run on the CPU, and warn the first time that one of its kind does.

    Parameters
    ----------
    operation : str
        Its kind, which begins the warning.
    dtype : numpy.dtype
        What Metal lacks.

    Returns
    -------
    bool
        False if the variable is not set: the operation is to raise then.
    """
    if not settings().enable_fallback:
        return False
    with _lock:
        first = operation not in _warned
        _warned.add(operation)
    if first:
        warnings.warn(
            f"{operation} of {dtype}, which Metal lacks, runs on the CPU (PYTORCH_ENABLE_MPS_FALLBACK is set), and "
            "waits for the work before; this is said once",
            FallbackWarning,
            stacklevel=outside(),
        )
    return True


def marked(name: str) -> profiler.range:
    """Return a range for profiles that marks work as done by the CPU in the device's place.

    Parameters
    ----------
    name : str
        What is computed.
    """
    from mpscffi import profiler

    work = profiler.range(name)
    work._category |= lib.MPS_SIGNPOST_FALLBACKS
    return work
