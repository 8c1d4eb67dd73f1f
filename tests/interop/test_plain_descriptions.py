"""Descriptions in plain integers take a short way, which answers as the thorough one does: each array is described
twice."""
from __future__ import annotations

import math
import random
from collections import Counter, UserDict
from typing import Any

import pytest
from arrays import Array
from capsules import Producer, settle
from cuda.bindings import driver as cuda
from stale import reason

from xlogmem import DeviceState, StreamMisuseError, from_cuda_array, from_dlpack, use
from xlogmem.interop.buffers import mark_lost
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NUMBERS = (0, 1, 2, 3, 7, 8, 64, -1, -4, -8, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63))
DTYPES = {"|u1": 1, "<i2": 2, "<f4": 4, "<f8": 8, "<c16": 16}


class Number(int):
    """An integer that is not an ``int`` itself."""


def extents(draw: random.Random, most: int) -> tuple[int, ...]:
    return tuple(draw.choice(NUMBERS) if draw.random() < .1 else draw.randrange(most)
                 for _ in range(draw.randrange(4)))


def interfaces(draw: random.Random, memory: int) -> dict[str, Any]:
    shape = extents(draw, 6)
    said: dict[str, Any] = {
        "version": draw.choice((3, 3, 2, 0, 4, -1)), "shape": shape, "stream": 1,
        "typestr": draw.choice((*DTYPES, *DTYPES, ">f4", "<f", "<V0", "<f4 ", "<é4", "<M8[ns]")),
        "data": (draw.choice((memory, memory + 2048, memory + 2, 0, -8, 1 << 63, (1 << 64) - 1)), draw.random() < .5)}
    if draw.random() < .7:
        steps = 1 if draw.random() < .2 else DTYPES.get(said["typestr"], 4)
        said["strides"] = tuple(draw.choice(NUMBERS) if draw.random() < .1 else draw.randrange(-8, 9) * steps
                                for _ in range(len(shape) + (draw.random() < .05)))
    if draw.random() < .05:
        del said[draw.choice(("version", "shape", "typestr", "data"))]
    if draw.random() < .05:
        said["mask"] = draw.choice((None, 5))
    return said


def outcome(call: Any) -> Any:
    """What the call gives, or the error, without the type of the dictionary."""
    try:
        return call()
    except (ValueError, TypeError, BufferError, StreamMisuseError) as error:
        return type(error), str(error)


def layout_of(buffer: Any) -> Any:
    block = buffer.access()
    return (buffer.ptr, buffer.shape, buffer.strides, buffer.dtype, buffer.readonly, buffer.itemsize, buffer.size,
            (block.ptr, block.nbytes) if block is not None else None)


def unlike(said: dict[str, Any], how: str) -> Any:
    """The same interface, which the short way does not take."""
    if how == "mapping":
        return UserDict(said)
    return {key: tuple(map(Number, value)) if key in ("shape", "strides") and value else value
            for key, value in said.items()} | {"typestr": type("Text", (str,), {})(said["typestr"])}


@pytest.mark.parametrize("how", ["mapping", "numbers"])
def test_an_import_by_the_cuda_array_interface(state: DeviceState, memory, how):
    draw, seen = random.Random(how), Counter[bool]()
    for _ in range(1500):
        said = interfaces(draw, memory)
        if how == "numbers" and "typestr" not in said:
            continue
        plain, thorough = (outcome(lambda given=given: layout_of(from_cuda_array(Given(given), state=state)))
                           for given in (said, unlike(said, how)))
        assert plain == thorough, said
        seen[len(plain) > 2] += 1
        state.runtime.reap_pending()
    assert min(seen.values()) > 200
    assert len(seen) == 2


class Given:
    def __init__(self, said: Any) -> None:
        self.__cuda_array_interface__ = said


def test_what_an_adoption_reads(state: DeviceState, memory):
    draw, seen = random.Random(1), Counter[bool]()

    def adopted(given: Any) -> Any:
        with state.runtime.adopt(Given(given), stream=1) as block:
            return block.ptr, block.nbytes, 0

    for _ in range(1500):
        said = interfaces(draw, memory)
        plain, thorough = (outcome(lambda given=given: adopted(given)) for given in (said, UserDict(said)))
        assert plain == thorough, said
        seen[len(plain) > 2] += 1
    assert min(seen.values()) > 200
    assert len(seen) == 2


def test_what_a_use_reads(state: DeviceState, memory):
    """And that a launch does not write what says that it is read-only."""
    draw, seen = random.Random(3), Counter[str]()
    stream = state.runtime.default_stream

    def used(given: Any) -> Any:
        with use(stream, write=Given(given)) as recorder:
            return recorder.recorded_count

    with state.runtime.adopt(memory, 4096, stream=1):
        for _ in range(1500):
            said = interfaces(draw, memory)
            plain, thorough = (outcome(lambda given=given: used(given)) for given in (said, UserDict(said)))
            assert plain == thorough, said
            seen["taken" if plain == 1 else "read-only" if "read-only" in str(plain) else "other"] += 1
    assert min(seen.values()) > 60
    assert len(seen) == 3


