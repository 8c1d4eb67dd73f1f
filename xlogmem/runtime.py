"""`DeviceRuntime`: the streams, the resource and the core of a device, put together; and the process's own.

The operations (allocate, adopt, reap_pending, register_stream, ...) are those of its base, `xlogmem.blocks.Runtime`.
"""
from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, SupportsIndex
from weakref import WeakValueDictionary

from xlogmem._base.signatures import names_nearest
from xlogmem._base.units import counted, format_bytes, parse_device_id
from xlogmem._driver import ProcessLock, device_count, supports_memory_pools
from xlogmem.blocks import POLICIES, Access, Runtime, in_scope
from xlogmem.errors import StreamMisuseError
from xlogmem.launch import LaunchRecorder, know_runtimes, provide_runtimes
from xlogmem.resources import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DirectMemoryResource,
    GuardResourceAdaptor,
    PinnedMemoryResource,
    PoolMemoryResource,
)
from xlogmem.resources.layers import layers_of
from xlogmem.streams import Stream, StreamPool

if TYPE_CHECKING:
    from xlogmem.observe.snapshots import Snapshot
    from xlogmem.resources.options import RuntimeOptions

__all__ = ["MAX_DEVICES", "DeviceRuntime", "get_runtime", "snapshot"]

MAX_DEVICES = 16

def plain_resource(device_id: int) -> DeviceMemoryResource:
    """The default resource of a device: stream-ordered if it supports memory pools, else direct."""
    return AsyncMemoryResource(device_id) if supports_memory_pools(device_id) else DirectMemoryResource(device_id)


RESOURCES: dict[str, Callable[[int], DeviceMemoryResource]] = {
    "async": AsyncMemoryResource, "direct": DirectMemoryResource,
    "pool": lambda device_id: PoolMemoryResource(device_id=device_id),
    "guard": lambda device_id: GuardResourceAdaptor(plain_resource(device_id))}

_runtimes: list[DeviceRuntime | None] = [None] * MAX_DEVICES
_options: RuntimeOptions | None = None                  # of those that `get_runtime` makes from now on
_existing: WeakValueDictionary[int, DeviceRuntime] = WeakValueDictionary()      # by number, those made by hand too
_existing_lock = ProcessLock()
_numbers = itertools.count(1)
_locks = [ProcessLock() for _ in range(MAX_DEVICES)]


def _named_in(variable: str, choices: Collection[str]) -> str:
    """The value of a variable of the environment that names one of these; empty if it is not set."""
    name = os.environ.get(variable, "")
    if name and name not in choices:
        raise ValueError(f"{variable}={name!r} is unknown; choose one of {', '.join(choices)}")
    return name


def check_environment() -> None:
    """Raise if a variable of the environment does not say what runtimes are made with: the first allocation would, from
    inside of another library."""
    _named_in("XLOGMEM_RESOURCE", RESOURCES)
    _named_in("XLOGMEM_POLICY", POLICIES)
    if text := os.environ.get("XLOGMEM_OPTIONS"):
        from xlogmem.resources.options import options_in  # dataclasses take longer to import than xlogmem

        options_in(text)


def default_resource(device_id: int, options: RuntimeOptions | None = None) -> DeviceMemoryResource:
    """A new resource for a runtime that is given none.  A pool and a guard that the options want are not made here."""
    name = _named_in("XLOGMEM_RESOURCE", RESOURCES)
    wanted = options and {"pool": options.pool_sizes is not None, "guard": options.guard}.get(name or "")
    return RESOURCES[name](device_id) if name and not wanted else plain_resource(device_id)


