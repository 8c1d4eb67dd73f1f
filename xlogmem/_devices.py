"""The devices that a process sees, the choice of one of them, and access of one to the memory of another.

    for device in xlogmem.devices():
        print(device)
    pool = xlogmem.DevicePool()
    block = pool.least_loaded().get_runtime().allocate(nbytes)

Nothing here changes the current device or the current context.
"""
from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import SupportsIndex

from xlogmem import _driver
from xlogmem._base.texts import as_html
from xlogmem._base.units import count_of_devices, counted, format_bytes, parse_number
from xlogmem._driver import active_devices, describe_device, device_count, device_memory, synchronize_device
from xlogmem.errors import DriverError, StreamMisuseError
from xlogmem.launch import forget_peers
from xlogmem.runtime import MAX_DEVICES, DeviceRuntime, existing_runtime, get_runtime

__all__ = ["Device", "DevicePool", "can_access_peer", "device_ids", "devices", "disable_peer_access",
           "enable_peer_access"]


@dataclass(frozen=True, repr=False)
class Device:
    """One device that the process sees; `devices` makes them.

    It is taken wherever the number of a device is: ``get_runtime(device)``.  Two are equal if number and `uuid` are.

    Attributes
    ----------
    device_id : int
        Its number in this process.
    name : str
        For example ``"NVIDIA H200"``.
    uuid : str
        As cuda.core writes it; ``CUDA_VISIBLE_DEVICES`` and nvidia-smi put ``GPU-`` before it.
    total_memory : int
        In bytes.

    Examples
    --------
    >>> first, *others = xlogmem.devices()
    >>> first.device_id
    0
    >>> first.get_runtime() is xlogmem.get_runtime(first)
    True
    """

    device_id: int
    name: str = field(compare=False)
    uuid: str                               # compared: another process may have another device under the same number
    total_memory: int = field(compare=False)

    def __index__(self) -> int:
        return self.device_id

    def __repr__(self) -> str:
        runtime = self.runtime
        state = ("no runtime" if runtime is None else "context lost" if runtime.lost else
                 f"{format_bytes(runtime.live_bytes)} live, {format_bytes(runtime.pending_bytes)} pending")
        return f"<Device {self.device_id}: {self.name}, {format_bytes(self.total_memory)}, {state}>"

    @property
    def mem_info(self) -> tuple[int, int]:
        """``(free, total)`` in bytes, as the driver says: of all processes.  Makes the device's context, if there is
        none, which takes some of its memory."""
        return device_memory(self.device_id)

    @property
    def runtime(self) -> DeviceRuntime | None:
        """The process's own runtime for the device; None if it was not made yet."""
        return existing_runtime(self.device_id) if self.device_id < MAX_DEVICES else None

    def get_runtime(self) -> DeviceRuntime:
        """The process's own runtime for the device, made by the first call; see `xlogmem.get_runtime`."""
        return get_runtime(self.device_id)

    def _load(self) -> tuple[bool, int]:
        """Sort key of `DevicePool.least_loaded`; a device whose context is lost comes last."""
        runtime = self.runtime
        if runtime is not None:
            return runtime.lost, runtime.bytes_outstanding
        free, total = self.mem_info
        return False, total - free


def devices() -> tuple[Device, ...]:
    """The devices that this process sees, in the order of their numbers.

    Returns
    -------
    tuple of Device
        With ``CUDA_VISIBLE_DEVICES``, those that it names.

    Raises
    ------
    DriverNotFoundError
        There is no driver, or no device.

    Notes
    -----
    Makes no context and no runtime.

    Examples
    --------
    >>> [device.device_id for device in xlogmem.devices()]
    [0, 1]
    """
    return tuple(map(_device, range(device_count())))


def _device(number: int) -> Device:
    name, identity, total = describe_device(number)
    return Device(number, name, str(uuid.UUID(bytes=identity)), total)


