"""Whether the driver survives that memory pools are destroyed while frees into them are pending:
python benchmarks/pool_destroy.py [--seconds N] [--json FILE]

cuMemPoolDestroy may be called then, its documentation says, and returns at once. Here nothing but driver calls are
made: a pool is made, memory of it allocated, written behind a delay, freed, and the pool destroyed, at once or after
the device was synchronized; on one device, and where there are two, with an event of the other that the stream waits
for. Each case runs in a process of its own, which may crash or hang. No assertion: it reports, and a driver may be
right.

Drivers that are not are why xlogmem destroys its pools when nothing is pending in them (xlogmem/driver/pools.pxi).
"""
from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import time

from cuda.bindings import driver as cuda

from xlogmem._driver import device_count, device_name, driver_version, initialize
from xlogmem.sim.kernels import Kernels, check

GRACE = 10                                  # seconds without a turn, which take a hang's place
CASES = {f"{pool}, {devices}": (pool, devices) for devices in ("one device", "two devices")
         for pool in ("destroyed at once", "destroyed when all is complete")}


class Device:
    """A device, its context and kernels, and a stream on which work is late."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device_id))))
        with self:
            self.kernels = Kernels()
            self.late = check(cuda.cuStreamCreate(1))
            self.done = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self.properties = cuda.CUmemPoolProps()
        self.properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.properties.location.id = device_id

    def __enter__(self) -> Device:
        check(cuda.cuCtxPushCurrent(self.context))
        return self

    def __exit__(self, *_: object) -> None:
        check(cuda.cuCtxPopCurrent())

    def synchronize(self) -> None:
        with self:
            check(cuda.cuCtxSynchronize())


def turn(device: Device, other: Device, rng: random.Random) -> tuple[Device, cuda.CUmemoryPool]:
    """A pool with a free that is pending behind late work of the other device."""
    with other:
        other.kernels.delay(int(other.late), rng.choice([5_000, 20_000, 80_000]))
        check(cuda.cuEventRecord(other.done, other.late))
    with device:
        pool = check(cuda.cuMemPoolCreate(device.properties))
        stream = check(cuda.cuStreamCreate(1))
        address = check(cuda.cuMemAllocFromPoolAsync(1024, pool, stream))
        check(cuda.cuStreamWaitEvent(stream, other.done, 0))
        device.kernels.fill(int(stream), int(address), 1, 256)
        check(cuda.cuMemFreeAsync(address, stream))
        check(cuda.cuStreamDestroy(stream))
    return device, pool


def play(case: str, seconds: float) -> None:
    """In the process of one case: a line for each hundred turns."""
    initialize()
    pool, devices = CASES[case]
    both = [Device(device_id) for device_id in range(2 if devices == "two devices" else 1)]
    rng = random.Random(1)
    waiting: collections.deque[tuple[Device, cuda.CUmemoryPool]] = collections.deque()
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        waiting.append(turn(both[count % len(both)], both[-1 - count % len(both)], rng))
        count += 1
        if pool != "destroyed at once" and count % 20:
            continue
        if pool != "destroyed at once" or rng.random() < .05:
            for device in both:
                device.synchronize()
        while waiting:
            check(cuda.cuMemPoolDestroy(waiting.popleft()[1]))
        if count % 100 == 0:
            print(count, flush=True)
    for device in both:
        device.synchronize()
    print("done", count, flush=True)


def watch(case: str, seconds: float) -> dict[str, object]:
    """What became of a case."""
    child = subprocess.Popen([sys.executable, __file__, "--case", case, "--seconds", str(seconds)],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        output, _ = child.communicate(timeout=seconds + GRACE)
        ended = "right" if child.returncode == 0 else f"ended with {child.returncode}"
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
        ended = "hangs"
    words = output.split()
    return {"case": case, "ended": ended, "turns": int(words[-1]) if words else 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        play(options.case, options.seconds)
        return 0
    initialize()
    rows = [watch(case, options.seconds) for case in CASES if device_count() > 1 or "two" not in case]
    for row in rows:
        print(f"{row['case']:50} {row['ended']} after {row['turns']:,} turns")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": device_name(0), "driver": driver_version(), "cases": rows,
                       "commit": os.environ.get("XLOGMEM_COMMIT")}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
