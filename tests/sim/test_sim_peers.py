"""Which device may touch whose memory: cuCtxEnablePeerAccess, and for pools cuMemPoolSetAccess."""

from __future__ import annotations

import ctypes

import pytest
import sim_support as cu
from cuda.bindings import driver
from places import HELPERS
from sim_support import (
    NONE,
    READ,
    READWRITE,
    alloc,
    code,
    default_pool,
    fill,
    free,
    launch,
    location,
    ok,
    set_access,
    stream,
    sync,
)

pytestmark = pytest.mark.simulator

INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, UNSUPPORTED = 1, 101, 201, 217
ILLEGAL_ADDRESS, ALREADY_ENABLED, NOT_ENABLED = 700, 704, 705


@pytest.fixture
def two(simulator):
    """Contexts of devices 0 and 1; device 1's is current, and no access is granted in either direction."""
    first = ok(driver.cuCtxGetCurrent())
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(second))
    yield first, second
    simulator.reset()  # ends a sticky error
    driver.cuCtxDisablePeerAccess(first)
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(1))
    set_access(default_pool(0), 1, NONE)


def get_access(pool, device):
    return int(ok(driver.cuMemPoolGetAccess(pool, location(device))))


def ordinary(context):
    """cuMemAlloc in a context that need not be the current one."""
    ok(driver.cuCtxPushCurrent(context))
    p = cu.alloc_ordinary()
    ok(driver.cuCtxPopCurrent())
    return p


def pooled(context):
    """Memory of the device's default pool, known to the host as allocated."""
    ok(driver.cuCtxPushCurrent(context))
    s = stream()
    p = alloc(s)
    sync(s)
    ok(driver.cuCtxPopCurrent())
    return p


def run_kernel(p, s):
    types = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
    return code(launch(cu.kernel("xlogmem_fill_u32"), s, (p, 7, 16), types))


MEMORY = {"ordinary": ordinary, "pooled": pooled}


def grant(kind, owner):
    if kind == "ordinary":
        ok(driver.cuCtxEnablePeerAccess(owner, 0))
    else:
        assert set_access(default_pool(0), 1, READWRITE) == 0


# Enabling and disabling ---------------------------------------------------------------------------------


def test_enable_and_disable(two):
    first, second = two
    assert code(driver.cuCtxDisablePeerAccess(first)) == NOT_ENABLED
    assert code(driver.cuCtxEnablePeerAccess(first, 0)) == 0
    assert code(driver.cuCtxEnablePeerAccess(first, 0)) == ALREADY_ENABLED
    assert code(driver.cuCtxDisablePeerAccess(first)) == 0
    assert code(driver.cuCtxDisablePeerAccess(first)) == NOT_ENABLED
    assert code(driver.cuCtxEnablePeerAccess(first, 1)) == INVALID_VALUE
    assert code(driver.cuCtxEnablePeerAccess(second, 0)) == INVALID_CONTEXT
    assert code(driver.cuCtxEnablePeerAccess(driver.CUcontext(12345), 0)) == INVALID_CONTEXT
    for error, name in ((ALREADY_ENABLED, b"ALREADY_ENABLED"), (NOT_ENABLED, b"NOT_ENABLED")):
        assert ok(driver.cuGetErrorName(driver.CUresult(error))) == b"CUDA_ERROR_PEER_ACCESS_" + name


def test_access_is_one_way(two):
    first, second = two
    ok(driver.cuCtxEnablePeerAccess(first, 0))
    mine, theirs = ordinary(second), ordinary(first)
    assert code(driver.cuMemsetD8(theirs, 1, 64)) == 0
    ok(driver.cuCtxPushCurrent(first))
    assert code(driver.cuMemsetD8(mine, 1, 64)) == INVALID_VALUE
    assert code(driver.cuMemsetD8(theirs, 1, 64)) == 0
    ok(driver.cuCtxPopCurrent())
    for p in (mine, theirs):
        ok(driver.cuMemFree(p))


