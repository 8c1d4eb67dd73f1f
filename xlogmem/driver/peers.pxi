# Peers: access of a device to the memory of another device.
#
# Memory of `cuMemAlloc` is opened to a context as a whole (`cuCtxEnablePeerAccess`), memory of pools to a device, pool
# by pool (`cuMemPoolSetAccess`).  Answers of the driver, as seen on two H100s: CU_POINTER_ATTRIBUTE_ACCESS_FLAGS says
# that all access is allowed, whatever the truth is; CU_POINTER_ATTRIBUTE_DEVICE_POINTER fails without access, and
# always fails for memory of another device's pool.  So the pools themselves are queried.

import contextlib

from libc.string cimport memset

from xlogmem.errors import DriverError
from xlogmem._base.failures cimport raise_failure


cdef set enabled_peers = set()              # (device, peer), as the program wants it


cdef bint is_peer_enabled(int device_id, int peer):
    """True if the program has given a device access to the memory of another device."""
    return (device_id, peer) in enabled_peers


cdef int peer_access_of(cy.CUcontext context, int device_id, cy.CUdeviceptr ptr, unsigned int* flags,
                        Failure* failure) except -1 nogil:
    """Get the access of a device to memory of another device, as `CUmemAccess_flags`.  May be called during a capture.
    """
    cdef cy.CUmemoryPool pool = NULL
    flags[0] = 0
    pool_of_pointer(ptr, &pool)
    if pool != NULL:
        return pool_access_of(pool, device_id, flags, failure)
    return pointer_access_of(context, ptr, flags, failure)


cdef int pool_access_of(cy.CUmemoryPool pool, int device_id, unsigned int* flags, Failure* failure) except -1 nogil:
    cdef cy.CUmemAccess_flags allowed = cy.CU_MEM_ACCESS_FLAGS_PROT_NONE
    cdef cy.CUmemLocation location
    location.type = cy.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device_id
    if _check(failure, "cuMemPoolGetAccess", cy.cuMemPoolGetAccess(&allowed, pool, &location)):
        return 1
    flags[0] = <unsigned int>allowed
    return 0


cdef int pointer_access_of(cy.CUcontext context, cy.CUdeviceptr ptr, unsigned int* flags,
                           Failure* failure) except -1 nogil:
    """Get the access to memory that belongs to no pool: all or nothing."""
    cdef cy.CUdeviceptr seen = 0
    cdef cy.CUresult result
    cdef Scope scope
    if enter_context(context, &scope, failure):
        return 1
    result = cy.cuPointerGetAttribute(&seen, cy.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr)
    leave_context(&scope)
    if result == cy.CUDA_ERROR_INVALID_VALUE:
        return 0
    flags[0] = <unsigned int>cy.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return _check(failure, "cuPointerGetAttribute", result)


cdef int pool_open_to(cy.CUmemoryPool pool, int device_id, Failure* failure) except -1 nogil:
    """Let work of a device read and write all memory of a pool, present and future."""
    return set_pool_access(pool, device_id, True, failure)


cdef int pool_open_to_peers(cy.CUmemoryPool pool, int device_id) except -1:
    """Open a new pool of a device to the devices that have access to the device's memory.  Raises DriverError."""
    cdef Failure failure
    cdef int device, failed
    for device in [device for device, peer in list(enabled_peers) if peer == device_id]:
        with nogil:
            failed = pool_open_to(pool, device, &failure)
        if failed:
            raise_failure(&failure, f"giving device {device} access to a memory pool of device {device_id}")
        if not is_peer_enabled(device, device_id):      # the program has taken it away meanwhile
            with nogil:
                failed = set_pool_access(pool, device, False, &failure)
            if failed:
                raise_failure(&failure, f"taking from device {device} access to a memory pool of device {device_id}")
    return 0


def forget_peer_access(int device_id):
    """Forget the access of a device that was reset to memory of others, and of other devices to its memory."""
    for pair in [pair for pair in list(enabled_peers) if device_id in pair]:
        enabled_peers.discard(pair)


