"""The simulated driver: where managed memory is to be."""
from __future__ import annotations

import ctypes

import pytest
from cuda.bindings import driver
from sim_support import alloc_ordinary, fill, ok, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE, UNSUPPORTED = 1, 101, 400, 900
CPU, NONE = -1, -2
MANY = 1 << 16
READ_MOSTLY, PREFERRED, ACCESSED_BY, PREFETCHED, PREFERRED_TYPE = range(1, 6)          # CUmem_range_attribute
SET, UNSET = {READ_MOSTLY: 1, PREFERRED: 3, ACCESSED_BY: 5}, {READ_MOSTLY: 2, PREFERRED: 4, ACCESSED_BY: 6}
GLOBAL, HOST_ONLY, SINGLE = 1, 2, 4


class Place(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


def size(number):
    return ctypes.c_size_t(number)


def address_of(number):
    return ctypes.c_uint64(int(number))


class Calls:
    def __init__(self, simulator):
        self.library = simulator._library

    def prefetch(self, p, nbytes, where, on):
        return self.library.cuMemPrefetchAsync(address_of(p), size(nbytes), where, ctypes.c_void_p(int(on)))

    def prefetch_to(self, p, nbytes, place, on, flags=0):
        return self.library.cuMemPrefetchAsync_v2(address_of(p), size(nbytes), place, flags, ctypes.c_void_p(int(on)))

    def advise(self, p, nbytes, advice, where=0):
        return self.library.cuMemAdvise(address_of(p), size(nbytes), advice, where)

    def advise_place(self, p, nbytes, advice, place):
        return self.library.cuMemAdvise_v2(address_of(p), size(nbytes), advice, place)

    def attribute(self, p, nbytes, attribute, count=1):
        found = (ctypes.c_int * 4)()
        result = self.library.cuMemRangeGetAttribute(found, size(4 * count), attribute, address_of(p), size(nbytes))
        return result or list(found)[:count]

    def attach(self, on, p, nbytes, flags):
        return self.library.cuStreamAttachMemAsync(ctypes.c_void_p(int(on)), address_of(p), size(nbytes), flags)


@pytest.fixture
def calls(simulator):
    return Calls(simulator)


@pytest.fixture
def m(simulator):
    made = ok(driver.cuMemAllocManaged(MANY, 1))
    yield int(made)
    driver.cuMemFree(made)


def test_what_was_requested_is_known(calls, m):
    a = stream()
    assert [calls.attribute(m, MANY, one) for one in range(1, 9)] == [
        [0], [NONE], [NONE], [NONE], [0], [NONE], [0], [NONE]]
    for advice in SET.values():
        assert calls.advise(m, MANY, advice, 0) == 0
    assert calls.prefetch(m, MANY, 0, a) == 0
    assert [calls.attribute(m, MANY, one) for one in range(1, 9)] == [[1], [0], [0], [0], [1], [0], [1], [0]]
    assert calls.prefetch(m, MANY, CPU, a) == calls.advise(m, MANY, SET[PREFERRED], CPU) == 0
    assert calls.advise(m, MANY, SET[ACCESSED_BY], CPU) == calls.advise(m, MANY, SET[ACCESSED_BY], CPU) == 0
    assert [calls.attribute(m, MANY, one) for one in (PREFERRED, PREFETCHED, PREFERRED_TYPE)] == [[CPU], [CPU], [2]]
    assert calls.attribute(m, MANY, ACCESSED_BY, 3) == [0, CPU, NONE]
    for what, advice in UNSET.items():
        assert calls.advise(m, MANY, advice, 0) == 0, what
    assert [calls.attribute(m, MANY, one) for one in (READ_MOSTLY, PREFERRED)] == [[0], [NONE]]
    assert calls.attribute(m, MANY, ACCESSED_BY, 2) == [CPU, NONE]
    sync(a)


def test_a_part_of_memory(calls, m):
    """Whole pages; a range has what all of its pages have."""
    assert calls.advise(m + 5000, 10, SET[READ_MOSTLY]) == 0
    assert [calls.attribute(m + at, nbytes, READ_MOSTLY) for at, nbytes in (
        (4096, 4096), (5000, 8), (4095, 4), (8192, 1), (0, 4096), (0, MANY))] == [[1], [1], [0], [0], [0], [0]]


def test_memory_at_the_same_address_later(calls):
    for _ in range(3):
        p = int(ok(driver.cuMemAllocManaged(MANY, 1)))
        assert calls.attribute(p, MANY, READ_MOSTLY) == [0]
        assert calls.advise(p, MANY, SET[READ_MOSTLY]) == 0
        ok(driver.cuMemFree(p))
        assert calls.attribute(p, MANY, READ_MOSTLY) == INVALID_VALUE


def test_several_attributes(calls, m):
    data, kinds = [(ctypes.c_int * 2)() for _ in range(2)], (ctypes.c_int * 2)(READ_MOSTLY, ACCESSED_BY)
    places = (ctypes.c_void_p * 2)(*map(ctypes.addressof, data))
    assert calls.advise(m, MANY, SET[ACCESSED_BY], 0) == 0

    def query(count, *sizes):
        return calls.library.cuMemRangeGetAttributes(places, (ctypes.c_size_t * 2)(*sizes), kinds, size(count),
                                                     address_of(m), size(MANY))

    assert query(2, 4, 8) == 0
    assert [data[0][0], *data[1]] == [0, 0, NONE]
    assert [query(0, 4, 8), query(2, 8, 8), query(2, 4, 7)] == [INVALID_VALUE] * 3


def test_which_memory(calls, m):
    """Managed memory alone, and all of a range has to be of one allocation."""
    a, p = stream(), alloc_ordinary()
    room = ctypes.create_string_buffer(64)
    for at, nbytes in ((p, 64), (ctypes.addressof(room), 64), (m, 0), (m, MANY + 1), (m + 1, MANY), (0, 64)):
        assert calls.prefetch(at, nbytes, 0, a) == INVALID_VALUE
        assert calls.advise(at, nbytes, 1) == INVALID_VALUE
        assert calls.attribute(at, nbytes, 1) == INVALID_VALUE
    assert [calls.attribute(m, MANY, one) for one in (0, 9)] == [INVALID_VALUE] * 2
    assert calls.attribute(m, MANY, READ_MOSTLY, 2) == INVALID_VALUE


@pytest.mark.parametrize(("place", "prefetched", "advised"), [
    ((1, 0), 0, 0), ((1, 77), INVALID_DEVICE, INVALID_DEVICE), ((1, -2), INVALID_DEVICE, INVALID_DEVICE),
    ((2, 9), 0, 0), ((3, 0), 0, INVALID_VALUE), ((3, 99), INVALID_VALUE, INVALID_VALUE), ((4, 9), 0, INVALID_VALUE),
    ((0, 0), INVALID_VALUE, INVALID_VALUE), ((9, 0), INVALID_VALUE, INVALID_VALUE),
])
def test_which_places(calls, m, place, prefetched, advised):
    a = stream()
    assert calls.prefetch_to(m, 64, Place(*place), a) == prefetched
    assert calls.advise_place(m, 64, SET[PREFERRED], Place(*place)) == prefetched
    assert calls.advise_place(m, 64, SET[ACCESSED_BY], Place(*place)) == advised
    assert calls.advise_place(m, 64, SET[READ_MOSTLY], Place(*place)) == 0
    assert calls.prefetch_to(m, 64, Place(1, 0), a, flags=1) == INVALID_VALUE
    assert calls.prefetch(m, 64, 77, a) == INVALID_DEVICE
    assert [calls.advise(m, 64, advice) for advice in (0, 7)] == [INVALID_VALUE] * 2
    sync(a)


def test_which_attachments(calls, m):
    a, p = stream(), alloc_ordinary()
    for flags in (GLOBAL, HOST_ONLY, SINGLE):
        assert calls.attach(a, m, 0, flags) == calls.attach(a, m, MANY, flags) == 0
    assert [calls.attach(a, m, 0, flags) for flags in (0, 3, 8)] == [INVALID_VALUE] * 3
    assert [calls.attach(a, m, 64, 1), calls.attach(a, p, 0, 1), calls.attach(64, m, 0, 1)] == [1, 1, INVALID_HANDLE]
    assert [calls.attach(on, m, 0, SINGLE) for on in (0, 1, 2)] == [INVALID_VALUE, INVALID_VALUE, 0]
    ok(driver.cuCtxSynchronize())


@pytest.mark.parametrize("call", [lambda calls, m, a: calls.prefetch(m, MANY, 0, a),
                                  lambda calls, m, a: calls.attach(a, m, 0, GLOBAL)], ids=["prefetch", "attach"])
def test_a_stream_operation_that_touches_no_byte(simulator, calls, m, call):
    """It accesses nothing. The default stream orders it with the blocking streams as any other. A capture ends."""
    a, b, p = stream(0), stream(0), stream()
    fill(m, 1, a, MANY)
    assert call(calls, m, p) == 0
    assert simulator.races() == []
    assert call(calls, m, 0) == 0
    fill(m, 2, b, MANY)
    assert simulator.races() == []
    ok(driver.cuCtxSynchronize())
    ok(driver.cuStreamBeginCapture(p, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert call(calls, m, p) == UNSUPPORTED
    assert int(driver.cuStreamEndCapture(p)[0]) == 901
