# Devices: properties that need no context, and memory sizes.

from xlogmem._base.units import count_of_devices
from xlogmem._base.failures cimport raise_failure


cdef int device_with_id(int device_id, cy.CUdevice* device) except -1:
    """Get the driver's number of a device.  Needs no context and makes none.  Raises ValueError if there is no such
    device."""
    cdef Failure failure
    cdef int failed
    initialize()
    count = device_count()
    if not 0 <= device_id < count:
        raise ValueError(f"device {device_id} is not here: this process sees {count_of_devices(count)}")
    with nogil:
        failed = _check(&failure, "cuDeviceGet", cy.cuDeviceGet(device, device_id))
    if failed:
        raise_failure(&failure, f"opening device {device_id}")
    return 0


def describe_device(int device_id):
    """Name, UUID (16 bytes) and bytes of memory of a device.  Needs no context and makes none."""
    cdef char name[256]
    cdef cy.CUuuid uuid
    cdef size_t nbytes = 0
    cdef cy.CUdevice device = 0
    cdef Failure failure
    cdef int failed
    device_with_id(device_id, &device)
    with nogil:
        failed = (_check(&failure, "cuDeviceGetName", cy.cuDeviceGetName(name, sizeof(name), device))
                  or _check(&failure, "cuDeviceGetUuid", cy.cuDeviceGetUuid(&uuid, device))
                  or _check(&failure, "cuDeviceTotalMem", cy.cuDeviceTotalMem(&nbytes, device)))
    if failed:
        raise_failure(&failure, f"querying device {device_id}")
    return (<bytes>name).decode(), (<char*>uuid.bytes)[:16], nbytes


def device_memory(int device_id):
    """``(free, total)`` in bytes, as reported by the driver.  Makes the device's context, if there is none."""
    cdef Context context = context_of(device_id)
    cdef Scope scope
    cdef Failure failure
    cdef size_t free = 0, total = 0
    cdef int failed
    with nogil:
        failed = enter_context(context.handle, &scope, &failure)
        if not failed:
            failed = memory_info(&free, &total, &failure)
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"querying the memory of device {device_id}")
    return free, total


def synchronize_device(int device_id):
    """Wait for everything that is queued on the device, in its primary context."""
    cdef Context context = context_of(device_id)
    cdef Scope scope
    cdef Failure failure
    cdef int failed
    with nogil:
        failed = enter_context(context.handle, &scope, &failure)
        if not failed:
            failed = context_synchronize(&failure)
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"synchronizing device {device_id}")
