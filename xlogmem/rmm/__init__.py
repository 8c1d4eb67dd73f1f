"""Both directions of RMM: its resources below an xlogmem runtime, and a runtime below all allocations through RMM.

    xlogmem.rmm.enable()                        # from here on, the memory of RMM's current resource is tracked
    buffer = rmm.DeviceBuffer(size=n)
    with xlogmem.use(stream, read=buffer): ...

The core never imports rmm; this package does, when it is imported itself.  The compiled half (``_binding``) subclasses
RMM's classes, whose layout changes between releases without any check at run time, so RMM's version is checked first:
older than `OLDEST` is refused, newer than `NEWEST` is warned of, and from `REFUSED` on each is refused again.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, SupportsIndex

from xlogmem._base.log import warn
from xlogmem.errors import UntestedReleaseWarning

OLDEST, NEWEST = (26, 6), (26, 10)          # releases that the binding was tested with
REFUSED = (27, 2)                           # of newer ones, the first without a warning, but an error


def checked_release() -> tuple[int, ...]:
    """RMM's release, if the binding works with it, as far as is known."""
    try:
        import rmm
    except ImportError as error:
        raise ImportError('xlogmem.rmm needs RMM: pip install "rmm-cu12==26.10.*", or rmm-cu13') from error
    release = tuple(int(part) for part in rmm.__version__.split(".")[:2])
    tested = " to ".join(f"{year}.{month:02}" for year, month in (OLDEST, NEWEST))
    if not OLDEST <= release < REFUSED:
        raise ImportError(f"xlogmem.rmm works with RMM {tested}, but RMM {rmm.__version__} is installed: install one "
                          "of these, or another version of xlogmem")
    if find_spec("xlogmem.rmm._binding") is None:
        raise ImportError("this xlogmem was built without the RMM binding: let pip build it, or install librmm and rmm "
                          "26.10 where it is built")
    if release > NEWEST:
        warn(f"xlogmem.rmm was tested with RMM {tested}, and RMM {rmm.__version__} is installed, which is newer. If "
             'something fails, install one of these (pip install "rmm-cu12==26.10.*", or rmm-cu13) or a newer xlogmem. '
             "Filter xlogmem.UntestedReleaseWarning to silence this", UntestedReleaseWarning)
    return release


VERSION = checked_release()

import rmm
import rmm.mr

from xlogmem import _driver, launch
from xlogmem._base.signatures import names_nearest
from xlogmem._devices import device_ids
from xlogmem.blocks import Core
from xlogmem.resources import ForeignMemoryResource
from xlogmem.resources.options import HasRuntime, RuntimeOptions
from xlogmem.rmm import reinitialized
from xlogmem.rmm._binding import RuntimeMemoryResource, upstream_of
from xlogmem.rmm.earlier import warn_of_earlier
from xlogmem.rmm.stacks import stack
from xlogmem.runtime import (
    MAX_DEVICES,
    DeviceRuntime,
    Parts,
    existing_runtime,
    forget_runtime,
    set_runtime,
    with_environment,
)

__all__ = ["RmmMemoryResource", "RuntimeMemoryResource", "disable", "enable"]

# Their frees take effect at once, on any stream.
HOST_SYNCHRONOUS = (rmm.mr.CudaMemoryResource, rmm.mr.ManagedMemoryResource, rmm.mr.SystemMemoryResource,
                    rmm.mr.SamHeadroomMemoryResource, rmm.mr.PinnedHostMemoryResource)
# These keep freed memory, stream-ordered, whatever is below them.
SUBALLOCATORS = (rmm.mr.PoolMemoryResource, rmm.mr.ArenaMemoryResource, rmm.mr.FixedSizeMemoryResource)


# ---------------------------------------------------------------------------------------------- RMM below xlogmem
def order_of(mr: rmm.mr.DeviceMemoryResource) -> str:
    """The order of a resource's frees, see `DeviceMemoryResource.order`; of several bins, the weakest."""
    lower = getattr(mr, "upstream_mr", None)
    if isinstance(mr, SUBALLOCATORS) or lower is None:
        return "host" if isinstance(mr, HOST_SYNCHRONOUS) else "stream"
    return "host" if "host" in map(order_of, (lower, *getattr(mr, "bin_mrs", ()))) else "stream"


