"""`xlogmem.rmm.enable` and `disable`."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from interrupts import interrupted
from rmm_if_installed import RuntimeMemoryResource, Source, current, needs_rmm, rmm

import xlogmem
import xlogmem.observe.statistics
from xlogmem import StreamMisuseError, use
from xlogmem import runtime as runtimes
from xlogmem.resources.options import RuntimeOptions
from xlogmem.sim.kernels import check

pytestmark = needs_rmm


def test_enable_puts_a_runtime_on_the_current_resource(fresh):
    xlogmem.rmm.enable()
    runtime = xlogmem.get_runtime()
    assert isinstance(current(), RuntimeMemoryResource)
    assert current().runtime is runtime
    assert current().upstream_mr is fresh.mr
    buffer = rmm.DeviceBuffer(size=512, mr=current())
    assert fresh.live == {buffer.ptr: 512}
    stream = runtime.acquire_stream()
    with use(stream, read=buffer):
        pass
    with use(0, read=buffer):                           # a foreign stream: the process's own runtime is meant
        pass
    mine = current()
    xlogmem.rmm.enable(0)                               # twice is once
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    xlogmem.rmm.enable([0])                             # below an adaptor too
    assert current().upstream_mr is mine
    del buffer


def test_the_error_of_a_budget_names_the_memory_of_rmm(fresh):
    xlogmem.rmm.enable(0, limit="64KiB")
    runtime = xlogmem.get_runtime()
    buffer = rmm.DeviceBuffer(size=40 << 10, mr=current())
    other = runtime.allocate(8 << 10, tag="mine")
    with pytest.raises(xlogmem.OutOfBudgetError, match=r"Held by RMM: 40\.0 KiB .*, mine: 8\.0 KiB"):
        runtime.allocate(32 << 10)
    with pytest.raises(MemoryError) as seen:
        rmm.DeviceBuffer(size=32 << 10, mr=current())
    assert "Held by RMM: 40960 bytes, mine: 8192 bytes" in str(seen.value)
    del buffer, other


def test_without_a_budget_memory_of_rmm_has_no_tag(fresh):
    """It would only cost time."""
    xlogmem.rmm.enable(0)
    buffer = rmm.DeviceBuffer(size=512, mr=current())
    assert [one.tag for one in xlogmem.get_runtime().snapshot().blocks] == [None]
    del buffer


@pytest.mark.parametrize("pool", [False, True])
def test_enable_sets_a_budget_on_request(pool, fresh):
    """What does not fit is out of memory, which cuDF answers by spilling; pending frees are waited for before."""
    xlogmem.rmm.enable(0, pool_allocator=pool, limit="64KiB")
    runtime = xlogmem.get_runtime()
    assert current().upstream_mr is fresh.mr
    buffer = rmm.DeviceBuffer(size=60 << 10, mr=current())
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=8 << 10, mr=current())
    assert runtime.resource.current_bytes == 60 << 10
    del buffer
    buffer = rmm.DeviceBuffer(size=8 << 10, mr=current())
    assert runtime.resource.holders() == {"RMM": 8 << 10}
    del buffer
    runtime.reap_pending()
    assert runtime.resource.current_bytes == 0


@pytest.mark.promise(153)
def test_enable_counts_and_logs_on_request(fresh, tmp_path):
    log = tmp_path / "rmm.csv"
    xlogmem.rmm.enable(0, pool_allocator=True, limit="64KiB", statistics=True, log=log)
    runtime = xlogmem.get_runtime()
    buffer = rmm.DeviceBuffer(size=60 << 10, mr=current())
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=8 << 10, mr=current())
    assert xlogmem.statistics.get_statistics().current_bytes == 60 << 10
    del buffer
    runtime.reap_pending()
    runtime.resource.upstream.close()
    rows = [row.split(",")[2:5:2] for row in log.read_text().splitlines()]
    assert rows == [["Action", "Size"], ["allocate", str(60 << 10)], ["free", str(60 << 10)]]


def test_enable_guards_on_request(fresh):
    xlogmem.rmm.enable(0, guard=True)
    runtime = xlogmem.get_runtime()
    assert isinstance(runtime.resource, xlogmem.GuardResourceAdaptor)
    buffer = rmm.DeviceBuffer(size=100, mr=current())
    check(cuda.cuMemsetD8(buffer.ptr + 100, 7, 1))
    del buffer
    with pytest.raises(xlogmem.MemoryCorruptionError):
        runtime.reap_pending()
    runtime.reap_pending()


def test_a_log_of_several_devices_is_a_file_for_each(tmp_path):
    options = RuntimeOptions.given(log=tmp_path / "log.csv")
    assert options.for_devices(2).sink(1) == tmp_path / "log.dev1.csv"
    assert options.for_devices(1).sink(1) == tmp_path / "log.csv"


def test_enable_puts_a_pool_between_on_request(fresh):
    xlogmem.rmm.enable(0, pool_allocator=True, initial_pool_size=1 << 16, maximum_pool_size=1 << 17)
    runtime = xlogmem.get_runtime()
    assert current().upstream_mr is fresh.mr
    assert list(fresh.live.values()) == [1 << 16] == [runtime.resource.pool_size()]
    buffers = [rmm.DeviceBuffer(size=1 << 14, mr=current()) for _ in range(4)]
    with use(runtime.acquire_stream(), read=buffers):
        pass
    assert list(fresh.live.values()) == [1 << 16]       # all from the pool
    kept = rmm.DeviceBuffer(size=1 << 16, mr=current())
    assert sum(fresh.live.values()) == 1 << 17
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=256, mr=current())
    del buffers, kept
    runtime.reap_pending()
    xlogmem.rmm.disable()
    assert current() is fresh.mr
    xlogmem.rmm.enable(0)                               # on the same resource the same pool goes on
    assert current().runtime is runtime
    runtime.resource.trim()
    assert fresh.live == {}


@pytest.mark.parametrize("sizes", [
    {"initial_pool_size": 1}, {"maximum_pool_size": 1 << 20},
    {"pool_allocator": True, "initial_pool_size": 1 << 20, "maximum_pool_size": 1 << 19}])
def test_enable_refuses_sizes_that_no_pool_can_have(fresh, sizes):
    with pytest.raises(ValueError, match="pool_size"):
        xlogmem.rmm.enable(0, **sizes)
    assert current() is fresh.mr
    xlogmem.rmm.enable(0)


def test_disable_restores_what_was_there(fresh):
    xlogmem.rmm.enable()
    mine = current()
    buffer = rmm.DeviceBuffer(size=512, mr=mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr
    assert mine.runtime.live_bytes == 512
    del buffer
    assert mine.runtime.live_bytes == 0
    assert fresh.live == {}
    xlogmem.rmm.disable()
    xlogmem.rmm.enable()
    assert current() is mine                            # the same runtime: nothing changed meanwhile


def test_disable_does_not_reach_below_an_adaptor(fresh):
    xlogmem.rmm.enable()
    mine = current()
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    with pytest.raises(RuntimeError, match="StatisticsResourceAdaptor on top of xlogmem's: take it off first"):
        xlogmem.rmm.disable()
    rmm.mr.set_per_device_resource(0, mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr


@pytest.fixture
def second_device():
    if check(cuda.cuDeviceGetCount()) < 2:
        pytest.skip("one device")
    before = rmm.mr.get_per_device_resource(1)
    rmm.mr.set_per_device_resource(1, Source().mr)
    yield
    rmm.mr.set_per_device_resource(1, before)


@pytest.mark.simulator
def test_disable_changes_nothing_where_it_fails(fresh, second_device):
    xlogmem.rmm.enable([1, 0])
    mine, other = current(), rmm.mr.get_per_device_resource(1)
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    with pytest.raises(RuntimeError, match="take it off first"):
        xlogmem.rmm.disable()
    assert rmm.mr.get_per_device_resource(1) is other
    rmm.mr.set_per_device_resource(0, mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr


@pytest.mark.simulator
def test_what_is_tracked_is_not_reported_again(fresh, second_device, recwarn):
    statistics = rmm.mr.StatisticsResourceAdaptor(fresh.mr)
    rmm.mr.set_per_device_resource(0, statistics)
    xlogmem.rmm.enable(0)
    buffer = rmm.DeviceBuffer(size=512, mr=current())
    xlogmem.rmm.enable(1)                               # another device
    xlogmem.rmm.disable()
    xlogmem.rmm.enable(0)                               # the same runtime
    with use(0, read=buffer):
        pass
    assert not recwarn.list
    del buffer


def test_enable_after_other_code_made_the_runtime(fresh):
    runtime = xlogmem.get_runtime()
    with pytest.raises(RuntimeError, match=r"Call xlogmem.rmm.enable\(\) before"):
        xlogmem.rmm.enable()
    assert current() is fresh.mr
    assert xlogmem.get_runtime() is runtime
    by_hand = RuntimeMemoryResource(runtime)            # what the error advises
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(by_hand))
    xlogmem.rmm.enable()
    assert current().upstream_mr is by_hand


def test_memory_that_was_allocated_before_is_reported(fresh):
    buffer = rmm.DeviceBuffer(size=300, mr=fresh.mr)
    with pytest.warns(RuntimeWarning, match=r"1 buffer .* was allocated through RMM before xlogmem.rmm.enable\(\)"):
        xlogmem.rmm.enable()
    with pytest.raises(StreamMisuseError, match="untracked"), use(0, read=buffer):
        pass
    del buffer


def test_memory_that_only_an_adaptor_counted_is_reported(fresh):
    statistics = rmm.mr.StatisticsResourceAdaptor(fresh.mr)
    rmm.mr.set_per_device_resource(0, statistics)
    ptr = statistics.allocate(77)
    with pytest.warns(RuntimeWarning, match="77 bytes"):
        xlogmem.rmm.enable()
    statistics.deallocate(ptr, 77)


def test_the_next_use_notices_that_the_resource_was_replaced(fresh):
    xlogmem.rmm.enable()
    tracked = rmm.DeviceBuffer(size=8, mr=current())
    other = Source()
    rmm.mr.set_per_device_resource(0, other.mr)
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    advice = r"RMM's resource of device 0 was replaced by a CallbackMemoryResource .* call xlogmem.rmm.enable\(\) again"
    with use(0, read=tracked):                          # what is tracked stays so
        pass
    with pytest.raises(StreamMisuseError, match=advice), use(0, read=buffer):
        pass
    with pytest.warns(RuntimeWarning, match=advice), use(0, read=buffer, untracked="ignore"):
        pass
    del buffer
    former = xlogmem.get_runtime()
    with pytest.warns(RuntimeWarning, match="1 buffer was allocated before RMM's resource was replaced"):
        xlogmem.rmm.enable()
    assert current().upstream_mr is other.mr
    assert xlogmem.get_runtime() is not former
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    with use(0, read=buffer), use(0, read=tracked, runtime=former):
        pass
    xlogmem.rmm.disable()
    del buffer, tracked
    assert not fresh.live
    assert not other.live


def test_a_disabled_resource_explains_nothing(fresh):
    xlogmem.rmm.enable()
    xlogmem.rmm.disable()
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    with pytest.raises(StreamMisuseError, match=r"Call xlogmem\.rmm\.enable\(\) before RMM"), use(0, read=buffer):
        pass
    del buffer


def test_enable_works_after_an_interrupt_anywhere(fresh, monkeypatch):
    """It goes on from what was done, instead of refusing its own runtime."""
    monkeypatch.setattr(xlogmem.rmm, "warn_of_earlier", lambda replaced, former: None)      # it looks at every object
    for _ in interrupted(lambda: xlogmem.rmm.enable(0)):
        xlogmem.rmm.enable(0)
        assert current().runtime is xlogmem.get_runtime()
        xlogmem.rmm.disable()
        assert current() is fresh.mr
        xlogmem.rmm._wrapped.clear()
        runtimes._runtimes[0] = None
