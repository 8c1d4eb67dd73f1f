"""A simulated CUDA driver: run and test code that uses streams on a machine without a GPU.

``install()`` loads a library that calls itself libcuda.so.1; an unmodified cuda-bindings then finds it in
place of the driver. Nothing is fast and no kernel of yours runs, but the ordering rules are the driver's,
several schedules can be tried, and every pair of accesses to device memory that no stream order, event or
synchronize puts in order is reported (``Simulator.races()``), whether or not the data went wrong this time.

    >>> from xlogmem import sim
    >>> simulator = sim.install()
    >>> simulator.reset("seeded", seed=7)
    >>> ...                                   # the program, through cuda.bindings
    >>> assert not simulator.races()

The kinds of reports: ``RACE write/read``, ``read/write``, ``write/write`` (two uses), ``alloc/use`` (a use on
another stream, not ordered after the allocation), ``read/free``, ``write/free``, ``alloc/free`` (freed too
early), ``free/use`` (not ordered with the free), ``USE-AFTER-FREE`` (ordered after it), ``read/reuse`` and
the like (the address was given out again too early), ``STALE GRAPH`` (a graph was launched for an earlier owner
of its memory). ``DEAD STREAM`` and ``DEAD EVENT`` are not races: a call was given the handle of something
destroyed, which a GPU's driver may answer with a crash.

The machine has two devices, or another number of them (see below), and a process sees those that
``CUDA_VISIBLE_DEVICES`` names, by number or UUID, as with the driver.

Devices are each other's peers, under the driver's rules: memory of another device may be touched after
``cuCtxEnablePeerAccess``, that of a pool after ``cuMemPoolSetAccess``. A kernel that has no access crashes
(``CUDA_ERROR_ILLEGAL_ADDRESS`` from then on).

Where the host waits it waits for what CUDA promises and no more: a copy from pageable memory returns once it is
staged. ``cuMemFree`` waits for the device, unless a setting says otherwise, as CUDA 13 allows.

One environment variable has all settings: ``XLOGMEM_SIM="devices=3,seed=7,quiet"``, see `xlogmem.sim.environment`.

The choice of driver is made once for a process. Importing this module loads nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlogmem.sim.environment import settings

__all__ = ["POLICIES", "Hold", "Simulator", "install", "installed", "library_path", "settings", "simulator"]

POLICIES = ("eager", "min", "max", "seeded")

# Calls that can be dropped: success without an effect leaves the caller nothing uninitialised.
_DROPPABLE = frozenset({"cuStreamWaitEvent", "cuEventRecord", "cuEventRecordWithFlags", "cuEventSynchronize",
                        "cuStreamSynchronize", "cuCtxSynchronize"})

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lock = threading.Lock()
_simulator: Simulator | None = None


class Simulator:
    """Controls of the simulated driver. There is one; ``install()`` returns it.

    Examples
    --------
    >>> from xlogmem import sim
    >>> simulator = sim.simulator()
    >>> simulator.races()                           # of the program so far
    []
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        u64, text = ctypes.c_uint64, ctypes.c_char_p
        signatures: dict[str, tuple[object, list[object]]] = {
            "reset": (None, [text, u64]),
            "set_policy": (None, [text, u64]),
            "set_fills": (ctypes.c_int, [ctypes.c_int]),
            "set_pageable": (ctypes.c_int, [ctypes.c_int]),
            "races": (u64, [text, u64]),
            "clear_races": (None, []),
            "is_lost": (ctypes.c_int, []),
            "is_quiet": (ctypes.c_int, []),
            "stream_number": (u64, [u64]),
            "stream_state": (ctypes.c_int, [u64]),
            "free_after_capture": (None, [u64, u64]),
            "wrong_settings": (u64, [text, u64]),
            "findings": (u64, [text, u64]),
            "hooks": (u64, []),
            "record": (None, [ctypes.c_int]),
            "keep_findings": (None, [ctypes.c_int, ctypes.c_void_p]),
            "audit": (None, [ctypes.c_int]),
            "omissions": (u64, [text, u64]),
            "find_sites": (None, [ctypes.c_void_p]),
            "guard_host": (ctypes.c_int, [ctypes.c_void_p]),
            "launch_unknown": (None, [ctypes.c_int]),
            "declare_kernel": (None, [text, text, ctypes.c_void_p]),
            "learn_kernels": (None, [text, u64]),
            "notes": (u64, [text, u64]),
            "view": (ctypes.c_void_p, [u64, ctypes.POINTER(u64)]),
            "calls": (u64, [text]),
            "all_calls": (u64, [text, u64]),
            "watch_gil": (None, [ctypes.c_int]),
            "calls_with_gil": (u64, [text, u64]),
            "fail": (None, [text, u64, ctypes.c_int]),
            "drop": (None, [text, u64]),
            "on_call": (None, [text, u64, ctypes.c_int, _Callback, ctypes.c_void_p]),
            "hold": (ctypes.c_void_p, [text, u64, ctypes.c_double]),
            "hold_reached": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_double]),
            "hold_release": (ctypes.c_int, [ctypes.c_void_p]),
            "sticky_error": (None, [ctypes.c_int]),
            "live_bytes": (u64, []),
            "live_events": (u64, []),
            "live_streams": (u64, []),
            "pending_operations": (u64, []),
            "peek": (ctypes.c_int, [u64, ctypes.c_void_p, u64]),
            "step": (ctypes.c_int, []),
        }
        self._c = {}
        for name, (result, arguments) in signatures.items():
            function = getattr(library, "xsim_" + name)
            function.restype, function.argtypes = result, arguments
            self._c[name] = function
        self._library = library
        self._hooks: list[object] = []  # ctypes callbacks must stay alive while the driver may call them
        self._failures: list[BaseException] = []

    def stream_number(self, handle: int) -> int:
        """The number of a stream, which no other stream has."""
        return self._call("stream_number", handle)

    def stream_state(self, number: int) -> str:
        """``"ended"``, ``"there"`` or ``"capturing"``: of the stream with this number."""
        return ("ended", "there", "capturing")[self._call("stream_state", number)]

    def free_after_capture(self, address: int, number: int) -> None:
        """Free memory on the stream with this number when the capture that it takes part in ends."""
        self._call("free_after_capture", address, number)

    # An exception of a hook cannot pass through the driver: it is kept, and raised by the next method called.
    def _call(self, name: str, *arguments: object) -> int:
        if self._failures:
            failure = self._failures.pop(0)
            raise failure
        return self._c[name](*arguments)  # type: ignore[no-any-return]

    def _text(self, name: str) -> str:
        size = self._call(name, None, 0)
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = self._call(name, buffer, size)
            if needed <= size:
                return buffer.value.decode(errors="replace")  # names of kernels may be anything
            size = needed  # it grew in between

    def reset(self, policy: str = "eager", seed: int = 0) -> None:
        """Run everything queued, then clear races, call counts, failures, hooks. Objects alive stay valid."""
        self._check_policy(policy)
        self._call("reset", policy.encode(), seed)
        self._hooks.clear()

    def set_policy(self, policy: str, seed: int = 0) -> None:
        """Change the order in which queued operations run; clears nothing."""
        self._check_policy(policy)
        self._call("set_policy", policy.encode(), seed)

    def set_fills(self, wanted: bool) -> bool:
        """Fill new memory with 0xCD and freed memory with 0xDD, or do not; returns the former setting. A program that
        allocates gigabytes and reads none spends nearly all of its time there. A reset turns fills on."""
        return bool(self._call("set_fills", wanted))

    def set_pageable(self, wanted: bool) -> bool:
        """Let devices reach all memory of the process, or not; returns the former setting. A reset changes nothing."""
        return bool(self._call("set_pageable", wanted))

    def races(self) -> list[str]:
        """Everything found so far, dead handles included (at most 1,000 different reports are kept)."""
        return self._text("races").splitlines()

    def is_lost(self) -> bool:
        """True if this is a forked child whose parent had initialised the driver: every call fails here."""
        return bool(self._call("is_lost"))

    def findings(self) -> list[dict[str, Any]]:
        """The races as records: see `xlogmem.check.findings`."""
        found: list[dict[str, Any]] = json.loads(self._text("findings"))
        return found

    def find_sites(self, function: int | None) -> None:
        """From now on each call takes the number of its place in the program from the C function at this address."""
        self._call("find_sites", function)

    def native_frames(self) -> int:
        """The address of a C function for the frames of places outside of Python, as `sites.take_native` wants it."""
        return ctypes.cast(self._library.xsim_native_frames, ctypes.c_void_p).value or 0

    def guard_host(self, function: int | None) -> bool:
        """From now on the check sees the host's own accesses to page-locked memory; the C function at this address
        gives their places in handlers of signals.  None ends that.  Returns False where nothing is seen."""
        return bool(self._call("guard_host", function))

    def hooks(self) -> int:
        """The address of the table of hooks for `xlogmem check`: cpp/engine/hooks.hpp."""
        return self._call("hooks")

    def record(self, file: int | None) -> None:
        """Write all that the engine is fed to this open file, until `record(None)`: cpp/engine/trace.hpp.  It has
        to begin before the first call of the driver.  The file is closed at the end."""
        self._call("record", -1 if file is None else file)

    def keep_findings(self, file: int, frames_of: int) -> None:
        """Write findings to this open file as they are made: cpp/engine/journal.hpp.  `frames_of` is the address of the
        function for the frames of a place.  The file is closed at the end."""
        self._call("keep_findings", file, frames_of)

    def audit(self, wanted: bool = True) -> None:
        """Turn the noting of `omissions` on or off: launches that name tracked memory outside any `use`, and more."""
        self._call("audit", wanted)

    def omissions(self) -> list[dict[str, Any]]:
        """The omissions that an audit has found, as records: see `xlogmem.check.audit`."""
        return self._listed("omissions")

    def _listed(self, name: str) -> list[Any]:
        found: list[Any] = json.loads(self._text(name))
        return found
    def launch_unknown(self, wanted: bool = True) -> None:
        """Launch kernels that are not simulated, too: they compute nothing; their images and `declare_kernel` declare
        their reads and writes.  New memory is full of zeros from now on, so that missing results are zero and not
        garbage.  Without this such a launch is refused."""
        self._call("launch_unknown", wanted)

    def declare_kernel(self, pattern: str, roles: str, run: int | None = None) -> None:
        """Declare what kernels do whose names fit the shell's pattern: a letter for each parameter, ``r``, ``w``, ``b``
        for both and ``-`` for what their images say; and the address of a C function that is run in their place."""
        self._call("declare_kernel", pattern.encode(), roles.encode(), run)

    def learn_kernels(self, image: bytes) -> None:
        """Take what this image says of kernels (PTX) for those of the same names that are loaded from now on, in
        binaries that say less."""
        self._call("learn_kernels", image, len(image))

    def notes(self) -> dict[str, Any]:
        """Gaps in the findings: ``computed_nothing``, the number of such launches; ``not_judged``, for each unknown
        kernel the launches for which no operator of a library has accounted; ``not_simulated``, functions of CUDA's
        libraries that the program has called; and ``private_tables``, true if NVIDIA's runtime is linked into the
        program."""
        found: dict[str, Any] = json.loads(self._text("notes"))
        return found

    def view(self, ptr: int) -> memoryview:
        """Device memory from this address to the end of its allocation, as the host reaches it; nothing waits."""
        size = ctypes.c_uint64()
        at = self._call("view", int(ptr), ctypes.byref(size))
        if not at:
            raise ValueError(f"{int(ptr):#x} is not device memory")
        return memoryview((ctypes.c_char * size.value).from_address(at)).cast("B")

    def clear_races(self) -> None:
        self._call("clear_races")

    def calls(self, name: str) -> int:
        """Calls of a driver function since the last reset, by its documented name, failed calls included."""
        return self._call("calls", name.encode())

    def all_calls(self) -> dict[str, int]:
        return self._counts("all_calls")

    def watch_gil(self, watched: bool = True) -> None:
        """Turn the counting for `calls_with_gil` on or off; a reset does not change that."""
        self._call("watch_gil", watched)

    def calls_with_gil(self) -> dict[str, int]:
        """Calls since the last reset by threads that had the GIL: while a driver blocks, no other would run."""
        return self._counts("calls_with_gil")

    def _counts(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(name).splitlines())
        return {name: int(count) for name, count in pairs}

    def has_function(self, name: str) -> bool:
        """True if the simulated driver has a function of this documented name, in whatever version."""
        found = ctypes.c_void_p()
        look_up = self._library.cuGetProcAddress
        newest = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(newest))
        return bool(look_up(name.encode(), ctypes.byref(found), newest, ctypes.c_uint64(0)) == 0)

    def fail(self, name: str, nth: int = 1, code: int = 2) -> None:
        """The nth call from now returns this CUresult and does nothing."""
        self._call("fail", name.encode(), self._check_nth(nth), int(code))

    def drop(self, name: str, nth: int = 1) -> None:
        """The nth call from now returns success and does nothing: does a check notice the missing wait?"""
        if name not in _DROPPABLE:
            raise ValueError(f"{name} cannot be dropped, only {', '.join(sorted(_DROPPABLE))}")
        self._call("drop", name.encode(), self._check_nth(nth))

    def on_call(self, name: str, callback: Callable[[], object], nth: int = 1, when: str = "before") -> None:
        """Run callback() once, on the calling thread, before or after the nth call from now.

        No lock of the simulator is held meanwhile, so the callback may make CUDA calls itself: that is how a
        test puts "another thread" into a gap. The next method called on the Simulator raises its exception.
        """
        if when not in ("before", "after"):
            raise ValueError(f"when must be 'before' or 'after', not {when!r}")

        def run(_: object) -> None:
            try:
                callback()
            except BaseException as failure:
                self._failures.append(failure)

        hook = _Callback(run)
        self._hooks.append(hook)
        self._call("on_call", name.encode(), self._check_nth(nth), when == "after", hook, None)

    def hold(self, name: str, nth: int = 1, patience: float = 30.0) -> Hold:
        """Hold up the nth call from now until `Hold.release`, as a full queue or a busy device would.

        The call waits without the GIL, unless its caller has it, and without a lock of the simulator: the caller holds
        the same locks as while a driver blocks. After `patience` seconds the call goes on, which `Hold.release`
        reports: a deadlock is a failed test, not a run that never ends.
        """
        return Hold(self, self._call("hold", name.encode(), self._check_nth(nth), float(patience)))

    def sticky_error(self, code: int) -> None:
        """Every call returns this CUresult from now on, as after a kernel's crash; 0 or a reset ends it."""
        self._call("sticky_error", int(code))

    def live_bytes(self) -> int:
        """Bytes of device memory allocated and not freed, as requested."""
        return self._call("live_bytes")

    def live_events(self) -> int:
        return self._call("live_events")

    def live_streams(self) -> int:
        """Streams created and not destroyed; the default streams do not count."""
        return self._call("live_streams")

    def pending_operations(self) -> int:
        """Operations queued that have not run yet."""
        return self._call("pending_operations")

    def peek(self, ptr: int, nbytes: int) -> bytes:
        """Device memory as it is at this moment, without synchronizing."""
        buffer = ctypes.create_string_buffer(max(nbytes, 1))
        if not self._call("peek", int(ptr), buffer, nbytes):
            raise ValueError(f"[{int(ptr):#x}, {int(ptr) + nbytes:#x}) is not device memory")
        return buffer.raw[:nbytes]

    def step(self) -> bool:
        """Run one queued operation, chosen by the policy; False if none can run."""
        return bool(self._call("step"))

    @staticmethod
    def _check_policy(policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}: one of {', '.join(POLICIES)}")

    @staticmethod
    def _check_nth(nth: int) -> int:
        if nth < 1:
            raise ValueError(f"nth counts from 1, not {nth}")
        return nth


