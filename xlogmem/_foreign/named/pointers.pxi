# Bare addresses, pointers with a size, and tensors that give their own address.

from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport UINT64_MAX

from xlogmem._base.units import counted
from xlogmem._driver cimport host_is_pinned, is_system_memory
from xlogmem._foreign.advice import in_words, kind_of
from xlogmem._base.failures cimport Failure, raise_failure


cdef bint name_address(object address, object what, str where, Extent* extent) except -1:
    """Fill in one byte: a bare address has no size.  Raises ValueError for a number that is not an address."""
    address = PyNumber_Index(address)
    if isinstance(what, bool) or not 0 <= address <= UINT64_MAX:
        raise ValueError(f"{where}: {in_words(what)} is not an address: give a whole number from 0 to 2**64 - 1, or "
                         "the block or array itself")
    extent.ptr = extent.first = extent.last = address
    return True


cdef bint name_data_pointer(object what, str where, Extent* extent) except -1:
    """Fill in the bytes of an object that has ``data_ptr()``: a tensor, which has a shape, or a storage, which has a
    size.  False if it has no elements."""
    if callable(getattr(what, "__dlpack_device__", None)):
        device_of(what, where, extent)
    elif getattr(what, "is_cuda", True) is False:
        extent.on_host = True
    address = index_of(what.data_ptr(), "data_ptr()", what, where)
    shape, strides = getattr(what, "shape", None), getattr(what, "stride", None)
    if shape is None or not callable(strides) or not callable(getattr(what, "element_size", None)):
        return (name_range(address, getattr(what, "nbytes", None), what, where, extent)
                and refuse_pageable(extent, what, where) == 0)
    if 0 in shape:
        return False
    itemsize = index_of(what.element_size(), "element_size()", what, where)
    steps = tuple([index_of(step, "stride()", what, where) * itemsize for step in strides()])
    fill_array(extent, (address, tuple(shape), steps, max(1, itemsize)), "data_ptr()", what, where)
    return refuse_pageable(extent, what, where) == 0


cdef bint name_range(object address, object nbytes, object what, str where, Extent* extent) except -1:
    """Fill in a range by its address and its size, which may be a method, or None if the size is not known."""
    if callable(nbytes):
        nbytes = nbytes()
    check_address(address, what, where)
    if nbytes is None:
        return name_address(address, what, where, extent)
    nbytes = index_of(nbytes, "the size", what, where)
    if nbytes == 0:
        return False
    if nbytes < 0 or address + nbytes > UINT64_MAX:
        raise ValueError(f"{where}: {kind_of(what)} is not a range of device memory: {counted(nbytes, 'byte')} "
                         f"at {address}")
    if address == 0:
        raise ValueError(f"{where}: {kind_of(what)} has no memory, or has it no longer: its address is 0")
    extent.ptr = extent.first = address
    extent.last = address + nbytes - 1
    extent.sized = True
    return True


cdef bint name_pointer(object what, str where, Extent* extent) except -1:
    """Fill in the bytes of an object without a description of an array.  False if it has no elements."""
    cdef bint handle = str(type(what).__module__).startswith("cuda.bindings")      # of something, and an index too
    if handle and type(what).__name__ == "CUdeviceptr":
        return name_address(int(what), what, where, extent)
    if PyIndex_Check(what) and not handle:
        return name_address(what, what, where, extent)
    if PyObject_CheckBuffer(what):
        return name_host_memory(what, where, extent)
    if getattr(what, "__array_interface__", None) is not None:
        refuse_host_memory(what, where)
    address, nbytes = pointer_of(what), size_of(what)
    if address is None or nbytes is None:
        raise TypeError(f"{where}: {in_words(what)} is not a block, address or CUDA array (it has no data_ptr(), "
                        "__cuda_array_interface__ or __dlpack__, nor a handle or ptr with a size), nor a list, tuple "
                        "or dict of these")
    return name_range(index_of(address, "the pointer", what, where), nbytes, what, where, extent)


cdef object pointer_of(object what):
    """The integer in ``handle`` or ``ptr``; None if there is none."""
    for name in ("handle", "ptr"):
        value = getattr(what, name, None)
        if value is None:
            continue
        if type(value).__name__ == "CUdeviceptr":       # Numba's handles; it has no __index__
            return int(value)
        value = getattr(value, "value", value)          # a ctypes pointer; its null is None
        return 0 if value is None else value
    return None


cdef object size_of(object what):
    """The bytes from the pointer of an object to the end of its memory; None if the number is not known."""
    memory = getattr(what, "mem", None)                 # CuPy: a pointer into an allocation
    if memory is not None:
        size = getattr(memory, "size", None)
        start = getattr(memory, "ptr", None)
        if PyIndex_Check(size) and PyIndex_Check(start) and PyIndex_Check(what.ptr):
            return start + size - what.ptr
    for name in ("nbytes", "size"):
        value = getattr(what, name, None)
        if value is not None:
            return value
    return None


# ---------------------------------------------------------------------------------------------- host memory
cdef bint name_host_memory(object what, str where, Extent* extent) except -1:
    """Fill in the bytes of an object that has the buffer protocol.  False if it has no elements."""
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(what, &view, PyBUF_STRIDED_RO)
    except (BufferError, ValueError):                   # NumPy's, of some types
        refuse_host_memory(what, where)
    try:
        if view.len == 0:
            return False
        shape = tuple([view.shape[i] for i in range(view.ndim)])
        strides = tuple([view.strides[i] for i in range(view.ndim)])
        extent.on_host = True
        extent.read_only = view.readonly
        fill_array(extent, (<size_t>view.buf, shape, strides, view.itemsize), "the buffer", what, where)
    finally:
        PyBuffer_Release(&view)
    return refuse_pageable(extent, what, where) == 0


cdef int refuse_pageable(Extent* extent, object what, str where) except -1:
    """Raise if the object says that it is in host memory, which the driver does not know and xlogmem does not track."""
    cdef bint pinned = False
    cdef Failure failure
    cdef int failed
    if extent.on_host and not is_system_memory(extent.ptr):
        with nogil:
            failed = host_is_pinned(<const void*><size_t>extent.ptr, &pinned, &failure)
        if failed:
            raise_failure(&failure, f"looking at the memory of {kind_of(what)}", NULL, f"{where}: ")
        if not pinned:
            refuse_host_memory(what, where)
    return 0


cdef int refuse_host_memory(object what, str where) except -1:
    raise TypeError(f"{where}: {kind_of(what)} is host memory that is not page-locked, which xlogmem does not order: "
                    "copy it to the device, as cupy.asarray(x), xlogmem.from_numpy(x) and a tensor's x.cuda() do, and "
                    "name the copy")
