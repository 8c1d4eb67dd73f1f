"""The exchange inside of accesses by the host, and of uses that another thread may finish."""
from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from c_table import ANY_THREAD, HOST, Hold
from capsules import settle
from cuda.bindings import driver as cuda
from exchanges import Library
from four_streams import WRITE, at
from other_threads import beside_waiting

import xlogmem
from xlogmem import Buffer, DeviceState, PinnedMemoryResource, capture, host, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
LEGACY = 1
READ_ONLY = 1


@pytest.fixture
def x(four):
    """Four streams, a buffer that the host reaches, and the library."""
    made = four()
    made.state = DeviceState(made.runtime)
    made.library = Library(Buffer)
    made.hold = Hold(made.runtime)
    made.buffer = made.state.empty(512, "uint8", made.S, resource=PinnedMemoryResource())
    yield made
    check(cuda.cuCtxSynchronize())
    made.buffer.release()
    made.hold.close()
    settle()
    made.runtime.reap_pending()
    assert not made.driver.races()
    assert made.runtime.bytes_outstanding == 0


def access(x, how, write):
    """An access by the host, as Python and the C table begin one."""
    if how == "map":
        return x.buffer.map(write=write)
    if how == "use":
        return use(host, **{"write" if write else "read": x.buffer})
    return x.hold.use(HOST, **{"write" if write else "read": [x.buffer.ptr]})


@pytest.mark.parametrize("how", ["map", "use", "table"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("write", [False, True])
def test_memory_that_the_thread_accesses_itself_is_refused(x, how, write, inside):
    """A library would work on it before the access ends, and might write."""
    other = x.state.empty(4, "uint8", x.S)
    with use(x.T, read=other) if inside else nullcontext():
        with access(x, how, write):
            for take in (x.library.take, x.library.look):
                with pytest.raises(BufferError, match=r"this thread accesses <Buffer.*leave map\(\)"):
                    take(x.buffer)
            x.library.take(other).delete()
        x.library.take(x.buffer).delete()
    other.release()


def test_reads_of_both_go_on(x):
    """Of a buffer that a use only reads, and of one that is read-only."""
    interface = {"version": 3, "shape": (512,), "typestr": "|u1", "data": (x.buffer.ptr, True), "stream": LEGACY}
    only_read = xlogmem.from_cuda_array(SimpleNamespace(__cuda_array_interface__=interface), state=x.state)
    for buffer, where in ((x.buffer, use(x.T, read=x.buffer)), (only_read, nullcontext())):
        with where, buffer.map():
            exported = x.library.take(buffer)
            assert exported.managed.flags == READ_ONLY
            x.kernels.count_unequal(x.library.stream() or LEGACY, x.next_word(), exported.tensor.data, 0, 1)
            exported.delete()
    with x.buffer.map(write=True), pytest.raises(BufferError, match="this thread accesses"):
        x.library.take(only_read)
    only_read.release()


def test_what_is_captured_meanwhile_runs_later(x):
    with x.buffer.map(write=True) as array:
        with capture(x.T) as graph, use(x.T, read_write=x.buffer):
            exported = x.library.take(x.buffer)
            x.kernels.fill(x.library.stream(), exported.tensor.data, 1, 1)
            exported.delete()
        array[:] = 1
    graph.launch(x.T)
    assert not x.driver.races()
    graph.close()


def test_a_use_that_its_thread_finishes_is_the_librarys(x):
    with x.hold.use(x.T.handle, write=[x.buffer.ptr]):
        assert x.library.stream() == x.T.handle
        x.library.take(x.buffer).delete()
    opened = x.hold.prepare(x.T.handle, write=[x.buffer.ptr], flags=ANY_THREAD)
    assert x.library.stream() == 0
    with x.hold.use(x.T.handle, write=[x.buffer.ptr]):  # the window of the first had been marked
        assert x.library.stream() == x.T.handle
    x.hold.finish(opened)
    with x.hold.use(x.T.handle, write=[x.buffer.ptr]):
        assert x.library.stream() == x.T.handle


@pytest.mark.parametrize("dropped", [False, True])
def test_a_use_that_any_thread_may_finish_is_not_relied_on(x, dropped):
    """It may be finished before the library is done: the library works on the legacy stream, after that use."""
    seen = []

    def opener():
        check(cuda.cuCtxSetCurrent(context))
        opened.append(x.hold.prepare(x.T.handle, write=[x.buffer.ptr], flags=ANY_THREAD))
        last.append(x.work(x.T, (x.buffer.access(), WRITE)))
        other = x.state.empty(4, "uint8", x.S)
        seen.append(x.library.stream())
        x.library.take(other).delete()                  # of which nothing is to be waited for
        other.release()
        if dropped:
            for nth in range(1, 3):
                x.driver.drop("cuStreamWaitEvent", nth)
        exported = x.library.take(x.buffer)             # waits for the end of the use
        assert dropped or x.ordered(last[0], at(LEGACY))
        x.kernels.fill(LEGACY, exported.tensor.data, 1, 1)
        exported.delete()

    opened, last = [], []
    context = check(cuda.cuCtxGetCurrent())
    beside = beside_waiting(x.runtime, opener)
    x.hold.finish(opened.pop())
    beside.result()
    assert seen == [0]
    assert bool(x.driver.races()) == dropped
    x.driver.clear_races()
