"""NumPy's distributions on this package's random streams."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpscffi._ffi import ffi, lib
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.generator import Generator, default_generator

__all__ = ["BitGenerator"]

_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object, ctypes.c_char_p]


class BitGenerator(np.random.BitGenerator):
    """Lets ``numpy.random.Generator`` draw from a :class:`~mpscffi.Generator`.

    Both move the same stream on. Each number that NumPy asks for is a block's first 32 or 64 bits.

    Parameters
    ----------
    generator : Generator, optional
        The default one unless given.

    Examples
    --------
    >>> rng = numpy.random.Generator(mpscffi.BitGenerator(mpscffi.Generator(42)))
    >>> rng.poisson(3.0, size=4)
    """

    def __init__(self, generator: Generator | None = None) -> None:
        if generator is None:
            generator = default_generator()
        elif not isinstance(generator, Generator):
            raise ArgumentTypeError(f"BitGenerator: got {type(generator).__name__}, expected an mpscffi.Generator")
        super().__init__(0)  # a seed of NumPy's own, which nothing reads
        self._generator = generator
        address = _address(self.capsule, b"BitGenerator")
        lib.mpscffi_bitgen_attach(ffi.cast("uintptr_t", address), generator._stream)

    @property
    def generator(self) -> Generator:
        """The generator that it draws from."""
        return self._generator

    @property
    def state(self) -> Mapping[str, Any]:
        """The state as NumPy wants it: a dictionary, with the generator's 44 bytes in it."""
        return {"bit_generator": type(self).__name__, "state": self._generator.get_state()}

    @state.setter
    def state(self, value: Mapping[str, Any]) -> None:
        if not isinstance(value, Mapping):
            raise ArgumentTypeError(f"state: got {type(value).__name__}, expected a mapping")
        if value.get("bit_generator") != type(self).__name__:
            raise InvalidArgumentError(
                f"state: got one of {value.get('bit_generator')!r}, expected one of {type(self).__name__!r}"
            )
        self._generator.set_state(value["state"])

    def spawn(self, n_children: int) -> list[BitGenerator]:
        """Return bit generators of independent streams; see :meth:`mpscffi.Generator.spawn`."""
        return [type(self)(child) for child in self._generator.spawn(n_children)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._generator,)
