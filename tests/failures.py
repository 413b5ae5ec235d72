"""What kernels are found to have done wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpscffi
from mpscffi.errors import ExecutionError

__all__ = ["failure", "passes"]


def passes(run: Callable[[], Any]) -> None:
    """Run a kernel, which does nothing wrong."""
    run()
    mpscffi.synchronize()


def failure(run: Callable[[], Any]) -> str:
    """Run a kernel, and return what it has done wrong."""
    with pytest.raises(ExecutionError) as caught:
        passes(run)
    return str(caught.value)
