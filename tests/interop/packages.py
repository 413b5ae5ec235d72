"""Other packages for the tests, from PyPI, each got once for all runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


def cache() -> Path:
    """Where they are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpscffi-tests"


def installed(name: str, version: str) -> Path:
    """Install a package apart from everything else, and return the folder to import it from."""
    target = cache() / f"{name}-{version}"
    if not target.exists():
        partial = _partial(target)
        _pip("install", f"{name}=={version}", "--no-deps", f"--target={partial}", folder=partial)
        _keep(partial, target)
    return target


def source_of(name: str, version: str, within: str) -> Path:
    """Return a package's source distribution, of which only what is below the folder `within` is kept."""
    target = cache() / f"{name}-{version}-source"
    if not target.exists():
        partial = _partial(target)
        _pip("download", f"{name}=={version}", "--no-deps", f"--no-binary={name}", f"--dest={partial}", folder=partial)
        (archive,) = partial.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            members = [item for item in file if item.isfile() and f"/{within}/" in item.name]
            for item in members:
                item.name = item.name.partition("/")[2]
            file.extractall(partial, members, filter="data")
        archive.unlink()
        _keep(partial, target)
    return target / within


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.{os.getpid()}")


def _pip(command: str, requirement: str, *options: str, folder: Path) -> None:
    general = ["--disable-pip-version-check", "--retries=1", "--timeout=10"]
    words = [sys.executable, "-m", "pip", command, *general, *options, requirement]
    finished = subprocess.run(words, capture_output=True, text=True, check=False)
    if finished.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        reason = (finished.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"{requirement} cannot be got, are there a network and pip? {reason}")


def _keep(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:  # another run was faster
        shutil.rmtree(partial, ignore_errors=True)