class DeviceRuntime(Runtime):
    """Tracks the device memory of one GPU and orders its uses.

    Most programs take the process's own with `get_runtime`; make one by hand to choose its parts.

    Parameters
    ----------
    device_id : int
        The device.
    resource : DeviceMemoryResource, optional
        Where the bytes come from, unless an allocation names another resource.  The default is what
        ``XLOGMEM_RESOURCE`` names (``async``, ``direct``,
        ``pool`` or ``guard``), else an `AsyncMemoryResource` where the device has memory pools and a
        `DirectMemoryResource` where it has none.
    stream_pool : StreamPool, optional
        The streams of this runtime.  A pool serves one runtime.
    policy : {"adaptive", "precise", "lazy"}, optional
        When a commit records an event at once: where it paid lately, always, or never.  The default is what
        ``XLOGMEM_POLICY`` names, else adaptive.

    Raises
    ------
    DriverNotFoundError
        There is no CUDA driver.
    StreamMisuseError
        The parts do not fit together: they are on different devices, or the pool is in use.

    Notes
    -----
    Thread-safe.  It lives as long as any of its blocks and recorders; the streams and the resource's memory go with it.
    What runtimes of the device had left when they ended is freed before: for that the host may wait for the context.

    Examples
    --------
    >>> runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(), policy="precise")
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> x = runtime.allocate("1MiB", load)
    >>> with xlogmem.use(load, write=x):
    ...     pass                                    # an upload on `load`
    >>> with xlogmem.use(work, read=x):             # waits for it, on the device
    ...     pass
    >>> runtime.counters()["waits"]
    1
    """

    options: RuntimeOptions | None = None                       # chosen when it was made, if any
    _prepared: dict[tuple[int, int], list[LaunchRecorder]]     # unfinished uses, by generation and stream
    _prepared_lock: ProcessLock
    _number: int                                                # of the runtime in its process, from 1
    _page_locked: PoolMemoryResource | None = None              # see `_page_locked_pool`

    @names_nearest
    def __new__(cls, device_id: int = 0, *, resource: DeviceMemoryResource | None = None,
                stream_pool: StreamPool | None = None, policy: str | None = None) -> DeviceRuntime:
        device_id = parse_device_id(device_id)
        if resource is None:
            resource = default_resource(device_id)
        if not isinstance(resource, DeviceMemoryResource):
            raise TypeError(f"resource must be a DeviceMemoryResource, such as PoolMemoryResource(), not {resource!r}")
        if not isinstance(stream_pool, StreamPool | None):
            raise TypeError(f"stream_pool must be a StreamPool, not {stream_pool!r}")
        if stream_pool is None:
            stream_pool = StreamPool(device_id)
        try:
            self = super().__new__(cls, stream_pool, resource,
                                   policy=policy or _named_in("XLOGMEM_POLICY", POLICIES) or "adaptive")
        except StreamMisuseError:
            _refuse_elsewhere(device_id, resource, stream_pool)
            raise
        if self.device_id != device_id:
            _refuse_elsewhere(device_id, resource, stream_pool)
        self._prepared = {}
        self._prepared_lock = ProcessLock()
        self._number = next(_numbers)
        with _existing_lock:
            _existing[self.ordering.number] = self
            know_runtimes(_existing.valuerefs())
        return self

    def __init__(self, device_id: int = 0, *, resource: DeviceMemoryResource | None = None,
                 stream_pool: StreamPool | None = None, policy: str | None = None) -> None:
        super().__init__()

    def acquire_stream(self, *, discipline: str = "ordinary", priority: int = 0) -> Stream:
        """A new stream of the runtime's pool; see `StreamPool.acquire`.

        Examples
        --------
        >>> stream = xlogmem.get_runtime().acquire_stream(priority=-1)
        >>> stream.discipline
        'ordinary'
        """
        return self.stream_pool.acquire(discipline=discipline, priority=priority)

    def prepare_block_use(self, block: Any, stream: Any, access: Access) -> None:
        """Open a window on one block: queue the waits that a use on `stream` needs.

        Close it with `finish_block_use`; else the use is filed when the runtime ends.  For launches that touch several
        blocks, `use` is one window and one position for all of them.

        Parameters
        ----------
        block : object
            What `use` takes for one block.
        stream : stream
            Where the launch goes; it may be on another device, as for `use`.
        access : Access
            How the launch accesses the block.

        Raises
        ------
        StreamMisuseError, UseAfterFreeError, DriverError
            See `LaunchRecorder.preflight`.
        """
        method = _method_of(access)
        generation = self._generation_of(block)         # it is a block of this runtime
        recorder = LaunchRecorder(self.default_stream if stream is None else stream, runtime=self)
        if recorder.stream is None:
            raise TypeError("prepare_block_use: xlogmem.host is not a stream: write "
                            "`with xlogmem.use(xlogmem.host, ...)`")
        key = (generation, recorder.stream.id)
        getattr(recorder, method)(block)
        recorder.preflight()
        if recorder.recorded_count:
            recorder._keep_by_runtime()
            with self._prepared_lock:
                self._prepared.setdefault(key, []).append(recorder)
        else:
            recorder.commit()                           # nothing to touch

    def finish_block_use(self, block: Any, stream: Any, access: Access) -> None:
        """File the use that `prepare_block_use` opened.

        Without one, the use is filed for later users and removes nothing; see `record_block_use`.
        """
        _method_of(access)
        generation = self._generation_of(block)         # before the stream, which may have to be registered
        used = self._stream_for_use(stream)
        with self._prepared_lock:
            recorders = self._prepared.get((generation, used.id), [])
            recorder = recorders.pop() if recorders else None
            if not recorders:
                self._prepared.pop((generation, used.id), None)
        if recorder is None:
            self._file(block, used, access.value)
        else:
            recorder._take_from(self)
            recorder.commit()

    def memory_summary(self) -> str:
        """Describe the memory as a text for people: totals of the runtime, and the summaries of the resource
        and those below it.

        Examples
        --------
        >>> runtime = xlogmem.DeviceRuntime()
        >>> block = runtime.allocate("4MiB", tag="left")
        >>> print(runtime.memory_summary())                                     # doctest: +ELLIPSIS
        <DeviceRuntime device=0 resource=AsyncMemoryResource policy=adaptive>
          live                 4.0 MiB in 1 block
        ...
        """
        counters = self.counters()
        live, pending = self.live_bytes, self.pending_bytes
        lines = [f"{self!r}",
                 f"  live            {format_bytes(live):>12} in {counted(counters['live_blocks'], 'block')}",
                 f"  peak            {format_bytes(self.peak_bytes):>12}",
                 f"  pending         {format_bytes(pending):>12}, freed, and not complete yet",
                 f"  allocations     {counters['allocations']:>12} so far, {counted(counters['frees'], 'free')}, "
                 f"{counted(counters['uses'], 'use')}",
                 f"  events          {counters['records']:>12} recorded, {counted(counters['waits'], 'wait')}, "
                 f"{counted(counters['host_waits'], 'wait')} of the host; "
                 f"{counters['known'] + counters['covered']:,} left out"]
        lines += [layer.memory_summary() for resource in self.resources for layer in layers_of(resource)
                  if hasattr(layer, "memory_summary")]
        return "\n".join(lines)

    def snapshot(self) -> Snapshot:
        """A snapshot of memory at this moment: every block with its tag and users, streams, totals, the pool's figures.

        Returns
        -------
        Snapshot
            Consistent: its sums are its totals, whatever other threads do meanwhile.

        Notes
        -----
        Copied in one acquisition of the runtime's lock, in time proportional to the blocks and the pool's spans, and
        made into Python objects afterwards.  Makes no driver call, and costs other calls nothing but the wait for that
        lock.  With a pool the caches of streams are emptied into it.  Thread-safe.
        """
        from xlogmem.observe.snapshots import take  # not before it is needed

        return take(self)

    def _tag_for(self, library: str) -> str | None:
        """The tag of a library's memory, for the error of a budget; without one a tag would only cost time."""
        return library if self.options is not None and self.options.limit is not None else None

    def _tag_here(self, library: str) -> str | None:
        """The same of an allocation from Python, where a scope gives its own tag."""
        return None if in_scope() else self._tag_for(library)

    def _page_locked_pool(self) -> PoolMemoryResource:
        """The pool of page-locked memory for uploads, downloads and libraries; it lives as long as the runtime."""
        pool = self._page_locked
        if pool is None:
            made = PoolMemoryResource(PinnedMemoryResource(device_id=self.device_id))
            pool = vars(self).setdefault("_page_locked", made)      # another thread may have made one
        return pool

    def _repr_html_(self) -> str:
        """Totals and the largest holders, for notebooks."""
        return self.snapshot()._as_html(repr(self))

    @property
    def default_stream(self) -> Stream:
        """The stream that allocations use when no other is named."""
        return self.stream_pool.default


