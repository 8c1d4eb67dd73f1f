"""Workers of Dask with a simulated device each, and what runs in them.

dask-cuda needs NVML, so `Cluster` does what its LocalCUDACluster does with devices: each worker sees all of them, its
own first.  RMM is the real one.  Only its classes that call CUDA's runtime library themselves have stand-ins: `prepare`
puts them in their places, before any plugin.
"""
from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda
from distributed import Client, LocalCluster, WorkerPlugin

import xlogmem
from xlogmem import sim
from xlogmem.sim.kernels import check

__all__ = ["DEVICES", "Cluster", "Pools", "connected", "dask_setup", "enabled", "expected", "races", "reinitialize",
           "reported", "resources", "shuffle", "stand_in_for_cupy"]

HELPERS = str(Path(__file__).parent)
DEVICES = 2


class Cluster(LocalCluster):
    """One process and one device for each worker."""

    def __init__(self, workers: int = DEVICES, *, plugins: tuple[WorkerPlugin, ...] = (),
                 preload: tuple[str, ...] = (), **options: Any) -> None:
        self._plugins = plugins
        super().__init__(n_workers=0, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
                         worker_dashboard_address="127.0.0.1:0",
                         preload=["dask_workers", *preload], **options)
        self.scale(workers)
        self.sync(self._correct_state)

    def new_worker_spec(self) -> dict[Any, Any]:
        number = len(self.worker_spec)
        spec = copy.deepcopy(self.new_spec)
        order = [(number + other) % DEVICES for other in range(DEVICES)]
        paths = [HELPERS, str(Path(xlogmem.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        spec["options"].update(plugins=self._plugins, env={
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, order)), "XLOGMEM_SIMULATE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), **sim.settings(devices=DEVICES, quiet=True)})
        return {number: spec}


def connected(cluster: LocalCluster) -> Client:
    client = Client(cluster, timeout=30)
    client.wait_for_workers(len(cluster.worker_spec), timeout=60)
    return client


# ---------------------------------------------------------------------------------------------- in a worker
def prepare() -> None:
    """The simulated driver; RMM's initial resource and pools are stand-ins, and what it calls to find its device."""
    sim.install()
    make_current()                                      # as dask-cuda's preload does
    try:
        import rmm
    except ImportError:
        return
    from rmm.pylibrmm.memory_resource import _memory_resource
    from rmm_if_installed import Source

    def current_device() -> int:
        return int(check(cuda.cuCtxGetDevice())) if int(check(cuda.cuCtxGetCurrent())) else 0

    def initialize(pool_allocator: bool = False, managed_memory: bool = False, devices: Any = 0, **_: Any) -> None:
        for device in [devices] if isinstance(devices, int) else devices or [0]:
            resource = Source().mr
            rmm.mr.set_per_device_resource(device, rmm.mr.StatisticsResourceAdaptor(resource) if pool_allocator
                                           else resource)

    _memory_resource.getDevice = current_device
    rmm.rmm._initialize = initialize
    initialize(devices=range(DEVICES))


def make_current() -> None:
    """The worker's device, in this thread."""
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))


def dask_setup(worker: Any) -> None:
    """The preload: before all others."""
    prepare()


class Pools(WorkerPlugin):
    """What dask-cuda's RMMSetup calls for ``--rmm-pool-size``, ``--rmm-async`` and ``--rmm-track-allocations``."""

    def __init__(self, kind: str, track: bool = False) -> None:
        self.kind, self.track = kind, track

    def setup(self, worker: Any = None) -> None:
        import rmm
        from rmm_if_installed import Source

        if self.kind == "async":
            rmm.mr.set_current_device_resource(rmm.mr.LimitingResourceAdaptor(Source().mr, allocation_limit=1 << 30))
        else:
            rmm.reinitialize(pool_allocator=self.kind == "pool", managed_memory=self.kind == "managed")
        if self.track:
            rmm.mr.set_current_device_resource(rmm.mr.TrackingResourceAdaptor(rmm.mr.get_current_device_resource()))


def reported(client: Client, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
    """What all workers have reported, once it is what is wanted; they do so twice a second."""
    for _ in range(600):
        seen: dict[str, dict[str, Any]] = client.run_on_scheduler(
            lambda dask_scheduler: {worker.address: dict(worker.metrics)
                                    for worker in dask_scheduler.workers.values()})
        if all(map(wanted, seen.values())):
            return seen
        time.sleep(0.05)
    raise AssertionError(f"after half a minute workers report {seen}")


def resources() -> list[str]:
    """RMM's current resource and those below."""
    import rmm

    from xlogmem.rmm import stack

    return [type(lower).__name__ for lower in stack(rmm.mr.get_current_device_resource())]


def reinitialize() -> None:
    import rmm

    rmm.reinitialize(pool_allocator=True)


def enabled() -> tuple[list[int], list[int], list[str]]:
    """RMM's devices, those that are followed, and other libraries."""
    import xlogmem.rmm
    from xlogmem.allocators import enabled_libraries

    return (sorted(xlogmem.rmm.active_devices()), sorted(xlogmem.rmm.followed_devices()), sorted(enabled_libraries()))


def stand_in_for_cupy() -> None:
    """`xlogmem.enable("cupy")` succeeds here, and does nothing."""
    class StandIn:
        is_on_rmm = refuse = enable = disable = staticmethod(lambda: False)

    sys.modules["xlogmem.allocators.cupy"] = StandIn    # type: ignore[assignment]


def races() -> list[str]:
    """What the simulated driver has found in this worker."""
    return sim.simulator().races()


# ---------------------------------------------------------------------------------------------- a shuffle
def shuffle(client: Client, rows: int, order: str) -> list[int]:
    """Each worker has `rows` rows of its own; rows go to the worker of their remainder, and are added up there."""
    workers = sorted(client.scheduler_info()["workers"])
    targets = range(len(workers))
    split = [client.submit(split_rows, source, rows, len(workers), order, workers=[address], pure=False)
             for source, address in enumerate(workers)]
    parts = [[client.submit(tuple.__getitem__, one, target, workers=[address], pure=False) for target in targets]
             for one, address in zip(split, workers, strict=True)]
    sums = [client.submit(add_up, [part[target] for part in parts], order, workers=[workers[target]], pure=False)
            for target in targets]
    return [int(one) for one in client.gather(sums)]


def expected(rows: int, workers: int) -> list[int]:
    everything = np.arange(rows * workers)
    return [int(everything[everything % workers == target].sum()) for target in range(workers)]


def split_rows(source: int, rows: int, targets: int, order: str) -> tuple[np.ndarray, ...]:
    mine = np.arange(source * rows, (source + 1) * rows)
    here = through_the_device(mine, order)
    return tuple(here[here % targets == target] for target in range(targets))


def add_up(parts: list[np.ndarray], order: str) -> int:
    return int(through_the_device(np.concatenate(parts), order).sum())


def through_the_device(values: np.ndarray, order: str) -> np.ndarray:
    """Uploaded on one stream and downloaded on another, which is ordered after it by a `use`, by the host, or not."""
    make_current()                                      # the thread of the worker's tasks
    writer, reader = (check(cuda.cuStreamCreate(1)) for _ in range(2))
    memory, ptr = new_memory(values.nbytes)
    found = np.empty_like(values)
    if order == "use":
        with xlogmem.use(writer, write=memory):
            check(cuda.cuMemcpyHtoDAsync(ptr, values.ctypes.data, values.nbytes, writer))
        with xlogmem.use(reader, read=memory):
            check(cuda.cuMemcpyDtoHAsync(found.ctypes.data, ptr, values.nbytes, reader))
    else:
        check(cuda.cuStreamSynchronize(0))              # after the allocation
        check(cuda.cuMemcpyHtoDAsync(ptr, values.ctypes.data, values.nbytes, writer))
        if order == "host":
            check(cuda.cuStreamSynchronize(writer))
        check(cuda.cuMemcpyDtoHAsync(found.ctypes.data, ptr, values.nbytes, reader))
    check(cuda.cuStreamSynchronize(reader))
    del memory
    for stream in (writer, reader):
        check(cuda.cuStreamSynchronize(stream))
    return found


def new_memory(nbytes: int) -> tuple[Any, int]:
    """From RMM's current resource; without RMM, from the runtime."""
    try:
        import rmm
    except ImportError:
        block = xlogmem.get_runtime().allocate(nbytes)
        return block, block.ptr
    buffer = rmm.DeviceBuffer(size=nbytes, mr=rmm.mr.get_current_device_resource())
    return buffer, buffer.ptr
