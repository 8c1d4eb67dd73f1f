# Arguments that are not blocks: their parts, and the memory of each part.

from xlogmem._foreign.advice import kind_of
from xlogmem._base.units import bytes_in_words
from xlogmem._foreign.named cimport Extent


cdef object contents_of(object what):
    """Return an iterator over the items of a list or tuple, or the values of a dict; None for anything else."""
    if isinstance(what, (list, tuple)):
        return iter(what)
    return iter(list(what.values())) if isinstance(what, dict) else None


cdef object for_each(object what, object function, const char* where):
    """Call the function for one object, or for each object in nested lists, tuples and dicts; return the results in the
    same arrangement.
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
    """Raise if an argument may consist of several blocks."""
    if resolver_of(what) is not None or isinstance(what, (list, tuple, dict)):
        raise TypeError(f"{kind_of(what)} may consist of several blocks: {advice}")
    return 0


cdef str describe_beyond(Found* found, Extent* extent):
    """Describe the place of an array that begins in a block and is not inside it."""
    return (f"its elements take bytes {extent.first:#x} to {extent.last:#x}, and block {found.generation}, in which it "
            f"begins, has {bytes_in_words(found.nbytes)}, {found.ptr:#x} to {found.ptr + found.nbytes - 1:#x}")