def _refuse_elsewhere(device_id: int, resource: DeviceMemoryResource, stream_pool: StreamPool) -> None:
    """Raise if a part is on another device.  One that was never initialised is on none: the core says so."""
    for name, part in (("resource", resource), ("stream_pool", stream_pool)):
        there = getattr(part, "device_id", None)
        if there not in (None, device_id):
            raise StreamMisuseError(f"{name} is on device {there}, and device_id is {device_id}: pass "
                                    f"device_id={there}, or make it with device_id={device_id}") from None


_METHODS = {Access.READ: "read", Access.WRITE: "write", Access.READ_WRITE: "read_write"}


def _method_of(access: Access) -> str:
    """The recorder's method for an access."""
    if not isinstance(access, Access) or access not in _METHODS:
        raise TypeError(f"access must be Access.READ, Access.WRITE or Access.READ_WRITE, got {access!r}")
    return _METHODS[access]


def get_runtime(device_id: SupportsIndex | str = 0) -> DeviceRuntime:
    """The process's runtime for a device, made by the first call.

    Parameters
    ----------
    device_id : int or str
        The device, 0 to 15; also as ``"cuda:0"``.

    Raises
    ------
    ValueError
        There is no such device.
    DriverNotFoundError, DriverError
        The runtime could not be made.  The next call tries again.

    Notes
    -----
    Thread-safe: simultaneous callers get the same object, and none is made twice.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()             # of device 0
    >>> runtime is xlogmem.get_runtime(0)
    True
    """
    if type(device_id) is int and 0 <= device_id < MAX_DEVICES:     # allocators of other libraries call this each time
        number = device_id
    else:
        number = parse_device_id(device_id, MAX_DEVICES - 1)
    runtime = _runtimes[number]
    if runtime is not None:
        return runtime
    with _locks[number] as depth:
        runtime = _runtimes[number]
        if runtime is None:
            if depth > 1:                               # by this very thread: the lock is re-entrant
                raise RuntimeError(f"get_runtime({number}) was called while that runtime is being made")
            runtime = _runtimes[number] = _make_own(number)
    return runtime


