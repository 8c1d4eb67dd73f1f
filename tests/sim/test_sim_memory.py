"""The simulated driver: memory, pools and copies."""
from __future__ import annotations

import ctypes

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 1, 2, 201, 400, 600


def test_reuse_on_another_stream_needs_the_order(simulator):
    simulator.reset("min")
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    q = alloc(b)
    assert q != p  # the free has neither happened nor is it ordered before
    order(b, a)
    assert alloc(b) == p
    assert simulator.races() == []


def test_reuse_can_be_forbidden(simulator):
    simulator.reset("min")
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    follow = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
    ok(driver.cuMemPoolSetAttribute(pool, follow, driver.cuuint64_t(0)))
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    order(b, a)
    assert alloc(b) != p
    ok(driver.cuMemPoolSetAttribute(pool, follow, driver.cuuint64_t(1)))
    assert alloc(b) == p


def test_opportunistic_reuse(simulator):
    """A free that has happened frees the address for all streams, dependencies or not."""
    simulator.reset("eager")
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    assert alloc(b) == p
    assert simulator.races() == []


def test_last_freed_is_first_given(simulator):
    a = stream()
    blocks = [alloc(a) for _ in range(5)]
    for p in blocks:
        free(p, a)
    assert [alloc(a) for _ in range(5)] == blocks[::-1]


def test_poison(scheduled):
    a = stream()
    p = alloc(a)
    sync(a)
    assert scheduled.peek(p, 64) == b"\xcd" * 64
    free(p, a)
    sync(a)
    assert scheduled.peek(p, 64) == b"\xdd" * 64


def test_without_fills_memory_stays_as_it_was(simulator):
    """... until they are turned on again, or a reset does that."""
    a = stream()
    p = alloc(a)
    fill(p, 7, a, 64)
    for turn_on in (lambda: simulator.set_fills(True), simulator.reset):
        assert simulator.set_fills(False)
        for _ in range(2):
            free(p, a)
            assert alloc(a) == p
            sync(a)
            assert simulator.peek(p, 64) == b"\7" * 64
        assert not simulator.set_fills(False)
        turn_on()
        free(p, a)
        sync(a)
        assert simulator.peek(p, 64) == b"\xdd" * 64
        assert alloc(a) == p
        fill(p, 7, a, 64)


def test_live_bytes(simulator):
    before = simulator.live_bytes()
    p = alloc(0, 1000)
    assert simulator.live_bytes() == before + 1000
    free(p, 0)
    assert simulator.live_bytes() == before
    assert alloc(0, 0) == 0
    assert simulator.live_bytes() == before


def test_bad_addresses(simulator):
    a = stream()
    p = alloc(a)
    assert code(driver.cuMemsetD8Async(p + 32, 0, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemsetD8Async(p + (1 << 35), 0, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemFreeAsync(p + 8, a)) == INVALID_VALUE
    assert code(driver.cuMemcpyDtoDAsync(p, 0x7000, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemcpyAsync(p, 0x7000, 64, a)) == INVALID_VALUE
    free(p, a)
    assert code(driver.cuMemFreeAsync(p, a)) == INVALID_VALUE


def make_pool():
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    return ok(driver.cuMemPoolCreate(properties))


def test_pools(simulator):
    pool = make_pool()
    names = driver.CUmemPool_attribute

    def read(what):
        return int(ok(driver.cuMemPoolGetAttribute(pool, getattr(names, "CU_MEMPOOL_ATTR_" + what))))

    threshold = names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(2**64 - 1)))
    assert read("RELEASE_THRESHOLD") == 2**64 - 1
    a = stream()
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    assert read("USED_MEM_CURRENT") == read("RESERVED_MEM_CURRENT") == 1024
    free(p, a)
    sync(a)
    assert read("USED_MEM_CURRENT") == 0
    assert read("RESERVED_MEM_CURRENT") == 1024
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert read("RESERVED_MEM_CURRENT") == 0
    ok(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(0)))
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    free(p, a)
    sync(a)  # releases what is above the threshold
    assert read("RESERVED_MEM_CURRENT") == 0
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    ok(driver.cuMemPoolDestroy(pool))
    assert code(driver.cuMemAllocFromPoolAsync(1000, pool, a)) == INVALID_VALUE
    free(p, a)


