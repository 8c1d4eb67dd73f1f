"""The simulated driver: CUDA's arrays, and the objects of textures and surfaces."""
from __future__ import annotations

import ctypes
import itertools

import pytest
from copy_shapes import ARRAY, HOST, planes, rows
from cuda.bindings import driver
from sim_support import alloc_ordinary, code, ok, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED = 1, 400, 801
U8, FLOAT = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8, driver.CUarray_format.CU_AD_FORMAT_FLOAT
LAYERED, SURFACE, CUBEMAP, GATHER, SPARSE = 1, 2, 4, 8, 64
KINDS = driver.CUresourcetype


def shape(width, height=0, depth=0, flags=0, channels=1, kind=U8):
    made = driver.CUDA_ARRAY3D_DESCRIPTOR()
    made.Width, made.Height, made.Depth, made.Flags = width, height, depth, flags
    made.NumChannels, made.Format = channels, kind
    return made


@pytest.fixture
def array(simulator):
    """Makes arrays, which are destroyed at the end."""
    made = []

    def make(*size, **more):
        made.append(ok(driver.cuArray3DCreate(shape(*size, **more))))
        return made[-1]

    yield make
    ok(driver.cuCtxSynchronize())
    for one in made:
        ok(driver.cuArrayDestroy(one))


def copy(simulator, parameters, on=None, call="cuMemcpy3D"):
    if on is None:
        return getattr(simulator._library, f"{call}_v2")(ctypes.byref(parameters))
    return getattr(simulator._library, f"{call}Async_v2")(ctypes.byref(parameters), ctypes.c_void_p(int(on)))


def to_array(array, host, **more):
    return planes(0, 0, **{"dstMemoryType": ARRAY, "dstArray": int(array), "srcMemoryType": HOST, "srcHost": host,
                           "srcPitch": 8, "srcHeight": 4, "WidthInBytes": 8, "Height": 4, "Depth": 3} | more)


def from_array(array, host, **more):
    return planes(0, 0, **{"srcMemoryType": ARRAY, "srcArray": int(array), "dstMemoryType": HOST, "dstHost": host,
                           "dstPitch": 8, "dstHeight": 4, "WidthInBytes": 8, "Height": 4, "Depth": 3} | more)


def test_the_bytes_of_an_array(simulator, array):
    """A part of an array, read back from the place that it was written to."""
    a, pattern = array(8, 4, 3), bytes(range(96))
    there, back = ctypes.create_string_buffer(pattern, 96), ctypes.create_string_buffer(96)
    assert copy(simulator, to_array(a, ctypes.addressof(there))) == 0
    assert copy(simulator, from_array(a, ctypes.addressof(back))) == 0
    assert back.raw == pattern
    part = {"srcXInBytes": 2, "srcY": 1, "srcZ": 1, "WidthInBytes": 3, "Height": 2, "Depth": 2}
    assert copy(simulator, from_array(a, ctypes.addressof(back), **part, dstPitch=3, dstHeight=2)) == 0
    assert back.raw[:12] == bytes(pattern[(z * 4 + y) * 8 + x] for z, y, x in itertools.product((1, 2), (1, 2),
                                                                                              (2, 3, 4)))


def test_rows_and_bytes_of_an_array(simulator, array):
    a, b, p = array(8, 4), array(32), alloc_ordinary(64)
    on, room = stream(), ctypes.create_string_buffer(bytes(range(32)), 32)
    ok(driver.cuMemcpyHtoA(b, 0, ctypes.addressof(room), 32))
    ok(driver.cuMemcpyAtoD(p, b, 4, 8))
    assert simulator.peek(p, 8) == bytes(range(4, 12))
    assert copy(simulator, rows(0, p, dstMemoryType=ARRAY, dstArray=int(a), dstXInBytes=4, dstY=1, srcPitch=4,
                                WidthInBytes=4, Height=2), on, "cuMemcpy2D") == 0
    sync(on)
    ok(driver.cuMemcpyDtoA(b, 0, p, 8))
    ok(driver.cuMemcpyAtoA(b, 24, b, 0, 8))
    ok(driver.cuMemcpyAtoHAsync(ctypes.addressof(room), b, 24, 8, on))
    sync(on)
    assert room.raw[:8] == bytes(range(4, 12))
    ok(driver.cuMemcpyAtoH(ctypes.addressof(room), a, 8, 24))
    assert room.raw[4:8] + room.raw[12:16] == bytes(range(4, 12))
    ok(driver.cuMemcpyHtoAAsync(b, 0, ctypes.addressof(room), 32, on))
    sync(on)
    assert code(driver.cuMemcpyHtoA(b, 1, ctypes.addressof(room), 32)) == INVALID_VALUE
    ok(driver.cuMemFree(p))


