"""The simulated driver: copies in batches."""
from __future__ import annotations

import ctypes

import pytest
from copy_shapes import words
from cuda.bindings import driver
from sim_support import Pinned, alloc, alloc_ordinary, fill, free, launch_host, ok, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_HANDLE, UNSUPPORTED = 1, 400, 900
STREAM, DURING, ANY = 1, 2, 3                       # CUmemcpySrcAccessOrder
NOTHING_SPECIAL = 2**64 - 1


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = [("order", ctypes.c_int), ("places", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


def attributes(*orders, flags=0):
    return (Attributes * len(orders))(*[Attributes(order, flags=flags) for order in orders])


class Batch:
    """One of the two forms; `failed` is what the older one says."""

    def __init__(self, simulator, entry):
        self.entry, self.failed = entry, ctypes.c_uint64(77)
        self.function = getattr(simulator._library, entry)

    def __call__(self, targets, sources, sizes, on, orders=(STREAM,), firsts=(0,), count=None, attrs=None):
        lists = [None if one is None else words(*one) for one in (targets, sources, sizes)]
        number = ctypes.c_size_t(len(next(one for one in (targets, sources, sizes) if one is not None))
                                 if count is None else count)
        attrs = attributes(*orders) if attrs is None else attrs
        more = [ctypes.byref(self.failed)] if self.entry == "cuMemcpyBatchAsync" else []
        return self.function(*lists, number, attrs or None, words(*firsts) if firsts is not None else None,
                             ctypes.c_size_t(len(attrs)), *more, ctypes.c_void_p(int(on)))


@pytest.fixture(params=["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"])
def batch(request, simulator):
    return Batch(simulator, request.param)


def room(text=b"first"):
    """Memory of the host, and its address."""
    made = ctypes.create_string_buffer(text, 8)
    return made, ctypes.addressof(made)


@pytest.mark.parametrize("order", [STREAM, DURING, ANY])
def test_all_are_copied(simulator, batch, order):
    a, pinned = stream(), Pinned()
    p, q, r = alloc(a), alloc(a), alloc(a)
    _there, at = room()
    back, to = room(b"")
    ctypes.memmove(pinned.address, b"second", 6)
    fill(p, 7, a)
    assert batch([q, q + 8, q + 16, r], [p, at, pinned.address, p], [8, 8, 8, 8], a, (order,)) == 0
    assert batch([to, pinned.address + 8], [q + 8, q + 16], [8, 6], a) == 0
    sync(a)
    assert simulator.peek(q, 24) == b"\7" * 8 + b"first\0\0\0second\0\0"
    assert simulator.peek(r, 8) == b"\7" * 8
    assert back.value == b"first"
    assert pinned.bytes()[8:14] == b"second"
    assert simulator.races() == []
    pinned.close()


@pytest.mark.parametrize("where", ["pageable", "page-locked"])
@pytest.mark.parametrize(("order", "read"), [(STREAM, b"later"), (DURING, b"first"), (ANY, b"later")])
def test_when_a_source_on_the_host_is_read(simulator, batch, where, order, read):
    """During the call, or when the copy runs."""
    simulator.reset("min")
    a, pinned = stream(), Pinned()
    p = alloc(a)
    _there, at = room()
    at = at if where == "pageable" else pinned.address
    ctypes.memmove(at, b"first", 5)
    assert batch([p], [at], [5], a, (order,)) == 0
    ctypes.memmove(at, b"later", 5)
    sync(a)
    assert simulator.peek(p, 5) == read
    pinned.close()


def test_each_copy_has_its_own_attributes(simulator, batch):
    simulator.reset("min")
    a = stream()
    p = alloc(a)
    there, at = room()
    assert batch([p, p + 8, p + 16], [at] * 3, [5] * 3, a, (ANY, DURING), (0, 2)) == 0
    there.value = b"later"
    sync(a)
    assert simulator.peek(p, 24) == b"later\xcd\xcd\xcd" * 2 + b"first\xcd\xcd\xcd"


def test_memory_of_the_device_is_read_in_the_order_of_the_stream(scheduled):
    a = stream()
    p, q = alloc(a), alloc(a)
    fill(p, 1, a)
    assert Batch(scheduled, "cuMemcpyBatchAsync")([q], [p], [8], a, (DURING,)) == 0
    fill(p, 2, a)
    sync(a)
    assert scheduled.peek(q, 8) == b"\1" * 8
    assert scheduled.races() == []


GOOD = {"targets": [0, 8], "sources": [32, 40], "sizes": [8, 8], "orders": (STREAM,), "firsts": (0,)}


@pytest.mark.parametrize("wrong", [
    {"targets": None}, {"sources": None}, {"sizes": None}, {"count": 0}, {"orders": (), "firsts": None},
    {"firsts": None}, {"firsts": (1,)}, {"orders": (STREAM, ANY), "firsts": (0, 0)},
    {"orders": (STREAM, ANY), "firsts": (0, 2)}, {"orders": (STREAM,) * 3, "firsts": (0, 1, 2)}, {"orders": (0,)},
    {"orders": (4,)}, {"orders": (STREAM, 9), "firsts": (0, 1)}, {"attrs": attributes(STREAM, flags=2)},
])
def test_what_is_refused(simulator, batch, wrong):
    a = stream()
    p = alloc(a)
    given = GOOD | wrong
    for places in ("targets", "sources"):
        given[places] = given[places] and [p + at for at in given[places]]
    assert batch(**given, on=a) == INVALID_VALUE
    if batch.entry == "cuMemcpyBatchAsync":
        assert batch.failed.value == NOTHING_SPECIAL
    sync(a)
    assert simulator.peek(p, 64) == b"\xcd" * 64
    free(p, a)


def test_what_failed_is_said_and_nothing_is_copied(simulator):
    batch = Batch(simulator, "cuMemcpyBatchAsync")
    a = stream()
    p = alloc(a)
    for at, (target, source) in {1: (p, 16), 2: (16, p), 0: (p, p + (1 << 35))}.items():
        targets, sources = [p + 32] * 3, [p] * 3
        targets[at], sources[at] = target, source
        assert batch(targets, sources, [8] * 3, a) == INVALID_VALUE
        assert batch.failed.value == at
    assert batch([p + 32], [p], [8], a, attrs=attributes(STREAM, flags=1)) == 0
    assert batch.failed.value == NOTHING_SPECIAL
    sync(a)
    assert simulator.peek(p, 64) == b"\xcd" * 64


def test_streams(simulator, batch):
    """The legacy default stream is refused, the thread's own is not; a handle has to be a stream's."""
    p = alloc_ordinary()
    assert [batch([p], [p + 8], [8], on) for on in (0, 1, 2, 64)] == [INVALID_VALUE, INVALID_VALUE, 0, INVALID_HANDLE]
    ok(driver.cuCtxSynchronize())


def test_a_capture_refuses_a_batch_and_goes_on(simulator, batch):
    a = stream()
    p = alloc(a)
    ok(driver.cuStreamBeginCapture(a, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert batch([p], [p + 8], [8], a) == UNSUPPORTED
    fill(p, 1, a)
    graph = ok(driver.cuStreamEndCapture(a))
    assert ok(driver.cuGraphGetNodes(graph))[1] == 1
    ok(driver.cuGraphDestroy(graph))


def test_the_host_learns_nothing(simulator, batch):
    """Of work that was queued before, perhaps, where the batch reads pageable memory."""
    a, b = stream(), stream()
    p, q, r = alloc(a), alloc(a), alloc(a)
    sync(a)
    _there, at = room()
    fill(p, 1, a)
    assert batch([q], [r], [8], a) == 0
    fill(p, 2, b)
    assert [one[:8] for one in simulator.races()] == ["RACE wri"]
    simulator.clear_races()
    sync(a), sync(b)
    fill(p, 1, a)
    assert batch([q], [at], [8], a) == 0
    fill(p, 2, b)
    assert [one[:8] for one in simulator.races()] == ["POSSIBLE"]
    fill(q, 2, b)
    assert [one[:8] for one in simulator.races()] == ["POSSIBLE", "RACE wri"]
    simulator.clear_races()
    sync(a), sync(b)


def test_a_batch_behind_a_host_function_waits(simulator, batch):
    """It is work of the stream like any other."""
    a = stream()
    p, q = alloc(a), alloc(a)
    seen = []
    fill(p, 3, a)
    kept = launch_host(a, lambda: seen.append(simulator.peek(q, 8)))
    assert batch([q], [p], [8], a) == 0
    sync(a)
    assert seen == [b"\xcd" * 8]
    assert simulator.peek(q, 8) == b"\3" * 8
    assert kept