def test_out_of_memory(simulator):
    total = int(ok(driver.cuDeviceTotalMem(0)))
    a = stream()
    assert cu.try_alloc(a, total + 1) == OUT_OF_MEMORY
    p = alloc(a, total // 2 + 1)
    assert cu.try_alloc(a, total // 2 + 1) == OUT_OF_MEMORY
    free(p, a)
    p = alloc(a, total // 4)  # what the pool holds unused does not count
    free(p, a)


def test_pageable_copies(scheduled):
    a = stream()
    p = alloc(a)
    source = ctypes.create_string_buffer(b"A" * 64, 64)
    ok(driver.cuMemcpyHtoDAsync(p, ctypes.addressof(source), 64, a))
    source.raw = b"B" * 64  # staged: no harm
    target = ctypes.create_string_buffer(64)
    ok(driver.cuMemcpyDtoHAsync(ctypes.addressof(target), p, 64, a))
    assert target.raw == b"A" * 64  # synchronous
    free(p, a)


def test_page_locked_copies_are_asynchronous(simulator):
    simulator.reset("min")
    a, out = stream(), cu.Pinned()
    p = alloc(a)
    fill(p, 1, a)
    out.read_from(p, a)
    assert out.bytes() == bytes(64)
    sync(a)
    assert out.bytes() == b"\x01" * 64
    out.close()


def test_pointer_attributes(simulator):
    p = alloc(0, 1000)
    names = driver.CUpointer_attribute
    start = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 10)
    assert int(ok(start)) == p
    ordinal = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p)
    assert int(ok(ordinal)) == 0
    free(p, 0)
    assert code(driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p)) == INVALID_VALUE


def test_registered_memory_has_a_number_of_its_own(simulator):
    memory = (ctypes.c_char * 4096)()
    address, numbers = ctypes.addressof(memory), set()
    for _ in range(3):
        ok(driver.cuMemHostRegister(address, 4096, 0))
        numbers.add(int(ok(driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                        address + 10))))
        ok(driver.cuMemHostUnregister(address))
    assert len(numbers) == 3
    assert 0 not in numbers


ROWS = [(driver.cuMemsetD2D8, driver.cuMemsetD2D8Async, 1, 16), (driver.cuMemsetD2D16, driver.cuMemsetD2D16Async, 2, 8),
        (driver.cuMemsetD2D32, driver.cuMemsetD2D32Async, 4, 4)]


@pytest.mark.parametrize(("on_the_default_stream", "on_a_stream", "size", "count"), ROWS)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_rows_are_filled_and_gaps_are_not(simulator, on_the_default_stream, on_a_stream, size, count, asynchronous):
    a = stream()
    p = alloc(a, 256)
    fill(p, 0, a, 256)
    sync(a)
    value = int.from_bytes(bytes(range(1, size + 1)), "little")
    if asynchronous:
        ok(on_a_stream(p, 64, value, count, 3, a))
    else:
        ok(on_the_default_stream(p, 64, value, count, 3))
        ok(driver.cuCtxSynchronize())
    sync(a)
    row = bytes(range(1, size + 1)) * count + bytes(48)
    assert simulator.peek(p, 256) == row * 3 + bytes(64)
    free(p, a)


@pytest.mark.parametrize(("arguments", "expected"), [
    ((0, 15, 16, 3), 1), ((0, 64, 16, 5), 1), ((0, 64, 65, 3), 1), ((0, 64, 0, 3), 0), ((0, 64, 16, 0), 0),
    ((0, 0, 256, 1), 0), ((240, 0, 16, 1), 0), ((241, 0, 16, 1), 1),
])
def test_which_rows_can_be_filled(simulator, arguments, expected):
    a = stream()
    p = alloc(a, 256)
    offset, pitch, width, height = arguments
    assert code(driver.cuMemsetD2D8Async(p + offset, pitch, 1, width, height, a)) == expected
    assert code(driver.cuMemsetD2D16Async(p + 1, 64, 1, 1, 1, a)) == 1
    assert code(driver.cuMemsetD2D32Async(p, 66, 1, 1, 2, a)) == 1
    free(p, a)


@pytest.mark.parametrize(("offset", "expected"), [(15, ["RACE write/write"]), (16, []), (127, []),
                                                  (128, ["RACE write/write"])])
def test_a_gap_between_rows_is_not_written(simulator, offset, expected):
    a, b = stream(), stream()
    p = alloc(a, 256)
    sync(a)
    ok(driver.cuMemsetD2D8Async(p, 64, 1, 16, 3, a))
    fill(p + offset, 2, b, 1)
    assert [report.split(":")[0] for report in simulator.races()] == expected
    sync(a)
    sync(b)
    free(p, b)


HOST, DEVICE, ARRAY, UNIFIED = (driver.CUmemorytype(number) for number in (1, 2, 3, 4))
PITCHES = 64, 48


def rows_of(target, source, target_type=DEVICE, source_type=DEVICE, x=8, y=1, width=16, height=3):
    """The rows begin at (x, y) of the target, whose pitch is 64, and at the source's beginning, whose pitch is 48."""
    c = driver.CUDA_MEMCPY2D()
    c.dstMemoryType, c.srcMemoryType = target_type, source_type
    if target_type == HOST:
        c.dstHost = target
    else:
        c.dstDevice = target
    if source_type == HOST:
        c.srcHost = source
    else:
        c.srcDevice = source
    c.dstPitch, c.srcPitch = PITCHES
    c.dstXInBytes, c.dstY, c.WidthInBytes, c.Height = x, y, width, height
    return c


