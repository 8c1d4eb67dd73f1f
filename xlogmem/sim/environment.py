"""The settings of the simulated driver, which the environment variable ``XLOGMEM_SIM`` has.

``XLOGMEM_SIM="devices=3,seed=7,quiet"`` is a list of keys with values.  A flag is 0 or 1, and its key alone means 1; of
two entries with the same key the later one counts.

==============  ===================================================================================================
``devices``     of the machine, 0 to 8 (2)
``memory``      bytes of each device (16 GiB)
``arena``       bytes of the address range that all devices share (64 GiB); valgrind needs less
``version``     of CUDA, 1000 times major plus 10 times minor (13000); entry points that are newer do not exist
``pageable``    flag (0): with 1 kernels reach all memory of the process, as with HMM or ATS; nothing is checked there
``peers``       flag (1): with 0 no device can access another's memory
``free_waits``  flag (1): with 0 ``cuMemFree`` does not wait for the device
``policy``      the order of queued operations: eager, min, max or seeded (eager); ``Simulator.reset`` changes it
``seed``        of the seeded policy (0)
``queue``       operations that a stream holds before a launch blocks (1024)
``deadlock_s``  seconds without progress after which the driver ends the process (10)
``races``       flag (1): with 0 accesses are not checked
``trace``       1 prints findings as they come, 2 also each operation that runs (0)
``quiet``       flag (0): with 1 ``install()`` does not announce the simulated driver
==============  ===================================================================================================

The driver reads the variable once: in ``install()``, or in its first call where another program has loaded it.  An
unreadable setting is an error: ``install()`` raises it; without Python the driver prints it and ``cuInit`` fails.
"""
from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["settings"]


def settings(environment: Mapping[str, str] = os.environ, /, **changes: object) -> dict[str, str]:
    """Return the variable ``XLOGMEM_SIM`` for a child process: the settings of an environment, with these changes.

    The other settings stay as they are: ``env=os.environ | sim.settings(quiet=True, devices=3)``.  The driver of the
    child judges the keys and the values.

    Examples
    --------
    >>> from xlogmem import sim
    >>> sim.settings({"XLOGMEM_SIM": "devices=2"}, quiet=True)
    {'XLOGMEM_SIM': 'devices=2,quiet=1'}
    """
    entries = [entry.strip() for entry in environment.get("XLOGMEM_SIM", "").split(",")]
    merged = {entry.partition("=")[0].strip(): entry for entry in entries if entry}
    for key, value in changes.items():
        text = str(int(value) if isinstance(value, bool) else value)
        if "," in text:
            raise ValueError(f"{key}={text!r}: the value of a setting cannot have a comma")
        merged[key] = f"{key}={text}"
    return {"XLOGMEM_SIM": ",".join(merged.values())}
