"""Options of `xlogmem.enable`: the process's own runtimes are made with them, for all libraries."""
from __future__ import annotations

import gc

import pytest
from allocator_stand_ins import CudaAPIError
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import OutOfBudgetError
from xlogmem import runtime as runtimes
from xlogmem.resources import (
    AsyncMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
)
from xlogmem.resources.layers import find_layer, layers_of
from xlogmem.resources.options import options_in
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def libraries(cupy, numba, driver):
    """CuPy and Numba's memory manager; what they allocate is freed before the runtime ends."""
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    yield cupy, numba
    xlogmem.disable()
    gc.collect()
    runtime = runtimes.existing_runtime(0)
    if runtime is not None:
        runtime.reap_pending()


def layers(runtime):
    return [type(layer) for layer in layers_of(runtime.resource)]


def test_libraries_have_one_budget_and_its_error_says_who_holds_what(libraries):
    cupy, numba = libraries
    xlogmem.enable("cupy", "numba", limit="4KiB")
    manager = numba.make_context().memory_manager
    array, memory = cupy.empty(1024), manager.memalloc(2048)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="limit: 4096") as caught:
        cupy.empty(2048)
    assert isinstance(caught.value.__cause__, OutOfBudgetError)
    assert caught.value.__cause__.holders == [("Numba", 2048), ("CuPy", 1024)]
    with pytest.raises(CudaAPIError, match=r"4096 bytes\) while (.|\\n)*in 1 block: \\?'Numba"):
        manager.memalloc(2048)
    del caught, array, memory
    gc.collect()
    cupy.empty(4096)


def test_a_scope_counts_for_more_than_the_name_of_a_library(libraries):
    cupy, numba = libraries
    xlogmem.enable("cupy", "numba", limit="4KiB")
    with xlogmem.scope("weights"):
        array, memory = cupy.empty(1024), numba.make_context().memory_manager.memalloc(1024)
    other = cupy.empty(512)
    assert {tag: held.nbytes for tag, held in xlogmem.get_runtime().snapshot().by_tag().items()} == {
        "weights": 2048, "CuPy": 512}
    del array, memory, other
    gc.collect()


@pytest.mark.parametrize("switch", ["statistics", "guard", "pool_allocator"])
def test_a_switch_takes_no_text(libraries, switch):
    """A text such as "no" would count as True."""
    with pytest.raises(TypeError, match=f"{switch} must be True or False, got 'no'"):
        xlogmem.enable("cupy", **{switch: "no"})


def test_each_option_is_a_layer_of_the_runtime(libraries, tmp_path):
    cupy, _ = libraries
    xlogmem.enable("cupy", policy="precise", pool_allocator=True, initial_pool_size="1MiB", limit=0.5, statistics=True,
                   log=tmp_path / "log.csv", guard=True)
    array = cupy.empty(512)
    runtime = xlogmem.get_runtime()
    assert layers(runtime) == [LimitingResourceAdaptor, LoggingResourceAdaptor, StatisticsResourceAdaptor,
                               GuardResourceAdaptor, PoolMemoryResource, AsyncMemoryResource]
    assert runtime.policy == "precise"
    del array
    runtime.reap_pending()
    find_layer(runtime.resource, LoggingResourceAdaptor).flush()
    log = (tmp_path / "log.dev0.csv").read_text()       # the process sees several devices
    assert [line.split(",")[2] for line in log.splitlines()[1:]] == ["allocate", "free"]


def test_calls_add_options_until_there_is_a_runtime(libraries):
    cupy, _ = libraries
    xlogmem.enable("cupy", limit="1GiB")
    xlogmem.enable("numba", statistics=True, limit=1 << 30)
    with pytest.raises(RuntimeError, match=r"another limit before, for all libraries. Leave it out, or .*disable\(\)"):
        xlogmem.enable("numba", limit="2GiB")
    assert cupy.empty(512).data.ptr
    assert layers(xlogmem.get_runtime())[:2] == [LimitingResourceAdaptor, StatisticsResourceAdaptor]
    for wanted in ({}, {"limit": "1GiB"}, {"statistics": True}):
        xlogmem.enable("cupy", **wanted)
    for wanted, name in (({"limit": "2GiB"}, "limit"), ({"guard": True}, "guard"), ({"policy": "lazy"}, "policy"),
                         ({"pool_allocator": True}, "pool_allocator and its sizes")):
        with pytest.raises(RuntimeError, match=f"device 0 has a runtime .* cannot get another {name}. Pass it to"):
            xlogmem.enable("cupy", "numba", **wanted)


def test_a_runtime_without_options_keeps_none(libraries, x):
    """It was made before."""
    with pytest.raises(RuntimeError, match="cannot get another limit"):
        xlogmem.enable("cupy", limit="1GiB")
    assert xlogmem.allocators._enabled == {}
    assert runtimes._options is None
    xlogmem.enable("cupy")


