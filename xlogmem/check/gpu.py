"""The check on a GPU: the environment of a process, and the library that the driver loads into it."""
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlogmem._base.units import counted
from xlogmem.check import disassembler

__all__ = ["environment", "injection", "is_there", "library", "pools", "read_codes", "report"]

INJECTION = "CUDA_INJECTION64_PATH"
PROBE = """
import ctypes
count = ctypes.c_int()
driver = ctypes.CDLL("libcuda.so.1")
print(0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value)
"""


def is_there() -> bool:
    """True if a process that is started from here has a GPU.  This process leaves the driver as it is."""
    probe = subprocess.run([sys.executable, "-S", "-c", PROBE], capture_output=True, text=True,
                           env={name: value for name, value in os.environ.items() if name != INJECTION})
    return probe.returncode == 0 and int(probe.stdout) > 0


def library_path() -> str:
    found = sorted(Path(__file__).parent.glob("_cupti*.so"))
    if not found:
        raise RuntimeError("xlogmem was built without `xlogmem check --gpu`, because CUPTI's headers were not "
                           "installed; build it with nvidia-cuda-cupti-cu12, or check with --no-gpu")
    return str(found[0])


def cupti_path() -> str:
    """The path of CUPTI, as XLOGMEM_CHECK_CUPTI names it, else as cuda-pathfinder finds it."""
    if given := os.environ.get("XLOGMEM_CHECK_CUPTI"):
        return given
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        found = load_nvidia_dynamic_lib("cupti").abs_path
    except RuntimeError as error:                       # raised where the library is missing
        raise RuntimeError("the check on a GPU needs CUPTI: install nvidia-cuda-cupti-cu12 (CUDA 13: "
                           "nvidia-cuda-cupti), cuda-cupti of conda, or a CUDA toolkit; or name its library in "
                           "XLOGMEM_CHECK_CUPTI") from error
    return str(found)


def injection() -> dict[str, str]:
    """Return the variables by which the driver loads the check into each process that initialises it.

    Raises
    ------
    RuntimeError
        Another tool is to be loaded in this way, or something is not installed.
    """
    ours = library_path()
    other = os.environ.get(INJECTION)
    if other and other != ours:
        raise RuntimeError(f"another tool watches the driver's calls ({INJECTION}={other}), and there can be one: "
                           "run the check without it")
    return {INJECTION: ours, "XLOGMEM_CHECK_CUPTI": cupti_path(), "XLOGMEM_CHECK_GPU": "1"}


def environment(wanted: str) -> dict[str, str]:
    """Environment variables of a program under the check on a GPU; for `wanted` see `pools`."""
    return injection() | {"CUPY_COMPILE_WITH_PTX": "1"} | pools(wanted)     # PTX says what kernels do


def pools(wanted: str) -> dict[str, str]:
    """Settings of the pools that CuPy, RMM and JAX allocate from: with ``driver`` the driver's, where the check sees
    each allocation, with ``real`` their own."""
    chosen = {"XLOGMEM_CHECK_POOLS": wanted}
    return chosen | ({"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"} if wanted == "driver" else {})


def library() -> ctypes.CDLL:
    """The check's library, as the driver finds it in this process."""
    loaded = ctypes.CDLL(library_path())
    loaded.xcheck_report.restype = ctypes.c_void_p
    loaded.xcheck_failure.restype = ctypes.c_char_p
    loaded.xcheck_hooks.restype = ctypes.c_void_p
    loaded.xcheck_record.argtypes = [ctypes.c_int]
    loaded.xcheck_keep_findings.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for function in (loaded.xcheck_free, loaded.xcheck_find_sites, loaded.xcheck_guard_host):
        function.argtypes = [ctypes.c_void_p]
        function.restype = None
    loaded.xcheck_find_codes.restype = ctypes.c_size_t
    loaded.xcheck_code.argtypes = [ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_uint)]
    loaded.xcheck_code.restype = ctypes.c_void_p
    loaded.xcheck_list_code.argtypes = [ctypes.c_size_t, ctypes.c_char_p]
    return loaded


def read_codes(library: ctypes.CDLL) -> str | None:
    """Read the machine code of the kernels that findings depend on; returns a note if some of it cannot be read."""
    count = library.xcheck_find_codes()
    if not count:
        return None
    if disassembler.find() is None:
        return (f"the code of {counted(count, 'kernel')} was not read, which would say more of findings that are "
                "possible: there is no nvdisasm (it comes with Triton and with CUDA toolkits; "
                "XLOGMEM_CHECK_NVDISASM names it)")
    listings = disassembler.listings(list(codes(library, count)))
    for index, listing in enumerate(listings):
        if listing is not None:
            library.xcheck_list_code(index, listing.encode())
    library.xcheck_read_codes()
    unread = listings.count(None)
    return f"the code of {counted(unread, 'kernel')} could not be read by {disassembler.find()}" if unread else None


def codes(library: ctypes.CDLL, count: int) -> Iterator[tuple[bytes, int]]:
    """Yield the code of each kernel that is to be read, and the number of its architecture."""
    size, sm = ctypes.c_size_t(), ctypes.c_uint()
    for index in range(count):
        address = library.xcheck_code(index, ctypes.byref(size), ctypes.byref(sm))
        yield ctypes.string_at(address, size.value), sm.value


def report(library: ctypes.CDLL) -> dict[str, Any]:
    """The library's findings, and their gaps; see Front::report() in cupti/front.cpp."""
    text = library.xcheck_report()
    try:
        found: dict[str, Any] = json.loads(ctypes.string_at(text).decode(errors="replace"))  # kernels' names are bytes
    finally:
        library.xcheck_free(text)
    return found
