"""Memory of other libraries' objects: the one reader of arguments that are not xlogmem's own.

`use`, `adopt` and `find_block` use the extents that are read here.  Nothing is held, consumed, ordered or copied, and
the driver is called only to learn if host memory is page-locked; the code of the other library runs, and its answers
are checked before they are used.

An object may offer several descriptions of the same memory; the first of these is read:

1. an ``int``: a bare address;
2. ``data_ptr()`` (PyTorch): it makes no capsule or dictionary, and works for a tensor that requires a gradient, which
   refuses the other descriptions; where the type has ``__dlpack_c_exchange_api__``, a tensor on a CUDA device is
   described by one call of it;
3. ``__cuda_array_interface__``;
4. ``__dlpack__``, after ``__dlpack_device__``, with ``stream=-1``: the producer orders nothing, and its capsule is
   dropped unconsumed (cuda.core's ``Buffer``);
5. ``CUdeviceptr`` of cuda.bindings: a bare address;
6. the buffer protocol (NumPy): host memory;
7. ``handle`` or ``ptr``, where the object has a size too: CuPy's ``MemoryPointer``, Numba's pointers.  An object that
   has a pointer and no size may be a stream, an event or a kernel;
8. ``__index__``: a bare address.

Page-locked memory of the host is memory like any other; pageable memory is refused by a message that says so.  An
object without elements names no memory, whatever its address is.
"""

cdef bint name_memory(object what, str where, Extent* extent) except -1:
    """Fill in the memory that an object names.  False if the object has no elements; then `extent` has no meaning.

    Raises TypeError for pageable host memory and for an object that is not memory, ValueError for a number that is not
    an address, and TypeError, ValueError or BufferError for an object that contradicts itself; each message begins with
    `where`, or names the capsule.
    """
    extent.read_only = False
    extent.sized = False
    extent.on_host = False
    extent.device_id = -1
    if isinstance(what, int):
        return name_address(what, what, where, extent)
    if callable(getattr(what, "data_ptr", None)):
        return name_by_exchange(what, extent) or name_data_pointer(what, where, extent)
    interface = getattr(what, "__cuda_array_interface__", None)
    if interface is not None:
        return name_array(interface, what, where, extent)
    if getattr(what, "__dlpack__", None) is not None:
        return name_by_exchange(what, extent) or name_tensor(what, where, extent)
    return name_pointer(what, where, extent)


include "named/exchange.pxi"  # DLPack between functions in C
include "named/arrays.pxi"    # the CUDA array interface; extents of arrays
include "named/tensors.pxi"   # DLPack
include "named/producers.pxi"  # current streams of libraries
include "named/pointers.pxi"  # bare addresses, and pointers with a size
