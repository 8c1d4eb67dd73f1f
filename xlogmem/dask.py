"""Dask: a plugin that has the workers of a cluster allocate through xlogmem, and their metrics.

    client.register_plugin(xlogmem.dask.XlogmemPlugin())            # of a running cluster
    dask cuda worker SCHEDULER --preload xlogmem.dask               # or of workers that are started

Both come after the memory pools that dask-cuda sets up.  The only place that imports dask and distributed:
``pip install "distributed>=2025.1"``.
"""
from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, SupportsIndex, cast

try:
    import dask.config
    from distributed import Worker, WorkerPlugin
except ImportError as _error:
    raise ImportError('xlogmem.dask needs distributed: pip install "distributed>=2025.1"') from _error

import xlogmem
from xlogmem._base.log import logger
from xlogmem._base.texts import printable
from xlogmem._devices import device_ids
from xlogmem._driver import ProcessLock
from xlogmem.allocators import LIBRARIES, Library, enabled_libraries
from xlogmem.resources import PoolMemoryResource
from xlogmem.resources.layers import find_layers
from xlogmem.resources.options import HasRuntime, RuntimeOptions
from xlogmem.runtime import existing_runtimes

__all__ = ["XlogmemPlugin", "dask_setup", "metrics"]

COUNTED = ("allocations", "frees", "uses", "waits", "host_waits")
# The columns of the dashboard's page of workers, and the entries of `metrics` that they show.
COLUMNS = {"xlogmem-live": "live_bytes", "xlogmem-pending": "pending_bytes", "xlogmem-peak": "peak_bytes",
           "xlogmem-fragmentation": "fragmentation", "xlogmem-waits": "waits", "xlogmem-host-waits": "host_waits"}
OPTIONS = ("policy", "pool_allocator", "initial_pool_size", "maximum_pool_size", "limit", "statistics", "guard")

RESTART = ("A worker keeps the runtime that it has until it starts again: call client.restart(). Where there is a "
           "preload too, that comes first, and needs the same options, from Dask's configuration")


