"""The simulated driver: copies in three dimensions, and memory with a pitch."""
from __future__ import annotations

import ctypes

import pytest
from copy_shapes import ARRAY, HOST, UNIFIED, planes
from cuda.bindings import driver
from sim_support import alloc, alloc_ordinary, code, fill, free, ok, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, UNSUPPORTED = 1, 900
SIZE = 512
CALLS = ["cuMemcpy3DAsync_v2", "cuMemcpy3D_v2", "cuMemcpy3DPeerAsync", "cuMemcpy3DPeer"]


def cube(target, source, **more):
    """Two planes of two rows of four bytes, to where planes have four rows, from where they have three."""
    return planes(target, source, **{"dstPitch": 16, "dstHeight": 4, "srcPitch": 8, "srcHeight": 3, "WidthInBytes": 4,
                                     "Height": 2, "Depth": 2} | more)


def copy(simulator, call, parameters, on):
    more = [ctypes.c_void_p(int(on))] if "Async" in call else []
    return getattr(simulator._library, call)(ctypes.byref(parameters), *more)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["device", "pageable", "page-locked"])
def test_planes_are_copied(simulator, call, where):
    a = stream()
    p, q = alloc_ordinary(SIZE), alloc_ordinary(SIZE)
    ok(driver.cuMemsetD8(p, 0, SIZE))
    pattern = bytes(range(64))
    pinned = ok(driver.cuMemHostAlloc(64, 0))
    room = ctypes.create_string_buffer(pattern, 64)
    host = ctypes.addressof(room) if where == "pageable" else int(pinned)
    ctypes.memmove(host, pattern, 64)
    ok(driver.cuMemcpyHtoD(q, host, 64))
    ok(driver.cuCtxSynchronize())
    given = (cube(p, q) if where == "device" else cube(p, 0, srcMemoryType=HOST, srcHost=host))
    given.dstXInBytes, given.dstY, given.dstZ, given.srcXInBytes, given.srcY, given.srcZ = 2, 1, 1, 3, 1, 0
    assert copy(simulator, call, given, a) == 0
    if where == "pageable":
        ctypes.memset(host, 0, 64)                              # the bytes are staged
    ok(driver.cuCtxSynchronize())
    found, wanted = simulator.peek(p, SIZE), bytearray(SIZE)
    for plane in range(2):
        for row in range(2):
            to, source = ((1 + plane) * 4 + 1 + row) * 16 + 2, (plane * 3 + 1 + row) * 8 + 3
            wanted[to:to + 4] = pattern[source:source + 4]
    assert found == bytes(wanted)
    back = cube(0, p, dstMemoryType=HOST, dstHost=host, dstPitch=0, dstHeight=2, srcMemoryType=UNIFIED, srcPitch=16,
                srcHeight=4, srcXInBytes=2, srcY=1, srcZ=1)
    assert copy(simulator, call, back, a) == 0
    sync(a)
    assert ctypes.string_at(host, 4) == wanted[82:86]
    ok(driver.cuMemFreeHost(pinned))


@pytest.mark.parametrize(("more", "expected"), [
    ({"WidthInBytes": 0}, 0), ({"Height": 0}, 0), ({"Depth": 0}, 0), ({"dstXInBytes": 12}, 0), ({"dstXInBytes": 13}, 1),
    ({"dstY": 2}, 0), ({"dstY": 3}, 1), ({"srcHeight": 1}, 1), ({"srcHeight": 0}, 1), ({"srcHeight": 0, "Depth": 1}, 0),
    ({"srcPitch": 3}, 1), ({"dstZ": 6}, 0), ({"dstZ": 7}, 1), ({"dstZ": 1 << 60}, 1), ({"dstPitch": 1 << 31}, 1),
    ({"Depth": 1 << 40}, 1), ({"dstLOD": 1}, 1), ({"srcMemoryType": ARRAY}, 1), ({"dstMemoryType": 5}, 1),
    ({"srcDevice": 16}, 1),
])
@pytest.mark.parametrize("call", CALLS[:3])
def test_which_planes_can_be_copied(simulator, call, more, expected):
    p, q = alloc_ordinary(SIZE), alloc_ordinary(SIZE)
    a = stream()
    assert copy(simulator, call, cube(p, q, **more), a) == expected
    assert getattr(simulator._library, call)(None, ctypes.c_void_p(int(a))) == INVALID_VALUE
    sync(a)


def test_a_capture(simulator):
    """It takes the form with a stream; the copy is done at each launch."""
    p, q = alloc_ordinary(SIZE), alloc_ordinary(SIZE)
    a = stream()
    fill(q, 5, a, SIZE)
    ok(driver.cuStreamBeginCapture(a, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert copy(simulator, "cuMemcpy3DAsync_v2", cube(p, q), a) == 0
    graph = ok(driver.cuStreamEndCapture(a))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(executable, a))
    sync(a)
    assert simulator.peek(p, 6) == b"\5\5\5\5\xcd\xcd"
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))


def test_which_planes_meet(simulator):
    """Rows without planes are known exactly. Of planes with gaps between them the first byte alone is certain."""
    a, b = stream(), stream()
    p, q = alloc(a, SIZE), alloc(a, SIZE)
    fill(q, 1, a, SIZE)
    sync(a)

    def found(first, second):
        assert copy(simulator, "cuMemcpy3DAsync_v2", cube(p, q, **first), a) == 0
        assert copy(simulator, "cuMemcpy3DAsync_v2", cube(p, q, **second), b) == 0
        reports = [report.split(":")[0] for report in simulator.races()]
        simulator.clear_races()
        ok(driver.cuCtxSynchronize())
        return reports

    whole = {"dstHeight": 2}
    assert found(whole, whole | {"dstXInBytes": 4}) == []
    assert found(whole, whole | {"dstXInBytes": 3}) == ["RACE write/write"]
    assert found({}, {"dstY": 2}) == ["POSSIBLE RACE write/write"]
    assert found({}, {}) == ["RACE write/write"]
    free(p, a)
    free(q, a)


@pytest.mark.parametrize(("width", "height", "element", "pitch"), [
    (1, 1, 4, 512), (512, 3, 8, 512), (513, 3, 16, 1024)])
def test_memory_with_a_pitch(simulator, width, height, element, pitch):
    p, made = ok(driver.cuMemAllocPitch(width, height, element))
    assert made == pitch
    ok(driver.cuMemsetD2D8(p, made, 1, width, height))
    assert code(driver.cuMemsetD8(p, 1, pitch * height + 1)) == INVALID_VALUE
    ok(driver.cuMemFree(p))


@pytest.mark.parametrize(("width", "height", "element"), [(0, 3, 4), (3, 0, 4), (8, 8, 1), (8, 8, 32), (1 << 40, 1, 4),
                                                          (8, 1 << 40, 4)])
def test_memory_with_a_pitch_that_there_is_not(simulator, width, height, element):
    assert code(driver.cuMemAllocPitch(width, height, element)) == INVALID_VALUE


def test_memory_with_a_pitch_during_a_capture(simulator):
    a = stream()
    ok(driver.cuStreamBeginCapture(a, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert code(driver.cuMemAllocPitch(64, 2, 4)) == UNSUPPORTED
    assert code(driver.cuStreamEndCapture(a)) == 901