class Hold:
    """A driver call that is held up; `Simulator.hold` makes it."""

    def __init__(self, simulator: Simulator, handle: int) -> None:
        self._simulator = simulator
        self._handle = handle

    def reached(self, timeout: float = 30.0) -> bool:
        """Wait until the call is inside; False if it did not come."""
        return bool(self._simulator._call("hold_reached", self._handle, float(timeout)))

    def release(self) -> bool:
        """Release the call; False if its `patience` seconds were over before."""
        return bool(self._simulator._call("hold_release", self._handle))


def _loaded_driver() -> ctypes.CDLL | None:
    """The libcuda.so.1 that is in this process already; loads nothing."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def library_path() -> str:
    """Return the path of the simulated driver.

    Examples
    --------
    >>> from xlogmem import sim
    >>> sim.library_path().endswith(".so")
    True
    """
    found = sorted(Path(__file__).parent.glob("_simcuda*.so"))
    if not found:
        raise RuntimeError("xlogmem was built without the simulated driver (no _simcuda*.so in xlogmem/sim): "
                           "build it, or start the process with one in LD_PRELOAD")
    return str(found[0])


def installed() -> bool:
    """True if the libcuda in this process is the simulator. The call loads nothing.

    Examples
    --------
    >>> from xlogmem import sim
    >>> sim.installed()
    True
    """
    driver = _loaded_driver()
    return driver is not None and hasattr(driver, "xsim_is_simulator")


def install() -> Simulator:
    """Make the simulated driver this process's libcuda.so.1, before anything calls CUDA. Idempotent.

    Raises
    ------
    RuntimeError
        The process has a real driver already, or xlogmem was built without the simulated one.
    ValueError
        The driver cannot read its settings.

    Examples
    --------
    >>> from xlogmem import sim
    >>> simulator = sim.install()                   # before anything calls CUDA
    """
    global _simulator
    with _lock:
        if _simulator is not None:
            return _simulator
        library = _loaded_driver()
        if library is None:
            library = ctypes.CDLL(library_path())
        elif not hasattr(library, "xsim_is_simulator"):
            raise RuntimeError(
                "a real libcuda.so.1 is already loaded in this process, and a process has only one driver. "
                "Call xlogmem.sim.install() first, before anything that calls CUDA is imported or used, or "
                "start the process with XLOGMEM_SIMULATE=1; to use the real driver, do not install the "
                "simulator")
        made = Simulator(library)
        if wrong := made._text("wrong_settings"):
            raise ValueError(wrong)
        _simulator = made
        if not made._call("is_quiet"):
            print("xlogmem: SIMULATED CUDA driver in use: "
                  "no GPU is involved, results say nothing about speed", file=sys.stderr, flush=True)
        return _simulator


def simulator() -> Simulator:
    """The installed simulator.

    Examples
    --------
    >>> from xlogmem import sim
    >>> sim.simulator() is sim.install()
    True
    """
    if _simulator is None:
        if installed():  # loaded by other means, with LD_PRELOAD for one
            return install()
        raise RuntimeError("the simulated CUDA driver is not installed: call xlogmem.sim.install()")
    return _simulator
