"""What a driver does with copies between two devices, and with the null stream while a graph is captured:
python benchmarks/two_devices.py [--json FILE]

Nothing but driver calls is made. Which copies and fills reach the memory of another device, with and without peer
access; what a copy waits for, and what waits for a copy (each case is timed behind a kernel of 60 ms: no assertion, a
driver may be right); what calls in the null stream answer during a capture; whether the null stream comes after the
pending wait of a blocking stream that was destroyed. The simulated driver follows these answers; there, nothing is
timed.
"""
from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem._driver import describe_device, driver_version
from xlogmem.sim.kernels import Kernels, check

BYTES = 4096
DELAY = 60                                              # milliseconds
KINDS = ("null", "blocking", "non-blocking", "per-thread")
FORMS = ("cuMemcpy", "cuMemcpyAsync", "cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyPeer", "cuMemcpyPeerAsync")
Row = dict[str, Any]


class Device:
    """A device with its context, streams of each kind, and memory of cuMemAlloc and of its pool."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(number))))
        self.enter()
        self.streams = {"null": cuda.CUstream(0), "blocking": check(cuda.cuStreamCreate(0)),
                        "non-blocking": check(cuda.cuStreamCreate(1)), "per-thread": cuda.CUstream(2)}
        self.memory = {"cuMemAlloc": check(cuda.cuMemAlloc(BYTES)), "pool": check(cuda.cuMemAllocAsync(BYTES, 0))}
        self.event = check(cuda.cuEventCreate(2))
        self.kernels = Kernels()
        check(cuda.cuCtxSynchronize())

    def enter(self) -> None:
        check(cuda.cuCtxSetCurrent(self.context))

    def delay(self, stream: cuda.CUstream) -> None:
        """Queue a kernel of 60 ms."""
        self.enter()
        self.kernels.delay(int(stream), DELAY * 1_000_000)

    def write(self, stream: cuda.CUstream) -> None:
        """Queue work that is done at once."""
        self.enter()
        check(cuda.cuMemsetD8Async(self.memory["pool"], 1, BYTES, stream))

    def time_until_done(self, stream: cuda.CUstream, start: float) -> float:
        """Milliseconds from the start until the stream has done its work."""
        self.enter()
        check(cuda.cuEventRecord(self.event, stream))
        while cuda.cuEventQuery(self.event)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY:
            pass
        return (time.perf_counter() - start) * 1000


def code(result: tuple[Any, ...]) -> int:
    return int(result[0])


class Questions:
    """All questions, each of which yields rows."""

    def __init__(self) -> None:
        check(cuda.cuInit(0))
        self.devices = [Device(0), Device(1)]
        self.peers = False
        self.host = (ctypes.c_uint8 * BYTES)()
        self.pinned = check(cuda.cuMemHostAlloc(BYTES, 1))

    def wait_for_all(self) -> None:
        for device in self.devices:
            device.enter()
            check(cuda.cuCtxSynchronize())

    def copy(self, form: str, to: cuda.CUdeviceptr, source: cuda.CUdeviceptr, stream: cuda.CUstream) -> int:
        """From device 0 to device 1."""
        contexts = [device.context for device in self.devices]
        ends = (to, contexts[1], source, contexts[0]) if "Peer" in form else (to, source)
        on = (stream,) if form.endswith("Async") else ()
        return code(getattr(cuda, form)(*ends, BYTES, *on))

    def open_to_each_other(self) -> None:
        for device, other in (self.devices, self.devices[::-1]):
            device.enter()
            check(cuda.cuCtxEnablePeerAccess(other.context, 0))
            access = cuda.CUmemAccessDesc()
            access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = other.number
            access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            check(cuda.cuMemPoolSetAccess(check(cuda.cuDeviceGetDefaultMemPool(device.number)), [access], 1))
        self.peers = True

    def which_copies_reach(self) -> Iterator[Row]:
        first, second = self.devices
        for target, source in itertools.product(("cuMemAlloc", "pool"), repeat=2):
            for form, device, kind in itertools.product(FORMS, self.devices, ("null", "non-blocking")):
                if kind != "null" and not form.endswith("Async"):
                    continue
                for owner, value, memory in ((first, 7, source), (second, 1, target)):
                    owner.enter()
                    check(cuda.cuMemsetD8(owner.memory[memory], value, BYTES))
                self.wait_for_all()
                device.enter()
                answer = self.copy(form, second.memory[target], first.memory[source], device.streams[kind])
                self.wait_for_all()
                check(cuda.cuMemcpyDtoH(ctypes.addressof(self.host), second.memory[target], BYTES))
                yield {"question": "which copies reach", "peers": self.peers, "call": form, "to": target,
                       "from": source, "stream": f"{kind} of device {device.number}", "answer": answer,
                       "copied": set(self.host) == {7}}

    def what_else_reaches(self) -> Iterator[Row]:
        first, second = self.devices
        for memory, theirs in second.memory.items():
            first.enter()
            host, own = ctypes.addressof(self.host), first.streams["non-blocking"]
            for name, given in {"cuMemsetD8": (theirs, 3), "cuMemsetD8Async": (theirs, 3),
                                "cuMemcpyHtoD": (theirs, host), "cuMemcpyHtoDAsync": (theirs, host),
                                "cuMemcpyDtoH": (host, theirs), "cuMemcpyDtoHAsync": (host, theirs)}.items():
                on = (own,) if name.endswith("Async") else ()
                answer = code(getattr(cuda, name)(*given, BYTES, *on))
                check(cuda.cuCtxSynchronize())
                yield {"question": "what else reaches", "peers": self.peers, "call": name, "to": memory,
                       "answer": answer}

    def copies_to_time(self) -> Iterator[tuple[str, cuda.CUstream, Callable[[], int]]]:
        first, second = self.devices
        ends = second.memory["cuMemAlloc"], first.memory["cuMemAlloc"]
        for form, (kind, stream) in itertools.product(FORMS, first.streams.items()):
            if kind == "null" or form.endswith("Async"):
                yield f"{form}, {kind}", stream, lambda form=form, stream=stream: self.copy(form, *ends, stream)
        null = first.streams["null"]
        yield ("cuMemcpyHtoDAsync of device 1's memory, null", null,
               lambda: code(cuda.cuMemcpyHtoDAsync(ends[0], self.pinned, BYTES, 0)))
        yield ("cuMemcpyDtoHAsync of device 1's memory, null", null,
               lambda: code(cuda.cuMemcpyDtoHAsync(self.pinned, ends[0], BYTES, 0)))
        yield ("cuMemcpyDtoDAsync inside device 1, null", null,
               lambda: code(cuda.cuMemcpyDtoDAsync(int(ends[0]) + BYTES // 2, ends[0], BYTES // 2, 0)))
        if self.peers:
            yield "cuMemsetD8Async of device 1's memory, null", null, lambda: code(
                cuda.cuMemsetD8Async(ends[0], 1, BYTES, 0))

    def what_copies_wait_for(self) -> Iterator[Row]:
        first = self.devices[0]
        for (name, stream, copy), device, kind in itertools.product(self.copies_to_time(), self.devices, KINDS):
            row = {"peers": self.peers, "call": name, "other": f"{kind} of device {device.number}"}
            self.wait_for_all()
            device.delay(device.streams[kind])
            first.enter()
            start = time.perf_counter()
            answer = copy()
            waits = first.time_until_done(stream, start) > DELAY / 2
            yield {"question": "what a copy waits for", **row, "answer": answer, "waits": waits}
            if device.streams[kind] is stream:
                continue
            self.wait_for_all()
            first.delay(stream)
            start = time.perf_counter()
            answer = copy()
            device.write(device.streams[kind])
            waits = device.time_until_done(device.streams[kind], start) > DELAY / 2
            yield {"question": "what waits for a copy", **row, "answer": answer, "waits": waits}
        self.wait_for_all()

    def what_captures_allow(self) -> Iterator[Row]:
        first, second = self.devices
        first.enter()
        p, q = first.memory["cuMemAlloc"], check(cuda.cuMemAlloc(BYTES))
        host, own = ctypes.addressof(self.host), first.streams["null"]
        check(cuda.cuEventRecord(first.event, own))
        calls: dict[str, Callable[[], tuple[Any, ...]]] = {
            "cuMemcpyHtoD": lambda: cuda.cuMemcpyHtoD(p, host, BYTES),
            "cuMemcpyDtoH": lambda: cuda.cuMemcpyDtoH(host, p, BYTES),
            "cuMemcpyDtoH, page-locked": lambda: cuda.cuMemcpyDtoH(self.pinned, p, BYTES),
            "cuMemcpyDtoD": lambda: cuda.cuMemcpyDtoD(q, p, BYTES),
            "cuMemcpy": lambda: cuda.cuMemcpy(q, p, BYTES),
            "cuMemcpyPeer": lambda: cuda.cuMemcpyPeer(second.memory["cuMemAlloc"], second.context, p, first.context,
                                                      BYTES),
            "cuMemsetD8": lambda: cuda.cuMemsetD8(p, 1, BYTES),
            "cuMemcpyDtoDAsync": lambda: cuda.cuMemcpyDtoDAsync(q, p, BYTES, own),
            "cuMemAllocAsync": lambda: cuda.cuMemAllocAsync(BYTES, own),
            "cuMemAlloc": lambda: cuda.cuMemAlloc(BYTES),
            "cuStreamQuery": lambda: cuda.cuStreamQuery(own),
            "cuEventQuery": lambda: cuda.cuEventQuery(first.event),
            "cuCtxSynchronize": lambda: cuda.cuCtxSynchronize(),
        }
        for flags, (name, call), mode in itertools.product((1, 0), calls.items(), cuda.CUstreamCaptureMode):
            self.wait_for_all()
            first.enter()
            stream = check(cuda.cuStreamCreate(flags))
            check(cuda.cuStreamBeginCapture(stream, mode))
            answer = code(call())
            end = code(cuda.cuStreamEndCapture(stream))
            yield {"question": "what captures allow", "stream": "non-blocking" if flags else "blocking",
                   "mode": mode.name.removeprefix("CU_STREAM_CAPTURE_MODE_").lower(), "call": name,
                   "answer": answer, "end": end}

    def copies_of_pageable_memory_in_a_capture(self) -> Iterator[Row]:
        first = self.devices[0]
        first.enter()
        p, host = first.memory["cuMemAlloc"], ctypes.addressof(self.host)
        for name, mode in itertools.product(("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"), cuda.CUstreamCaptureMode):
            stream = check(cuda.cuStreamCreate(1))
            check(cuda.cuStreamBeginCapture(stream, mode))
            ends = (p, host) if "HtoD" in name else (host, p)
            answer = code(getattr(cuda, name)(*ends, BYTES, stream))
            end = code(cuda.cuStreamEndCapture(stream))
            yield {"question": "copies of pageable memory in a capture", "call": name, "mode": int(mode),
                   "answer": answer, "end": end}

    def a_destroyed_stream(self) -> Iterator[Row]:
        first = self.devices[0]
        self.wait_for_all()
        first.enter()
        side, blocking, event = (check(cuda.cuStreamCreate(1)), check(cuda.cuStreamCreate(0)),
                                 check(cuda.cuEventCreate(2)))
        first.delay(side)
        start = time.perf_counter()
        check(cuda.cuEventRecord(event, side))
        check(cuda.cuStreamWaitEvent(blocking, event, 0))
        check(cuda.cuStreamDestroy(blocking))
        check(cuda.cuStreamCreate(1))
        first.write(first.streams["null"])
        waits = first.time_until_done(first.streams["null"], start) > DELAY / 2
        yield {"question": "whether the null stream comes after the wait of a destroyed stream", "waits": waits}
        self.wait_for_all()

    def all(self) -> Iterator[Row]:
        for _ in range(2):
            yield from self.which_copies_reach()
            yield from self.what_else_reaches()
            yield from self.what_copies_wait_for()
            if not self.peers:
                self.open_to_each_other()
        yield from self.what_captures_allow()
        yield from self.copies_of_pageable_memory_in_a_capture()
        yield from self.a_destroyed_stream()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    questions = Questions()
    print(describe_device(0), "driver", driver_version(), file=sys.stderr)
    rows = list(questions.all())
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["question"], []).append(row)
    for question, group in groups.items():
        print(f"\n{question}: {len(group)} cases")
        by_outcome: dict[str, list[str]] = {}
        for row in group:
            outcome = ", ".join(f"{name} {row[name]}" for name in ("answer", "end", "copied", "waits") if name in row)
            case = ", ".join(f"{value}" if name != "peers" else ("peers" if value else "no peers")
                             for name, value in row.items()
                             if name not in ("question", "answer", "end", "copied", "waits"))
            by_outcome.setdefault(outcome, []).append(case)
        for outcome, cases in by_outcome.items():
            print(f"  {outcome}: {len(cases)}")
            for case in cases:
                print(f"    {case}")


if __name__ == "__main__":
    main()
