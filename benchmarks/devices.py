"""What a use across two devices costs, beside the driver's calls alone:  python benchmarks/devices.py [--json FILE]

A kernel of one device reads memory of the other.  By hand, with cuda-bindings, that is an event recorded on the stream
that wrote, and a wait on the stream that reads; with xlogmem it is a `use`, first of a block that has just been written
on its own device (one record, one wait), then of one that the stream is ordered after already (neither).  Nothing is
launched: the figures are of the host, per turn, the median of several runs and the least, in one process and in turn.

Then buffers are copied from one device to the other, by `Buffer.copy_from` and by cuMemcpyPeerAsync alone: small ones,
for what a call costs, and large ones, for the bytes per second.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem._driver import device_count, device_name, driver_version
from xlogmem.sim.kernels import check


def measure(function: Callable[[], object], turns: int) -> float:
    """Nanoseconds of one call."""
    begin = time.perf_counter_ns()
    for _ in range(turns):
        function()
    return (time.perf_counter_ns() - begin) / turns


def candidates(streams: list[xlogmem.Stream], blocks: list[xlogmem.DeviceBlock]) -> dict[str, Callable[[], object]]:
    """By name; streams and blocks are of devices 0 and 1."""
    (S, T), (a, b), use = streams, blocks, xlogmem.use
    event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    source, target = cuda.CUstream(S.handle), cuda.CUstream(T.handle)

    def by_hand() -> None:
        cuda.cuEventRecord(event, source)
        cuda.cuStreamWaitEvent(target, event, 0)

    def write_then_read_elsewhere() -> None:
        with use(S, write=a):
            pass
        with use(T, read=a, write=b):
            pass

    def write_then_read_here() -> None:
        with use(S, write=a):
            pass
        with use(U, read=a):
            pass

    def read_again() -> None:
        with use(T, read=a, write=b):
            pass

    def read_again_elsewhere_alone() -> None:
        with use(T, read=a):
            pass

    def read_own() -> None:
        with use(T, read=b):
            pass

    U = a.stream.ordering and xlogmem.get_runtime(0).acquire_stream()
    return {"record and wait by hand, cuda-bindings": by_hand,
            "write, then read on another stream of the device": write_then_read_here,
            "write, then read on the other device": write_then_read_elsewhere,
            "read what is known, on the other device": read_again_elsewhere_alone,
            "the same, and write a block of its own": read_again,
            "read a block of its own device": read_own}


def copies(stream: xlogmem.Stream, nbytes: int, count: int, runs: int) -> dict[str, float]:
    """Seconds of one copy to the stream's device from device 0, the median, by name; `count` are queued at once."""
    source = xlogmem.get_device_state(0).empty(nbytes, "u1")
    target = xlogmem.get_device_state(1).empty(nbytes, "u1", stream)
    source.fill(1)
    target.fill(0, stream)
    contexts = [check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device_id)))) for device_id in (0, 1)]
    handle = cuda.CUstream(stream.handle)
    functions: dict[str, Callable[[], object]] = {
        "cuMemcpyPeerAsync": lambda: cuda.cuMemcpyPeerAsync(target.ptr, contexts[1], source.ptr, contexts[0], nbytes,
                                                            handle),
        "Buffer.copy_from": lambda: target.copy_from(source, stream)}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(runs):
        for name, function in functions.items():
            stream.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                function()
            stream.synchronize()
            times[name].append((time.perf_counter() - begin) / count)
    assert (target.to_numpy() == 1).all()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if device_count() < 2:
        print("needs two devices", file=sys.stderr)
        return 1
    runtimes = [xlogmem.get_runtime(device_id) for device_id in (0, 1)]
    for pair in ((0, 1), (1, 0)):
        xlogmem.enable_peer_access(*pair)
    streams = [runtime.acquire_stream() for runtime in runtimes]
    blocks = [runtime.allocate(4096, stream) for runtime, stream in zip(runtimes, streams, strict=True)]
    device = check(cuda.cuDeviceGet(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(device))))
    functions = candidates(streams, blocks)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        measure(function, options.turns // 10)
    for _ in range(options.runs):
        for name, function in functions.items():
            times[name].append(measure(function, options.turns))
            for runtime in runtimes:
                runtime.synchronize()
    base = statistics.median(times["record and wait by hand, cuda-bindings"])
    result = {"device": device_name(0), "driver": driver_version(), "simulated": xlogmem.is_simulated(),
              "turns": options.turns, "runs": options.runs,
              "ns": {name: {"median": statistics.median(values), "least": min(values)}
                     for name, values in times.items()}}
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:50} {median:9.0f} ns  {median / base:5.2f} x by hand   (least {min(values):.0f})")
    result["seconds of a copy"] = {}
    for nbytes, count in ((4096, 2000), (1 << (22 if xlogmem.is_simulated() else 28), 20)):
        seconds = copies(streams[1], nbytes, count, options.runs)
        result["seconds of a copy"][nbytes] = seconds
        print(f"{nbytes:,} bytes to the other device: " + ", ".join(
            f"{name} {taken * 1e6:.2f} us ({nbytes / taken / 1e9:.2f} GB/s)" for name, taken in seconds.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
