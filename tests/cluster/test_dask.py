"""Workers of Dask with `XlogmemPlugin`, in processes with a simulated device each."""
from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import urllib.request

import pytest
from c_table import ENVIRONMENT
from places import ROOT
from rmm_if_installed import needs_rmm, rmm

pytest.importorskip("distributed", reason="needs distributed")

import dask.config
import dask_workers
from dask_workers import Cluster, Pools, connected, expected, races, reinitialize, reported, resources, shuffle

import xlogmem
from xlogmem import UnknownNodeError
from xlogmem.dask import COLUMNS, XlogmemPlugin, configured, dask_setup, metrics

ROWS = 1000
LIBRARIES = () if rmm is None else ("rmm",)             # elsewhere the rest of the plugin is tested

pytestmark = [pytest.mark.simulator, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def plugged(pair):
    """They have it for one test."""
    pair.register_plugin(XlogmemPlugin(libraries=LIBRARIES))
    yield pair
    pair.unregister_worker_plugin("xlogmem")


# ---------------------------------------------------------------------------------------------- a shuffle
def test_a_shuffle_with_the_plugin(plugged):
    before = plugged.run(metrics)
    assert shuffle(plugged, ROWS, "use") == expected(ROWS, 2)
    assert plugged.run(races) == {address: [] for address in before}
    for address, seen in plugged.run(metrics).items():
        assert seen["uses"] - before[address]["uses"] == 4      # two of each upload and download
        assert seen["live_bytes"] == 0
        assert seen["peak_bytes"] >= 8 * ROWS


@needs_rmm
def test_a_shuffle_without_the_plugin(pair):
    before = pair.run(metrics)
    assert shuffle(pair, ROWS, "host") == expected(ROWS, 2)
    assert pair.run(races) == {address: [] for address in before}
    assert {address: seen["uses"] for address, seen in pair.run(metrics).items()} == {
        address: seen["uses"] for address, seen in before.items()}


def test_a_shuffle_without_any_wait_is_noticed(pair):
    """The twin of both: the same copies in the same places."""
    shuffle(pair, ROWS, "nothing")
    for found in pair.run(races).values():
        assert any("RACE write/read" in race for race in found), found
    pair.run(lambda: dask_workers.sim.simulator().clear_races())


def test_each_worker_has_a_device_of_its_own(pair):
    seen = pair.run(lambda: [device.uuid for device in xlogmem.devices()])
    assert len(seen) == 2
    one, other = seen.values()
    assert one == other[::-1]
    assert one[0] != one[1]


# ---------------------------------------------------------------------------------------------- what workers report
@needs_rmm
def test_metrics_go_with_the_heartbeat(plugged):
    def hold(nbytes, dask_worker):
        import rmm

        dask_worker.held = [rmm.DeviceBuffer(size=nbytes, mr=rmm.mr.get_current_device_resource())] if nbytes else []

    plugged.run(hold, 4096)
    seen = plugged.run(metrics)
    for address, worker in reported(plugged, lambda worker: worker.get("xlogmem-live") == 4096).items():
        assert worker["xlogmem"] == seen[address]
        assert seen[address]["live_bytes"] == 4096
        assert seen[address]["tracked"] is True
        assert {name: worker[name] for name in COLUMNS} == {
            name: seen[address][entry] for name, entry in COLUMNS.items()}
        assert worker["rmm"] == {"rmm-used": 4096, "rmm-total": 4096}       # Dask's plot of RMM
    plugged.run(hold, 0)


def test_without_the_plugin_nothing_is_reported(pair):
    pair.register_plugin(XlogmemPlugin(libraries=LIBRARIES))
    pair.unregister_worker_plugin("xlogmem")
    reported(pair, lambda worker: not [name for name in worker if "xlogmem" in name])


def test_a_heartbeat_under_way_goes_on(pair):
    """It awaits between two metrics, and a worker whose heartbeat fails is closed."""
    async def change(libraries, dask_worker):
        under_way = iter(dask_worker.metrics.items())
        next(under_way)
        plugin = XlogmemPlugin(libraries=libraries)
        await plugin.setup(dask_worker)
        in_between = iter(dask_worker.metrics.items())
        next(in_between)
        plugin.teardown(dask_worker)
        return [name for name, _ in (*under_way, *in_between) if name == "xlogmem"]

    assert list(pair.run(change, LIBRARIES).values()) == [["xlogmem"]] * 2


def test_fragmentation_is_that_of_the_pools(pair):
    def fragment():
        runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(initial_pool_size="1MiB"))
        blocks = [runtime.allocate(256 << 10) for _ in range(4)]
        blocks[0].free()
        blocks[2].free()
        seen = metrics()
        del blocks
        return seen

    for seen in pair.run(fragment).values():
        assert seen["pool_size"] == 1 << 20
        assert seen["pool_free_bytes"] == 512 << 10
        assert seen["fragmentation"] == 0.5


