"""The base class of every memory resource, and the table of C functions by which the core calls a resource.

A resource in C fills in the table itself.  Subclasses in Python define methods; the functions in their table take the
GIL and call the methods.
"""
cimport cython

from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport UINT64_MAX

from xlogmem._base.failures cimport UnderWay, keep_exception, put_back, raise_failure, set_aside
from xlogmem._base.labels cimport release, stack_for
from xlogmem._driver cimport (
    Scope,
    context_of,
    enter_context,
    leave_context,
    relax_capture,
    restore_capture,
)
from xlogmem.streams cimport Stream, parse

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id, parse_number, parse_size
from xlogmem.errors import StreamMisuseError

__all__ = ["DeviceMemoryResource"]


# ---------------------------------------------------------------------------------------------- methods as C functions
cdef int python_allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    """Call the method of a Python subclass.  No lock is held here; an exception is kept in the failure."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef UnderWay exception
    cdef int failed
    with gil:
        set_aside(&exception)
        try:
            failed = call_allocate(<DeviceMemoryResource>self, wanted, failure)
        finally:
            put_back(&exception)
    restore_capture(mode)
    return failed


cdef int call_allocate(DeviceMemoryResource resource, Allocation* wanted, Failure* failure) except -1:
    try:
        answer = resource.allocate(wanted.nbytes, <size_t>wanted.handle)
        if not PyIndex_Check(answer):
            raise TypeError(f"{type(resource).__name__}.allocate returned {answer!r}, which is not an integer address")
        address = PyNumber_Index(answer)
        if not 0 < address <= UINT64_MAX:
            raise ValueError(f"{type(resource).__name__}.allocate returned {address}, which is not a device address")
        wanted.ptr = address
    except BaseException as exception:
        return keep_exception(failure, exception)
    return 0


cdef int python_deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    """Call the method of a Python subclass, as `python_allocate` does."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef UnderWay exception
    cdef int failed
    with gil:
        set_aside(&exception)
        try:
            failed = call_deallocate(<DeviceMemoryResource>self, freed, failure)
        finally:
            put_back(&exception)
    restore_capture(mode)
    return failed


cdef int call_deallocate(DeviceMemoryResource resource, Allocation* freed, Failure* failure) except -1:
    try:
        resource.deallocate(freed.ptr, freed.nbytes, <size_t>freed.handle)
    except BaseException as exception:
        return keep_exception(failure, exception)
    return 0


cdef str NEVER_INITIALISED = "the {} was never initialised: its __init__ was not called, or failed"


cdef int refuse_undeclared(DeviceMemoryResource resource, str what) except -1:
    if resource.table.allocate == NULL and resource.table.frontiers == NULL:
        raise StreamMisuseError(NEVER_INITIALISED.format(type(resource).__name__))
    refuse_unheard(resource, what)
    if resource.table.order == UNDECLARED:
        raise StreamMisuseError(
            f"{type(resource).__name__} does not support {what} (unsupported): it declares neither that its frees are "
            "ordered on a stream nor that they take effect at once. Set order = 'stream' or order = 'host' in the "
            "class")
    return 0


cdef int refuse_unheard(DeviceMemoryResource resource, str what) except -1:
    """Raise if a subclass in Python overrides a method of a resource in C: the core calls such a resource through its
    table, and would not call the method."""
    if resource.table.allocate == python_allocate:
        return 0
    for name in ("allocate", "deallocate"):
        if getattr(type(resource), name) is not getattr(DeviceMemoryResource, name):
            raise StreamMisuseError(
                f"{type(resource).__name__} does not support {what} (unsupported): it overrides {name}() of a resource "
                "that is called in C, so the method would not be called. Put a subclass of DeviceMemoryResource around "
                "that resource instead")
    return 0


cdef int refuse_upstream(object upstream, str what) except -1:
    if not isinstance(upstream, DeviceMemoryResource):
        raise TypeError(f"upstream must be a DeviceMemoryResource of xlogmem, not {type(upstream).__name__} (for "
                        "one of RMM's: xlogmem.rmm.RmmMemoryResource)")
    return refuse_undeclared(upstream, what)


