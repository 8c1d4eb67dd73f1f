# Arguments that are no blocks: their parts, and the memory of each.

from xlogmem._foreign.named cimport Extent


cdef object contents_of(object what):
    """An iterator over what is in a list, a tuple or a dict (its values); None: it is none of these."""
    if isinstance(what, (list, tuple)):
        return iter(what)
    return iter(list(what.values())) if isinstance(what, dict) else None


cdef object for_each(object what, object function, const char* where):
    """What the function returns for one thing, or for each in nested lists, tuples and dicts, in the same arrangement.
    """
    Py_EnterRecursiveCall(where)
    try:
        if isinstance(what, dict):
            return {name: for_each(item, function, where) for name, item in what.items()}
        if isinstance(what, list):
            return [for_each(item, function, where) for item in what]
        if isinstance(what, tuple):
            return tuple([for_each(item, function, where) for item in what])
        return function(what)
    finally:
        Py_LeaveRecursiveCall()


cdef int refuse_several(object what, str advice) except -1:
    """Raise for what may consist of several blocks."""
    if resolver_of(what) is not None or isinstance(what, (list, tuple, dict)):
        raise TypeError(f"{type(what).__name__} may consist of several blocks: {advice}")
    return 0


cdef str describe_beyond(Found* found, Extent* extent):
    """Where an array is that begins in a block and is not inside of it."""
    return (f"its elements take bytes {extent.first:#x} to {extent.last:#x}, and the block of generation "
            f"{found.generation} that it begins in has {found.nbytes} bytes, {found.ptr:#x} to "
            f"{found.ptr + found.nbytes - 1:#x}")