def test_access_ends_with_the_other_context(simulator, two):
    """And has to be granted again when the device gets a new one."""
    _, second = two
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuCtxEnablePeerAccess(second, 0))
    ok(driver.cuDevicePrimaryCtxRelease(1))
    ok(driver.cuDevicePrimaryCtxRetain(1))
    assert code(driver.cuCtxDisablePeerAccess(second)) == NOT_ENABLED
    ok(driver.cuCtxPushCurrent(second))


def run(source, **environment):
    return cu.python("-c", source, PYTHONPATH=str(HELPERS), **environment)


@pytest.mark.parametrize(("setting", "expected"), [(0, "0 217 101"), (1, "1 0 0")])
def test_the_setting(setting, expected):
    done = run("import sim_support as cu; cu.install(); from cuda.bindings import driver; a = cu.retain(0);"
               "cu.retain(1);"
               "print(cu.ok(driver.cuDeviceCanAccessPeer(1, 0)), cu.code(driver.cuCtxEnablePeerAccess(a, 0)),"
               "      cu.set_access(cu.default_pool(0), 1, cu.READWRITE))", peers=setting)
    assert done.stdout == expected + "\n", done.stderr


def test_a_device_is_not_its_own_peer(simulator):
    assert ok(driver.cuDeviceCanAccessPeer(0, 0)) == 0
    assert ok(driver.cuDeviceCanAccessPeer(0, 1)) == 1


# The access of pools ------------------------------------------------------------------------------------


def test_pool_access_can_be_queried(two):
    pool = default_pool(0)
    assert [get_access(pool, device) for device in (0, 1)] == [3, 0]
    for flags in (READ, READWRITE, NONE):
        assert set_access(pool, 1, flags) == 0
        assert get_access(pool, 1) == int(flags)
    assert get_access(default_pool(1), 0) == 0


def test_the_own_devices_access_cannot_be_revoked(two):
    pool = default_pool(0)
    assert set_access(pool, 0, READWRITE) == 0
    assert set_access(pool, 0, NONE) == set_access(pool, 0, READ) == INVALID_VALUE
    assert get_access(pool, 0) == 3


def test_a_wrong_entry_refuses_the_whole_list(two):
    good, bad = driver.CUmemAccessDesc(), driver.CUmemAccessDesc()
    good.location, good.flags = location(1), READWRITE
    bad.location, bad.flags = location(7), READWRITE
    assert code(driver.cuMemPoolSetAccess(default_pool(0), [good, bad], 2)) == INVALID_DEVICE
    assert get_access(default_pool(0), 1) == 0
    assert code(driver.cuMemPoolGetAccess(default_pool(0), location(7))) == INVALID_DEVICE


def test_read_access_is_not_write_access(two):
    first, second = two
    p, mine = pooled(first), ordinary(second)
    set_access(default_pool(0), 1, READ)
    assert code(driver.cuMemcpyDtoD(mine, p, 64)) == 0
    assert code(driver.cuMemcpyDtoD(p, mine, 64)) == INVALID_VALUE
    set_access(default_pool(0), 1, READWRITE)
    assert code(driver.cuMemcpyDtoD(p, mine, 64)) == 0
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(mine))


# Copies, fills and kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("granted", [False, True])
@pytest.mark.parametrize("kind", MEMORY)
def test_copies_and_fills(simulator, two, kind, granted):
    """As two H200s answer: a fill needs access, and a copy of pool memory; a copy of cuMemAlloc's memory needs none."""
    first, second = two
    p, mine, s = MEMORY[kind](first), ordinary(second), stream()
    if granted:
        grant(kind, first)
    host = bytearray(64)
    fills = [lambda: driver.cuMemsetD8Async(p, 1, 64, s), lambda: driver.cuMemsetD32(p, 1, 16)]
    copies = [lambda: driver.cuMemcpyDtoDAsync(mine, p, 64, s), lambda: driver.cuMemcpyDtoD(p, mine, 64),
              lambda: driver.cuMemcpyAsync(p, mine, 64, s), lambda: driver.cuMemcpyHtoD(p, bytes(64), 64),
              lambda: driver.cuMemcpyDtoH(host, p, 64)]
    for calls, reaches in ((fills, granted), (copies, granted or kind == "ordinary")):
        for call in calls:
            assert code(call()) == (0 if reaches else INVALID_VALUE)
            ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(mine))
    assert simulator.races() == []


