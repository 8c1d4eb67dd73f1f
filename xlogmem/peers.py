"""Peer access: which device may touch the memory of another one."""
from __future__ import annotations

from typing import SupportsIndex

from xlogmem import _driver
from xlogmem._units import parse_number
from xlogmem.errors import StreamMisuseError
from xlogmem.launch import forget_peers

__all__ = ["can_access_peer", "disable_peer_access", "enable_peer_access"]


def can_access_peer(device_id: SupportsIndex, peer_id: SupportsIndex) -> bool:
    """True if work on a device can touch memory of another one, once access is enabled.

    Parameters
    ----------
    device_id, peer_id : int
        Ordinals of two devices.

    Raises
    ------
    DriverError
        There is no such device, or the driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Makes no context (``cuDeviceCanAccessPeer``).  Copies need no access: the driver finds a way between any two
    devices.  Thread-safe.
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
    DriverError
        There is no such device, or the driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Opens what ``cuMemAlloc`` returns there (``cuCtxEnablePeerAccess``), the device's default and current memory pool
    and those of each `AsyncMemoryResource`, which are there and which come (``cuMemPoolSetAccess``, since pools do
    not heed the former). Other pools of that device, as RMM's, are opened when `use` first meets memory of theirs.
    Call it before other threads allocate there.  One direction; call it twice for both.  It stays enabled, and a
    repeated call opens what was added.  Thread-safe; the current context stays as it is.
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
    DriverError
        There is no such device, or the driver refused.
    TypeError
        One of them is not a number.

    Notes
    -----
    Work that is still using the memory fails: synchronize the device first.  Pools that `use` has opened by itself stay
    open.  Nothing happens if the access was not enabled.  Thread-safe.
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
