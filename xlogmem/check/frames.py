"""Lines of programs, and the choice of those in a stack that belong to the program itself."""
from __future__ import annotations

import linecache
import os
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Frame", "caller_in", "is_of_program", "place_in"]

_library = {str(Path(path).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
            if (path := sysconfig.get_path(name))}
# Packages and modules that call functions of programs and have no work on a device, by what people call them.
CALLERS = {"_pytest": "pytest", "pluggy": "pytest", "pytest_asyncio": "pytest", "hypothesis": "hypothesis",
           "unittest": "unittest", "threading": "threading", "concurrent": "concurrent.futures", "asyncio": "asyncio",
           "anyio": "anyio"}
# Headers and libraries around a compiled program; a library of which lines are known is as good as the program.
SYSTEM = ("/usr/include/", "/usr/lib/", "/lib/", "/lib64/", "/usr/lib64/", "/usr/local/cuda")
LIBRARY = re.compile(r"\.so(\.[0-9.]+)?$")
STUBS = ".cudafe1.stub.c"                               # of nvcc: a function that launches a kernel
COMPILED = (".pyx", ".pxi", ".pxd")
_package = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True)
class Frame:
    """A line of a program: `line` counts from 1, `function` is the qualified name.  In a compiled program whose lines
    are not known `line` is 0, and `file` is the program or a library."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{shortened(self.file)}:{self.line}" if self.line else shortened(self.file)


def place_in(stack: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost line that belongs to the program itself, and to no library; else the innermost line that is
    not xlogmem's own, if there is one, and not a caller's (`caller_in`)."""
    own = [frame for frame in stack if is_of_program(frame.file)]
    if own:                                             # NVIDIA's runtime may be linked into the program, without lines
        return next((frame for frame in own if frame.line), own[0])
    return None if caller_in(stack) else _innermost(stack)


def caller_in(stack: tuple[Frame, ...]) -> str:
    """Name the library that called a function of the program which has ended by now: its objects are dropped on the
    line of that call, which means nothing to people.  Empty where the stack has a line of the program, or begins in no
    such library."""
    frame = _innermost(stack)
    if frame is None or any(is_of_program(one.file) for one in stack):
        return ""
    return CALLERS.get(_package_of(frame.file), "")


def _package_of(file: str) -> str:
    """The package or module, of Python's library or an installed one, to which a file belongs; empty if to none."""
    path = Path(file).resolve()
    for folder in path.parents:
        if folder.name == "site-packages" or str(folder) in _library:
            return path.relative_to(folder).parts[0].removesuffix(".py")
    return ""


def _innermost(stack: tuple[Frame, ...]) -> Frame | None:
    known = [frame for frame in stack if not is_of_xlogmem(frame.file)]
    return next((frame for frame in known if frame.line or not frame.file.startswith(SYSTEM)), next(iter(known), None))


def is_of_xlogmem(file: str) -> bool:
    return file.startswith((_package + os.sep, str(Path(__file__).parents[1]) + os.sep))


def is_of_program(file: str) -> bool:
    """True if a file is neither of Python's library, nor of an installed package, nor of xlogmem."""
    if file.startswith("<"):                            # the text of a cell or of exec(), but for PyTorch's compiler's
        return not file.startswith(("<frozen ", "<eval_with_key>"))
    try:
        path = Path(file).resolve()
    except (OSError, ValueError, RuntimeError):         # no name of a file, or links in a circle
        return True
    if file.startswith(SYSTEM) or LIBRARY.search(file):
        return False
    if path.suffix in COMPILED and not path.exists():   # Cython code of a library, in a traceback
        return False
    return "site-packages" not in path.parts and not any(path.is_relative_to(one) for one in (*_library, _package))


def shortened(file: str) -> str:
    """Return the path relative to the working directory, if that is shorter."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError, RuntimeError):
        return file
