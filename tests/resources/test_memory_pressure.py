"""A small device that is used to the last byte."""
from __future__ import annotations

import random

import pytest
from cuda.bindings import driver as cuda
from stress import held_up, in_its_own_process

from xlogmem import (
    AsyncMemoryResource,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    sim,
)
from xlogmem.sim.kernels import check

RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


@pytest.mark.promise(214)
@pytest.mark.parametrize("resource", RESOURCES)
def test_the_figures_are_exact_at_every_step(resource):
    """Live, pending and outstanding follow each allocation, free and reap to the byte, also while the stream is held
    up."""
    own = DeviceRuntime(resource=resource())
    stream, other = own.acquire_stream(), own.acquire_stream()
    draw = random.Random(214)
    deferred = resource is AsyncMemoryResource          # frees of the other take effect at once
    blocks: list[DeviceBlock] = []
    live = pending = 0
    for step in range(200):
        if len(blocks) < 3 or draw.random() < 0.6:
            blocks.append(own.allocate(draw.randint(1, 1 << 16), draw.choice((stream, other))))
            live += blocks[-1].nbytes
        else:
            block = blocks.pop(draw.randrange(len(blocks)))
            live -= block.nbytes
            pending += block.nbytes * deferred
            block.free()
            del block
        assert (own.live_bytes, own.pending_bytes, own.bytes_outstanding) == (live, pending, live + pending), step
        if step % 50 == 49:
            own.reap_pending()
            pending = 0
    if deferred:
        blocks.append(own.allocate(12345, other))
        check(cuda.cuCtxSynchronize())
        with held_up(other):
            blocks.pop().free()
            own.reap_pending(blocking=False)
            assert (own.live_bytes, own.pending_bytes) == (live, 12345)
    blocks.clear()
    own.reap_pending()
    assert (own.live_bytes, own.pending_bytes, own.bytes_outstanding) == (0, 0, 0)


# One process with 64 MiB: what is allocated, refused, freed and reaped, with the figures after each step.
TO_THE_LAST_BYTE = """
import sys
import xlogmem
from xlogmem import sim
M = 1 << 20
kind = getattr(xlogmem, sys.argv[1])
deferred = kind is xlogmem.AsyncMemoryResource
runtime, other = (xlogmem.DeviceRuntime(resource=kind()) for _ in range(2))
S, T = runtime.acquire_stream(), runtime.acquire_stream()
def figures(live, pending, of=runtime):
    pending *= deferred
    seen = of.live_bytes, of.pending_bytes, of.bytes_outstanding
    assert seen == (live, pending, live + pending), (seen, live, pending)
def refused(nbytes, of=runtime):
    before = of.counters()["allocations"], of.counters()["live_blocks"]
    try:
        of.allocate(nbytes)
    except xlogmem.OutOfDeviceMemoryError as error:
        assert f"{nbytes} byte" in str(error), error
    else:
        raise SystemExit(f"{nbytes} bytes were allocated")
    assert (of.counters()["allocations"], of.counters()["live_blocks"]) == before
blocks = [runtime.allocate(M, (S, T)[number % 2]) for number in range(48)]
figures(48 * M, 0)
refused(17 * M)
figures(48 * M, 0)
for _ in range(8):
    blocks.pop().free(S)
figures(40 * M, 8 * M)
blocks.append(runtime.allocate(16 * M, T))                # there was room without the freed ones
figures(56 * M, 8 * M)
blocks.append(runtime.allocate(M, S))                     # one of the freed ones
figures(57 * M, 8 * M)
refused(8 * M)
figures(57 * M, 0)                                        # the frees were waited for before it was refused
blocks.append(runtime.allocate(7 * M, S))
figures(64 * M, 0)
for nbytes in (1, M, 1 << 40):
    refused(nbytes)
    refused(nbytes, other)
figures(64 * M, 0)
figures(0, 0, other)
blocks.pop(0).free()
theirs = other.allocate(M)
figures(63 * M, M)
figures(M, 0, other)
refused(1)
figures(63 * M, 0)
del theirs
blocks.clear()
other.reap_pending()
runtime.reap_pending()
figures(0, 0)
figures(0, 0, other)
assert runtime.counters()["allocations"] == runtime.counters()["frees"] == 51
assert sim.simulator().live_bytes() == 0 and not sim.simulator().races()
print("exact")
"""


@pytest.mark.simulator
@pytest.mark.promise(214)
@pytest.mark.parametrize("policy", sim.POLICIES)
@pytest.mark.parametrize("resource", ["AsyncMemoryResource", "DirectMemoryResource"])
def test_a_device_of_64_mib_is_used_to_the_last_byte(resource, policy):
    """Out of memory comes when it has to and not before; it names the requested size, changes nothing but what is
    pending, and the next free makes room, for another runtime too."""
    assert in_its_own_process(TO_THE_LAST_BYTE, resource, memory=64 << 20, policy=policy) == "exact\n"
