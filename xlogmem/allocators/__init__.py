"""Other libraries allocate through xlogmem: one call for each, undone by another.

    xlogmem.enable("cupy", "numba")             # from here on, their arrays are blocks of the process's own runtime
    x = cupy.arange(n)
    with xlogmem.use(stream, read=x): ...       # after what CuPy has queued on x's stream
    xlogmem.disable("cupy", "numba")

A library works on its streams without recording anything, so those on which it allocates are opaque.  Each has a module
here, which imports it and is imported when its name is enabled.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypeAlias, cast

from xlogmem._base.signatures import names_nearest, nearest
from xlogmem._driver import ProcessLock, is_simulated, no_driver_for
from xlogmem.errors import DriverNotFoundError
from xlogmem.runtime import check_environment, choose_options, restore_options

if TYPE_CHECKING:
    from xlogmem.resources.options import Options

__all__ = ["disable", "enable"]

Library: TypeAlias = Literal["cupy", "torch", "numba", "cuda.core", "rmm"]

# In this order: a runtime on RMM's resource becomes the process's own only before there is another one, and PyTorch
# cannot be disabled, so nothing that may fail comes after it.
LIBRARIES = {"rmm": "RMM", "cupy": "CuPy", "numba": "Numba-CUDA", "cuda.core": "cuda.core", "torch": "PyTorch"}


class Neighbour(Protocol):
    """Interface of the module of each library."""

    def is_on_rmm(self) -> bool:
        """True if the program has made the library allocate through RMM."""

    def refuse(self) -> None:
        """Raise if the library does not find the driver, or its allocator cannot be replaced now.  Nothing changes."""

    def enable(self) -> None:
        """Replace the library's allocator.  A second call does nothing, unless other code has replaced it again."""

    def disable(self) -> None:
        """Restore the former allocator, unless other code has replaced ours."""


class OnDevices(Protocol):
    """Interface of RMM's module beyond `Neighbour`."""

    def enable(self, devices: str | SupportsIndex | Iterable[SupportsIndex] | None = None, **options: Any) -> None:
        """Replace RMM's resources on these devices."""


class HasPinned(Protocol):
    """Interface of CuPy's module beyond `Neighbour`."""

    def enable_pinned(self) -> None:
        """Replace the allocator of page-locked memory, too.  `disable` restores both."""


_enabled: dict[str, Neighbour] = {}         # by name; the module of RMM for a library that allocates there
_lock = ProcessLock()


