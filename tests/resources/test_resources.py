"""What resources promise: threads, composition, and how their frees are ordered."""
from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from four_streams import READ, nothing_happens

from xlogmem import (
    Access,
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    StreamMisuseError,
    StreamPool,
    use,
)

RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


@pytest.mark.promise(16, 21)
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_resource_serves_many_threads(resource, _context):
    """One resource, eight threads: no address is handed out twice at the same time."""
    shared = resource()
    pool = StreamPool()
    stream = pool.acquire()
    live, doubled = set(), []
    start = threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        for turn in range(50):
            ptr = shared.allocate(256 + turn, stream)
            if ptr in live:
                doubled.append(ptr)
            live.add(ptr)
            live.remove(ptr)
            shared.deallocate(ptr, 256 + turn, stream)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert not doubled
    assert shared.device_id == 0


class Outer(DeviceMemoryResource):
    """A decorator: counts what its inner resource does."""

    order = "stream"

    def __init__(self, inner: DeviceMemoryResource) -> None:
        super().__init__(inner.device_id)
        self.inner = inner
        self.log: list[tuple[str, int]] = []

    def allocate(self, nbytes, stream):
        self.log.append(("allocate", nbytes))
        return self.inner.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.log.append(("deallocate", nbytes))
        self.inner.deallocate(ptr, nbytes, stream)


@pytest.mark.simulator
@pytest.mark.promise(17, 27, 62)
def test_resources_compose_and_are_tracked_whatever_they_are(four, driver):
    """A decorator around a decorator around the driver's pool: blocks are ordered as on the bare resource."""
    inner = Outer(AsyncMemoryResource())
    x = four(resource=Outer(inner))
    block = x.alloc(x.S, 300)
    read = x.use(x.T, (block, READ))
    block.free()
    assert x.ordered(read, x.S)
    assert inner.log == x.runtime.resource.log == [("allocate", 300), ("deallocate", 300)]
    assert driver.calls("cuMemFreeAsync") == 1


@pytest.mark.simulator
@pytest.mark.promise(33)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_pool_and_a_quarantine_in_python(four, driver, dropped):
    """Memory that a resource keeps and hands out again is as safe as the driver's: its frees are ordered before."""
    class Pool(Outer):
        kept: dict[int, list[int]]

        def allocate(self, nbytes, stream):
            spare = self.kept.setdefault(nbytes, [])
            return spare.pop() if spare else super().allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.kept[nbytes].append(ptr)               # on a stream that the free is ordered on

    pool = Pool(AsyncMemoryResource())
    pool.kept = {}
    x = four(resource=pool)
    old = x.alloc(x.S)
    read = x.use(x.T, (old, READ))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    old.free()
    new = x.alloc(x.S)
    assert (new.ptr, new.generation == old.generation) == (old.id.ptr, False)
    with use(x.S, write=new):
        x.kernels.fill(x.S.handle, new.ptr, 1, 1)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    assert x.ordered(read, x.S) == (not dropped)
    new.free()
    for ptr in pool.kept[512]:
        pool.inner.deallocate(ptr, 512, x.S)
    if dropped:                                         # the reader, which nothing waited for, is found here again
        assert [race.split(":")[0] for race in driver.races()] == ["RACE read/free"]
        driver.clear_races()


@pytest.mark.promise(25, 27, 29, 31, 133)
def test_a_resource_that_orders_nothing_is_refused_and_direct_is_not():
    """A resource that does not say how its frees are ordered never answers "fine"; what it says decides, not what it
    is."""
    class Silent(DeviceMemoryResource):
        def allocate(self, nbytes, stream):
            return 4096

        def deallocate(self, ptr, nbytes, stream):
            pass

    with pytest.raises(StreamMisuseError, match=r"does not support cross-stream use tracking \(unsupported\)"):
        DeviceRuntime(resource=Silent())
    runtime = DeviceRuntime(resource=DirectMemoryResource())
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    runtime.record_block_use(block, stream)
    runtime.prepare_block_use(block, stream, Access.READ)
    runtime.finish_block_use(block, stream, Access.READ)
    assert set(block.frontier) == {("allocated", 0), ("written", stream.id), ("has-read", stream.id)}


@pytest.mark.simulator
@pytest.mark.promise(23, 55, 132)
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_reap_without_pending_frees_calls_nothing(driver, resource):
    """Without pending frees a reap makes no driver call, on either backend, live blocks or not."""
    runtime = DeviceRuntime(resource=resource())
    block = runtime.allocate(64)
    with nothing_happens(driver, runtime):
        for blocking in (True, False):
            runtime.reap_pending(blocking=blocking)
    block.free()
    assert runtime.bytes_outstanding == (64 if resource is AsyncMemoryResource else 0)
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