def _make_own(device_id: int) -> DeviceRuntime:
    if _options is None and not os.environ.get("XLOGMEM_OPTIONS"):
        return DeviceRuntime(device_id)
    from xlogmem.resources.options import RuntimeOptions  # dataclasses take longer to import than xlogmem

    options = with_environment(_options or RuntimeOptions())
    options = options.for_devices(device_count())
    return Parts(options, default_resource(device_id, options), device_id).runtime()


def with_environment(options: RuntimeOptions) -> RuntimeOptions:
    """Options, and those of the environment where they want nothing."""
    from xlogmem.resources.options import options_in

    return options_in(os.environ.get("XLOGMEM_OPTIONS", "")).joined(options)


class Parts:
    """Parts of a runtime with options, on top of a resource.  The runtime is made of them when nothing can be wrong
    with any device's parts any more."""

    def __init__(self, options: RuntimeOptions, resource: DeviceMemoryResource, device_id: int) -> None:
        options.check(device_id)
        self.streams = StreamPool(device_id)
        self.resource = options.below(resource)
        self.options, self.device_id = options, device_id

    def runtime(self) -> DeviceRuntime:
        resource = self.options.above(self.resource, self.device_id)
        runtime = DeviceRuntime(self.device_id, resource=resource, stream_pool=self.streams, policy=self.options.policy)
        runtime.options = self.options
        return runtime


def choose_options(options: RuntimeOptions) -> RuntimeOptions | None:
    """Make the process's own runtimes with these options, besides those that were chosen before, from now on.

    Returns
    -------
    RuntimeOptions, optional
        Those from before, for `restore_options`.

    Raises
    ------
    HasRuntime
        A device has a runtime that was made with others, or others were chosen.  Nothing was changed.
    """
    from xlogmem.resources.options import RuntimeOptions

    global _options
    with ExitStack() as locks:
        for lock in _locks:                             # a runtime that is being made is waited for
            locks.enter_context(lock)
        for device, runtime in enumerate(_runtimes):
            if runtime is not None:
                (runtime.options or RuntimeOptions()).refuse_others(device, options, f"device {device}",
                                                                    "xlogmem.enable()")
        former = _options
        if former is not None:
            former.refuse_others_than(options)
        _options = former.joined(options) if former is not None else options
    return former


def restore_options(options: RuntimeOptions | None) -> None:
    """Undo `choose_options`, for runtimes that are not made yet."""
    global _options
    _options = options


def snapshot(device_id: SupportsIndex = 0) -> Snapshot:
    """`DeviceRuntime.snapshot` of the process's own runtime for a device; see `get_runtime`.

    Examples
    --------
    >>> block = xlogmem.get_runtime().allocate("1MiB", tag="join")
    >>> xlogmem.snapshot().by_tag()["join"].nbytes
    1048576
    """
    return get_runtime(device_id).snapshot()


def existing_runtime(device_id: int) -> DeviceRuntime | None:
    """The process's runtime for a device, None if it was not made yet."""
    return _runtimes[device_id]


def existing_runtimes() -> list[DeviceRuntime]:
    """All runtimes of the process that have not ended, in the order in which they were made.

    The caller holds them for as long as it keeps the list: one that is dropped elsewhere meanwhile ends in the caller's
    thread.
    """
    references = _existing.valuerefs()                  # a copy: other threads make runtimes
    return [runtime for reference in references if (runtime := reference()) is not None]


def set_runtime(runtime: DeviceRuntime, *, instead_of: DeviceRuntime | None = None) -> None:
    """Make `runtime` the process's own for its device.

    Raises
    ------
    RuntimeError
        The process has another runtime for that device than `instead_of`, whose memory would not be found.
    """
    number = runtime.device_id
    with _locks[number] as depth:
        if _runtimes[number] not in (None, runtime, instead_of) or depth > 1:
            raise RuntimeError(f"device {number} has a runtime already: {_runtimes[number]!r}")
        _runtimes[number] = runtime


def forget_runtime(runtime: DeviceRuntime) -> None:
    """The process has no runtime of its own for the device any more, if it is this one.  Its blocks stay tracked."""
    with _locks[runtime.device_id]:
        if _runtimes[runtime.device_id] is runtime:
            _runtimes[runtime.device_id] = None


provide_runtimes(get_runtime, existing_runtimes)