def test_what_an_array_is(array):
    made = array(8, 4, 6, flags=LAYERED | SURFACE, channels=2, kind=FLOAT)
    known = ok(driver.cuArray3DGetDescriptor(made))
    assert [known.Width, known.Height, known.Depth, known.Flags, known.NumChannels, known.Format] == [
        8, 4, 6, LAYERED | SURFACE, 2, FLOAT]
    assert ok(driver.cuArrayGetMemoryRequirements(made, 0)).size == 8 * 4 * 6 * 8
    flat = driver.CUDA_ARRAY_DESCRIPTOR()
    flat.Width, flat.Height, flat.Format, flat.NumChannels = 16, 2, U8, 4
    made = ok(driver.cuArrayCreate(flat))
    known = ok(driver.cuArrayGetDescriptor(made))
    assert [known.Width, known.Height, known.NumChannels] == [16, 2, 4]
    ok(driver.cuArrayDestroy(made))
    for refused in (driver.cuArrayDestroy(made), driver.cuArrayGetDescriptor(made), driver.cuArrayDestroy(0)):
        assert code(refused) == INVALID_HANDLE


@pytest.mark.parametrize(("wanted", "expected"), [
    (shape(0), 1), (shape(8, 0, 2), 1), (shape(8, 8, 0, LAYERED), 1), (shape(8, channels=3), 1),
    (shape(8, channels=0), 1), (shape(8, flags=1 << 20), 1), (shape(131073), 1), (shape(8, 65537), 1),
    (shape(8, 16385, 2), 1), (shape(8, 8, 2049, LAYERED), 1), (shape(8, 8, 6, CUBEMAP), 0),
    (shape(8, 4, 6, CUBEMAP), 1), (shape(8, 8, 5, CUBEMAP), 1), (shape(8, 8, 12, CUBEMAP | LAYERED), 0),
    (shape(8, 8, 13, CUBEMAP | LAYERED), 1), (shape(8, 8, 0, GATHER), 0), (shape(8, 0, 0, GATHER), 1),
    (shape(8, 0, 3, LAYERED), 0), (shape(8, 8, 0, SPARSE), NOT_SUPPORTED),
    (shape(8, 8, kind=driver.CUarray_format.CU_AD_FORMAT_NV12), NOT_SUPPORTED),
])
def test_which_arrays_there_are(simulator, wanted, expected):
    result = driver.cuArray3DCreate(wanted)
    assert code(result) == expected
    if not expected:
        ok(driver.cuArrayDestroy(result[1]))


@pytest.mark.parametrize(("more", "expected"), [
    ({}, 0), ({"dstXInBytes": 1}, 1), ({"dstY": 1}, 1), ({"dstZ": 1}, 1), ({"dstZ": 1, "Depth": 2}, 0),
    ({"dstArray": 5}, 1), ({"dstXInBytes": (1 << 64) - 1}, 1), ({"WidthInBytes": 9}, 1), ({"dstLOD": 1}, 1),
])
def test_which_parts_of_an_array_can_be_copied(simulator, array, more, expected):
    room = ctypes.create_string_buffer(512)
    assert copy(simulator, to_array(array(8, 4, 3), ctypes.addressof(room), **more)) == expected


@pytest.mark.parametrize("target", [True, False])
def test_copies_of_an_array_meet(simulator, array, target):
    """Both ends of a copy are accesses: the missing wait is found, and nothing where the second stream waits."""
    a, b, p = array(64), array(64), alloc_ordinary(64)
    on, other = stream(), stream()
    event = ok(driver.cuEventCreate(0))

    def copies(ordered):
        there = {"dstMemoryType": ARRAY, "dstArray": int(a)} if target else {"dstDevice": p}
        source = {"srcMemoryType": ARRAY, "srcArray": int(b if target else a)}
        whole = {"WidthInBytes": 64, "Height": 1, "Depth": 1}
        assert copy(simulator, planes(0, 0, **there, **source, **whole), on) == 0
        if ordered:
            ok(driver.cuEventRecord(event, on))
            ok(driver.cuStreamWaitEvent(other, event, 0))
        again = {"dstMemoryType": ARRAY, "dstArray": int(a), "srcDevice": p, "dstXInBytes": 8, "WidthInBytes": 8}
        assert copy(simulator, planes(0, 0, **whole | again), other) == 0
        reports = [report.split(":")[0] for report in simulator.races()]
        simulator.clear_races()
        ok(driver.cuCtxSynchronize())
        return reports

    if target:
        assert copies(ordered=False) == ["RACE write/write"]
    else:                                                   # the array is read and written, and so is the memory
        assert sorted(copies(ordered=False)) == ["RACE read/write", "RACE write/read"]
    assert copies(ordered=True) == []
    ok(driver.cuEventDestroy(event))
    ok(driver.cuMemFree(p))