class RmmMemoryResource(ForeignMemoryResource):
    """An RMM resource as an xlogmem resource, called in C++ without the GIL.

    Parameters
    ----------
    mr : rmm.mr.DeviceMemoryResource
        A pool, an arena, an asynchronous resource, an adaptor on any of them, a callback.
    device_id : int
        The device of its memory.
    order : {"stream", "host"}, optional
        The order of `mr`'s frees: see `DeviceMemoryResource`.  The default is ``"host"`` where frees reach ``cudaFree``
        and similar calls, which take no stream, and otherwise ``"stream"``, RMM's rule for resources.

    Attributes
    ----------
    upstream_mr : rmm.mr.DeviceMemoryResource
        As passed; it is kept alive.

    Warns
    -----
    RuntimeWarning
        A resource below is a ``PoolMemoryResource`` of RMM 26.06, which can hand memory to a third stream too early
        (rapidsai/rmm issue 2489, fixed in 26.08).

    Notes
    -----
    RMM's rules hold as without xlogmem: callers make the device current before they allocate or free, and the behaviour
    of RMM's resources during a graph capture is unchanged.

    RMM's asynchronous resources only pass calls on to a CUDA pool: for that pool the driver is called directly, and RMM
    only when the driver refuses.

    Examples
    --------
    >>> import rmm, xlogmem.rmm                                             # doctest: +SKIP
    >>> resource = xlogmem.rmm.RmmMemoryResource(rmm.mr.CudaAsyncMemoryResource())      # doctest: +SKIP
    >>> runtime = xlogmem.DeviceRuntime(resource=resource)                  # doctest: +SKIP
    """

    def __init__(self, mr: rmm.mr.DeviceMemoryResource, device_id: int = 0, *, order: str | None = None) -> None:
        super().__init__(upstream_of(mr), device_id, order=order or order_of(mr))
        self.order = order or order_of(mr)
        self.upstream_mr = mr
        if VERSION < (26, 8) and any(isinstance(lower, rmm.mr.PoolMemoryResource) for lower in stack(mr)):
            warnings.warn(f"the PoolMemoryResource of RMM {rmm.__version__} can hand memory to a third stream while it "
                          "is in use (rapidsai/rmm issue 2489): use RMM 26.08 or later, or another resource",
                          RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} device={self.device_id} of {type(self.upstream_mr).__name__}>"


# ---------------------------------------------------------------------------------------------- RMM's current resource
@dataclass
class Wrapped:
    """State of `enable` on one device."""

    resource: RuntimeMemoryResource
    runtime: DeviceRuntime
    original: rmm.mr.DeviceMemoryResource
    former: DeviceRuntime | None            # which it replaces as the process's own
    active: bool = False
    follows: bool = False                   # `rmm.reinitialize`


Devices = str | SupportsIndex | Iterable[SupportsIndex] | None

_wrapped: dict[int, Wrapped] = {}
_lock = _driver.ProcessLock()