def test_after_an_error_and_after_disable_nothing_is_chosen(libraries, monkeypatch):
    cupy, _ = libraries
    with monkeypatch.context() as broken:
        broken.setattr(cupy.cuda, "set_allocator", lambda allocator: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            xlogmem.enable("cupy", limit="1GiB")
    assert runtimes._options is None
    xlogmem.enable("cupy", "numba", limit="2GiB")
    xlogmem.disable("cupy")
    assert runtimes._options.limit == "2GiB"
    xlogmem.disable()
    assert runtimes._options is None
    assert xlogmem.allocators._enabled == {}
    xlogmem.enable("cupy", limit="1GiB")


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"limit": "lots"}, ValueError, "limit must"), ({"policy": "eager"}, ValueError, "policy 'eager' is unknown"),
    ({"initial_pool_size": "1GiB"}, ValueError, "for pool_allocator=True"),
    ({"pool_allocator": True, "initial_pool_size": -1}, ValueError, "initial_pool_size must not be negative"),
    ({"log": 3}, TypeError, "log"), ({"limits": 3}, TypeError, "limits"),
])
def test_what_is_no_option_is_refused_before_anything_is_changed(libraries, options, error, text):
    cupy, _ = libraries
    with pytest.raises(error, match=text):
        xlogmem.enable("cupy", **options)
    assert cupy.cuda.get_allocator() == cupy.pool.malloc
    assert runtimes._options is None


@pytest.mark.parametrize("given", ["argument", "environment"])
def test_a_limit_of_zero_bytes_is_a_limit(libraries, monkeypatch, given):
    cupy, _ = libraries
    if given == "environment":
        monkeypatch.setenv("XLOGMEM_OPTIONS", "limit=0")
    xlogmem.enable("cupy", **{"limit": 0} if given == "argument" else {})
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(512)


@pytest.mark.parametrize("name", ["pool", "guard"])
def test_a_resource_of_the_environment_is_not_made_twice(libraries, monkeypatch, name):
    monkeypatch.setenv("XLOGMEM_RESOURCE", name)
    cupy, _ = libraries
    xlogmem.enable("cupy", **{"pool": {"pool_allocator": True}, "guard": {"guard": True}}[name])
    assert cupy.empty(512).data.ptr
    assert len(layers(xlogmem.get_runtime())) == 2


def test_the_environment_has_the_same_words(libraries, monkeypatch):
    monkeypatch.setenv("XLOGMEM_OPTIONS", "limit=2GiB, statistics,")
    cupy, _ = libraries
    xlogmem.enable("cupy", limit="1GiB")
    assert cupy.empty(512).data.ptr
    runtime = xlogmem.get_runtime()
    assert layers(runtime) == [LimitingResourceAdaptor, StatisticsResourceAdaptor, AsyncMemoryResource]
    assert runtime.resource.limit == 1 << 30


@pytest.mark.parametrize(("text", "message"), [
    ("limt=8GiB", "there is no option 'limt'; did you mean limit"), ("xyz", "they are policy, pool_allocator"),
    ("limit", "limit needs a value"), ("limit=lots", "XLOGMEM_OPTIONS: limit must"),
    ("statistics=maybe", "statistics is a switch"), ("initial_pool_size=1GiB", "for pool_allocator=True"),
])
def test_options_of_the_environment_that_are_none_are_refused(clean, monkeypatch, text, message):
    monkeypatch.setenv("XLOGMEM_OPTIONS", text)
    with pytest.raises(ValueError, match=message):
        xlogmem.get_runtime()
    monkeypatch.delenv("XLOGMEM_OPTIONS")
    assert xlogmem.get_runtime().options is None


@pytest.mark.parametrize(("variable", "value", "message"), [
    ("XLOGMEM_OPTIONS", "limt=8GiB", "there is no option 'limt'; did you mean limit"),
    ("XLOGMEM_OPTIONS", "log=/no/such/folder/a.csv", "/no/such/folder"),
    ("XLOGMEM_POLICY", "fast", "XLOGMEM_POLICY='fast' is unknown; choose one of lazy, precise, adaptive"),
    ("XLOGMEM_RESOURCE", "limit", "XLOGMEM_RESOURCE='limit' is unknown; choose one of async"),
])
def test_enable_refuses_a_wrong_environment_before_anything_is_changed(libraries, monkeypatch, variable, value,
                                                                       message):
    """... and not the first allocation, from inside of the library."""
    cupy, _ = libraries
    monkeypatch.setenv(variable, value)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        xlogmem.enable("cupy")
    assert cupy.cuda.get_allocator() == cupy.pool.malloc


def test_values_of_the_environment():
    options = options_in("pool_allocator, initial_pool_size=2GiB, limit=0.5, guard=0, log=a.csv, policy=lazy")
    assert (options.pool_sizes, options.limit, options.guard, options.log, options.policy) == (
        ("2GiB", None), 0.5, False, "a.csv", "lazy")
