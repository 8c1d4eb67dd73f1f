# The CUDA array interface, as `use` reads it: the address of the first element, and the bytes that the elements take,
# if there are any.  An import checks the rest of the interface.

from collections.abc import Mapping
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport UINT64_MAX, int64_t

from xlogmem._foreign.advice import kind_of
from xlogmem._foreign.dltensor cimport MOST_DIMENSIONS
from xlogmem._foreign.strided cimport Reach, find_reach, take_integer, take_integers


cdef enum:
    NEWEST_INTERFACE = 3

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef bint name_array(object interface, object what, str where, Extent* extent) except -1:
    """Fill in the bytes of an object that has the interface.  False if the object has no elements."""
    if type(interface) is dict and fill_from_plain(<dict>interface, extent):
        return True
    if not isinstance(interface, (dict, Mapping)):
        raise TypeError(f"{where}: __cuda_array_interface__ of {kind_of(what)} is a dictionary, not "
                        f"{interface!r}")
    check_version(interface.get("version", <int>NEWEST_INTERFACE), what, where)
    data, shape = interface.get("data"), interface.get("shape")
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"{where}: shape in __cuda_array_interface__ of {kind_of(what)} is a tuple of integers, "
                        f"not {shape!r}")
    pair = tuple(data) if isinstance(data, (tuple, list)) else ()       # what it has, whatever it says of its length
    if len(pair) != 2:
        raise TypeError(f"{where}: data in __cuda_array_interface__ of {kind_of(what)} is a pair of an address "
                        f"and whether it is read-only, not {data!r}")
    if 0 in shape:
        return False
    extent.read_only = bool(pair[1])
    address = index_of(pair[0], "the address in __cuda_array_interface__", what, where)
    strides = interface.get("strides")
    try:
        itemsize = itemsize_in(interface.get("typestr"))
    except TypeError as error:
        refuse_layout("__cuda_array_interface__", what, where, (shape, strides), error)
    fill_array(extent, (address, shape, strides, itemsize), "__cuda_array_interface__", what, where)
    return True


cdef bint fill_from_plain(dict interface, Extent* extent) except -1:
    """Fill in the bytes that a dictionary describes in integers of 64 bits, and strings, and tuples of them; False for
    any other, and without elements: then the extent is untouched."""
    cdef int64_t shape[MOST_DIMENSIONS]
    cdef int64_t strides[MOST_DIMENSIONS]
    cdef int64_t version, address, itemsize
    cdef int64_t* given = NULL
    cdef Reach reach
    cdef int ndim = take_integers(interface.get("shape"), shape)
    pair, steps = interface.get("data"), interface.get("strides")
    if ndim < 0 or not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2:
        return False
    if not take_integer(interface.get("version"), &version) or not 0 <= version <= <int>NEWEST_INTERFACE:
        return False
    if not take_integer(<object>PyTuple_GET_ITEM(pair, 0), &address) or address <= 0:
        return False
    read_only = <object>PyTuple_GET_ITEM(pair, 1)
    if read_only is not True and read_only is not False:
        return False
    if steps is not None:
        given = strides
        if take_integers(steps, strides) != ndim:
            return False
    itemsize = itemsize_at_end(interface.get("typestr"))
    if not itemsize or not find_reach(ndim, shape, given, 1, itemsize, &reach) or (
            not fill_reach(extent, <uint64_t>address, &reach)):
        return False
    extent.read_only = read_only is True
    return True


cdef int64_t itemsize_at_end(object typestr) except -1:
    """The bytes of an element of a type such as ``<f4``; 0 where another look is needed."""
    cdef const char* text
    cdef Py_ssize_t size, i
    cdef int64_t itemsize = 0
    if not PyUnicode_CheckExact(typestr) or not 3 <= len(<str>typestr) <= 5:
        return 0
    text = PyUnicode_AsUTF8AndSize(typestr, &size)
    if size != len(<str>typestr):
        return 0                                        # not of ASCII
    for i in range(2, size):
        if not c"0" <= text[i] <= c"9":
            return 0
        itemsize = 10 * itemsize + (text[i] - c"0")
    return itemsize


cdef int check_version(object version, object what, str where) except -1:
    version = index_of(version, "version in __cuda_array_interface__", what, where)
    if not 0 <= version <= <int>NEWEST_INTERFACE:
        raise ValueError(f"{where}: __cuda_array_interface__ of {kind_of(what)} is of version {version}, and "
                         f"{<int>NEWEST_INTERFACE} is the newest that is known here")
    return 0


cdef object index_of(object value, str name, object what, str where):
    """The value as an int; raises TypeError if the other library gave no integer."""
    if not PyIndex_Check(value) or isinstance(value, bool):
        raise TypeError(f"{where}: {name} of {kind_of(what)} is an integer, not {value!r}")
    return PyNumber_Index(value)


cdef bint check_address(object address, object what, str where) except -1:
    """Raise ValueError if the address does not fit in 64 bits."""
    if not 0 <= address <= UINT64_MAX:
        raise ValueError(f"{where}: {kind_of(what)} gives {address} as its address, which is none")
    return True


cdef int fill_array(Extent* extent, tuple array, str source, object what, str where) except -1:
    """Fill in the bytes of an array that has elements.  `array`: its address, its shape, its strides in bytes (None: C
    order) and the size of an element, as `source` gave them."""
    address, shape, strides, itemsize = array
    try:
        fill_extent(extent, address, shape, strides, itemsize)
    except TypeError as error:
        refuse_layout(source, what, where, (shape, strides), error)
    check_address(address, what, where)
    return 0


cdef int refuse_layout(str source, object what, str where, tuple layout, object error) except -1:
    raise TypeError(f"{where}: {source} of {kind_of(what)} has shape {layout[0]!r} and strides {layout[1]!r}, "
                    f"which do not say what it takes: {error}") from None


cdef int fill_extent(Extent* extent, object address, object shape, object strides, object itemsize) except -1:
    """Fill in the bytes of an array that has elements, from the lowest to the highest.  Computed with Python's
    integers, which do not overflow, however large the library's numbers are."""
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
    extent.ptr = min(max(0, address), UINT64_MAX)
    extent.sized = True
    extent.first = min(max(0, address + below), UINT64_MAX)
    extent.last = min(max(0, address + above - 1), UINT64_MAX)
    return 0


cdef object itemsize_in(object typestr):
    """The bytes of an element: the number at the end of its type.  An element of 0 bytes counts as 1 byte."""
    digits = typestr[2:] if isinstance(typestr, str) else ""
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise TypeError(f"typestr ends with the size of an element, as '<f4' does, and is not {typestr!r}")
    return max(1, int(digits))
