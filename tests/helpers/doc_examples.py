"""The examples in the docstrings of what is public, run:  python doc_examples.py

Prints JSON: name -> how many examples there are, and what is wrong with them.  They write into the current folder.
"""
from __future__ import annotations

import doctest
import inspect
import json
import warnings
from collections.abc import Iterator
from typing import Any

import xlogmem

# What no program calls: made by functions, or for other libraries.
NOT_CALLED = {
    "xlogmem.dask.dask_setup": "Dask calls it",
    "xlogmem.history.HistoryError": "an exception",
    "xlogmem.nvtx.NvtxRecording": "record_nvtx makes it",
    "xlogmem.nvtx.record_or_warn": "the import calls it, for a variable of the environment",
    "xlogmem.sim.Hold": "Simulator.hold makes it",
}
# Of the methods, those that the pages of docs/ begin with.
METHODS = {
    "Buffer": ("copy_from", "download", "map", "to_numpy"),
    "DeviceBlock": ("map", "synchronize"),
    "DeviceRuntime": ("acquire_stream", "adopt", "allocate", "allocate_many", "find_block", "memory_summary",
                      "reap_pending"),
    "Stream": ("record", "wait"),
}


def called() -> Iterator[tuple[str, Any]]:
    """The public functions and classes that programs call, and the methods above."""
    for module in ("xlogmem", *(f"xlogmem.{name}" for name in xlogmem._MODULES)):
        if module.partition(".")[2] not in dir(xlogmem) and module != "xlogmem":
            continue                                    # its library is not installed
        where = xlogmem if module == "xlogmem" else getattr(xlogmem, module.partition(".")[2])
        for name in where.__all__:
            value = getattr(where, name)
            known = module != "xlogmem" and name in xlogmem.__all__ and value is getattr(xlogmem, name)
            error = inspect.isclass(value) and issubclass(value, (Exception, Warning))
            if (inspect.isroutine(value) or inspect.isclass(value)) and not known and not error \
                    and f"{module}.{name}" not in NOT_CALLED:
                yield f"{module}.{name}", value
    for name, methods in METHODS.items():
        for method in methods:
            yield f"xlogmem.{name}.{method}", getattr(getattr(xlogmem, name), method)


def run(name: str, text: str) -> tuple[int, str]:
    """How many examples a docstring has, and what is wrong with them."""
    test = doctest.DocTestParser().get_doctest(text, {"xlogmem": xlogmem}, name, None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    # doctest's compiled examples are in no file, so a warning of the program's line is one of a name.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.run(test, out=said.append)
    return len(test.examples), "".join(said)


if __name__ == "__main__":
    print(json.dumps({name: run(name, value.__doc__ or "") for name, value in called()}))