@names_nearest
def enable(devices: Devices = None, *, policy: str | None = None, pool_allocator: bool = False,
           initial_pool_size: int | str | float | None = None, maximum_pool_size: int | str | float | None = None,
           limit: int | str | float | None = None, statistics: bool = False, log: Any | None = None,
           guard: bool = False, follow_reinitialize: bool = False) -> None:
    """Track allocations through RMM from now on.

    RMM's current resource of each device stays: a runtime is put on top of it, becomes the process's own
    (`get_runtime`), and is RMM's current resource from then on.  Set up RMM first.  On RMM's initial resource,
    ``cudaMalloc``, each free waits on the host, as ``cudaFree`` does.

    Parameters
    ----------
    devices : "all", int, or iterable of int or Device, optional
        The devices; ``"all"`` is those that the process sees.  The default is those whose context is active in this
        process; without any, device 0.
    policy : {"adaptive", "precise", "lazy"}, optional
        See `DeviceRuntime`.
    pool_allocator : bool
        Put a `PoolMemoryResource` of xlogmem's between, which takes chunks from RMM's resource.  On RMM's async
        resource, allocating then costs less than without xlogmem, and on RMM's initial resource frees do not wait.
        Leave it out if RMM's resource is a pool or an arena.
    initial_pool_size, maximum_pool_size : int, optional
        In bytes, of that pool; see `PoolMemoryResource`.
    limit : int, str or float, optional
        A budget for each device, see `LimitingResourceAdaptor`.  What does not fit is out of memory for RMM's callers,
        so that cuDF spills.  The text of their MemoryError says who holds what, by tag, as far as there is room: RMM's
        buffers have the tag ``"RMM"``.
    statistics : bool
        Count with a `StatisticsResourceAdaptor`, for `xlogmem.statistics`.
    log : path, text file, callable or logging.Logger, optional
        Log each call with a `LoggingResourceAdaptor`.  The name of a file gets the device before its ending where there
        are several: ``"log.dev1.csv"``, as with RMM.
    guard : bool
        Find writes past the ends of blocks and after frees, see `GuardResourceAdaptor`.
    follow_reinitialize : bool
        Whenever ``rmm.reinitialize`` has replaced RMM's resources, enable again on these devices, with these arguments,
        before it returns, until `disable`.  Not with a `log` that is a path: the file would be emptied.

    Raises
    ------
    RuntimeError
        `get_runtime` has already made a runtime for the device; or this function has, and an argument wants something
        that it does not have.
    ValueError
        Sizes are passed without ``pool_allocator=True``, or they contradict each other; or the limit or the policy is
        none; or the process does not see a device, or it is beyond the sixteenth.  A log is not opened, nor emptied,
        where something else is wrong with any of the devices; only that there is no memory for `initial_pool_size` is
        found later.

    Warns
    -----
    RuntimeWarning
        Memory was allocated through RMM before and is not tracked, as far as can be detected: once for all devices.

    Notes
    -----
    Where one of several devices fails, the earlier ones are restored.  The current device does not change.

    ``rmm.reinitialize``, dask-cuda and cudf.pandas replace RMM's resource.  The next `use` of memory from the new
    resource raises and says so; call `enable` again.  Without such a change a second call does nothing, and arguments
    that differ from those of the first one are refused: a runtime keeps its options.  None and False want nothing, and
    quantities are compared, not how they are written (``"1MiB"`` is ``1 << 20``).  After `disable`, `enable` continues
    with the same runtime, its policy, pool and adaptors, if RMM's resource is the same.

    Examples
    --------
    >>> import rmm, xlogmem.rmm                                             # doctest: +SKIP
    >>> rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())            # doctest: +SKIP
    >>> xlogmem.rmm.enable(pool_allocator=True)                             # doctest: +SKIP
    """
    options = with_environment(RuntimeOptions.given(
        pool_allocator=pool_allocator, initial_pool_size=initial_pool_size, maximum_pool_size=maximum_pool_size,
        limit=limit, statistics=statistics, log=log, guard=guard, policy=policy))
    if follow_reinitialize and isinstance(log, str | os.PathLike):
        raise ValueError("with follow_reinitialize the log must be an open file, a callable or a logger: a file "
                         "that is named would be emptied by each rmm.reinitialize")
    chosen = list(dict.fromkeys(_driver.active_devices() or [0] if devices is None else device_ids(devices)))
    beyond = [device for device in chosen if device >= MAX_DEVICES]
    if beyond:
        raise ValueError(f"a process has runtimes of devices 0 to {MAX_DEVICES - 1}, and not of device "
                         f"{beyond[0]}: leave it out, or choose by CUDA_VISIBLE_DEVICES which the process sees")
    options = options.for_devices(len(chosen))
    with _lock:
        if _explain not in launch.explanations:
            launch.explanations.append(_explain)
        _enable([(device, options) for device in chosen])
        if follow_reinitialize:
            for device in chosen:
                if device in _wrapped:                  # and not the caller's own resource
                    _wrapped[device].follows = True
            reinitialized.follow(_follow)