def device_ids(wanted: str | SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    """The numbers of the devices that an argument `devices` names: ``"all"``, one number or several.

    Raises
    ------
    TypeError, ValueError
        It is something else, or names a device that this process does not see.
    """
    seen = device_count()
    if isinstance(wanted, str):
        if wanted != "all":
            raise ValueError(f'devices must be "all", the number of a device or several, not {wanted!r}')
        return list(range(seen))
    several = wanted if isinstance(wanted, Iterable) else [wanted]
    found = [parse_number("devices", one, -1 << 31, (1 << 31) - 1, "the number of a device") for one in several]
    for number in found:
        if not 0 <= number < seen:
            raise ValueError(f"devices: device {number} is not here: this process sees {count_of_devices(seen)}")
    return found


class DevicePool:
    """Several devices, and the choice of the next one to work on.

    Parameters
    ----------
    devices : "all", int, or iterable of int or Device
        Which, in this order.

    Raises
    ------
    TypeError, ValueError
        There is none among them, or one that this process does not see.
    DriverNotFoundError
        There is no driver, or no device.

    Notes
    -----
    Thread-safe.  Neither the pool nor a choice makes a runtime; `Device.get_runtime` does.

    Examples
    --------
    >>> pool = xlogmem.DevicePool("all")
    >>> block = pool.round_robin().get_runtime().allocate("1MiB")
    >>> pool.synchronize()
    """

    def __init__(self, devices: str | SupportsIndex | Iterable[SupportsIndex] = "all") -> None:
        self._devices = tuple(map(_device, device_ids(devices)))
        if not self._devices:
            raise ValueError("a pool needs at least one device")
        self._turns, self._ties = itertools.count(), itertools.count()      # a next() is one step for other threads

    def _repr_html_(self) -> str:
        """A line for each device, for notebooks."""
        rows = []
        for one in self._devices:
            runtime = one.runtime
            held = map(format_bytes, (runtime.live_bytes, runtime.pending_bytes) if runtime else ())
            rows.append((one.device_id, one.name, format_bytes(one.total_memory), *held))
        return as_html(f"DevicePool of {counted(len(rows), 'device')}",
                       (("device", "name", "memory", "live", "pending"), rows))

    def __repr__(self) -> str:
        return f"<DevicePool of {', '.join(map(repr, self._devices))}>"

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices)

    def __getitem__(self, place: int) -> Device:
        return self._devices[place]

    def round_robin(self) -> Device:
        """The next device in turn, whatever is done with the one before."""
        return self._devices[next(self._turns) % len(self._devices)]

    def least_loaded(self) -> Device:
        """The device with the fewest bytes in use.

        Returns
        -------
        Device
            By the live and pending bytes of the process's own runtimes.  A device without one counts the bytes that the
            driver reports as not free, of all processes; for that its context is made.  Among equal ones, the next
            in turn.

        Raises
        ------
        DriverError
            A device without a runtime did not answer; the error names it.

        Notes
        -----
        Two threads that choose before either has allocated may get the same device.
        """
        first = next(self._ties) % len(self._devices)
        return min(self._devices[first:] + self._devices[:first], key=Device._load)

    def synchronize(self) -> None:
        """Wait for everything that is queued on these devices.

        Raises
        ------
        DriverError
            A device failed; the error names it.  The others were waited for all the same.

        Notes
        -----
        A device whose context was not made in this process has nothing to wait for.
        """
        active, failures = active_devices(), []
        for device in self._devices:
            if device.device_id in active:
                try:
                    synchronize_device(device.device_id)
                except DriverError as failure:
                    failures.append(failure)
        if failures:
            raise failures[0]


def can_access_peer(device_id: SupportsIndex, peer_id: SupportsIndex) -> bool:
    """True if work on a device can touch memory of another one, once access is enabled.

    Parameters
    ----------
    device_id, peer_id : int
        The numbers of two devices.

    Raises
    ------
    ValueError
        There is no such device.
    DriverError
        The driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Makes no context (``cuDeviceCanAccessPeer``).  Copies need no access: the driver finds a way between any two
    devices.  Thread-safe.

    Examples
    --------
    >>> xlogmem.can_access_peer(0, 1)
    True
    """
    return _driver.can_access_peer(*parse_pair(device_id, peer_id))


def enable_peer_access(device_id: SupportsIndex, peer_id: SupportsIndex) -> None:
    """Let work on a device touch memory of another one, from now on.

    Parameters
    ----------
    device_id : int
        Where kernels run that read or write the memory.
    peer_id : int
        The device that has the memory.

    Raises
    ------
    StreamMisuseError
        The devices are not peers, or are one.
    ValueError
        There is no such device.
    DriverError
        The driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Opens what ``cuMemAlloc`` returns there (``cuCtxEnablePeerAccess``), the device's default and current memory pool
    and those of each `AsyncMemoryResource`, which are there and which come (``cuMemPoolSetAccess``, since pools do
    not heed the former). Other pools of that device, as RMM's, are opened when `use` first meets memory of theirs.
    Call it before other threads allocate there.  One direction; call it twice for both.  It stays enabled, and a
    repeated call opens later additions.  Thread-safe; the current context stays as it is.

    Examples
    --------
    >>> xlogmem.enable_peer_access(1, 0)            # kernels on device 1 may touch memory of device 0
    >>> x = xlogmem.get_runtime(0).allocate("1MiB")
    >>> work = xlogmem.get_runtime(1).acquire_stream()
    >>> with xlogmem.use(work, read=x):
    ...     pass                                    # launch(x.ptr) on device 1
    """
    device, peer = parse_pair(device_id, peer_id)
    if not _driver.can_access_peer(device, peer):
        raise StreamMisuseError(f"device {device} cannot access the memory of device {peer}: they are not peers. Copy "
                                "it, as Buffer.copy_from does, through the host if need be")
    _driver.open_to_peer(device, peer)


def disable_peer_access(device_id: SupportsIndex, peer_id: SupportsIndex) -> None:
    """The end of `enable_peer_access`, for the same two devices.

    Parameters
    ----------
    device_id, peer_id : int
        As they were given there.

    Raises
    ------
    StreamMisuseError
        It is one device.
    ValueError
        There is no such device.
    DriverError
        The driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Work that is still using the memory fails: synchronize the device first.  Pools that `use` has opened by itself stay
    open.  Nothing happens if the access was not enabled.  Thread-safe.

    Examples
    --------
    >>> xlogmem.enable_peer_access(0, 1)
    >>> xlogmem.disable_peer_access(0, 1)
    """
    device, peer = parse_pair(device_id, peer_id)
    forget_peers(device)
    _driver.close_to_peer(device, peer)
    forget_peers(device)                                # another thread may have looked meanwhile


def parse_pair(device_id: SupportsIndex, peer_id: SupportsIndex) -> tuple[int, int]:
    device, peer = (parse_number(name, given, -1 << 31, (1 << 31) - 1, "the number of a device")
                    for name, given in (("device_id", device_id), ("peer_id", peer_id)))
    if device == peer:
        raise StreamMisuseError(f"device {device} is one device: it has access to its own memory")
    return device, peer