def metrics() -> dict[str, Any]:
    """Memory and counts of the runtimes of this process; for ``client.run(xlogmem.dask.metrics)``.

    Returns
    -------
    dict
        ``live_bytes``, ``pending_bytes`` and ``peak_bytes`` (the sum of the runtimes' own); ``pool_size`` and
        ``pool_free_bytes`` of xlogmem's pools, and ``fragmentation``, the share of the latter outside of the largest
        place of each pool, None without a pool; ``allocations``, ``frees``, ``uses``, ``waits`` (of a stream, on the
        device) and ``host_waits``, each so far; ``tracked``, true if RMM's allocations on device 0 are tracked now,
        None where `xlogmem.rmm` was not imported.

    Notes
    -----
    Makes no driver call, and takes no snapshot: in time proportional to the places of the pools.  Thread-safe.

    Examples
    --------
    >>> import xlogmem.dask
    >>> block = xlogmem.get_runtime().allocate("1MiB")
    >>> xlogmem.dask.metrics()["live_bytes"] >= 1048576
    True
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
    """Plugin by which each worker allocates through xlogmem, and reports its memory with every heartbeat.

    Parameters
    ----------
    libraries : iterable of str, or str
        As in `xlogmem.enable`, or one text with commas: ``"rmm,cupy"``.  With ``"rmm"``, the default, RMM's current
        resource stays below the runtime.
    devices : "all", int, or iterable of int
        For RMM, in the numbers of the worker: with dask-cuda device 0 is its own.
    prometheus : bool
        Add `xlogmem.observe.prometheus.Collector` to the worker's ``/metrics``.
    **options
        `policy`, `pool_allocator`, `initial_pool_size`, `maximum_pool_size`, `limit`, `statistics` and `guard` of
        `xlogmem.enable`, for all libraries.

    Raises
    ------
    TypeError
        An option is unknown.
    ValueError
        A library is unknown.

    Notes
    -----
    A worker that is restarted gets the plugin again.  ``rmm.reinitialize`` is followed; code that replaces RMM's
    resource by other means is not, which `metrics` shows as ``tracked``.  When the last worker of the process drops the
    plugin, the plugin undoes its own changes alone: those of the program itself stay.

    A runtime keeps its options until its process ends.  Where a plugin wants others, its registration fails, and the
    worker keeps the former ones: call ``client.restart()``.  None and False want nothing.

    Examples
    --------
    >>> client.register_plugin(xlogmem.dask.XlogmemPlugin(limit="8GiB"))    # doctest: +SKIP
    """

    name = "xlogmem"

    def __init__(self, *, libraries: str | Iterable[str] = ("rmm",),
                 devices: str | SupportsIndex | Iterable[SupportsIndex] = 0, prometheus: bool = False,
                 **options: Any) -> None:
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown:
            raise TypeError(f"XlogmemPlugin has no option {unknown[0]!r}; choose from libraries, devices, prometheus, "
                            f"{', '.join(OPTIONS)}")
        names = libraries.split(",") if isinstance(libraries, str) else libraries
        self._libraries = tuple(filter(None, map(str.strip, names)))
        for name in self._libraries:
            if name not in LIBRARIES:
                raise ValueError(f"{name!r} is not a library of XlogmemPlugin; choose from {', '.join(LIBRARIES)}")
        RuntimeOptions.given(**options).check()         # an error here, and not in each worker
        self._devices, self._prometheus, self._options = devices, prometheus, options

    def __repr__(self) -> str:
        options = {"libraries": self._libraries, "devices": self._devices, "prometheus": self._prometheus}
        options |= self._options
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"

    async def setup(self, worker: Worker) -> None:
        """Called by Dask.  A worker sets up the plugins that it begins with together: the others come first.

        A plugin that replaces another begins before that one ends, which interrupts no piece that both want; where the
        new one fails, the worker keeps the former.
        """
        former = _stay(worker)
        if not former:
            _starting.add((worker.id, self))
            await asyncio.sleep(0)
            if (worker.id, self) not in _starting:      # torn down meanwhile, for another one of the same name
                return
            _starting.remove((worker.id, self))
        with _lock:
            kept = frozenset[Piece]().union(*map(_wants.pop, former))
            try:
                _wants[worker.id, self] = self._begin()
            except BaseException as failure:
                if former:                              # for which this one stands from now on, with Dask
                    _wants[worker.id, self] = kept
                    logger().error("XlogmemPlugin was not set up; this worker goes on with what it has: %s",
                                   printable(str(failure)))
                raise
            finally:
                _end_unwanted()
        report(worker)

    def teardown(self, worker: Worker) -> None:
        """Called by Dask.  Where another plugin is set up in its place at once, as after a second registration, this
        one stays until then: allocations of tasks in between would be untracked for good.
        """
        _starting.discard((worker.id, self))
        with _lock:
            if (worker.id, self) in _wants and is_replaced():
                _leaving[worker.id, self] = asyncio.get_running_loop().call_soon(self._leave, worker)
            else:
                self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        with _lock:
            _leaving.pop((worker.id, self), None)
            _wants.pop((worker.id, self), None)
            _end_unwanted()
            if not any(other == worker.id for other, _ in _wants):
                worker.metrics = {name: metric for name, metric in worker.metrics.items()
                                  if name != "xlogmem" and name not in COLUMNS}

    def _begin(self) -> frozenset[Piece]:
        """Begin the pieces that the plugin wants, and return them.  New pieces are noted."""
        wants: set[Piece] = set()
        if "rmm" in self._libraries:
            import xlogmem.rmm as on_rmm

            devices = device_ids(self._devices)
            before = _on_devices()
            try:
                on_rmm.enable(devices, follow_reinitialize=True, **self._options)
            except HasRuntime as refusal:
                raise RuntimeError(f"{refusal.args[0]}. {RESTART}") from None
            _begun.update(_on_devices() - before)
            wants.update((kind, device) for kind in (DEVICE, FOLLOWED) for device in devices)
        others = [cast(Library, name) for name in self._libraries if name != "rmm"]
        if others:
            enabled = enabled_libraries()
            try:
                xlogmem.enable(*others, **self._options)
            except HasRuntime as refusal:
                raise RuntimeError(f"{refusal.args[0]}. {RESTART}") from None
            _begun.update((LIBRARY, name) for name in enabled_libraries() - enabled)
            wants.update((LIBRARY, name) for name in others)
        if self._prometheus:
            _collect()
            wants.add((COLLECTOR, 0))
        return frozenset(wants)


# ---------------------------------------------------------------------------------------------- pieces
DEVICE, FOLLOWED, LIBRARY, COLLECTOR = "RMM on device", "rmm.reinitialize on device", "library", "collector"
Piece = tuple[str, Any]                     # one of these, and which
ENDED = (COLLECTOR, LIBRARY, FOLLOWED, DEVICE)          # in this order: libraries may be on RMM


_lock = ProcessLock()
Key = tuple[str, XlogmemPlugin]             # a worker's id, and one of its plugins; a process may have several of both
_wants: dict[Key, frozenset[Piece]] = {}                # of plugins that are set up
_starting: set[Key] = set()                             # plugins that wait for the others of their worker
_leaving: dict[Key, asyncio.Handle] = {}                # plugins that were torn down just now
_begun: set[Piece] = set()                              # by plugins, and not by the program itself
_collectors: list[Any] = []                             # in Prometheus' registry of the process


def _stay(worker: Worker) -> list[Key]:
    """The plugins of the worker that were torn down just now do not end."""
    with _lock:
        keys = [key for key in _leaving if key[0] == worker.id]
        for key in keys:
            _leaving.pop(key).cancel()
        return keys


def _on_devices() -> set[Piece]:
    on_rmm = sys.modules["xlogmem.rmm"]
    return {(DEVICE, device) for device in on_rmm.active_devices()} | {
        (FOLLOWED, device) for device in on_rmm.followed_devices()}


def _collect() -> None:
    if not _collectors:
        from prometheus_client import REGISTRY

        from xlogmem.observe.prometheus import Collector

        collector = Collector()
        REGISTRY.register(collector)
        _collectors.append(collector)
        _begun.add((COLLECTOR, 0))


def _end_unwanted() -> None:
    """End the pieces that plugins began and none wants any more.  A failure is logged: a worker has to close."""
    unwanted = _begun.difference(*_wants.values())
    for kind, which in sorted(unwanted, key=lambda piece: (ENDED.index(piece[0]), piece[1])):
        try:
            _end(kind, which)
        except (ImportError, RuntimeError, ValueError) as failure:
            logger().warning("%s %s stays enabled on this worker: %s", kind, printable(str(which)),
                             printable(str(failure)))
        else:
            _begun.discard((kind, which))


def _end(kind: str, which: Any) -> None:
    if kind == LIBRARY:
        xlogmem.disable(which)
    elif kind == COLLECTOR:
        from prometheus_client import REGISTRY

        REGISTRY.unregister(_collectors.pop())
    elif kind == FOLLOWED:
        sys.modules["xlogmem.rmm"].stop_following(which)
    else:
        sys.modules["xlogmem.rmm"].disable(which)


# ---------------------------------------------------------------------------------------------- for Dask
def is_replaced() -> bool:
    """True if `Worker.plugin_add` has the plugin torn down, for one of the same name.

    There is no other sign: a worker that closes and a client that unregisters the plugin tear it down too, and need it
    ended when they go on.  Where Dask has no such function, the plugin ends at once.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "plugin_add":
        frame = frame.f_back
    return frame is not None


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


def configured() -> XlogmemPlugin:
    """With the options that Dask's configuration has under ``xlogmem``."""
    options = dask.config.get("xlogmem", default=None)
    if options is None:                                 # also of a section without any line
        options = {}
    if not isinstance(options, Mapping):
        raise TypeError(f"xlogmem in Dask's configuration must be a section of options, not {options!r}")
    return XlogmemPlugin(**{str(name).replace("-", "_"): value for name, value in options.items()})


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
    plugin = configured()
    # Preloads come before the plugins of the worker, which set up dask-cuda's pools.
    pending = getattr(worker, "_pending_plugins", None)
    if pending is None:
        await worker.plugin_add(plugin, catch_errors=False)
    else:
        worker._pending_plugins = (*pending, plugin)
