# Arrays of other libraries, as `use` takes them: where the first element is, and whether there are any.  An import
# checks what else the CUDA array interface says.

cdef object address_in(object interface, object what, str where):
    """The address that the interface of `what` gives; None: the array has no elements."""
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
    return PyNumber_Index(address)
