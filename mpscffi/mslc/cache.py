"""Results of the compiler on disk, shared by all processes of a user."""

from __future__ import annotations

import os
import time

try:
    # What hashlib offers as blake2b, without loading OpenSSL: a tenth of the time of a run that finds all in the cache.
    from _blake2 import blake2b as _blake2b
except ImportError:
    from hashlib import blake2b as _blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FOOTER = b"mslc\x01\x00\x00\x00"
_DIGEST = 16
_FOOTER_SIZE = len(_FOOTER) + 8 + _DIGEST
_DEFAULT_LIMIT = 1 << 30
_TOUCH_AFTER = 3600.0
_set_limit: int | None = None


class Stats:
    """What a cache holds: its directory ("" if there is none), the number of files and their bytes."""

    __slots__ = ("directory", "files", "limit", "size")

    def __init__(self, directory: str, files: int, size: int, limit: int) -> None:
        self.directory = directory
        self.files = files
        self.size = size
        self.limit = limit


class Cache:
    """A directory of files, each under the hash of all that it was made from.

    Every file ends in its length and checksum: one that was cut short, or overwritten, is found out and made again.
    Files appear whole, by a rename. If the directory cannot be written, files live in a temporary one for
    as long as the process.

    Parameters
    ----------
    salt : str
        Enters every key.
    """

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._temporary = ""
        self._warned = False
        self.directory = cache_directory()
        self.limit = _limit()

    def key(self, *parts: str) -> str:
        """Return the hash of some texts, in order."""
        state = _blake2b(digest_size=20)
        for part in (self._salt, *parts):
            data = part.encode("utf-8", "surrogatepass")
            state.update(b"%d\n" % len(data))
            state.update(data)
        return state.hexdigest()

    def find(self, key: str, suffix: str) -> str | None:
        """Path of a file that is there and whole, else None."""
        for directory in (self.directory, self._temporary):
            if directory:
                path = os.path.join(directory, key[:2], key + suffix)
                if read_whole(path) is not None:
                    _touch(path)
                    return path
        return None

    def read(self, key: str, suffix: str) -> bytes | None:
        """Return the contents of a file that is there and whole, else None."""
        for directory in (self.directory, self._temporary):
            if directory:
                path = os.path.join(directory, key[:2], key + suffix)
                data = read_whole(path)
                if data is not None:
                    _touch(path)
                    return data
        return None

    def store(self, key: str, suffix: str, source: str) -> str:
        """Take over the contents of a file, and give the path of it in the cache."""
        with open(source, "rb") as file:
            return self.store_bytes(key, suffix, file.read())

    def store_bytes(self, key: str, suffix: str, data: bytes) -> str:
        """Store a file, and give its path."""
        footer = _FOOTER + len(data).to_bytes(8, "little") + digest(data)
        if self.directory:
            try:
                _check_owner(self.directory)
                path = _write(self.directory, key, suffix, data + footer)
                self._trim_at_times()
                return path
            except OSError as error:
                self._warn(error)
        if not self._temporary:
            self._temporary = _temporary_directory()
        return _write(self._temporary, key, suffix, data + footer)

    def clear(self) -> None:
        """Remove all files of the cache. Kernels that are loaded stay."""
        for path, _, _ in self._files():
            _remove(path)

    def stats(self) -> Stats:
        """Return what the cache holds now."""
        sizes = [size for _, size, _ in self._files()]
        return Stats(self.directory, len(sizes), sum(sizes), self.limit)

    def _files(self) -> Iterator[tuple[str, int, float]]:
        """All files: path, size, time of the last use."""
        for directory in (self.directory, self._temporary):
            if not directory:
                continue
            try:
                subdirectories = sorted(os.listdir(directory))
            except OSError:
                continue
            for subdirectory in subdirectories:
                if len(subdirectory) != 2:
                    continue
                try:
                    with os.scandir(os.path.join(directory, subdirectory)) as entries:
                        found = [(entry.path, entry.stat()) for entry in entries if entry.is_file()]
                except OSError:
                    continue
                for path, status in found:
                    yield path, status.st_size, status.st_mtime

    def _trim_at_times(self) -> None:
        """Trim, but not more than once a minute or so: it looks at every file."""
        mark = os.path.join(self.directory, "trimmed")
        try:
            if time.time() - os.stat(mark).st_mtime < 60.0:
                return
        except OSError:
            pass
        with open(mark, "wb"):
            pass
        self.trim()

    def trim(self) -> None:
        """Remove what was not used for longest, if the cache is over its limit."""
        files = sorted(self._files(), key=lambda file: file[2])
        excess = sum(size for _, size, _ in files) - self.limit
        for path, size, _ in files:
            if excess <= 0:
                break
            _remove(path)
            excess -= size

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        import warnings

        warnings.warn(
            f"compiled kernels are not kept: the cache directory '{self.directory}' cannot be used "
            f"({error.strerror or error}). Set MPSCFFI_CACHE_DIR to one that can.",
            RuntimeWarning,
            stacklevel=2,
        )


def cache_directory() -> str:
    """Where results are kept: MPSCFFI_CACHE_DIR, else under XDG_CACHE_HOME, else under ~/.cache; "" for nowhere."""
    directory = os.environ.get("MPSCFFI_CACHE_DIR", "")
    if directory:
        return os.path.abspath(directory)
    directory = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(directory):
        return os.path.join(directory, "mpscffi")
    home = os.path.expanduser("~")
    return os.path.join(home, ".cache", "mpscffi") if os.path.isabs(home) else ""


def digest(data: bytes) -> bytes:
    """Return the checksum of some bytes."""
    return _blake2b(data, digest_size=_DIGEST).digest()


def read_whole(path: str) -> bytes | None:
    """Return the contents of a file of the cache, its footer checked; None if it is not there or not whole."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    size = len(data) - _FOOTER_SIZE
    if size < 0 or data[size : size + len(_FOOTER)] != _FOOTER:
        return None
    footer = data[size + len(_FOOTER) :]
    contents = data[:size]
    if int.from_bytes(footer[:8], "little") != size or digest(contents) != footer[8:]:
        return None
    return contents


def set_limit(limit: int | None) -> None:
    """Set the limit of caches that are made from now on; None for what the environment says."""
    global _set_limit
    _set_limit = limit


def _limit() -> int:
    if _set_limit is not None:
        return _set_limit
    text = os.environ.get("MPSCFFI_CACHE_SIZE", "").strip()
    if not text:
        return _DEFAULT_LIMIT
    if not text.isdigit():
        from .errors import RequestError

        raise RequestError(f"MPSCFFI_CACHE_SIZE must be a number of bytes, not '{text}'")
    return int(text)


def _write(directory: str, key: str, suffix: str, data: bytes) -> str:
    place = os.path.join(directory, key[:2])
    os.makedirs(place, mode=0o700, exist_ok=True)
    path = os.path.join(place, key + suffix)
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    return path


def _check_owner(directory: str) -> None:
    """Code is not loaded from, nor left in, a directory of someone else."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.stat(directory).st_uid != os.geteuid():
        raise PermissionError(1, "it belongs to another user")


def _touch(path: str) -> None:
    """Note that a file was used, for the order in which files are removed."""
    try:
        if time.time() - os.stat(path).st_mtime > _TOUCH_AFTER:
            os.utime(path)
    except OSError:
        pass


def _remove(path: str) -> None:
    try:  # and not contextlib.suppress, whose import is what a run from the cache would mostly wait for
        os.unlink(path)
    except OSError:
        return


def _temporary_directory() -> str:
    import atexit
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="mpscffi-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
