"""Whether kernels are validated: what is asked for, and what the device in use makes of it."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from mpscffi._warning import outside
from mpscffi.config import settings

if TYPE_CHECKING:
    from mpscffi.device import Device

__all__ = ["is_compiled_in"]

_METAL_SWITCH = "MTL_SHADER_VALIDATION"


def is_compiled_in(device: Device, asked: bool | None) -> bool:
    """Return whether the device's compiler is to be asked for checks.

    Parameters
    ----------
    device : Device
    asked : bool, optional
        By the caller; by default the environment decides.

    Notes
    -----
    Metal checks all kernels of a process or none, as the environment says when the process starts. There a caller's
    wish is fulfilled already, or is refused by the device, which says what to do; one of the environment is a warning.
    """
    wanted = settings().shader_validation if asked is None else asked
    if not wanted or device.backend != "metal":
        return wanted
    if os.environ.get(_METAL_SWITCH, "0") not in ("", "0"):
        return False
    if asked is None:
        warnings.warn(
            f"MPSCFFI_SHADER_VALIDATION has no effect on Metal: start the process with {_METAL_SWITCH}=1 instead",
            RuntimeWarning,
            stacklevel=outside(),
        )
        return False
    return True
