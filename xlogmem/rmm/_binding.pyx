"""RMM's Python classes on xlogmem's C table; `xlogmem.rmm` imports this module after it has checked RMM's version.

The work is done in ``resource.hpp``.  Built once, with the limited API and without linking to librmm (see setup.py), so
only classes and types of RMM may be used here, not its functions.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from cython.operator cimport dereference
from libc.stdint cimport uint32_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional

from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource._memory_resource cimport DeviceMemoryResource

from xlogmem.native cimport XLOGMEM_TABLE, XLOGMEM_TABLE_VERSION, XLOGMEM_UPSTREAM, xlogmem_table, xlogmem_upstream

from rmm.mr import (
    CudaAsyncMemoryResource,
    CudaAsyncViewMemoryResource,
    CudaMemoryResource,
    LimitingResourceAdaptor,
)

from xlogmem._table import name_memory, table
from xlogmem.blocks import Core
from xlogmem.runtime import DeviceRuntime

__all__ = ["RuntimeMemoryResource"]

cdef extern from "resource.hpp" namespace "xlogmem_rmm" nogil:
    cdef cppclass any_resource:
        pass
    any_resource* refuser
    cdef cppclass runtime_resource:
        void* runtime()
    cdef cppclass upstream:
        xlogmem_upstream* functions()

cdef extern from *:
    """
    static inline xlogmem_rmm::runtime_resource* xlogmem_make_resource(xlogmem_table const* functions, void* runtime) {
        return new xlogmem_rmm::runtime_resource{functions, runtime};
    }
    static inline std::optional<cython_device_async_resource_ref> xlogmem_ref(xlogmem_rmm::runtime_resource& resource) {
        return cython_device_async_resource_ref{rmm::device_async_resource_ref{resource}};
    }
    static inline xlogmem_rmm::upstream* xlogmem_make_upstream(cython_device_async_resource_ref resource, bool pool) {
        return new xlogmem_rmm::upstream{static_cast<rmm::device_async_resource_ref>(resource), pool};
    }
    static inline xlogmem_rmm::any_resource* xlogmem_copy(cython_device_async_resource_ref resource) {
        return new xlogmem_rmm::any_resource{static_cast<rmm::device_async_resource_ref>(resource)};
    }
    """
    runtime_resource* xlogmem_make_resource(xlogmem_table* functions, void* runtime) except +
    optional[device_async_resource_ref] xlogmem_ref(runtime_resource&) except + nogil
    upstream* xlogmem_make_upstream(device_async_resource_ref, bint pool) except + nogil
    any_resource* xlogmem_copy(device_async_resource_ref) except + nogil

cdef xlogmem_table* core = <xlogmem_table*>PyCapsule_GetPointer(table, XLOGMEM_TABLE)
if core.version != <uint32_t>XLOGMEM_TABLE_VERSION or core.size < sizeof(xlogmem_table):
    raise ImportError(f"xlogmem.rmm was built for version {XLOGMEM_TABLE_VERSION} of xlogmem's C table, this xlogmem "
                      f"has version {core.version}: install both from one build")

cdef DeviceMemoryResource _refuser = LimitingResourceAdaptor(CudaMemoryResource(), 0)    # grants no byte
refuser = xlogmem_copy(_refuser.get_mr())


@cython.no_gc_clear                         # the C++ side may be in use until __dealloc__
cdef class RuntimeMemoryResource(DeviceMemoryResource):
    """A `DeviceRuntime` as an RMM resource: every allocation through it is a tracked block.

    Pass it to ``rmm.mr.set_current_device_resource``, to any adaptor as upstream, or to ``DeviceBuffer``; libcudf's C++
    then allocates through it too.  Name buffers in `xlogmem.use` to have their uses ordered; frees wait for them.

    Parameters
    ----------
    runtime : DeviceRuntime
        Allocates and tracks the memory.  It lives as long as this object, a copy of it in C++, or a buffer.

    Attributes
    ----------
    runtime : DeviceRuntime
        As passed.
    upstream_mr : rmm.mr.DeviceMemoryResource
        The RMM resource below the runtime.  The attribute is missing if the runtime has another kind of resource.

    Notes
    -----
    Memory is freed on the stream that is passed to RMM, after every recorded use.  Streams that are first used here are
    opaque (see `Stream.discipline`): callers of RMM enqueue unrecorded work.  When memory runs out, the call waits for
    pending frees and tries once more before ``rmm::out_of_memory`` is thrown, with the first 150 characters or so of
    what `OutOfDeviceMemoryError` would say.

    A free cannot raise: a failure is logged to ``xlogmem`` and raised by the runtime's next ``reap_pending``.  The GIL
    is not taken, unless the runtime's resource is written in Python.  As everywhere in RMM, a stream has to live as
    long as the memory that was allocated on it.

    Examples
    --------
    >>> import rmm, xlogmem.rmm
    >>> runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource())
    >>> resource = xlogmem.rmm.RuntimeMemoryResource(runtime)
    >>> memory = resource.allocate(1000)
    >>> runtime.live_bytes
    1000
    >>> resource.deallocate(memory, 1000)
    """

    cdef unique_ptr[runtime_resource] resource
    cdef readonly object runtime

    def __cinit__(self, runtime not None):
        if not isinstance(runtime, Core):
            raise TypeError(f"RuntimeMemoryResource needs a DeviceRuntime, not {type(runtime).__name__}")
        self.runtime = runtime
        self.resource.reset(xlogmem_make_resource(core, <void*>runtime))
        tag = runtime._tag_for("RMM") if isinstance(runtime, DeviceRuntime) else None
        if tag is not None:
            name_memory(<size_t>dereference(self.resource).runtime(), tag)
        self.c_ref = xlogmem_ref(dereference(self.resource))

    def __dealloc__(self):
        with nogil:
            self.c_ref.reset()
            self.resource.reset()

    @property
    def upstream_mr(self):
        return self.runtime.resource.upstream_mr

    def get_allocated_bytes(self):
        """The live bytes of the runtime, as RMM's counting adaptors report theirs; Dask's dashboard shows them."""
        return self.runtime.live_bytes

    def get_upstream(self):
        """The upstream resource, as in RMM's adaptors."""
        return self.upstream_mr

    def __repr__(self):
        return f"<{type(self).__name__} of {self.runtime!r}>"


cdef void drop_upstream(object capsule) noexcept:
    cdef upstream* held = <upstream*>(<xlogmem_upstream*>PyCapsule_GetPointer(capsule, XLOGMEM_UPSTREAM)).self
    cdef object mr = <object>PyCapsule_GetContext(capsule)
    with nogil:
        del held
    Py_DECREF(mr)


# Exactly these classes: a derived one may do more than its CUDA pool.
CUDA_POOLS = (CudaAsyncMemoryResource, CudaAsyncViewMemoryResource)


def upstream_of(DeviceMemoryResource mr not None):
    """A capsule for `ForeignMemoryResource`.  It owns a copy of the C++ resource and keeps the Python object alive,
    without which a callback would be a dangling pointer."""
    cdef bint pool = type(mr) in CUDA_POOLS
    cdef device_async_resource_ref resource = mr.get_mr()
    cdef upstream* made
    with nogil:
        made = xlogmem_make_upstream(resource, pool)
    capsule = PyCapsule_New(made.functions(), XLOGMEM_UPSTREAM, drop_upstream)
    PyCapsule_SetContext(capsule, <void*>mr)
    Py_INCREF(mr)
    return capsule