cdef int set_pool_access(cy.CUmemoryPool pool, int device_id, bint is_open, Failure* failure) except -1 nogil:
    cdef cy.CUmemAccessDesc access
    memset(&access, 0, sizeof(access))
    access.location.type = cy.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device_id
    access.flags = cy.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if is_open else cy.CU_MEM_ACCESS_FLAGS_PROT_NONE
    return _check(failure, "cuMemPoolSetAccess", cy.cuMemPoolSetAccess(pool, &access, 1))


def can_access_peer(int device_id, int peer):
    """True if the hardware lets work of a device touch memory of another device.  Makes no context.  Raises
    DriverError."""
    cdef cy.CUdevice device, other
    cdef Failure failure
    cdef int can = 0, failed
    device_with_id(device_id, &device)
    device_with_id(peer, &other)
    with nogil:
        failed = _check(&failure, "cuDeviceCanAccessPeer", cy.cuDeviceCanAccessPeer(&can, device, other))
    if failed:
        raise_failure(&failure, f"querying whether device {device_id} can access device {peer}")
    return bool(can)


def open_to_peer(int device_id, int peer):
    """Let work of a device touch the memory of another device: memory that `cuMemAlloc` returns there, and memory of
    the other device's default pool, its current pool, and xlogmem's own pools, now and later.  Raises DriverError."""
    cdef bint added = (device_id, peer) not in enabled_peers
    enabled_peers.add((device_id, peer))                # first: a pool that is made meanwhile is opened
    try:
        set_peer_access(device_id, peer, True)
    except DriverError:
        if added:
            enabled_peers.discard((device_id, peer))
            with contextlib.suppress(DriverError):      # the first one is raised
                set_peer_access(device_id, peer, False)
        raise


def close_to_peer(int device_id, int peer):
    """Undo `open_to_peer`."""
    enabled_peers.discard((device_id, peer))
    set_peer_access(device_id, peer, False)


cdef int set_peer_access(int device_id, int peer, bint is_open) except -1:
    cdef Context context = context_of(device_id)
    cdef Context other = context_of(peer)
    cdef Failure failure
    cdef int failed
    with nogil:
        failed = (set_memory_access(context.handle, other.handle, is_open, &failure)
                  or set_pools_access(other.device, device_id, is_open, &failure)
                  or open_own_pools(other.handle, device_id, is_open, &failure))
    if failed:
        raise_failure(&failure, f"{'giving' if is_open else 'taking from'} device {device_id} access to the memory of "
                                f"device {peer}")
    return 0


cdef int set_memory_access(cy.CUcontext context, cy.CUcontext peer, bint is_open, Failure* failure) except -1 nogil:
    cdef cy.CUresult result
    cdef Scope scope
    if enter_context(context, &scope, failure):
        return 1
    result = cy.cuCtxEnablePeerAccess(peer, 0) if is_open else cy.cuCtxDisablePeerAccess(peer)
    leave_context(&scope)
    if result in (cy.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cy.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED):
        return 0
    return _check(failure, "cuCtxEnablePeerAccess" if is_open else "cuCtxDisablePeerAccess", result)


cdef int set_pools_access(cy.CUdevice device, int device_id, bint is_open, Failure* failure) except -1 nogil:
    """Set the access to the pools of a device that no program has made, if the device supports pools."""
    cdef cy.CUmemoryPool pool = NULL
    cdef int supported = 0
    if _check(failure, "cuDeviceGetAttribute", cy.cuDeviceGetAttribute(
            &supported, cy.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device)):
        return 1
    if not supported:
        return 0
    if (_check(failure, "cuDeviceGetDefaultMemPool", cy.cuDeviceGetDefaultMemPool(&pool, device))
            or set_pool_access(pool, device_id, is_open, failure)):
        return 1
    return (_check(failure, "cuDeviceGetMemPool", cy.cuDeviceGetMemPool(&pool, device))
            or set_pool_access(pool, device_id, is_open, failure))
