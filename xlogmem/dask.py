"""Dask: a plugin that has the workers of a cluster allocate through xlogmem, and what they say of it.

    client.register_plugin(xlogmem.dask.XlogmemPlugin())            # of a running cluster
    dask cuda worker SCHEDULER --preload xlogmem.dask               # or of workers that are started

Both come after the memory pools that dask-cuda sets up.  The only place that imports dask and distributed:
``pip install "xlogmem[dask]"``.
"""
from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

try:
    import dask.config
    from distributed import Worker, WorkerPlugin
except ImportError as _error:
    raise ImportError('xlogmem.dask needs distributed: pip install "xlogmem[dask]"') from _error

import xlogmem
from xlogmem._driver import ProcessLock
from xlogmem._log import logger
from xlogmem.resources import PoolMemoryResource
from xlogmem.resources.layers import find_layers
from xlogmem.runtime import existing_runtimes

__all__ = ["XlogmemPlugin", "dask_setup", "metrics"]

COUNTED = ("allocations", "frees", "uses", "waits", "host_waits")
# The columns of the dashboard's page of workers, and the entries of `metrics` that they show.
COLUMNS = {"xlogmem-live": "live_bytes", "xlogmem-pending": "pending_bytes", "xlogmem-peak": "peak_bytes",
           "xlogmem-fragmentation": "fragmentation", "xlogmem-waits": "waits", "xlogmem-host-waits": "host_waits"}
ON_RMM = ("policy", "pool_allocator", "initial_pool_size", "maximum_pool_size", "limit", "statistics", "guard")

_lock = ProcessLock()
_workers: dict[str, XlogmemPlugin] = {}     # of this process that have it, by id: threads of one cluster are several
_collectors: list[Any] = []                 # in Prometheus' registry of the process


def metrics() -> dict[str, Any]:
    """What the runtimes of this process hold and have done; for ``client.run(xlogmem.dask.metrics)``.

    Returns
    -------
    dict
        ``live_bytes``, ``pending_bytes`` and ``peak_bytes`` (the sum of the runtimes' own); ``pool_size`` and
        ``pool_free_bytes`` of xlogmem's pools, and ``fragmentation``, the share of the latter outside of the largest
        place of each pool, None without a pool; ``allocations``, ``frees``, ``uses``, ``waits`` (of a stream, on the
        device) and ``host_waits``, each so far; ``tracked``, whether what RMM allocates on device 0 is tracked now,
        None where `xlogmem.rmm` was not imported.

    Notes
    -----
    Makes no driver call, and takes no snapshot: in time proportional to the places of the pools.  Thread-safe.
    """
    runtimes = existing_runtimes()
    counters = [runtime.counters() for runtime in runtimes]
    pools = [pool.statistics() for runtime in runtimes for pool in find_layers(runtime.resource, PoolMemoryResource)]
    free = sum(pool["free_bytes"] for pool in pools)
    largest = sum(pool["largest_free_bytes"] for pool in pools)
    on_rmm = sys.modules.get("xlogmem.rmm")
    return {
        "live_bytes": sum(runtime.live_bytes for runtime in runtimes),
        "pending_bytes": sum(runtime.pending_bytes for runtime in runtimes),
        "peak_bytes": sum(runtime.peak_bytes for runtime in runtimes),
        "pool_size": sum(pool["pool_size"] for pool in pools), "pool_free_bytes": free,
        "fragmentation": None if not pools else 1 - largest / free if free else 0.0,
        **{name: sum(counted[name] for counted in counters) for name in COUNTED},
        "tracked": None if on_rmm is None else on_rmm.is_current(0)}