COPIES = {
    "cuMemcpy": lambda to, source, contexts, s: driver.cuMemcpy(to, source, 64),
    "cuMemcpyAsync": lambda to, source, contexts, s: driver.cuMemcpyAsync(to, source, 64, s),
    "cuMemcpyDtoD": lambda to, source, contexts, s: driver.cuMemcpyDtoD(to, source, 64),
    "cuMemcpyDtoDAsync": lambda to, source, contexts, s: driver.cuMemcpyDtoDAsync(to, source, 64, s),
    "cuMemcpyPeer": lambda to, source, contexts, s: driver.cuMemcpyPeer(to, contexts[1], source, contexts[0], 64),
    "cuMemcpyPeerAsync":
        lambda to, source, contexts, s: driver.cuMemcpyPeerAsync(to, contexts[1], source, contexts[0], 64, s),
}
STREAMS = {"default": lambda: driver.CUstream(0), "blocking": lambda: stream(0), "bare": lambda: stream(1)}


class Copying:
    """Memory of two devices, a stream of one of them, and a copy from device 0 to device 1 with device 1 current."""

    def __init__(self, contexts, copy, device, kind):
        self.contexts, self.device = contexts, device
        self.copy = COPIES[copy]
        self.memory = [ordinary(context) for context in contexts]
        ok(driver.cuCtxPushCurrent(contexts[device]))
        self.stream = STREAMS[kind]()
        ok(driver.cuCtxPopCurrent())

    def run_copy(self, s=0):
        ok(self.copy(self.memory[1], self.memory[0], self.contexts, s))

    def fill(self, value):
        ok(driver.cuCtxPushCurrent(self.contexts[self.device]))
        fill(self.memory[self.device], value, self.stream)
        ok(driver.cuCtxPopCurrent())

    def end(self):
        for context in self.contexts:
            ok(driver.cuCtxPushCurrent(context))
            ok(driver.cuCtxSynchronize())
            ok(driver.cuCtxPopCurrent())
        for p in self.memory:
            ok(driver.cuMemFree(p))


def is_ordered(simulator, kind):
    """True if the stream is one that is ordered with the default stream; there is one race exactly if it is not."""
    assert len(simulator.races()) == (kind == "bare")
    simulator.clear_races()
    return kind != "bare"


@pytest.mark.parametrize("policy", ["eager", "min", "max"])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_in_the_default_stream_waits_for_both_devices(simulator, two, copy, device, kind, policy):
    """For their default and blocking streams, as on two H200s."""
    simulator.reset(policy)
    copying = Copying(two, copy, device, kind)
    copying.fill(5)
    copying.run_copy()
    ok(driver.cuCtxSynchronize())
    if is_ordered(simulator, kind) and device == 0:
        assert simulator.peek(copying.memory[1], 64) == b"\x05" * 64
    copying.end()