def copied(source: bytes) -> bytes:
    rows = [bytes(8) + source[48 * row:48 * row + 16] + bytes(40) for row in range(3)]
    return bytes(64) + b"".join(rows)


@pytest.mark.parametrize("call", ["cuMemcpy2DAsync", "cuMemcpy2D", "cuMemcpy2DUnaligned"])
@pytest.mark.parametrize("where", ["device", "pageable", "page-locked"])
def test_rows_are_copied(simulator, call, where):
    a = stream()
    p, q = alloc(a, 256), alloc(a, 256)
    fill(p, 0, a, 256)
    pattern = bytes(range(256))
    pinned = ok(driver.cuMemHostAlloc(256, 0))
    room = ctypes.create_string_buffer(pattern, 256)
    host = ctypes.addressof(room) if where == "pageable" else int(pinned)
    ctypes.memmove(host, pattern, 256)
    ok(driver.cuMemcpyHtoDAsync(q, host, 256, a))
    sync(a)
    copy = rows_of(p, q) if where == "device" else rows_of(p, host, source_type=HOST)
    ok(driver.cuMemcpy2DAsync(copy, a) if "Async" in call else getattr(driver, call)(copy))
    if where == "pageable":
        ctypes.memset(host, 0, 256)                             # the bytes are staged
    ok(driver.cuCtxSynchronize())
    assert simulator.peek(p, 256) == copied(pattern)
    back = rows_of(host, p, HOST, UNIFIED, x=0, y=0)
    back.srcPitch, back.dstPitch, back.srcXInBytes, back.srcY = 64, 48, 8, 1
    ok(driver.cuMemcpy2DAsync(back, a))
    sync(a)
    assert [ctypes.string_at(host + 48 * row, 16) for row in range(3)] == [
        pattern[48 * row:48 * row + 16] for row in range(3)]
    ok(driver.cuMemFreeHost(pinned))
    free(p, a)
    free(q, a)


@pytest.mark.parametrize(("more", "expected"), [
    ({"width": 0}, 0), ({"height": 0}, 0), ({"x": 48}, 0), ({"x": 49}, 1), ({"y": 2}, 1), ({"target_type": ARRAY}, 1),
])
def test_which_rows_can_be_copied(simulator, more, expected):
    a = stream()
    p, q = alloc(a, 256), alloc(a, 256)
    fill(q, 1, a, 256)
    assert code(driver.cuMemcpy2DAsync(rows_of(p, q, **more), a)) == expected
    sync(a)
    free(p, a)
    free(q, a)


def test_copies_of_columns_side_by_side_do_not_meet(simulator):
    a, b = stream(), stream()
    p, q = alloc(a, 256), alloc(a, 256)
    fill(q, 1, a, 256)
    sync(a)
    for x, on in ((0, a), (16, b)):
        ok(driver.cuMemcpy2DAsync(rows_of(p, q, x=x), on))
    assert simulator.races() == []
    ok(driver.cuMemcpy2DAsync(rows_of(p, q, x=15), b))
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/write"]
    simulator.clear_races()
    ok(driver.cuCtxSynchronize())
    free(p, a)
    free(q, a)


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


PINNED, MANAGED, ON_DEVICE, ON_HOST = 1, 2, 1, 2


def test_pools_by_their_place(simulator):
    """CUDA 13's form, which older bindings do not have."""
    library, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()

    def call(name, place, kind=PINNED):
        return getattr(library, name)(ctypes.byref(found), ctypes.byref(place), kind)

    first, second, host = Location(ON_DEVICE, 0), Location(ON_DEVICE, 1), Location(ON_HOST, 0)
    for name in ("cuMemGetDefaultMemPool", "cuMemGetMemPool"):
        for place in (first, second):
            assert call(name, place) == 0
            assert found.value == int(ok(driver.cuDeviceGetDefaultMemPool(place.id)))
        assert call(name, host) == call(name, first, MANAGED) == 801            # not simulated
        assert call(name, Location(ON_DEVICE, 99)) == 101
        assert call(name, Location(77, 0)) == call(name, first, 77) == 1
    made = make_pool()
    assert library.cuMemSetMemPool(ctypes.byref(second), PINNED, ctypes.c_void_p(int(made))) == 1
    assert library.cuMemSetMemPool(ctypes.byref(first), PINNED, ctypes.c_void_p(int(made))) == 0
    assert call("cuMemGetMemPool", first) == 0
    assert found.value == int(made) == int(ok(driver.cuDeviceGetMemPool(0)))
    assert call("cuMemGetDefaultMemPool", first) == 0
    assert found.value != int(made)
    ok(driver.cuMemPoolDestroy(made))
    assert found.value == int(ok(driver.cuDeviceGetMemPool(0)))
