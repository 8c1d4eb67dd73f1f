"""Memory of other libraries' objects: the one reader of arguments that are not xlogmem's own.

`use`, `adopt` and `find_block` take what is read here.  Nothing is held, consumed, ordered or copied, and the driver is
not called; the code of the library runs, and what it says is checked before it is believed.

An object may offer several descriptions of the same memory; the first of these is read:

1. an ``int``: a bare address;
2. ``data_ptr()`` (PyTorch): no capsule or dictionary is made, and a tensor that requires a gradient, which refuses the
   others, has it;
3. ``__cuda_array_interface__``;
4. ``__dlpack__``, after ``__dlpack_device__``, with ``stream=-1``: the producer orders nothing, and its capsule is
   dropped as it came (cuda.core's ``Buffer``);
5. ``CUdeviceptr`` of cuda.bindings: a bare address;
6. ``handle`` or ``ptr``, where a size is beside it: CuPy's ``MemoryPointer``, Numba's pointers.  An object that has a
   pointer and no size may be a stream, an event or a kernel;
7. ``__index__``: a bare address.

Host memory is refused, by a message that says so.  What has no elements names nothing, whatever its address is.
"""

cdef bint name_memory(object what, str where, Extent* extent) except -1:
    """The memory that an object names.  False: it has no elements, and `extent` says nothing.

    Raises TypeError for host memory and for what is not memory, TypeError, ValueError or BufferError for what
    contradicts itself; each begins with `where`, or names the capsule.
    """
    extent.read_only = False
    extent.sized = False
    extent.ordinal = -1
    if isinstance(what, int):
        return name_address(what, what, where, extent)
    if callable(getattr(what, "data_ptr", None)):
        return name_data_pointer(what, where, extent)
    interface = getattr(what, "__cuda_array_interface__", None)
    if interface is not None:
        return name_array(interface, what, where, extent)
    if getattr(what, "__dlpack__", None) is not None:
        return name_tensor(what, where, extent)
    return name_pointer(what, where, extent)


include "named/arrays.pxi"    # the CUDA array interface; extents of arrays
include "named/tensors.pxi"   # DLPack
include "named/pointers.pxi"  # bare addresses, and pointers with a size