@dataclass(frozen=True)
class Before:
    """A device before `enable`, to be restored where another device fails."""

    device: int
    current: rmm.mr.DeviceMemoryResource
    own: DeviceRuntime | None
    known: Wrapped | None
    active: bool

    @classmethod
    def of(cls, device: int) -> Before:
        known = _wrapped.get(device)
        return cls(device, rmm.mr.get_per_device_resource(device), existing_runtime(device), known,
                   known is not None and known.active)

    def restore(self) -> None:
        """Restore in an order in which `enable` can go on after an interrupt."""
        if rmm.mr.get_per_device_resource(self.device) is not self.current:
            rmm.mr.set_per_device_resource(self.device, self.current)
        known = _wrapped.get(self.device)
        if known is not None and known is not self.known:
            forget_runtime(known.runtime)
            if self.own is not None:
                set_runtime(self.own)
            if self.known is None:
                del _wrapped[self.device]
            else:
                _wrapped[self.device] = self.known
        if self.known is not None:
            self.known.active = self.active


def _follow() -> None:
    """RMM was initialised again: its resources are new, on all devices."""
    with _lock:
        following = [(device, known.runtime.options or RuntimeOptions()) for device, known in _wrapped.items()
                     if known.active and known.follows]
        _enable(following)
        for device, _ in following:
            _wrapped[device].follows = True


@dataclass(frozen=True)
class Change:
    """Plan of `enable` for a device, from its current resource: only a note where a runtime is in effect."""

    device: int
    current: rmm.mr.DeviceMemoryResource
    known: Wrapped | None                   # in effect, or before
    in_effect: bool = False
    parts: Parts | None = None              # of a new runtime

    @classmethod
    def of(cls, device: int, options: RuntimeOptions) -> Change:
        """Plan a change, or refuse it; nothing is changed yet."""
        current = rmm.mr.get_per_device_resource(device)
        known = _wrapped.get(device)
        if known is not None and any(lower is known.resource for lower in stack(current)):
            _refuse_others(known.runtime, device, options)
            return cls(device, current, known, True)
        if any(isinstance(lower, RuntimeMemoryResource) and lower.runtime is existing_runtime(device)
               for lower in stack(current)):
            _refuse_others(None, device, options)
            return cls(device, current, None, True)     # put there by the caller, as the error below advises
        if known is not None and known.original is current:
            _refuse_others(known.runtime, device, options)
            return cls(device, current, known)
        if existing_runtime(device) not in (None, known.runtime if known is not None else None):
            raise HasRuntime(f"device {device} has a runtime already: {existing_runtime(device)!r}", ADVICE)
        return cls(device, current, known, parts=Parts(options, RmmMemoryResource(current, device), device))

    @property
    def former(self) -> DeviceRuntime | None:
        """The runtime that a new one replaces as the process's own."""
        return self.known.runtime if self.known is not None and self.parts is not None else None

    def carry_out(self) -> None:
        known = self.known
        if self.parts is not None:
            runtime = self.parts.runtime()
            known = Wrapped(RuntimeMemoryResource(runtime), runtime, self.current, self.former)
        if known is not None:
            if not self.in_effect:
                _make_own(self.device, known)
                rmm.mr.set_per_device_resource(self.device, known.resource)
            known.active = True


def _refuse_others(runtime: DeviceRuntime | None, device: int, options: RuntimeOptions) -> None:
    """Refuse options that differ from those of the runtime (None: the caller has made it)."""
    own = (runtime.options if runtime is not None else None) or RuntimeOptions()
    own.refuse_others(device, options, f"RMM's resource of device {device}", "xlogmem.rmm.enable()")


def _enable(wanted: list[tuple[int, RuntimeOptions]]) -> None:
    changes = [Change.of(device, options) for device, options in wanted]
    replaced = [change for change in changes if not change.in_effect]
    if replaced:
        warn_of_earlier([change.current for change in replaced if change.parts is not None],
                        [change.former for change in replaced if change.former is not None])
    done: list[Before] = []
    try:
        for change in changes:
            before = Before.of(change.device)
            change.carry_out()
            done.append(before)
    except BaseException:
        for before in reversed(done):
            before.restore()
        raise


ADVICE = ("Call xlogmem.rmm.enable() before anything that makes one (get_runtime, use), or make that one RMM's: "
          "rmm.mr.set_per_device_resource(device, xlogmem.rmm.RuntimeMemoryResource(xlogmem.get_runtime(device)))")


