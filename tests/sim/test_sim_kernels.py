"""The kernels that the simulated driver knows."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


def test_kernels_compute(scheduled):
    a = stream()
    x, y, result = alloc(a, 400), alloc(a, 400), alloc(a, 4)
    ok(cu.launch(cu.kernel("xlogmem_delay"), a, [1000], [U64]))
    ok(cu.launch(cu.kernel("xlogmem_fill_u32"), a, [x, 7, 100], [U64, U32, U32]))
    ok(cu.launch(cu.kernel("xlogmem_add_u32"), a, [x, 5, 50], [U64, U32, U32]))
    ok(cu.launch(cu.kernel("xlogmem_copy_u32"), a, [y, x, 100], [U64, U64, U32]))
    fill(result, 0, a, 4)
    count = cu.kernel("xlogmem_count_unequal_u32")
    ok(cu.launch(count, a, [result, y, 12, 100], [U64, U64, U32, U32]))
    ok(cu.launch(count, a, [result, y, 0, 100], [U64, U64, U32, U32]))
    sync(a)
    values = np.frombuffer(scheduled.peek(y, 400), np.uint32)
    assert values.tolist() == [12] * 50 + [7] * 50
    assert int.from_bytes(scheduled.peek(result, 4), "little") == 150
    assert scheduled.races() == []


@pytest.mark.parametrize("wrong", [False, True])
def test_kernels_are_checked(scheduled, wrong):
    a, b = stream(), stream()
    x, y = alloc(a), alloc(a)
    ok(cu.launch(cu.kernel("xlogmem_fill_u32"), a, [x, 7, 16], [U64, U32, U32]))
    if not wrong:
        order(b, a)
    ok(cu.launch(cu.kernel("xlogmem_copy_u32"), b, [y, x, 16], [U64, U64, U32]))
    kinds = {report.split(":")[0] for report in scheduled.races()}
    assert kinds == ({"RACE write/read", "RACE alloc/use"} if wrong else set())


@pytest.mark.parametrize("reached", [False, True])
def test_kernels_reach_all_memory_of_the_process_where_that_is_set(simulator, reached, capfd):
    """As with heterogeneous memory management; the driver still knows nothing of such memory."""
    room = np.zeros(16, np.uint32)
    address = room.ctypes.data
    assert not simulator.set_pageable(reached)
    done = cu.launch(cu.kernel("xlogmem_fill_u32"), stream(), [address, 7, 16], [U64, U32, U32])
    gone = cu.launch(cu.kernel("xlogmem_fill_u32"), 0, [4096, 7, 16], [U64, U32, U32])
    assert simulator.set_pageable(False) is reached
    assert (code(done), code(gone)) == (0 if reached else 1, 1)
    assert ("are not device memory" in capfd.readouterr().err.splitlines()[0]) or reached
    sync(0)
    assert set(room) == {7 if reached else 0}
    assert code(driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 1


def test_an_unknown_kernel_loads_and_is_refused(simulator, capfd):
    function = cu.kernel("unknown_to_the_simulator")
    assert code(cu.launch(function, 0, [0], [U64])) == 801
    assert "unknown_to_the_simulator" in capfd.readouterr().err


def test_bad_launches(simulator, capfd):
    fill_kernel = cu.kernel("xlogmem_fill_u32")
    p = alloc(0)
    assert code(cu.launch(fill_kernel, 0, [p, 1, 17], [U64, U32, U32])) == 1
    assert code(cu.launch(fill_kernel, 0, [p, 1, 16], [U64, U32, U32], grid=(0, 1, 1))) == 1
    module = ok(driver.cuModuleLoadData(cu.PTX))
    assert code(driver.cuModuleGetFunction(module, b"not_there")) == 500
    assert code(driver.cuModuleLoadData(b"neither PTX nor cubin\0")) == 200
    free(p, 0)


@pytest.mark.parametrize("axis", range(3))
def test_a_grid_and_a_block_have_limits(simulator, axis):
    """The driver's own figures, and one more."""
    attribute = driver.CUdevice_attribute
    device = ok(driver.cuDeviceGet(0))
    p, fill_kernel = alloc(0), cu.kernel("xlogmem_fill_u32")
    for what in ("grid", "block"):
        name = f"CU_DEVICE_ATTRIBUTE_MAX_{what.upper()}_DIM_{'XYZ'[axis]}"
        most = ok(driver.cuDeviceGetAttribute(getattr(attribute, name), device))
        for size in (most, most + 1):
            extent = [1, 1, 1]
            extent[axis] = size
            answer = code(cu.launch(fill_kernel, 0, [p, 1, 16], [U64, U32, U32], **{what: extent}))
            assert answer == (1 if size > most else 0), (what, size)
    threads = ok(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device))
    assert code(cu.launch(fill_kernel, 0, [p, 1, 16], [U64, U32, U32], block=(threads // 2, 2, 1))) == 0
    assert code(cu.launch(fill_kernel, 0, [p, 1, 16], [U64, U32, U32], block=(threads // 2, 3, 1))) == 1
    free(p, 0)


def test_libraries(simulator):
    library = ok(driver.cuLibraryLoadData(cu.PTX, [], [], 0, [], [], 0))
    function = ok(driver.cuKernelGetFunction(ok(driver.cuLibraryGetKernel(library, b"xlogmem_fill_u32"))))
    p = alloc(0)
    ok(cu.launch(function, 0, [p, 9, 16], [U64, U32, U32]))
    sync(0)
    assert simulator.peek(p, 4) == b"\x09\0\0\0"
    free(p, 0)
    ok(driver.cuLibraryUnload(library))


VARIABLES = b""".version 8.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .const .align 4 .b8 table[64];
.visible .global .attribute(.managed) .align 4 .b8 shared[8];
.visible .entry k() { ret; }
\0"""


@pytest.mark.parametrize("of", ["Module", "Library"])
def test_variables_of_a_module(simulator, of):
    """Each has memory of its own, with zeros, that is the same at each call and ends with the module."""
    def load():
        if of == "Module":
            return ok(driver.cuModuleLoadData(VARIABLES))
        return ok(driver.cuLibraryLoadData(VARIABLES, [], [], 0, [], [], 0))

    place, unload = getattr(driver, f"cu{of}GetGlobal"), getattr(driver, f"cu{of}Unload")
    one, other = load(), load()
    counter, nbytes = ok(place(one, b"counter"))
    table, more = ok(place(one, b"table"))
    assert (nbytes, more) == (4, 64)
    assert len({int(counter), int(table), int(ok(place(other, b"counter"))[0])}) == 3
    text = bytearray(b"-" * 64)
    ok(driver.cuMemcpyDtoH(text, table, 64))
    assert text == bytes(64)
    ok(driver.cuMemcpyHtoD(table, b"x" * 64, 64))
    ok(driver.cuMemcpyDtoH(text, ok(place(one, b"table"))[0], 64))
    assert text == b"x" * 64
    assert place(one, b"k")[0] == place(one, b"nothing")[0] == driver.CUresult.CUDA_ERROR_NOT_FOUND
    before = simulator.live_bytes()
    ok(unload(one))
    assert before - simulator.live_bytes() >= 68
    assert place(one, b"table")[0] != 0
    driver.cuMemcpyDtoH(text, table, 64)
    assert "USE-AFTER-FREE" in simulator.races()[0]
    simulator.clear_races()
    ok(unload(other))


def test_managed_variables_of_a_library(simulator):
    """The host reads and writes them, too; each is one for all devices, and ends with its library."""
    library = ok(driver.cuLibraryLoadData(VARIABLES, [], [], 0, [], [], 0))
    place, nbytes = ok(driver.cuLibraryGetManaged(library, b"shared"))
    words = (ctypes.c_char * nbytes).from_address(int(place))
    assert (nbytes, words.raw) == (8, bytes(8))
    words.raw = b"from us "
    text = bytearray(8)
    ok(driver.cuMemcpyDtoH(text, place, 8))
    assert text == b"from us "
    ok(driver.cuMemsetD8(place, 1, 8))
    ok(driver.cuCtxSynchronize())
    assert words.raw == b"\1" * 8
    assert int(ok(driver.cuLibraryGetGlobal(library, b"shared"))[0]) == int(place)
    assert ok(driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, place)) == 1
    not_found, invalid = driver.CUresult.CUDA_ERROR_NOT_FOUND, driver.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert driver.cuLibraryGetManaged(library, b"table")[0] == driver.cuLibraryGetManaged(library, b"k")[0] == not_found
    ok(driver.cuLibraryUnload(library))
    assert driver.cuLibraryGetManaged(library, b"shared")[0] == invalid
    assert driver.cuMemsetD8(place, 1, 8)[0] != 0


@pytest.mark.parametrize("name", [b"table", b"shared"])
def test_a_use_of_a_variable_is_watched(scheduled, name):
    """As of any memory: the stream that fills a table is waited for, or not."""
    module = ok(driver.cuModuleLoadData(VARIABLES))
    table, nbytes = ok(driver.cuModuleGetGlobal(module, name))
    one, other = (ok(driver.cuStreamCreate(1)) for _ in range(2))
    for ordered in (True, False):
        ok(driver.cuMemsetD8Async(table, 1, nbytes, one))
        if ordered:
            ok(driver.cuStreamSynchronize(one))
        ok(driver.cuMemsetD8Async(table, 2, nbytes, other))
        assert bool(scheduled.races()) == (not ordered)
        scheduled.clear_races()
        ok(driver.cuCtxSynchronize())
    ok(driver.cuModuleUnload(module))
    for queue in (one, other):
        ok(driver.cuStreamDestroy(queue))