@names_nearest
def enable(*names: Library, devices: str | SupportsIndex | Iterable[SupportsIndex] | None = None,
           policy: str | None = None, pool_allocator: bool = False,
           initial_pool_size: int | str | float | None = None, maximum_pool_size: int | str | float | None = None,
           limit: int | str | float | None = None, statistics: bool = False, log: Any | None = None,
           guard: bool = False, pinned: bool = False) -> None:
    """Let other libraries allocate from the process's own runtimes, so that `use` finds their arrays.

    Parameters
    ----------
    *names : {"cupy", "torch", "numba", "cuda.core", "rmm"}
        The libraries.  ``"cupy"``: from CuPy's current stream.  ``"torch"``: from PyTorch's current stream, before it
        has initialised CUDA and for as long as the process lives.  ``"numba"``: an External Memory Management plugin,
        from the default stream.  ``"cuda.core"``: the `memory_resource` of each `Device` of this thread; cuda.core has
        such objects for each thread.  ``"rmm"``: as `xlogmem.rmm.enable` without arguments.  A library that allocates
        through RMM already, as cuDF sets up CuPy and Numba, stays there, and RMM is enabled.
    devices : "all", int, or iterable of int or Device, optional
        For RMM, which has a resource for each device; see `xlogmem.rmm.enable`.  The others allocate from the runtime
        of the device that is current, whichever it is.
    policy : {"adaptive", "precise", "lazy"}, optional
        See `DeviceRuntime`.
    pool_allocator : bool
        Allocate from a `PoolMemoryResource`; see `xlogmem.rmm.enable` for RMM.
    initial_pool_size, maximum_pool_size : int, str or float, optional
        In bytes, or as ``"2GiB"``, of that pool on each device.
    limit : int, str or float, optional
        A budget for each device, which all libraries have in common; see `LimitingResourceAdaptor`.  What does not fit
        is out of memory for each library, in its own exception, whose text or cause says who holds what.
    statistics : bool
        Count with a `StatisticsResourceAdaptor`, for `xlogmem.statistics`.
    log : path, text file, callable or logging.Logger, optional
        Log each call with a `LoggingResourceAdaptor`.  Where the process sees several devices, the name of a file gets
        the device before its ending: ``"log.dev1.csv"``.
    guard : bool
        Find writes past the ends of blocks and after frees; see `GuardResourceAdaptor`.
    pinned : bool
        For CuPy, which allocates its page-locked memory from the runtime, too: memory for the host, as
        ``runtime.allocate(nbytes, xlogmem.host)`` gives it, from a `PoolMemoryResource` beside the runtime's own
        resource, so the options above are not about it.  ``use(xlogmem.host, write=array)`` finds such arrays, and
        freed memory is not handed out while a copy that a `use` has named still reads it.

    Raises
    ------
    ValueError
        No name, or an unknown one; or some of the devices, where none of the libraries is on RMM; or `pinned`, where
        CuPy is not among the libraries or is on RMM; or an option is none, here or in the environment.
    TypeError
        `pinned` is not a bool, or an option of another type.
    ImportError
        The library is not installed, or too old.
    RuntimeError
        The library has memory in use from its own allocator, which `use` would refuse; or its allocator cannot be
        replaced here and now; or the driver is the simulated one, which the library does not find; or `get_runtime`
        has already made a runtime, and an option wants something that it does not have.
    DriverNotFoundError
        There is no driver.

    Notes
    -----
    All libraries are checked before any is changed, and after an error none is.  A second call does nothing, unless
    other code has replaced the allocator meanwhile, or it is the first with `pinned`.  Memory comes from `get_runtime`
    of the current device, in order of the stream, and is freed there after every `use`.  Thread-safe.

    The options are those of the process's own runtimes, which are made with the first allocation on a device and keep
    them.  None and False want nothing, so a later call may leave them out, or repeat them.  The environment variable
    ``XLOGMEM_OPTIONS`` has the same words, ``"limit=8GiB,statistics"``, for options not given here.

    Examples
    --------
    >>> xlogmem.enable("cupy", "torch", limit="8GiB", pool_allocator=True)      # doctest: +SKIP
    >>> xlogmem.enable("cupy", pinned=True)                                     # doctest: +SKIP
    """
    from xlogmem.resources.options import is_wanted  # dataclasses take longer to import than xlogmem

    check_environment()
    given = {"policy": policy, "pool_allocator": pool_allocator, "initial_pool_size": initial_pool_size,
             "maximum_pool_size": maximum_pool_size, "limit": limit, "statistics": statistics, "log": log,
             "guard": guard}
    options: Options = {name: value for name, value in given.items() if is_wanted(value)}  # type: ignore
    chosen = _in_order(names)
    _check_pinned(pinned, chosen)
    neighbours = {name: _import(name) for name in chosen}       # not under the lock: imports have their own
    on_rmm = sys.modules.get(f"{__name__}.rmm")
    if devices not in (None, "all") and not any(neighbour is on_rmm for neighbour in neighbours.values()):
        raise ValueError("devices are chosen for RMM alone: other libraries allocate on each device that is current")
    if pinned and neighbours["cupy"] is on_rmm:
        raise ValueError("pinned=True is for CuPy with its own allocators. CuPy allocates through RMM here, and there "
                         "xlogmem replaces RMM's resource alone: leave pinned out")
    with _lock, _chosen(options, any(neighbour is not on_rmm for neighbour in neighbours.values())):
        _refuse_without_driver(neighbours)
        for neighbour in neighbours.values():
            neighbour.refuse()
        done = []
        try:
            for name, neighbour in neighbours.items():
                if neighbour is on_rmm:
                    cast(OnDevices, neighbour).enable(devices, **options)
                else:
                    neighbour.enable()
                if name not in _enabled:
                    done.append(name)
                _enabled[name] = neighbour
            if pinned:
                cast(HasPinned, neighbours["cupy"]).enable_pinned()
        except BaseException:
            for name in reversed(done):
                _disable(name)
            raise


