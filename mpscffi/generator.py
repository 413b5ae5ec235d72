"""The random generator: where its stream is, and how that is seeded, saved and divided.

A stream is a sequence of blocks of four 32-bit words. Block number `offset` under a seed is Philox4x32-10 of the
counter ``(offset, 0)`` and the key ``seed``, on every device. What draws takes the blocks that it needs and moves the
offset on.
"""

from __future__ import annotations

import operator
import os
import struct
import threading
from typing import TYPE_CHECKING, Any

from mpscffi._ffi import ffi, lib
from mpscffi.errors import ArgumentTypeError, ForeignObjectError, InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mpscffi.array import Array

__all__ = [
    "Generator",
    "default_generator",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]

STATE_SIZE = 44
#: Of a generator that nobody has seeded.
DEFAULT_SEED = 67280421310721
#: Blocks that :meth:`Generator.jump` skips: 65536 pieces of a stream, each of 2**50 words.
JUMP = 1 << 48
#: Generators that are made in one call: enough for a thread of any machine, and no call that never returns.
MOST_SPAWNED = 1 << 20
#: Why a block is drawn, as in kernels/random.metal.
_FOR_SEEDS = 1
_MASK = (1 << 64) - 1

# Held while seed and offset are read or written together. One for all generators, so that a forked child can replace
# it; re-entrant, so that a signal handler may draw.
_lock = threading.RLock()


class Generator:
    """A stream of random numbers, the same on every device. It may be used from any thread.

    Parameters
    ----------
    seed : int, optional
        As for :meth:`manual_seed`. Without one, all new generators begin alike, as in ``torch``.

    Attributes
    ----------
    offset : int
        The number of the next block. It may be set.
    """

    __slots__ = ("_stream", "_words")

    # Seed and offset, in C: NumPy draws there without the GIL.
    _stream: Any
    # The seven words that the state begins with.
    _words: tuple[int, ...]

    def __init__(self, seed: int | None = None) -> None:
        self._stream = ffi.new("mpscffi_stream *", {"seed": DEFAULT_SEED})
        self._words = (1, 0, 0, 0, 0, 0, 0)
        if seed is not None:
            self.manual_seed(seed)

    def __repr__(self) -> str:
        return f"<mpscffi.Generator seed={self.initial_seed()} offset={self.offset}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (bytes(self.get_state()),)

    # ---- seeding

    def manual_seed(self, seed: int) -> Generator:
        """Begin the stream of a seed.

        Parameters
        ----------
        seed : int
            From -2**63 to 2**64 - 1; negative ones count as themselves plus 2**64. What is no integer goes through
            ``int``, as in ``torch``.

        Returns
        -------
        Generator
            This one.
        """
        value = _seed(seed)
        with _lock:
            self._words = (1, 1, 1, 1, 1, value & 0xFFFFFFFF, value >> 32)
            lib.mpscffi_stream_set(self._stream, value, 0)
        return self

    def seed(self) -> int:
        """Begin the stream of a seed from the operating system's source of randomness, and return that seed."""
        value = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(value)
        return value

    def initial_seed(self) -> int:
        """Return the seed, from 0 to 2**64 - 1."""
        return int(self._stream.seed)

    # ---- where it is

    @property
    def offset(self) -> int:
        """The number of the next block."""
        return int(lib.mpscffi_stream_offset(self._stream))

    @offset.setter
    def offset(self, value: int) -> None:
        try:
            value = operator.index(value)
        except TypeError:
            raise ArgumentTypeError(f"offset: got {type(value).__name__}, expected an integer") from None
        if not 0 <= value <= _MASK:
            raise InvalidArgumentError(f"offset: got {value}, expected 0 to 2**64 - 1")
        with _lock:
            lib.mpscffi_stream_set(self._stream, self._stream.seed, value)

    def reserve(self, blocks: int) -> tuple[int, int]:
        """Take blocks for a kernel of one's own.

        Parameters
        ----------
        blocks : int
            How many, 0 or more. Nobody else is given these.

        Returns
        -------
        tuple of int
            The seed, and the number of the first block.
        """
        try:
            count = operator.index(blocks)
        except TypeError:
            raise ArgumentTypeError(f"reserve: got {type(blocks).__name__}, expected a number of blocks") from None
        if not 0 <= count <= _MASK:
            raise InvalidArgumentError(f"reserve: got {count} blocks, expected 0 to 2**64 - 1")
        with _lock:
            return int(self._stream.seed), int(lib.mpscffi_stream_take(self._stream, count))

    def jump(self, blocks: int = JUMP) -> Generator:
        """Move on as if blocks had been drawn, and return the generator.

        Parameters
        ----------
        blocks : int
            How many; below 0 to go back. Beyond block 2**64 - 1 comes block 0. By default as many as leave room for
            65536 pieces of the stream that do not overlap.
        """
        try:
            count = operator.index(blocks)
        except TypeError:
            raise ArgumentTypeError(f"jump: got {type(blocks).__name__}, expected a number of blocks") from None
        lib.mpscffi_stream_take(self._stream, count & _MASK)
        return self

    # ---- others

    def clone(self) -> Generator:
        """Return a generator with the same state, which goes on by itself."""
        return _restored(bytes(self.get_state()))

    def spawn(self, count: int) -> list[Generator]:
        """Return generators whose streams have nothing in common with this one's or with each other.

        This takes one block, so spawning again gives others, and a restored state spawns the same ones again.

        Parameters
        ----------
        count : int
            How many, up to 1048576.
        """
        try:
            number = operator.index(count)
        except TypeError:
            raise ArgumentTypeError(f"spawn: got {type(count).__name__}, expected a number of generators") from None
        if not 0 <= number <= MOST_SPAWNED:
            raise InvalidArgumentError(f"spawn: got {number} generators, expected 0 to {MOST_SPAWNED}")
        own_seed, block = self.reserve(1)
        words = ffi.new("uint32_t[4]")
        lib.mpscffi_philox(own_seed, block, _FOR_SEEDS, words)
        first = words[0] | words[1] << 32
        return [Generator(_mixed(first + i)) for i in range(number)]

    # ---- saving

    def get_state(self) -> npt.NDArray[np.uint8]:
        """Return the state: 44 bytes, laid out as ``torch.mps`` does, a copy."""
        import numpy as np

        with _lock:
            data = struct.pack("<7I2Q", *self._words, self._stream.seed, self.offset)
        state: npt.NDArray[np.uint8] = np.frombuffer(bytearray(data), np.uint8)
        return state

    def set_state(self, state: Array | npt.NDArray[np.uint8] | bytes | bytearray | memoryview) -> Generator:
        """Go on where a state was saved, and return the generator.

        Parameters
        ----------
        state : array of uint8, or bytes
            What :meth:`get_state` has returned, of any shape.
        """
        import numpy as np

        from mpscffi.array import Array

        if isinstance(state, (bytes, bytearray, memoryview)):
            data = bytes(state)
        elif isinstance(state, (np.ndarray, Array)):
            if state.dtype != np.uint8:
                raise ArgumentTypeError(f"set_state: got a state of dtype {state.dtype}, expected uint8")
            data = (state.numpy() if isinstance(state, Array) else state).tobytes()
        else:
            raise ForeignObjectError(
                f"set_state: got a state of type {type(state).__name__}, expected an array of uint8, or bytes"
            )
        if len(data) != STATE_SIZE:
            raise InvalidArgumentError(f"set_state: wrong size: got {len(data)} bytes, expected {STATE_SIZE}")
        *words, value, offset = struct.unpack("<7I2Q", data)
        with _lock:
            self._words = tuple(words)
            lib.mpscffi_stream_set(self._stream, value, offset)
        return self


