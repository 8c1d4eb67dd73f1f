"""What adaptors know of each address: records, which the next owner of an address replaces."""
from __future__ import annotations

import random

import pytest
from pools import Recycling

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
)


class HandsOutInside(DeviceMemoryResource):
    """What another thread does in the worst moment: its free is done, and the address is allocated again before the
    caller of the free is back."""

    order = "host"

    def __init__(self):
        super().__init__(0)
        self.below = Recycling()
        self.again = None

    def allocate(self, nbytes, stream):
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.below.deallocate(ptr, nbytes, stream)
        if self.again is not None:
            again, self.again = self.again, None
            again()


@pytest.mark.parametrize("adaptor_of", [StatisticsResourceAdaptor, TrackingResourceAdaptor])
def test_an_address_that_is_handed_out_again_at_once_counts(adaptor_of):
    below = HandsOutInside()
    adaptor = adaptor_of(below)
    ptr, taken = adaptor.allocate(100, 0), []
    below.again = lambda: taken.append(adaptor.allocate(50, 0))
    adaptor.deallocate(ptr, 100, 0)
    assert taken == [ptr]
    assert nbytes_of(adaptor) == 50
    adaptor.deallocate(ptr, 50, 0)
    assert nbytes_of(adaptor) == 0
    below.below.below.deallocate(below.below.kept.pop(), 4096, 0)


def nbytes_of(adaptor):
    if isinstance(adaptor, TrackingResourceAdaptor):
        assert adaptor.outstanding_bytes == sum(record.nbytes for record in adaptor.outstanding_allocations())
        return adaptor.outstanding_bytes
    return adaptor.allocation_counts.current_bytes


@pytest.mark.parametrize("adaptor_of", [StatisticsResourceAdaptor, TrackingResourceAdaptor])
def test_memory_that_is_handed_out_twice_counts_once(adaptor_of):
    class Twice(DeviceMemoryResource):
        order = "host"

        def allocate(self, nbytes, stream):
            return memory

        def deallocate(self, ptr, nbytes, stream):
            pass

    memory = DirectMemoryResource().allocate(100, 0)
    adaptor = adaptor_of(Twice(0))
    runtime = DeviceRuntime(resource=adaptor)
    old = runtime.allocate(64)
    with pytest.warns(RuntimeWarning, match="handed out memory of a live block"):
        new = runtime.allocate(32)
    assert nbytes_of(adaptor) == 32
    new.free()
    assert nbytes_of(adaptor) == 0
    assert getattr(adaptor, "pending_bytes", 0) == 0
    del old
    DirectMemoryResource().deallocate(memory, 100, 0)


@pytest.mark.parametrize("adaptor_of", [StatisticsResourceAdaptor, TrackingResourceAdaptor])
def test_a_free_of_unknown_memory_counts_nothing(adaptor_of):
    adaptor = adaptor_of(DirectMemoryResource())
    unknown = DirectMemoryResource().allocate(64, 0)
    adaptor.deallocate(unknown, 64, 0)                  # before the table has a place
    known, unknown = adaptor.allocate(100, 0), DirectMemoryResource().allocate(64, 0)
    adaptor.deallocate(unknown, 64, 0)
    assert nbytes_of(adaptor) == 100
    adaptor.deallocate(known, 100, 0)
    assert nbytes_of(adaptor) == 0


@pytest.mark.parametrize("adaptor_of", [StatisticsResourceAdaptor, TrackingResourceAdaptor])
def test_many_addresses_in_a_random_order(adaptor_of):
    """The table grows, and closes its holes."""
    adaptor = adaptor_of(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=adaptor)
    draw, held = random.Random(3), []
    for _ in range(6000):
        if held and draw.random() < 0.47:
            held.pop(draw.randrange(len(held))).free()
        else:
            held.append(runtime.allocate(draw.randrange(1, 3000)))
        if draw.random() < 0.01:
            assert nbytes_of(adaptor) == sum(block.nbytes for block in held)
    for block in held:
        block.free()
    assert nbytes_of(adaptor) == 0
