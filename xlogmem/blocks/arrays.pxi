# Arrays of other libraries, as `use` takes them: where the first element is, whether there are any, and which bytes
# they take.  An import checks what else the CUDA array interface says.

cdef object address_in(object interface, object what, str where, Extent* extent):
    """The address that the interface of `what` gives, and the bytes from the lowest to the highest; None: the array has
    no elements."""
    if not isinstance(interface, (dict, Mapping)):
        raise TypeError(f"{where}: __cuda_array_interface__ of {type(what).__name__} is a dictionary, not "
                        f"{interface!r}")
    data, shape = interface.get("data"), interface.get("shape")
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"{where}: shape in __cuda_array_interface__ of {type(what).__name__} is a tuple of integers, "
                        f"not {shape!r}")
    pair = tuple(data) if isinstance(data, (tuple, list)) else ()       # what it has, whatever it says of its length
    if len(pair) != 2:
        raise TypeError(f"{where}: data in __cuda_array_interface__ of {type(what).__name__} is a pair of an address "
                        f"and whether it is read-only, not {data!r}")
    if 0 in shape:
        return None
    address = pair[0]
    if not PyIndex_Check(address) or isinstance(address, bool):
        raise TypeError(f"{where}: the address in __cuda_array_interface__ of {type(what).__name__} is an integer, not "
                        f"{address!r}")
    address = PyNumber_Index(address)
    strides = interface.get("strides")
    try:
        fill_extent(extent, address, shape, strides, itemsize_in(interface.get("typestr")))
    except TypeError as error:
        raise TypeError(f"{where}: __cuda_array_interface__ of {type(what).__name__} has shape {shape!r} and strides "
                        f"{strides!r}, which do not say what it takes: {error}") from None
    return address


cdef int fill_extent(Extent* extent, object address, object shape, object strides, object itemsize) except -1:
    """The bytes of an array that has elements, from the lowest to the highest.  In integers of Python, which do not
    overflow, however large what a library says is."""
    below, above = 0, itemsize
    if strides is not None and len(strides) != len(shape):
        raise TypeError("there is a stride for each dimension")
    for i, count in enumerate(shape):
        count = PyNumber_Index(count)
        if count < 0:
            raise TypeError("no extent is negative")
        if strides is None:
            above *= count
            continue
        reach = (count - 1) * PyNumber_Index(strides[i])
        if reach < 0:
            below += reach
        else:
            above += reach
    extent.first = min(max(0, address + below), UINT64_MAX)
    extent.last = min(max(0, address + above - 1), UINT64_MAX)
    return 0


cdef object itemsize_in(object typestr):
    """The bytes of an element: the number at the end of its type.  An element of none takes one here."""
    digits = typestr[2:] if isinstance(typestr, str) else ""
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise TypeError(f"typestr ends with the size of an element, as '<f4' does, and is not {typestr!r}")
    return max(1, int(digits))


cdef str describe_beyond(Found* found, Extent* extent):
    """Where an array is that begins in a block and is not inside of it."""
    return (f"its elements take bytes {extent.first:#x} to {extent.last:#x}, and the block of generation "
            f"{found.generation} that it begins in has {found.nbytes} bytes, {found.ptr:#x} to "
            f"{found.ptr + found.nbytes - 1:#x}")