def _restored(state: bytes) -> Generator:
    return Generator().set_state(state)


def _seed(value: Any) -> int:
    try:
        number = int(value)
    except TypeError:
        raise ArgumentTypeError(f"manual_seed: got {type(value).__name__}, expected an integer") from None
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"manual_seed: got {value!r}, expected an integer") from None
    if not -(1 << 63) <= number <= _MASK:
        raise InvalidArgumentError(f"manual_seed: got {number}, expected -2**63 to 2**64 - 1")
    return number & _MASK


def _mixed(value: int) -> int:
    """Return another number of 64 bits for each, such that close ones look unrelated: SplitMix64's last steps."""
    value = value * 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


_default: Generator | None = None


def default_generator() -> Generator:
    """Return the generator that is drawn from unless another is given; it begins with an unpredictable seed."""
    global _default
    with _lock:
        if _default is None:
            _default = Generator()
            _default.seed()
        return _default


def manual_seed(seed: int) -> None:
    """Seed the default generator; see :meth:`Generator.manual_seed`.

    Unlike ``torch.mps`` without Metal, it looks at the seed and takes effect on the host device too.
    """
    default_generator().manual_seed(seed)


def seed() -> None:
    """Seed the default generator unpredictably. :func:`initial_seed` tells by what."""
    default_generator().seed()


def initial_seed() -> int:
    """Return the default generator's seed."""
    return default_generator().initial_seed()


def get_rng_state(device: object = "mps") -> npt.NDArray[np.uint8]:
    """Return the default generator's state, 44 bytes.

    Parameters
    ----------
    device : object
        Not looked at, as in ``torch.mps``: all devices share the generator.
    """
    del device
    return default_generator().get_state()


def set_rng_state(
    new_state: Array | npt.NDArray[np.uint8] | bytes | bytearray | memoryview, device: object = "mps"
) -> None:
    """Go on where the default generator's state was saved.

    Parameters
    ----------
    new_state : array of uint8, or bytes
        What :func:`get_rng_state` has returned, in this process or another.
    device : object
        Not looked at.
    """
    del device
    default_generator().set_state(new_state)


def _after_fork_in_child() -> None:
    # Another thread may have held it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
