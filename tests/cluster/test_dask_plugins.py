"""Plugins that a worker has one after the other, beside each other, and beside what the program does itself."""
from __future__ import annotations

import sys

import pytest
from rmm_if_installed import needs_rmm

pytest.importorskip("distributed", reason="needs distributed")

import cloudpickle
from dask_workers import Cluster, connected, enabled, resources, stand_in_for_cupy
from distributed import Client

import xlogmem
from xlogmem.dask import XlogmemPlugin, metrics

cloudpickle.register_pickle_by_value(sys.modules[__name__])     # workers do not find the tests
pytestmark = [needs_rmm, pytest.mark.simulator, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def on_each(client, function, *arguments):
    """What all workers return, which is one thing."""
    first, *others = client.run(function, *arguments).values()
    assert all(other == first for other in others)
    return first


def tracked(client):
    return on_each(client, lambda: metrics()["tracked"])


def enable(device):
    import xlogmem.rmm

    xlogmem.rmm.enable(device)


def disable():
    import xlogmem.rmm

    xlogmem.rmm.disable()


def until_nothing(client):
    """It ends one step of the worker's loop later."""
    async def wait():
        import asyncio

        while enabled() != ([], [], []):
            await asyncio.sleep(0.01)

    client.run(wait)


# ---------------------------------------------------------------------------------------------- what is ended
def test_a_plugin_that_fails_ends_what_it_began_alone(pair):
    pair.run(enable, 1)
    with pytest.raises(ImportError, match="needs PyTorch"):
        pair.register_plugin(XlogmemPlugin(libraries=["rmm", "torch"]))
    assert on_each(pair, enabled) == ([1], [], [])
    with pytest.raises(ValueError, match="device 5 is not here"):         # it has begun nothing
        pair.register_plugin(XlogmemPlugin(devices=5))
    pair.unregister_worker_plugin("xlogmem")
    assert on_each(pair, enabled) == ([1], [], [])
    pair.run(disable)


def test_what_the_program_has_enabled_stays(pair):
    pair.run(stand_in_for_cupy)
    pair.run(enable, 0)
    pair.run(lambda: xlogmem.enable("cupy"))
    pair.register_plugin(XlogmemPlugin(libraries="rmm,cupy", devices="all"))
    assert on_each(pair, enabled) == ([0, 1], [0, 1], ["cupy"])
    pair.unregister_worker_plugin("xlogmem")
    assert on_each(pair, enabled) == ([0], [], ["cupy"])
    pair.run(disable)
    pair.run(lambda: xlogmem.disable("cupy"))


def test_a_plugin_without_rmm(pair):
    with pytest.raises(ImportError, match="needs Numba-CUDA"):
        pair.register_plugin(XlogmemPlugin(libraries="numba"))
    pair.run(stand_in_for_cupy)
    pair.register_plugin(XlogmemPlugin(libraries=("cupy",)))
    assert on_each(pair, enabled) == ([], [], ["cupy"])
    pair.unregister_worker_plugin("xlogmem")
    assert on_each(pair, enabled) == ([], [], [])


def test_two_names_are_two_plugins(pair):
    pair.register_plugin(XlogmemPlugin())
    pair.register_plugin(XlogmemPlugin(devices="all"), name="second")
    pair.unregister_worker_plugin("second")
    assert on_each(pair, enabled) == ([0], [0], [])
    assert on_each(pair, lambda dask_worker: "xlogmem" in dask_worker.metrics)
    pair.unregister_worker_plugin("xlogmem")
    assert on_each(pair, enabled) == ([], [], [])
    assert not on_each(pair, lambda dask_worker: "xlogmem" in dask_worker.metrics)


def test_it_has_ended_when_dask_goes_on(pair):
    async def remove(dask_worker):
        plugin = dask_worker.plugins["xlogmem"]
        await dask_worker.plugin_remove("xlogmem")
        meanwhile = enabled()
        await dask_worker.plugin_add(plugin)            # what the scheduler believes
        return meanwhile

    pair.register_plugin(XlogmemPlugin())
    assert on_each(pair, remove) == ([], [], [])
    pair.unregister_worker_plugin("xlogmem")


def test_another_plugin_of_that_name_ends_it(pair):
    from distributed import WorkerPlugin

    pair.register_plugin(XlogmemPlugin())
    pair.register_plugin(WorkerPlugin(), name="xlogmem")
    until_nothing(pair)
    pair.unregister_worker_plugin("xlogmem")


def test_a_worker_that_closes_ends_it(pair):
    async def close(dask_worker):
        from distributed import Worker

        async with Worker(dask_worker.scheduler.address, dashboard_address="127.0.0.1:0") as other:
            await other.plugin_add(XlogmemPlugin(), catch_errors=False)
            meanwhile = enabled()
        return meanwhile, enabled()

    assert on_each(pair, close) == (([0], [0], []), ([], [], []))


# ---------------------------------------------------------------------------------------------- one after the other
def test_an_equal_plugin_changes_nothing_for_tasks(pair):
    """RMM's resource is the same at every moment, and not only afterwards."""
    async def again(devices, dask_worker):
        import rmm.mr

        replaced, real = [], rmm.mr.set_per_device_resource
        rmm.mr.set_per_device_resource = lambda device, resource: (replaced.append(device), real(device, resource))
        try:
            answer = await dask_worker.plugin_add(XlogmemPlugin(devices=devices))
        finally:
            rmm.mr.set_per_device_resource = real
        return answer["status"], replaced, enabled()[:2]

    pair.register_plugin(XlogmemPlugin())
    assert on_each(pair, again, 0) == ("OK", [], ([0], [0]))
    assert on_each(pair, again, "all") == ("OK", [1], ([0, 1], [0, 1]))
    assert on_each(pair, again, [0]) == ("OK", [1], ([0], [0]))
    pair.unregister_worker_plugin("xlogmem")
    assert on_each(pair, enabled) == ([], [], [])


def listen(dask_worker):
    import logging

    dask_worker.said = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: dask_worker.said.append(record.getMessage())
    logging.getLogger("xlogmem").addHandler(handler)


def test_other_options_are_refused_and_the_worker_stays_tracked(pair):
    pair.register_plugin(XlogmemPlugin())
    pair.run(listen)
    before = pair.run(resources)
    with pytest.raises(RuntimeError, match=r"cannot get another limit\. .* call client\.restart\(\)") as refused:
        pair.register_plugin(XlogmemPlugin(limit="1MiB", devices="all"))
    assert "first call" not in str(refused.value)
    assert pair.run(resources) == before
    assert on_each(pair, enabled) == ([0], [0], [])
    assert on_each(pair, lambda dask_worker: "xlogmem" in dask_worker.metrics)
    (said,) = on_each(pair, lambda dask_worker: dask_worker.said)
    assert "goes on with what it has" in said
    with pytest.raises(RuntimeError, match="cannot get another policy"):
        pair.register_plugin(XlogmemPlugin(policy="precise"))
    assert tracked(pair)
    pair.unregister_worker_plugin("xlogmem")            # of the one that failed, by Dask's account
    assert on_each(pair, enabled) == ([], [], [])


def test_a_runtime_of_the_program_is_refused_with_advice(pair):
    pair.restart(timeout=60)
    pair.run(lambda: xlogmem.get_runtime().live_bytes)
    with pytest.raises(RuntimeError, match=r"device 0 has a runtime already: .* call client\.restart\(\)"):
        pair.register_plugin(XlogmemPlugin())
    assert on_each(pair, enabled) == ([], [], [])
    pair.restart(timeout=60)                            # then the plugin comes first
    assert tracked(pair)
    pair.unregister_worker_plugin("xlogmem")


def test_a_plugin_that_is_replaced_before_it_has_begun():
    """A worker begins with both together, under one name; Dask keeps the preload's."""
    async def remove(dask_worker):
        await dask_worker.plugin_remove("xlogmem")
        return enabled()

    with (Cluster(1, plugins=(XlogmemPlugin(devices=1),), preload=("xlogmem.dask",)) as cluster,
          connected(cluster) as client):
        assert on_each(client, enabled) == ([0], [0], [])
        assert on_each(client, remove) == ([], [], [])


async def second_plugin(dask_worker):
    import asyncio

    while not dask_worker.plugins["xlogmem"]._options:  # the preload's has none
        await asyncio.sleep(0.01)


def test_a_preload_and_a_plugin_with_other_options():
    """Dask does not pass the error on where the plugin was registered before the worker came."""
    with Cluster(0, preload=("xlogmem.dask",)) as cluster, Client(cluster, timeout=30) as client:
        client.register_plugin(XlogmemPlugin(limit="1MiB"))
        cluster.scale(1)
        client.wait_for_workers(1, timeout=60)
        client.run(second_plugin)
        assert tracked(client)


def test_after_a_restart_other_options_hold():
    with Cluster(1) as cluster, connected(cluster) as client:
        client.register_plugin(XlogmemPlugin(limit="2MiB"))
        client.register_plugin(XlogmemPlugin(limit=2 << 20))            # the same
        with pytest.raises(RuntimeError, match="cannot get another limit"):
            client.register_plugin(XlogmemPlugin(limit="1MiB"))
        assert on_each(client, lambda: xlogmem.get_runtime().resource.limit) == 2 << 20
        client.restart(timeout=60)
        assert on_each(client, lambda: xlogmem.get_runtime().resource.limit) == 1 << 20
