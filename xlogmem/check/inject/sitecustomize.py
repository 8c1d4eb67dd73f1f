"""First on the path of a program that is checked: the check begins before the program does."""
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_here = str(Path(__file__).parent)


def _run_the_other() -> None:
    """The sitecustomize that this one hides, if there is one."""
    specification = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != _here])
    if specification is not None and specification.loader is not None:
        specification.loader.exec_module(module_from_spec(specification))


def _begin() -> None:
    try:
        from xlogmem.check import start
    except ImportError as error:
        text = f"xlogmem check: {sys.executable!r} has no xlogmem, and is not checked ({str(error)!r})"
        print(text.replace("##", "#\\x23"), file=sys.stderr)                # `printable` is in xlogmem
    else:
        start.begin(os.environ["XLOGMEM_CHECK"])


try:
    _run_the_other()
finally:                                                # Python goes on after an error there, too
    if "XLOGMEM_CHECK" in os.environ:
        _begin()
