"""The environment variables that xlogmem reads.  docs/using.md has the same table."""
from __future__ import annotations

import warnings
from os import environ

from xlogmem._base.signatures import nearest
from xlogmem._base.texts import printable

__all__ = ["VARIABLES", "warn_of_unknown"]

VARIABLES = {
    "XLOGMEM_RESOURCE": "the resource of a runtime that is given none: `async`, `direct`, `pool` or `guard`",
    "XLOGMEM_OPTIONS": "options of `xlogmem.enable` that are not given there, such as `limit=8GiB,statistics`",
    "XLOGMEM_POLICY": "when a use records an event at once: `adaptive`, `precise` or `lazy`",
    "XLOGMEM_SIMULATE": "`1`: the simulated driver, from the import on",
    "XLOGMEM_SIM": "settings of the simulated driver, such as `devices=2,quiet`",
    "XLOGMEM_NVTX": "`1`: ranges and marks for NVIDIA's profilers (`record_nvtx`)",
    "XLOGMEM_PUBLISH": "`1`: `xlogmem top --pid` can watch the process (`publish`)",
    "XLOGMEM_AUDIT": "`1`: `xlogmem check` reports accesses that a `use` does not declare",
    "XLOGMEM_CHECK_GPU": "`1` or `0`: the check of the pytest plugin runs on the GPU, or on the simulated driver",
    "XLOGMEM_CHECK_POOLS": "`driver` or `real`: the pools of libraries under the pytest plugin",
    "XLOGMEM_CHECK_CUPTI": "the file of CUPTI's library",
    "XLOGMEM_CHECK_NVDISASM": "the file of `nvdisasm`, which reads the machine code of kernels",
}
# What xlogmem sets for its own processes, and what its build and its tests read.
_OWN = {"XLOGMEM_CHECK", "XLOGMEM_CHECK_RECORD", "XLOGMEM_RMM", "XLOGMEM_BUILD", "XLOGMEM_COMMIT", "XLOGMEM_DEFECT",
        "XLOGMEM_HEAD_REV", "XLOGMEM_MEMORY_VIZ"}
_OWN_PREFIXES = ("XLOGMEM_SIM_", "XLOGMEM_REQUIRE_", "XLOGMEM_NEIGHBOURS")     # the simulator refuses the first itself


def warn_of_unknown() -> None:
    """Warn of each variable whose name begins as ours do and which nothing reads.

    Warns
    -----
    RuntimeWarning
        The warning names the nearest variable.
    """
    for name in environ:
        if name.startswith("XLOGMEM_") and name not in VARIABLES and name not in _OWN \
                and not name.startswith(_OWN_PREFIXES):
            near = nearest(name, VARIABLES)
            advice = f": did you mean {near}?" if near else f". They are {', '.join(VARIABLES)}"
            warnings.warn(printable(f"the environment variable {name} is none of xlogmem's, and has no effect{advice}"),
                          RuntimeWarning, stacklevel=4)
