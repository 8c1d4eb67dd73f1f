"""Front ends of the engine: the simulated driver, and the real one through CUPTI."""
from __future__ import annotations

import ctypes
import os
import re
import sys
import traceback
from dataclasses import dataclass
from typing import Any, Protocol

from xlogmem import sim
from xlogmem.check import gpu, libraries, missing, neighbours, sites
from xlogmem.check.neighbours import noted, pieces
from xlogmem.check.notes import MAY_HAVE_VERIFIED, of_gpu, of_simulator

__all__ = ["FrontEnd", "Report", "begin"]

# A part of CuPy, and packages, in whose libraries NVIDIA's runtime is linked: docs/check.md lists them.
HAS_ITS_OWN_RUNTIME = re.compile(r"/(?:rmm|cudf|pylibcudf|warp|cuml|cugraph)/|cub\.pyx$")


@dataclass
class Report:
    """Findings, omissions and notes of a front end; the first two as the engine's records."""

    findings: list[dict[str, Any]]          # see `xlogmem.check.findings`
    omissions: list[dict[str, Any]]         # of an audit; see `xlogmem.check.audit`
    notes: list[str]                        # gaps in the findings


class FrontEnd(Protocol):
    """Source of findings: the simulated driver, or the real one through CUPTI."""

    name: str                               # of the driver, as in "on the simulated driver"

    def report(self) -> Report:
        """Return everything found since the beginning, or since `clear`."""

    def clear(self) -> None:
        """Forget everything found so far."""

    def stop(self) -> None:
        """Find no more places in the program for calls: the interpreter ends."""

    def hooks(self) -> int:
        """Return the address of the table of cpp/engine/hooks.hpp."""

    def audit(self, wanted: bool) -> None:
        """Turn the noting of omissions on or off."""

    def record(self, file: int | None) -> None:
        """Write the engine's input to this open file, from here on until None."""

    def keep_findings(self, file: int) -> None:
        """Write findings to this open file as they are made: see cpp/engine/journal.hpp."""

    def is_lost(self) -> bool:
        """True if this is a forked child whose parent had initialised the driver: the child has none."""


def reasons_of_failure(error: BaseException | None, launches: int) -> list[str]:
    """Say why a program that is right on a GPU may have ended with this error on the simulated driver."""
    notes = []
    frames = traceback.extract_tb(error.__traceback__) if error else []
    if launches and isinstance(error, AssertionError):
        left_out = frames and ((frames[-1].line or "").startswith("assert")
                               or "/numpy/testing/" in frames[-1].filename)
        notes.append("an assertion failed: without a GPU kernels compute nothing, so the program cannot verify its "
                     "results" + ("; python -O leaves its assertions out" if left_out else ""))
    elif launches and isinstance(error, ArithmeticError):
        notes.append(MAY_HAVE_VERIFIED)
    own = next((match[0] for frame in frames if (match := HAS_ITS_OWN_RUNTIME.search(frame.filename))), None)
    if own:
        notes.append(f"the program ended in {own.strip('/')}, which has NVIDIA's runtime built in: that accepts no "
                     "driver but NVIDIA's.  Check this part of the program on a GPU")
    return notes + [f"{name} is not simulated: the program may have ended for that"
                    for name in missing.functions(error)]


class Simulated:
    name = "the simulated driver"

    def __init__(self) -> None:
        self._simulator = sim.install()
        if sites.start():
            self._simulator.find_sites(sites.address_of_function())
            sites.take_native(self._simulator.native_frames())
            self._simulator.guard_host(sites.address_of_function_for_handlers())
        pieces.report_to(self.hooks())
        libraries.watch(True)
        neighbours.prepare_simulated()

    def report(self) -> Report:
        said = self._simulator.notes()
        notes = of_simulator(said)
        error = getattr(sys, "last_value", None)
        notes += libraries.notes(error) + reasons_of_failure(error, said["computed_nothing"])
        return Report(self._simulator.findings(), self._simulator.omissions(), notes + noted.notes())

    def clear(self) -> None:
        self._simulator.clear_races()

    def stop(self) -> None:
        libraries.watch(False)
        self._simulator.find_sites(None)
        self._simulator.guard_host(None)

    def hooks(self) -> int:
        return self._simulator.hooks()

    def audit(self, wanted: bool) -> None:
        self._simulator.audit(wanted)

    def record(self, file: int | None) -> None:
        self._simulator.record(file)

    def keep_findings(self, file: int) -> None:
        self._simulator.keep_findings(file, sites.address_of_text())

    def is_lost(self) -> bool:
        return self._simulator.is_lost()


class Real:
    name = "the GPU"

    def __init__(self) -> None:
        self._library = gpu.library()
        wanted = os.environ.get("XLOGMEM_CHECK_POOLS", "driver")
        if gpu.INJECTION not in os.environ:             # no command has started this process
            os.environ.update(gpu.environment(wanted))
        if sites.start():
            self._library.xcheck_find_sites(sites.address_of_function())
            sites.take_native(ctypes.cast(self._library.xcheck_native_frames, ctypes.c_void_p).value or 0)
            self._library.xcheck_guard_host(sites.address_of_function_for_handlers())
        pieces.report_to(self.hooks())
        neighbours.prepare(neighbours.DRIVER_POOLS if wanted == "driver" else neighbours.REAL_POOLS)

    def report(self) -> Report:
        try:
            unread = gpu.read_codes(self._library)
        except OSError as error:                        # no space for files, no process: the findings are there
            unread = f"the code of kernels was not read: {error}"
        found = gpu.report(self._library)
        return Report(found["findings"], found["omissions"],
                      self._notes(found) + ([unread] if unread else []) + noted.notes())

    def clear(self) -> None:
        self._library.xcheck_clear_findings()

    def stop(self) -> None:
        self._library.xcheck_find_sites(None)
        self._library.xcheck_guard_host(None)

    def is_lost(self) -> bool:
        return bool(self._library.xcheck_is_lost())

    def _notes(self, report: dict[str, Any]) -> list[str]:
        failure = self._library.xcheck_failure().decode()
        if failure:
            return [f"NOTHING was checked in process {os.getpid()}: {failure}"]
        return of_gpu(report)

    def hooks(self) -> int:
        address: int = self._library.xcheck_hooks()
        return address

    def audit(self, wanted: bool) -> None:
        self._library.xcheck_audit(wanted)

    def record(self, file: int | None) -> None:
        self._library.xcheck_record(-1 if file is None else file)

    def keep_findings(self, file: int) -> None:
        self._library.xcheck_keep_findings(file, sites.address_of_text())


def begin() -> FrontEnd:
    """Return the front end of this process, from its start on; where no command has chosen one, the GPU's if there is a
    GPU."""
    chosen = os.environ.get("XLOGMEM_CHECK_GPU")
    on_gpu = chosen == "1" if chosen else os.environ.get("XLOGMEM_SIMULATE") != "1" and gpu.is_there()
    return Real() if on_gpu else Simulated()