def _make_own(device: int, known: Wrapped) -> None:
    """Its runtime is the process's own from now on.

    It is noted first, so that after an interrupt the next call goes on from there.
    """
    before, _wrapped[device] = _wrapped.get(device), known
    try:
        set_runtime(known.runtime, instead_of=known.former)
    except RuntimeError as error:
        if before is None:
            del _wrapped[device]
        else:
            _wrapped[device] = before
        raise HasRuntime(str(error), ADVICE) from None
    known.former = None


def disable(devices: Devices = None) -> None:
    """Restore the RMM resources from before `enable`.

    Memory that was allocated meanwhile stays tracked until it is freed.  If other code has replaced RMM's resource,
    its resource stays.

    Parameters
    ----------
    devices : "all", int, or iterable of int or Device, optional
        The devices; the default is all.

    Raises
    ------
    RuntimeError
        An adaptor was put on top of xlogmem's resource: take it off first.  Nothing was changed, on any device.

    Examples
    --------
    >>> xlogmem.rmm.disable()                                               # doctest: +SKIP
    """
    with _lock:
        chosen = list(_wrapped) if devices is None else device_ids(devices)
        chosen = [device for device in chosen if device in _wrapped and _wrapped[device].active]
        for device in chosen:
            current = rmm.mr.get_per_device_resource(device)
            ours = _wrapped[device].resource
            if current is not ours and any(lower is ours for lower in stack(current)):
                raise RuntimeError(f"RMM's resource of device {device} is a {type(current).__name__} on top of "
                                   "xlogmem's: take it off first, with rmm.mr.set_per_device_resource()")
        for device in chosen:
            known = _wrapped[device]
            if rmm.mr.get_per_device_resource(device) is known.resource:
                rmm.mr.set_per_device_resource(device, known.original)
            known.active = known.follows = False
        _leave_if_unfollowed()


def stop_following(device: int) -> None:
    """The end of `follow_reinitialize` on a device where `enable` stays in effect."""
    with _lock:
        if device in _wrapped:
            _wrapped[device].follows = False
        _leave_if_unfollowed()


def _leave_if_unfollowed() -> None:
    if not any(known.follows for known in _wrapped.values()):
        reinitialized.leave()


def refuse_without_gpu() -> None:
    """Raise if RMM's resource of device 0 needs a GPU, and the driver is the simulated one.

    RMM's first call would fail there, with an error that does not say why.  `enable` itself refuses nothing:
    resources that have their memory from Python do without RMM's runtime.
    """
    *_, lowest = stack(rmm.mr.get_per_device_resource(0))
    if _driver.is_simulated() and not isinstance(lowest, rmm.mr.CallbackMemoryResource):
        raise RuntimeError(f"RMM's {type(lowest).__name__} needs a GPU: RMM has NVIDIA's runtime linked in, which does "
                           "not start on the simulated driver. Without a GPU leave RMM out, or allocate from "
                           "xlogmem.get_runtime()")


def is_current(device: int = 0) -> bool:
    """True if allocations through RMM on the device are tracked now: `enable` is in effect, and RMM's resource was not
    replaced since."""
    known = _wrapped.get(device)
    return known is not None and known.active and any(
        lower is known.resource for lower in stack(rmm.mr.get_per_device_resource(device)))


def active_devices() -> list[int]:
    """Devices on which `enable` is in effect."""
    return [device for device, known in _wrapped.items() if known.active]


def followed_devices() -> list[int]:
    """Devices on which `enable` will be in effect again after `rmm.reinitialize`."""
    return [device for device, known in _wrapped.items() if known.follows]


def _explain(runtime: Core) -> str | None:
    """Reason why memory of RMM is untracked, for the error of `use`; None without one."""
    known = _wrapped.get(runtime.device_id)
    if known is None or not known.active:
        return None
    current = rmm.mr.get_per_device_resource(runtime.device_id)
    if any(lower is known.resource for lower in stack(current)):
        return None
    return (f"After xlogmem.rmm.enable() RMM's resource of device {runtime.device_id} was replaced by a "
            f"{type(current).__name__} (rmm.reinitialize, dask-cuda and cudf.pandas do that), so later allocations "
            "through RMM are not tracked: call xlogmem.rmm.enable() again, after them, or with "
            "follow_reinitialize=True before")
