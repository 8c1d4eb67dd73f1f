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


_run_the_other()
if "XLOGMEM_CHECK" in os.environ:
    from xlogmem.check import start
    start.begin(os.environ["XLOGMEM_CHECK"])