def _check_pinned(pinned: Any, names: list[str]) -> None:
    if not isinstance(pinned, bool):                    # a text such as "no" would count as True
        raise TypeError(f"pinned must be True or False, got {pinned!r}")
    if pinned and "cupy" not in names:
        raise ValueError("pinned=True is for page-locked memory of CuPy, which is not named here. PyTorch's cannot be "
                         "replaced, and the other libraries keep theirs: write enable('cupy', pinned=True), or leave "
                         "pinned out and allocate on xlogmem.host")


@contextmanager
def _chosen(options: Options, for_own: bool) -> Iterator[None]:
    """Choose options for the process's own runtimes, if there are any; not, after an error inside."""
    if not options:
        yield
        return
    from xlogmem.resources.options import RuntimeOptions

    chosen = RuntimeOptions.given(**options)
    chosen.check()
    former = choose_options(chosen) if for_own else None
    try:
        yield
    except BaseException:
        if for_own:
            restore_options(former)
        raise


def _refuse_without_driver(neighbours: dict[str, Neighbour]) -> None:
    """Raise where a library would find no driver: its own error comes later, and does not say what to do."""
    if is_simulated():
        return
    try:
        ctypes.CDLL("libcuda.so.1")                     # and no call of it: the process may still be forked
    except OSError:
        named = ", ".join(map(repr, neighbours))
        raise DriverNotFoundError(no_driver_for(named)) from None


def enabled_libraries() -> set[str]:
    """The names that are enabled now."""
    return set(_enabled)


def disable(*names: Library) -> None:
    """Restore the allocators from before `enable`, of all libraries or of some.

    Memory that was allocated meanwhile stays tracked until it is freed.  If other code has replaced the allocator, that
    one stays.  Page-locked memory comes from CuPy's default pool again.

    Parameters
    ----------
    *names : {"cupy", "torch", "numba", "cuda.core", "rmm"}
        The libraries; the default is all that are enabled.  One that is not enabled is left as it is.

    Raises
    ------
    ValueError
        A name is unknown.
    RuntimeError
        The allocator cannot be replaced here and now, PyTorch's never.  The library stays enabled.  Without names the
        others are disabled all the same.

    Notes
    -----
    Thread-safe.

    Examples
    --------
    >>> xlogmem.enable("cupy")                                              # doctest: +SKIP
    >>> xlogmem.disable("cupy")             # CuPy's own allocator again    # doctest: +SKIP
    """
    chosen = _in_order(names) if names else list(LIBRARIES)
    failures = []
    with _lock:
        for name in reversed(chosen):
            if name in _enabled:
                try:
                    _disable(name)
                except RuntimeError as failure:
                    failures.append(failure)
                    if names:
                        break
        if not _enabled:
            restore_options(None)
    if failures:
        raise failures[0]


def _disable(name: str) -> None:
    """RMM stays enabled as long as another name needs it."""
    neighbour = _enabled[name]
    if not any(other is neighbour for known, other in _enabled.items() if known != name):
        neighbour.disable()
    del _enabled[name]


def _in_order(names: tuple[str, ...]) -> list[str]:
    choices = sorted(LIBRARIES)
    listed = ", ".join(map(repr, choices))
    if not names:
        raise ValueError(f"name at least one library, of {listed}")
    for name in names:
        if name not in choices:                         # compared, as it may be anything
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is not the name of a library, as in enable('cupy', 'numba'). Choose from "
                                 f"{listed}")
            near = nearest(name.lower(), choices, 0.5)
            raise ValueError(f"{name!r} is not known" + (f"; did you mean {near!r}?" if near else ".")
                             + f" Choose from {listed}")
    return [name for name in LIBRARIES if name in names]


def _import(name: str) -> Neighbour:
    try:
        neighbour = cast(Neighbour, import_module(f"xlogmem.allocators.{name.replace('.', '_')}"))
    except ImportError as error:
        raise ImportError(f"xlogmem.enable({name!r}) needs {LIBRARIES[name]}, which cannot be imported: {error}"
                          ) from error
    return _import("rmm") if neighbour.is_on_rmm() else neighbour
