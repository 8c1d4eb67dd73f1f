"""Conditions of a run: the machine, the versions, and the libraries that take part."""
from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import xlogmem
from xlogmem import _driver
from xlogmem_bench import _loops
from xlogmem_bench.cases.model import timed
from xlogmem_bench.world import World

__all__ = ["facts"]


def facts(world: World) -> dict[str, Any]:
    return {
        "device": _driver.device_name(0), "simulated": world.simulated,
        "driver": ".".join(map(str, _driver.driver_version())), "host": _processor(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "xlogmem": xlogmem.__version__, "commit": _commit(), "build": _driver.BUILD, "compiler": _loops.COMPILER,
        "empty_call_ns": _empty_call(), "found": world.found, "missing": world.missing,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the running source, if there is a repository; XLOGMEM_COMMIT overrides it, for copied sources."""
    root = Path(__file__).parents[3]
    if (given := os.environ.get("XLOGMEM_COMMIT")) or not (root / ".git").exists():
        return given
    try:
        run = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                             capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None


def _empty_call() -> float:
    """Cost of the loop in Python itself, in ns per call: it is part of every figure from Python."""
    return round(min(timed(lambda: None)(10_000) for _ in range(5)) / 10_000, 1)