def test_an_array_is_destroyed_while_it_is_used(simulator):
    """Nothing says whether the call waits for the copy."""
    a, p = ok(driver.cuArray3DCreate(shape(64))), alloc_ordinary(64)
    on = stream()
    whole = {"WidthInBytes": 64, "Height": 1, "Depth": 1}
    assert copy(simulator, planes(0, p, dstMemoryType=ARRAY, dstArray=int(a), **whole), on) == 0
    ok(driver.cuArrayDestroy(a))
    [report] = simulator.races()
    assert report.startswith("POSSIBLE RACE write/free: cuMemcpy3DAsync")
    simulator.clear_races()
    ok(driver.cuCtxSynchronize())
    a = ok(driver.cuArray3DCreate(shape(64)))
    assert copy(simulator, planes(0, p, dstMemoryType=ARRAY, dstArray=int(a), **whole), on) == 0
    sync(on)
    ok(driver.cuArrayDestroy(a))
    ok(driver.cuMemFree(p))
    assert simulator.races() == []


@pytest.mark.parametrize("policy", ["max", "min"])
def test_a_copy_is_done_before_its_array_is_destroyed(simulator, policy):
    """NVIDIA's drivers wait, though nothing says so: the race is possible, and the copy has the array's bytes."""
    simulator.set_policy(policy)
    levels = ok(driver.cuMipmappedArrayCreate(shape(64), 1))
    first = ok(driver.cuMipmappedArrayGetLevel(levels, 0))
    room, on = ok(driver.cuMemHostAlloc(64, 0)), stream()
    for a, destroy in ((ok(driver.cuArray3DCreate(shape(64))), driver.cuArrayDestroy),
                       (first, lambda _: driver.cuMipmappedArrayDestroy(levels))):
        ok(driver.cuMemcpyHtoA(a, 0, b"\7" * 64, 64))
        ok(driver.cuCtxSynchronize())
        ctypes.memset(room, 0, 64)
        ok(driver.cuMemcpyAtoHAsync(room, a, 0, 64, on))
        ok(destroy(a))
        sync(on)
        assert ctypes.string_at(room, 64) == b"\7" * 64
    assert {report.split(":")[0] for report in simulator.races()} == {"POSSIBLE RACE read/free"}
    simulator.clear_races()
    ok(driver.cuMemFreeHost(room))


def test_an_array_belongs_to_its_context(simulator):
    """The reset of a device ends its arrays."""
    made = ok(driver.cuArray3DCreate(shape(64)))
    levels = ok(driver.cuMipmappedArrayCreate(shape(8, 8), 2))
    ok(driver.cuDevicePrimaryCtxReset(0))
    assert code(driver.cuArrayDestroy(made)) == INVALID_HANDLE
    assert code(driver.cuMipmappedArrayDestroy(levels)) == INVALID_HANDLE
    assert simulator.live_bytes() == 0