ORDERS = {"stream": STREAM_ORDERED, "host": HOST_SYNCHRONOUS}


@cython.no_gc_clear                         # __dealloc__ of the subclasses needs the context
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class DeviceMemoryResource:
    """Allocates memory of one device, and frees it.

    Use one of the subclasses, or write one::

        class Mine(xlogmem.DeviceMemoryResource):
            order = "stream"                            # or "host": see below

            def allocate(self, nbytes, stream): ...     # returns an address; `stream` is the CUstream as an int
            def deallocate(self, ptr, nbytes, stream): ...

    A resource may be used by itself: nothing is tracked then, and the caller orders everything.  `DeviceRuntime` tracks
    the memory that it allocates from a resource: from its own, and from others that allocations name.

    Parameters
    ----------
    device_id : int
        The device that the memory is on.

    Attributes
    ----------
    order : {"stream", "host"}
        The order that a subclass declares.  ``"stream"``: memory and frees are ordered on the stream given to the call.
        ``"host"``: a free takes effect at once; the runtime waits on the host for every use before it frees.
    is_host_accessible, is_device_accessible, is_managed : bool
        Whether the host, and the device, may access the memory, and whether the driver moves it between them, as
        cuda.core names it: False, True and False, unless a subclass declares something else.
    context : object
        The primary context of the device; None before ``__init__``.

    Raises
    ------
    TypeError
        The base class itself was called.
    ValueError
        The class declares an `order` that is neither of the two, or an `is_host_accessible` that is not a bool, or
        there is no such device.
    DriverError
        The driver refused.

    Notes
    -----
    Methods of subclasses are called from any thread, without any lock of the runtime and with the device's context
    current, and may use the runtime themselves.  The runtime raises their exceptions to its caller; a free that raises
    leaves the block live.  A runtime refuses a resource that declares no `order`, because it could not say when a free
    takes effect.

    Examples
    --------
    >>> class Counting(xlogmem.DeviceMemoryResource):
    ...     order = "stream"
    ...     calls = 0
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.pool = xlogmem.AsyncMemoryResource()
    ...     def allocate(self, nbytes, stream):
    ...         self.calls += 1
    ...         return self.pool.allocate(nbytes, stream)
    ...     def deallocate(self, ptr, nbytes, stream):
    ...         self.pool.deallocate(ptr, nbytes, stream)
    >>> resource = Counting()
    >>> xlogmem.DeviceRuntime(resource=resource).allocate(1000).free()
    >>> resource.calls
    1
    """

    order = None

    __signature__ = Signed("device_id=0")

    def __init__(self, device_id=0):
        if type(self) is DeviceMemoryResource:
            raise TypeError("DeviceMemoryResource is a base class: use AsyncMemoryResource or DirectMemoryResource, or "
                            "write a subclass with allocate() and deallocate()")
        self.context = context_of(parse_device_id(device_id))
        self.table.self = <void*>self
        if self.order is not None and not (isinstance(self.order, str) and self.order in ORDERS):
            raise ValueError(f"{type(self).__name__}.order is {self.order!r}; choose one of {', '.join(ORDERS)}")
        if not isinstance(self.is_host_accessible, bool):
            raise ValueError(f"{type(self).__name__}.is_host_accessible is {self.is_host_accessible!r}; choose True or "
                             "False")
        self.table.host_accessible = self.is_host_accessible
        self.table.order = ORDERS.get(self.order, UNDECLARED)
        self.table.allocate = python_allocate
        self.table.deallocate = python_deallocate
        self.table.trim = NULL

    def allocate(self, nbytes, stream):
        """Allocate untracked memory.

        Parameters
        ----------
        nbytes : int
            A whole number of bytes, or a text such as ``"1GiB"``.  For 0 the driver is not called.
        stream : Stream, int or object of another library
            Work that is enqueued there from now on may use the memory; with ``order = "host"`` any work may.

        Returns
        -------
        int
            The device address; 0 for no bytes.

        Raises
        ------
        OutOfDeviceMemoryError
            The device has no memory left.
        DriverError
            The driver refused.
        StreamMisuseError
            The stream is on another device, or the resource cannot be used by itself.

        Notes
        -----
        Thread-safe.
        """
        cdef Failure failure
        cdef Allocation wanted
        cdef Scope scope
        cdef int failed
        start_call(&wanted, parse_size("nbytes", nbytes), self.handle_on_device(stream, "allocate"))
        if wanted.nbytes == 0:
            return 0
        wanted.stack = stack_for(self.table.stack_depth)
        with nogil:
            failed = enter_context(self.context.handle, &scope, &failure)
            if not failed:
                failed = self.table.allocate(self.table.self, &wanted, &failure)
                leave_context(&scope)
            release(wanted.stack)
        if failed:
            raise_failure(&failure, f"allocating {nbytes} bytes on {stream!r}")
        return wanted.ptr

    def deallocate(self, ptr, nbytes, stream):
        """Free memory that `allocate` returned.

        Parameters
        ----------
        ptr : int
            The address.
        nbytes : int
            As given to `allocate`.
        stream : Stream, int or object of another library
            Every use has to be ordered before the work that is enqueued there from now on; with ``order = "host"``
            every use has to be complete.  The resource does not know of uses.

        Raises
        ------
        DriverError
            The driver refused; the memory is still allocated.
        StreamMisuseError
            The stream is on another device, or the resource cannot be used by itself.

        Notes
        -----
        Thread-safe.
        """
        cdef Failure failure
        cdef Allocation freed
        cdef Scope scope
        cdef int failed
        start_call(&freed, parse_size("nbytes", nbytes), self.handle_on_device(stream, "deallocate"))
        freed.ptr = parse_number("ptr", ptr, 0, UINT64_MAX, "an address")
        if freed.ptr == 0 and freed.nbytes == 0:
            return
        freed.stack = stack_for(self.table.stack_depth)
        with nogil:
            failed = enter_context(self.context.handle, &scope, &failure)
            if not failed:
                failed = self.table.deallocate(self.table.self, &freed, &failure)
                leave_context(&scope)
            if not failed:                              # nothing here could look later
                settle(&self.table, freed.nbytes)
            release(freed.stack)
        if failed:
            raise_failure(&failure, f"freeing {nbytes} bytes on {stream!r}")

    cdef int bind(self, StreamPool stream_pool) except -1:
        """Bind the resource to a runtime.  A resource that keeps frontiers keeps positions of these streams from now
        on."""
        return 0

    cdef cy.CUstream handle_on_device(self, object stream, str method) except? <cy.CUstream>-1:
        """The handle of a stream, which has to be on the device of this resource.  Raises if the resource has no C
        function for `method`: a subclass in Python that does not define `method` has only the method of this class,
        which called this function."""
        if self.context is None or self.table.allocate == NULL or self.table.allocate == python_allocate:
            raise StreamMisuseError(f"{type(self).__name__} does not support {method} (unsupported): the class does "
                                    "not define it, or its __init__ was not called")
        if isinstance(stream, Stream) and (
                (<Stream>stream).state == NULL or (<Stream>stream).ordering.context is not self.context):
            raise StreamMisuseError(f"{stream!r} is on another device than the resource ({self.context.device_id})")
        return <cy.CUstream><size_t>(<Stream>stream).handle if isinstance(stream, Stream) else parse(stream)

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} is not copied or pickled: it owns memory, and others use that. "
                        "Make another one")

    @property
    def is_host_accessible(self):
        """True if the host may read and write the memory."""
        return bool(self.table.host_accessible)

    @property
    def is_device_accessible(self):
        """True if work on the device may read and write the memory."""
        return True

    @property
    def is_managed(self):
        """True if the driver moves the memory between the host and the devices."""
        return False

    @property
    def device_id(self):
        """The number of the device that the memory is on; None before ``__init__``."""
        return self.context.device_id if self.context is not None else None

    def __repr__(self):
        return f"<{type(self).__name__} device={self.device_id}>"
