"""What takes long to compile is made once for all workers of pytest-xdist, by the first that needs it."""
from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """Return the file that `make` makes in a folder of this name, which no other fixture of the suite has."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make(factory.mktemp(name))
    of_all_workers = factory.getbasetemp().parent
    folder, made = of_all_workers / name, of_all_workers / f"{name}.made"
    with open(of_all_workers / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)   # of a worker that failed
            folder.mkdir()
            made.write_text(str(make(folder)))
    return Path(made.read_text())