def test_prometheus_scrapes_the_runtimes(pair):
    pytest.importorskip("prometheus_client", reason="needs prometheus_client")

    def scrape(port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    ports = pair.run(lambda dask_worker: dask_worker.http_server.port)
    for wanted in (True, True, False):                  # twice: it is registered once
        pair.register_plugin(XlogmemPlugin(libraries=LIBRARIES, prometheus=wanted))
        for port in ports.values():
            assert ("xlogmem_live_bytes" in scrape(port)) is wanted
    pair.unregister_worker_plugin("xlogmem")


# ---------------------------------------------------------------------------------------------- other processes
def test_a_block_does_not_leave_its_process(plugged):
    future = plugged.submit(lambda: xlogmem.DeviceRuntime().allocate(64), pure=False)
    with pytest.raises(TypeError, match=r"a block of AsyncMemoryResource cannot be copied, nor be pickled for .*"
                                        r"CUDA IPC"):
        future.result(timeout=60)


def test_a_token_says_that_its_buffer_is_elsewhere(plugged):
    def make(dask_worker):
        dask_worker.state_of_test = xlogmem.DeviceState(xlogmem.DeviceRuntime())
        dask_worker.buffer_of_test = dask_worker.state_of_test.from_numpy([1, 2, 3])
        return dask_worker.buffer_of_test.token

    def at_home(token, dask_worker):
        return token.resolve() is dask_worker.buffer_of_test

    def drop(dask_worker):
        del dask_worker.buffer_of_test, dask_worker.state_of_test

    tokens = plugged.run(make)
    for address, token in tokens.items():
        with pytest.raises(UnknownNodeError, match="in another process"):
            token.resolve()
        assert plugged.run(at_home, token, workers=[address]) == {address: True}
    (_, token), (other, _) = tokens.items()
    with pytest.raises(UnknownNodeError, match="in another process"):
        plugged.run(at_home, token, workers=[other])
    plugged.run(drop)


# ---------------------------------------------------------------------------------------------- RMM's pools
@needs_rmm
@pytest.mark.parametrize(("kind", "track", "below"), [
    ("pool", False, ["StatisticsResourceAdaptor", "CallbackMemoryResource"]),
    ("async", True, ["TrackingResourceAdaptor", "LimitingResourceAdaptor", "CallbackMemoryResource"])])
def test_the_preload_comes_after_the_pools(kind, track, below):
    """It is after them in a worker that a nanny starts again, too."""
    with Cluster(1, plugins=(Pools(kind, track),), preload=("xlogmem.dask",)) as cluster, connected(cluster) as client:
        for _ in range(2):
            (seen,) = client.run(resources).values()
            assert seen == ["RuntimeMemoryResource", *below]
            (figures,) = client.run(metrics).values()
            assert figures["tracked"] is True
            if kind == "pool":
                break
            client.restart(timeout=60)


@needs_rmm
def test_before_the_pools_it_would_be_replaced():
    """The twin: a preload that sets the plugin up itself."""
    with (Cluster(1, plugins=(Pools("async"),), preload=("plugin_at_once",)) as cluster,
          connected(cluster) as client):
        (seen,) = client.run(resources).values()
        assert "RuntimeMemoryResource" not in seen
        (figures,) = client.run(metrics).values()
        assert figures["tracked"] is False


@needs_rmm
def test_it_survives_rmm_reinitialize(pair):
    pair.register_plugin(XlogmemPlugin())
    pair.run(reinitialize)
    for address, seen in pair.run(resources).items():
        assert seen == ["RuntimeMemoryResource", "StatisticsResourceAdaptor", "CallbackMemoryResource"]
        assert pair.run(metrics, workers=[address])[address]["tracked"] is True
    assert shuffle(pair, ROWS, "use") == expected(ROWS, 2)
    pair.unregister_worker_plugin("xlogmem")
    pair.run(reinitialize)
    for seen in pair.run(resources).values():
        assert seen == ["StatisticsResourceAdaptor", "CallbackMemoryResource"]


# ---------------------------------------------------------------------------------------------- what is refused
def test_an_unknown_option_is_refused_where_the_plugin_is_made():
    with pytest.raises(TypeError, match="no option 'pool_size'; choose from libraries, "):
        XlogmemPlugin(pool_size=1)
    for misspelt in ("rmm,cuppy", ["cuppy"]):
        with pytest.raises(ValueError, match="'cuppy' is not a library of XlogmemPlugin; choose from rmm, cupy"):
            XlogmemPlugin(libraries=misspelt)
    for name, wrong in (("limit", "lots"), ("initial_pool_size", "1 XB"), ("maximum_pool_size", -1)):
        with pytest.raises(ValueError, match=f"{name} must "):
            XlogmemPlugin(pool_allocator=True, **{name: wrong})


def test_the_preload_is_for_workers():
    with pytest.raises(TypeError, match="a preload for workers, not for a dict"):
        asyncio.run(dask_setup({}))


def test_the_preload_reads_the_configuration():
    for configuration, plugin in [({}, XlogmemPlugin()), ({"xlogmem": None}, XlogmemPlugin()),
                                  ({"xlogmem.libraries": "rmm, cupy"}, XlogmemPlugin(libraries=["rmm", "cupy"])),
                                  ({"xlogmem.pool-allocator": True}, XlogmemPlugin(pool_allocator=True))]:
        with dask.config.set(configuration):
            assert vars(configured()) == vars(plugin)
    with dask.config.set({"xlogmem": "rmm"}), pytest.raises(TypeError, match="must be a section of options, not 'rmm'"):
        configured()


def test_the_plugin_goes_to_workers():
    plugin = pickle.loads(pickle.dumps(XlogmemPlugin(limit="1GiB", prometheus=True)))
    assert vars(plugin) == vars(XlogmemPlugin(limit="1GiB", prometheus=True))


@needs_rmm
def test_a_library_that_is_missing_is_an_error_of_the_registration(pair):
    """And what was enabled before it is not left behind."""
    with pytest.raises(ImportError, match="needs PyTorch"):
        pair.register_plugin(XlogmemPlugin(libraries=["rmm", "torch"]))
    assert not any("RuntimeMemoryResource" in seen for seen in pair.run(resources).values())
    pair.unregister_worker_plugin("xlogmem")


def test_the_benchmark_runs_without_a_gpu(tmp_path):
    """`benchmarks/dask_shuffle.py` with its stand-in, on one worker as on one GPU."""
    file = tmp_path / "shuffle.json"
    done = subprocess.run([sys.executable, str(ROOT / "benchmarks/dask_shuffle.py"), "--stand-in", "--workers", "1",
                           "--gigabytes", "0.001", "--partitions", "2", "--shuffles", "1", "--turns", "1", "--json",
                           str(file)], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    runs = json.loads(file.read_text())["runs"]
    assert [(one["mode"], one["workers"], one["bytes"], len(one["seconds"])) for one in runs] == [
        ("off", 1, 1_000_000, 1), ("on", 1, 1_000_000, 1)]
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["off", "on"]


@pytest.mark.parametrize("option", ["--turns", "--shuffles", "--partitions", "--workers"])
def test_the_benchmark_refuses_to_measure_nothing(option):
    done = subprocess.run([sys.executable, str(ROOT / "benchmarks/dask_shuffle.py"), "--stand-in", option, "0"],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert f"error: argument {option}: must be at least 1, not 0" in done.stderr
