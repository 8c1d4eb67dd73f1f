"""Where a block will be freed changes: a free names another stream, or names one and fails."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import foreign
from four_streams import WRITE, FourStreams
from scenarios import Scenarios

from xlogmem import BlockState, DeviceRuntime, DriverError, PoolMemoryResource, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

UNKNOWN = 999                                           # a CUresult that does not lose the device

scenario = Scenarios()
into_pools = Scenarios(lambda: PoolMemoryResource(maximum_pool_size=512))


def freed_away_from_a_home_that_became_opaque(x: FourStreams) -> bool:
    """T's writes leave no entry of S, the home, whose owner may queue unrecorded work from then on; T frees."""
    owner, S = foreign(x)
    block = x.alloc(S)
    for _ in range(2):
        x.use(x.T, (block, WRITE))
    check(cuda.cuStreamSynchronize(x.T.handle))
    x.runtime.register_stream(owner, discipline="opaque")
    hidden = x.work(S, (block, WRITE))
    block.free(x.T)
    again = x.alloc(x.T)
    x.work(x.T, (again, WRITE))
    again.free()
    return x.ordered(hidden, x.T)


@scenario(spare=2)                                      # T synchronized itself: its waits are for that
def the_owner_writes(x: FourStreams) -> bool:
    return freed_away_from_a_home_that_became_opaque(x)


@into_pools(spare=2)
def the_owner_writes_what_the_pool_gets(x: FourStreams) -> bool:
    return freed_away_from_a_home_that_became_opaque(x)


test_scenario, test_twin = scenario.tests()
test_scenario_into_a_pool, test_twin_into_a_pool = into_pools.tests()


# ---------------------------------------------------------------------------------------- a free that fails
class Owner:
    """Of adopted memory: notes what it held when the owner was dropped."""

    def __init__(self, driver, ptr, seen):
        self.driver, self.ptr, self.seen = driver, ptr, seen

    def __del__(self):
        self.seen.append(self.driver.peek(self.ptr, 1)[0])


@pytest.mark.parametrize("failing", ["cuStreamWaitEvent", "cuEventRecord"])
def test_a_free_that_failed_elsewhere_leaves_the_owner_to_the_host(driver, kernels, memory, failing):
    """Adopted without a stream: the owner is held until all is complete.  On S it would be dropped sooner."""
    runtime, seen = DeviceRuntime(policy="lazy"), []
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    driver.set_policy("min")
    block = runtime.adopt(memory, 64, owner=Owner(driver, memory, seen))
    with use(T, write=block):
        kernels.fill(T.handle, memory, 7, 1)
    driver.fail(failing, 1, UNKNOWN)
    with pytest.raises(DriverError, match=failing):
        block.free(S)
    assert block.state is BlockState.LIVE
    del block
    runtime.reap_pending()
    assert seen == [7]


def test_a_free_that_failed_elsewhere_may_be_repeated_at_home(four, driver):
    """T, on which the first free failed, is unregistered meanwhile; the block is S's, as it was."""
    x = four()
    owner, T = foreign(x)
    block = x.alloc(x.S)
    x.use(x.U, (block, WRITE))
    driver.fail("cuStreamWaitEvent", 1, UNKNOWN)
    with pytest.raises(DriverError, match="cuStreamWaitEvent"):
        block.free(T)
    x.runtime.unregister_stream(owner, successor=x.V)
    last = x.work(x.S)
    frees = []
    driver.on_call("cuMemFreeAsync", lambda: frees.append(x.ordered(last, x.V)))
    block.free()
    assert frees == [False]                             # V was not ordered after S: the free is on S