def expected(ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> Any:
    """The layout of a tensor, by Python's integers; None: it is refused."""
    if any(extent < 0 for extent in shape):
        return None
    size = math.prod(shape)
    if strides is None:
        steps: tuple[int, ...] = ()
        stride = itemsize
        for extent in reversed(shape):
            steps, stride = (stride, *steps), stride * max(1, extent)
    else:
        steps = tuple(stride * itemsize for stride in strides)
    if size == 0:
        return 0, shape, steps, 0, None
    reaches = [(extent - 1) * step for extent, step in zip(shape, steps, strict=True)]
    low = ptr + sum(reach for reach in reaches if reach < 0)
    high = ptr + sum(reach for reach in reaches if reach > 0) + itemsize
    return ptr, shape, steps, size, (low, high - low)


def test_an_import_by_dlpack(state: DeviceState, memory):
    draw, seen = random.Random(2), Counter[bool]()
    for _ in range(3000):
        itemsize, code = draw.choice(((1, 1), (2, 0), (4, 2), (8, 0), (16, 5)))
        shape = extents(draw, 6)
        strides = None if draw.random() < .3 else tuple(
            draw.choice(NUMBERS) if draw.random() < .1 else draw.randrange(-8, 9) for _ in shape)
        offset = draw.choice((0, 0, 16, 2, (1 << 64) - 1))
        data = draw.choice((memory, memory + 2048, memory + 2, 8, 0))
        producer = Producer(data, shape, strides, version=(1, 0), flags=draw.randrange(2), code=code,
                            bits=8 * itemsize, byte_offset=offset)
        wanted = expected(data + offset, shape, strides, itemsize)
        if wanted is not None and wanted[4] is not None:
            low, nbytes = wanted[4]
            if (not memory <= low < low + nbytes <= memory + 4096 or (data + offset) % itemsize or data % itemsize
                    or wanted[3] * itemsize >= 1 << 63):
                wanted = None
        try:
            buffer = from_dlpack(producer, stream=state.runtime.default_stream, state=state)
        except BufferError:
            producer.forget()
            assert wanted is None, (shape, strides, offset)
            seen[False] += 1
            continue
        got = layout_of(buffer)
        assert (*got[:3], got[6], got[7]) == wanted
        assert got[4] == bool(producer.managed.flags & 1)
        seen[True] += 1
        del buffer
        state.runtime.reap_pending()
        settle()
    assert min(seen.values()) > 300
    assert len(seen) == 2


def test_every_import_looks_at_the_device_as_it_is(state: DeviceState, driver, memory):
    """The snapshot of the last import is used again only while it is true."""
    def imported() -> Any:
        return from_cuda_array(Array(data=(memory, False), stream=1), state=state)

    def refused() -> str:
        before = driver.all_calls()
        text = reason(imported)
        assert driver.all_calls() == before             # nothing was adopted before it was seen
        return text

    assert [imported().epoch, imported().epoch] == [0, 0]
    mark_lost(state.runtime)                            # as a failed call does: the state has yet to notice
    assert refused() == "context lost"
    state.recover()
    assert [imported().epoch, imported().epoch] == [2, 2]
    state.begin_shutdown()
    assert refused() == "device shutting down"
    state.runtime.reap_pending()


PAGE = 2 << 20


@pytest.mark.parametrize(("mapped", "nbytes"), [(1, PAGE), (2, 2 * PAGE), (1, PAGE + 1), (2, 3 * PAGE)])
def test_reserved_addresses_are_looked_at_to_the_end(state: DeviceState, driver, mapped, nbytes):
    """Memory may end before the reserved addresses do, which is all that the driver says of them."""
    space = int(check(cuda.cuMemAddressReserve(4 * PAGE, 0, 0, 0)))
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access = cuda.CUmemAccessDesc()
    access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handles = [check(cuda.cuMemCreate(PAGE, properties, 0)) for _ in range(mapped)]
    for page, handle in enumerate(handles):
        check(cuda.cuMemMap(space + page * PAGE, PAGE, 0, handle, 0))
    check(cuda.cuMemSetAccess(space, mapped * PAGE, [access], 1))
    before = Counter(driver.all_calls())["cuPointerGetAttributes"]
    try:
        got = outcome(lambda: from_cuda_array(Array(data=(space, False), shape=(nbytes,), stream=1),
                                              state=state).nbytes)
        assert Counter(driver.all_calls())["cuPointerGetAttributes"] == before + 2
        if nbytes > mapped * PAGE:
            assert got[0] is BufferError
            assert "nor page-locked" in got[1]
        else:
            assert got == nbytes
    finally:
        state.runtime.reap_pending()
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemUnmap(space, mapped * PAGE))
        for handle in handles:
            check(cuda.cuMemRelease(handle))
        check(cuda.cuMemAddressFree(space, 4 * PAGE))


@pytest.mark.parametrize("pool", [False, True])
def test_an_allocation_is_looked_at_once(state: DeviceState, driver, pool):
    """It is memory to its end, or the driver says where it ends."""
    memory = int(check(cuda.cuMemAllocAsync(4096, 0) if pool else cuda.cuMemAlloc(4096)))
    before = Counter(driver.all_calls())["cuPointerGetAttributes"]
    assert from_cuda_array(Array(data=(memory, False), shape=(4096,), stream=1), state=state).nbytes == 4096
    assert Counter(driver.all_calls())["cuPointerGetAttributes"] == before + 1
    with pytest.raises(BufferError, match="nor page-locked"):
        from_cuda_array(Array(data=(memory, False), shape=(4097,), stream=1), state=state)
    state.runtime.reap_pending()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(memory))