class XlogmemPlugin(WorkerPlugin):
    """Has each worker allocate through xlogmem, and report its memory with every heartbeat.

    Parameters
    ----------
    libraries : iterable of str
        As in `xlogmem.enable`; with ``"rmm"``, the default, RMM's current resource stays below the runtime.
    devices : "all", int, or iterable of int
        For RMM, in the numbers of the worker: with dask-cuda device 0 is its own.
    prometheus : bool
        Add `xlogmem.prometheus.Collector` to what the worker serves as ``/metrics``.
    **options
        `policy`, `pool_allocator`, `initial_pool_size`, `maximum_pool_size`, `limit`, `statistics` and `guard` of
        `xlogmem.rmm.enable`.

    Raises
    ------
    TypeError
        An option is unknown.

    Notes
    -----
    A worker that is restarted gets the plugin again.  ``rmm.reinitialize`` is followed; code that replaces RMM's
    resource by other means is not, which `metrics` shows as ``tracked``.  When the last worker of the process drops the
    plugin, what was there before is restored.
    """

    name = "xlogmem"

    def __init__(self, *, libraries: Iterable[str] = ("rmm",),
                 devices: str | SupportsIndex | Iterable[SupportsIndex] = 0, prometheus: bool = False,
                 **options: Any) -> None:
        unknown = sorted(options.keys() - set(ON_RMM))
        if unknown:
            raise TypeError(f"XlogmemPlugin has no option {unknown[0]!r}; choose from libraries, devices, prometheus, "
                            f"{', '.join(ON_RMM)}")
        self._libraries = (libraries,) if isinstance(libraries, str) else tuple(libraries)
        if options and "rmm" not in self._libraries:
            raise TypeError(f"{', '.join(options)}: for RMM, which is not among the libraries")
        self._devices, self._prometheus, self._options = devices, prometheus, options

    async def setup(self, worker: Worker) -> None:
        """Called by Dask.  A worker sets up the plugins that it begins with together: the others come first."""
        await asyncio.sleep(0)
        with _lock:
            try:
                self._begin()
            except BaseException:
                if not _workers:
                    self._end()
                raise
            _workers[worker.id] = self
        report(worker)

    def teardown(self, worker: Worker) -> None:
        """Called by Dask.  What cannot be undone is logged: a worker has to close."""
        worker.metrics = {name: metric for name, metric in worker.metrics.items()
                          if name != "xlogmem" and name not in COLUMNS}
        with _lock:
            if _workers.pop(worker.id, None) is not None and not _workers:
                self._end()

    def _begin(self) -> None:
        if "rmm" in self._libraries:
            import xlogmem.rmm

            xlogmem.rmm.enable(self._devices, follow_reinitialize=True, **self._options)
        others = [name for name in self._libraries if name != "rmm"]
        if others:
            xlogmem.enable(*others)
        if self._prometheus and not _collectors:
            from prometheus_client import REGISTRY

            from xlogmem.prometheus import Collector

            collector = Collector()
            REGISTRY.register(collector)
            _collectors.append(collector)

    def _end(self) -> None:
        for name in reversed(self._libraries):
            try:
                if name != "rmm":
                    xlogmem.disable(name)
                elif "xlogmem.rmm" in sys.modules:
                    sys.modules["xlogmem.rmm"].disable()
            except (ImportError, RuntimeError, ValueError) as failure:
                logger().warning("%s stays enabled on this worker: %s", name, failure)
        while _collectors:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(_collectors.pop())


def report(worker: Worker) -> None:
    """`metrics` goes with every heartbeat from now on; numbers by themselves are columns on the dashboard."""
    latest: dict[str, Any] = {}

    def all_of_them(worker: Worker) -> dict[str, Any]:
        latest.update(metrics())
        return dict(latest)

    def column(entry: str) -> Callable[[Worker], Any]:
        return lambda worker: latest[entry]

    # They are called in this order.  A new dict, because a heartbeat that is under way awaits between two entries.
    worker.metrics = {**worker.metrics, "xlogmem": all_of_them,
                      **{name: column(entry) for name, entry in COLUMNS.items()}}


async def dask_setup(worker: Worker) -> None:
    """Called by Dask for ``--preload xlogmem.dask``: adds an `XlogmemPlugin` with the options that Dask's configuration
    has under ``xlogmem``.

    There are no options on the command line, because dask-cuda passes the same ones to all preloads.

    Raises
    ------
    TypeError
        An option is unknown, or this is something other than a worker.
    """
    if not isinstance(worker, Worker):
        raise TypeError(f"xlogmem.dask is a preload for workers, not for a {type(worker).__name__}")
    plugin = XlogmemPlugin(**{str(name).replace("-", "_"): value
                              for name, value in dask.config.get("xlogmem", default={}).items()})
    # Preloads come before the plugins of the worker, which set up dask-cuda's pools.
    pending = getattr(worker, "_pending_plugins", None)
    if pending is None:
        await worker.plugin_add(plugin, catch_errors=False)
    else:
        worker._pending_plugins = (*pending, plugin)
