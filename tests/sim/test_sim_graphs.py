"""The simulated driver: graphs that were not captured, updates, and what graphs keep alive."""
from __future__ import annotations

import ctypes
import mmap

import pytest
from cuda.bindings import driver
from sim_support import HOST_FUNCTION, alloc, code, fill, free, ok, stream, sync

pytestmark = pytest.mark.simulator
RELAXED = driver.CUstreamCaptureMode(2)
INVALID_VALUE, ILLEGAL_STATE, ILLEGAL_ADDRESS, UPDATE_FAILURE = 1, 401, 700, 910
MOVE = 1


def captured(s, *fills):
    ok(driver.cuStreamBeginCapture(s, RELAXED))
    for p, value in fills:
        fill(p, value, s)
    return ok(driver.cuStreamEndCapture(s))


def with_parameters(graph):
    parameters = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    execution = ok(driver.cuGraphInstantiateWithParams(graph, parameters))
    assert int(parameters.result_out) == 0
    return execution


@pytest.mark.parametrize("instantiate", [lambda graph: ok(driver.cuGraphInstantiate(graph, 0)), with_parameters])
@pytest.mark.parametrize("created", [True, False])
def test_an_empty_graph_does_nothing(simulator, instantiate, created):
    a = stream()
    graph = ok(driver.cuGraphCreate(0)) if created else captured(a)
    execution = instantiate(graph)
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuGraphUpload(execution, a))
    ok(driver.cuGraphLaunch(execution, a))
    sync(a)
    ok(driver.cuGraphExecDestroy(execution))
    assert code(driver.cuGraphUpload(execution, a)) == INVALID_VALUE


def test_how_many_nodes_a_graph_has(simulator):
    a = stream()
    p = alloc(a)
    graph = captured(a, (p, 1), (p, 2))
    assert driver.cuGraphGetNodes(graph)[2] == 2
    assert len({int(one) for one in driver.cuGraphGetNodes(graph, 2)[1]}) == 2
    assert code(driver.cuGraphGetNodes(driver.CUgraph(0))) == INVALID_VALUE
    ok(driver.cuGraphDestroy(graph))
    free(p, a)


def test_a_graph_that_is_being_captured_can_only_be_seen(simulator):
    a = stream()
    ok(driver.cuStreamBeginCapture(a, RELAXED))
    graph = ok(driver.cuStreamGetCaptureInfo(a))[2]
    assert code(driver.cuGraphInstantiate(graph, 0)) == INVALID_VALUE
    assert code(driver.cuGraphDestroy(graph)) == ILLEGAL_STATE         # as seen on an H200
    assert int(ok(driver.cuStreamEndCapture(a))) == int(graph)
    ok(driver.cuGraphDestroy(graph))


def test_an_update_replaces_the_work(simulator):
    a = stream()
    p, q = alloc(a), alloc(a)
    execution = ok(driver.cuGraphInstantiate(captured(a, (p, 1)), 0))
    ok(driver.cuGraphExecUpdate(execution, captured(a, (q, 2))))
    assert code(driver.cuGraphExecUpdate(execution, captured(a, (p, 3), (q, 3)))) == UPDATE_FAILURE  # other nodes
    ok(driver.cuGraphLaunch(execution, a))
    sync(a)
    assert (simulator.peek(p, 64), simulator.peek(q, 64)) == (b"\xcd" * 64, b"\x02" * 64)
    free(p, a)
    free(q, a)


def mapped(nbytes):
    """Pageable memory, and what gives it back."""
    memory = mmap.mmap(-1, nbytes)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory.close


def page_locked(nbytes):
    address = int(ok(driver.cuMemHostAlloc(nbytes, 0)))
    return address, lambda: ok(driver.cuMemFreeHost(address))