@pytest.mark.parametrize("policy", ["eager", "min", "max"])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("copy", COPIES)
def test_both_devices_wait_for_a_copy_in_the_default_stream(simulator, two, copy, device, kind, policy):
    simulator.reset(policy)
    copying = Copying(two, copy, device, kind)
    copying.run_copy()
    copying.fill(5)
    ok(driver.cuStreamSynchronize(copying.stream))
    ok(driver.cuCtxSynchronize())
    if is_ordered(simulator, kind):
        assert (simulator.peek(copying.memory[1], 64) == b"\x05" * 64) == (device == 1)
    copying.end()


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("own", ["blocking", "bare"])
@pytest.mark.parametrize("copy", [name for name in COPIES if name.endswith("Async")])
def test_a_copy_in_a_stream_waits_for_no_other_device(simulator, two, copy, own, kind):
    copying = Copying(two, copy, 0, kind)
    copying.fill(5)
    copying.run_copy(STREAMS[own]())
    assert len(simulator.races()) == 1
    simulator.clear_races()
    copying.end()


@pytest.mark.parametrize("kind", STREAMS)
def test_a_fill_of_the_other_devices_memory_waits_for_its_own_device(simulator, two, kind):
    """A copy with the host does not: it is ordered with the device that has the memory."""
    ok(driver.cuCtxEnablePeerAccess(two[0], 0))
    copying = Copying(two, "cuMemcpy", 0, kind)
    copying.fill(5)
    fill(copying.memory[0], 6, 0)
    assert len(simulator.races()) == 1
    simulator.clear_races()
    copying.end()
    copying = Copying(two, "cuMemcpy", 0, kind)
    copying.fill(5)
    ok(driver.cuMemcpyDtoH(bytearray(64), copying.memory[0], 64))
    is_ordered(simulator, kind)
    copying.end()


@pytest.mark.parametrize("kind", MEMORY)
def test_the_one_grant_does_not_replace_the_other(two, kind):
    first, _ = two
    p, s = MEMORY[kind](first), stream()
    grant("pooled" if kind == "ordinary" else "ordinary", first)
    assert code(driver.cuMemsetD8Async(p, 1, 64, s)) == INVALID_VALUE
    grant(kind, first)
    assert code(driver.cuMemsetD8Async(p, 1, 64, s)) == 0
    sync(s)


@pytest.mark.parametrize("kind", MEMORY)
def test_a_peer_copy_needs_no_grant(simulator, two, kind):
    first, second = two
    p, mine, s = MEMORY[kind](first), ordinary(second), stream()
    fill(mine, 9, s)
    ok(driver.cuMemcpyPeerAsync(p, first, mine, second, 64, s))
    sync(s)
    assert simulator.peek(p, 64) == b"\x09" * 64
    ok(driver.cuMemFree(mine))


@pytest.mark.parametrize("granted", [False, True])
@pytest.mark.parametrize("kind", MEMORY)
@pytest.mark.parametrize("policy", ["eager", "min", "max", "seeded"])
def test_a_kernel_without_access_crashes(simulator, two, policy, kind, granted):
    """The launch succeeds; the wait for it fails, and every call from then on."""
    simulator.reset(policy)
    first, _ = two
    p, s = MEMORY[kind](first), stream()
    before = simulator.peek(p, 64)
    if granted:
        grant(kind, first)
    assert run_kernel(p, s) == 0
    expected = 0 if granted else ILLEGAL_ADDRESS
    assert code(driver.cuStreamSynchronize(s)) == expected
    assert code(driver.cuMemAllocAsync(0, s)) == code(driver.cuStreamQuery(s)) == expected
    assert simulator.peek(p, 64) == (b"\x07\x00\x00\x00" * 16 if granted else before)


@pytest.mark.parametrize("revoked", [False, True])
def test_what_counts_is_the_access_when_the_kernel_runs(simulator, two, revoked):
    simulator.reset("min")
    first, _ = two
    p, s = ordinary(first), stream()
    ok(driver.cuCtxEnablePeerAccess(first, 0))
    assert run_kernel(p, s) == 0
    if revoked:
        ok(driver.cuCtxDisablePeerAccess(first))
    assert code(driver.cuStreamSynchronize(s)) == (ILLEGAL_ADDRESS if revoked else 0)


def test_freeing_is_not_an_access(two):
    first, _ = two
    p, s = pooled(first), stream()
    free(p, s)
    sync(s)