def test_an_array_during_a_capture(simulator, array):
    a, on, room = array(64), stream(), ok(driver.cuMemHostAlloc(64, 0))
    ctypes.memset(room, 7, 64)
    ok(driver.cuStreamBeginCapture(on, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    ok(driver.cuMemcpyHtoAAsync(a, 0, room, 64, on))
    graph = ok(driver.cuStreamEndCapture(on))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(executable, on))
    sync(on)
    back = ctypes.create_string_buffer(64)
    ok(driver.cuMemcpyAtoH(ctypes.addressof(back), a, 0, 64))
    assert back.raw == b"\7" * 64
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuMemFreeHost(room))
    ok(driver.cuStreamBeginCapture(on, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert code(driver.cuArray3DCreate(shape(64))) == 900
    assert code(driver.cuStreamEndCapture(on)) == 901


def test_levels(simulator):
    made = ok(driver.cuMipmappedArrayCreate(shape(8, 4, 2), 10))
    levels = [ok(driver.cuMipmappedArrayGetLevel(made, level)) for level in range(4)]
    sizes = [ok(driver.cuArray3DGetDescriptor(level)) for level in levels]
    assert [(one.Width, one.Height, one.Depth) for one in sizes] == [(8, 4, 2), (4, 2, 1), (2, 1, 1), (1, 1, 1)]
    assert code(driver.cuMipmappedArrayGetLevel(made, 4)) == INVALID_VALUE
    assert code(driver.cuArrayDestroy(levels[0])) == INVALID_HANDLE
    assert ok(driver.cuMipmappedArrayGetMemoryRequirements(made, 0)).size == 4 * 512
    room = ctypes.create_string_buffer(b"ab", 2)
    ok(driver.cuMemcpyHtoA(levels[2], 0, ctypes.addressof(room), 2))
    ok(driver.cuMemcpyHtoA(levels[3], 0, ctypes.addressof(room), 1))
    ok(driver.cuMemcpyAtoH(ctypes.addressof(room), levels[2], 1, 1))
    assert room.raw == b"bb"
    layers = ok(driver.cuMipmappedArrayCreate(shape(4, 4, 3, LAYERED), 2))
    assert ok(driver.cuArray3DGetDescriptor(ok(driver.cuMipmappedArrayGetLevel(layers, 1)))).Depth == 3
    for one in (made, layers):
        ok(driver.cuMipmappedArrayDestroy(one))
        assert code(driver.cuMipmappedArrayDestroy(one)) == INVALID_HANDLE
    assert code(driver.cuArray3DGetDescriptor(levels[0])) == INVALID_HANDLE
    assert code(driver.cuMipmappedArrayCreate(shape(8), 0)) == INVALID_VALUE


# -- objects ----------------------------------------------------------------------------------------------------------


def of_array(array):
    made = driver.CUDA_RESOURCE_DESC()
    made.resType, made.res.array.hArray = KINDS.CU_RESOURCE_TYPE_ARRAY, array
    return made


def linear(address, size, channels=1):
    made = driver.CUDA_RESOURCE_DESC()
    made.resType = KINDS.CU_RESOURCE_TYPE_LINEAR
    part = made.res.linear
    part.devPtr, part.sizeInBytes, part.numChannels, part.format = address, size, channels, FLOAT
    return made


def pitched(address, width, height, pitch):
    made = driver.CUDA_RESOURCE_DESC()
    made.resType = KINDS.CU_RESOURCE_TYPE_PITCH2D
    part = made.res.pitch2D
    part.devPtr, part.width, part.height, part.pitchInBytes = address, width, height, pitch
    part.numChannels, part.format = 1, FLOAT
    return made


def test_an_object_is_what_was_given(array):
    a, texture = array(8, 4, flags=SURFACE), driver.CUDA_TEXTURE_DESC()
    texture.maxAnisotropy = 3
    made = ok(driver.cuTexObjectCreate(of_array(a), texture, None))
    assert int(ok(driver.cuTexObjectGetResourceDesc(made)).res.array.hArray) == int(a)
    assert ok(driver.cuTexObjectGetTextureDesc(made)).maxAnisotropy == 3
    assert code(driver.cuTexObjectGetResourceViewDesc(made)) == INVALID_VALUE
    view = driver.CUDA_RESOURCE_VIEW_DESC()
    view.width = 8
    viewed = ok(driver.cuTexObjectCreate(of_array(a), texture, view))
    assert ok(driver.cuTexObjectGetResourceViewDesc(viewed)).width == 8
    surface = ok(driver.cuSurfObjectCreate(of_array(a)))
    assert int(ok(driver.cuSurfObjectGetResourceDesc(surface)).res.array.hArray) == int(a)
    assert code(driver.cuTexObjectDestroy(int(surface))) == INVALID_VALUE
    for destroy, one in ((driver.cuTexObjectDestroy, made), (driver.cuTexObjectDestroy, viewed),
                         (driver.cuSurfObjectDestroy, surface)):
        ok(destroy(one))
        assert code(destroy(one)) == INVALID_VALUE


def test_which_objects_there_are(simulator, array):
    a, p, texture = array(8, 4), alloc_ordinary(4096), driver.CUDA_TEXTURE_DESC()
    p, levels = int(p), ok(driver.cuMipmappedArrayCreate(shape(8, 8), 2))
    mipmap = driver.CUDA_RESOURCE_DESC()
    mipmap.resType, mipmap.res.mipmap.hMipmappedArray = KINDS.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, levels
    for right in (of_array(a), mipmap, linear(p, 4096), linear(p + 512, 3584, 4), pitched(p, 8, 4, 32)):
        ok(driver.cuTexObjectDestroy(ok(driver.cuTexObjectCreate(right, texture, None))))
        assert code(driver.cuTexObjectCreate(right, None, None)) == INVALID_VALUE
        assert code(driver.cuSurfObjectCreate(right)) == INVALID_VALUE      # the array is none for surfaces
    for wrong in (of_array(driver.CUarray(5)), linear(p, 8192), linear(p + 4, 64), linear(p, 64, 3), linear(p, 0),
                  linear(5 << 40, 64), pitched(p, 8, 4, 16), pitched(p, 8, 4, 48), pitched(p, 0, 4, 32),
                  pitched(p, 8, 0, 32), pitched(p, 8, 4096, 32)):
        assert code(driver.cuTexObjectCreate(wrong, texture, None)) == INVALID_VALUE
    view = driver.CUDA_RESOURCE_VIEW_DESC()
    assert code(driver.cuTexObjectCreate(linear(p, 64), texture, view)) == INVALID_VALUE
    ok(driver.cuMipmappedArrayDestroy(levels))
    ok(driver.cuMemFree(p))