def registered(nbytes):
    memory = (ctypes.c_char * nbytes)()
    ok(driver.cuMemHostRegister(ctypes.addressof(memory), nbytes, 0))
    return ctypes.addressof(memory), lambda: memory and ok(driver.cuMemHostUnregister(ctypes.addressof(memory)))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("memory", [mapped, page_locked, registered])
@pytest.mark.parametrize("nbytes", [64, 64 << 20])
def test_a_graph_reads_host_memory_at_each_launch(simulator, memory, nbytes, kept):
    """Memory that the program has released is an illegal address, as on a GPU, and not the end of the process."""
    a = stream()
    p = alloc(a, nbytes)
    address, release = memory(nbytes)
    ok(driver.cuStreamBeginCapture(a, RELAXED))
    ok(driver.cuMemcpyHtoDAsync(p, address, nbytes, a))
    execution = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(a)), 0))
    ctypes.memset(address, 7, nbytes)
    if not kept:
        release()
    ok(driver.cuGraphLaunch(execution, a))
    assert code(driver.cuStreamSynchronize(a)) == (0 if kept else ILLEGAL_ADDRESS)
    if kept:
        assert simulator.peek(p, nbytes) == b"\x07" * nbytes
        release()
        free(p, a)


class Objects:
    """User objects, by the numbers with which their destructors are called."""

    def __init__(self):
        self.ended = []
        self.function = HOST_FUNCTION(self.ended.append)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def make(self, number, count=1):
        return ok(driver.cuUserObjectCreate(driver.CUdeviceptr(number), driver.CUhostFn(self.address), count, 1))


@pytest.fixture
def objects(simulator):
    return Objects()


def test_the_last_release_ends_an_object(objects):
    one = objects.make(7, count=2)
    ok(driver.cuUserObjectRetain(one, 1))
    ok(driver.cuUserObjectRelease(one, 2))
    assert objects.ended == []
    assert code(driver.cuUserObjectRelease(one, 2)) == INVALID_VALUE
    ok(driver.cuUserObjectRelease(one, 1))
    assert objects.ended == [7]
    assert code(driver.cuUserObjectRelease(one, 1)) == INVALID_VALUE


def test_graphs_and_executables_keep_objects(objects):
    graph, one, other = ok(driver.cuGraphCreate(0)), objects.make(1), objects.make(2)
    ok(driver.cuGraphRetainUserObject(graph, one, 1, MOVE))
    ok(driver.cuGraphRetainUserObject(graph, other, 1, 0))
    ok(driver.cuUserObjectRelease(other, 1))
    execution = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphReleaseUserObject(graph, other, 1))
    assert code(driver.cuGraphReleaseUserObject(graph, other, 1)) == INVALID_VALUE
    ok(driver.cuGraphDestroy(graph))
    assert objects.ended == []
    ok(driver.cuGraphExecUpdate(execution, ok(driver.cuGraphCreate(0))))
    assert sorted(objects.ended) == [1, 2]


def test_a_launch_that_is_not_done_keeps_them_too(objects, simulator):
    simulator.reset("min")
    a = stream()
    p = alloc(a)
    graph = captured(a, (p, 1))
    ok(driver.cuGraphRetainUserObject(graph, objects.make(1), 1, MOVE))
    execution = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuGraphLaunch(execution, a))
    ok(driver.cuGraphExecDestroy(execution))
    assert objects.ended == []
    sync(a)
    ok(driver.cuGraphExecDestroy(ok(driver.cuGraphInstantiate(ok(driver.cuGraphCreate(0)), 0))))
    assert objects.ended == [1]
    free(p, a)


def test_a_spoiled_capture_keeps_nothing(objects):
    a = stream()
    ok(driver.cuStreamBeginCapture(a, RELAXED))
    ok(driver.cuGraphRetainUserObject(ok(driver.cuStreamGetCaptureInfo(a))[2], objects.make(1), 1, MOVE))
    driver.cuStreamQuery(a)
    assert objects.ended == []
    driver.cuStreamEndCapture(a)
    assert objects.ended == [1]
