"""The layout of an array: `ArrayLayout` has its dtype, address, shape, strides and read-only flag.

Each standard describes an array in its own terms.  An import parses these terms into a layout, a `Buffer` holds a
layout, and an export writes a layout in the terms of its standard; so all arithmetic of addresses is here.

A layout is immutable, and every existing layout lies inside the address space: `new_layout` refuses others, whatever
integers it is given.  A layout does not say who owns the memory.
"""
cimport cython

from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT64_MAX, UINT64_MAX, int64_t
from libc.stdlib cimport free, malloc

from xlogmem.interop._dtypes import dtype_of
from xlogmem._base.sections cimport Section
from xlogmem._foreign.dltensor cimport MOST_DIMENSIONS
from xlogmem._foreign.strided cimport Reach, find_reach

__all__ = ["ArrayLayout", "shape_of"]


cdef tuple c_strides(tuple shape, object itemsize):
    """The strides of a contiguous array, in bytes, the last dimension fastest."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(extent, 1)
    return tuple(reversed(strides))


def shape_of(what):
    """A shape as a tuple: an int is one dimension."""
    shape = (PyNumber_Index(what),) if PyIndex_Check(what) else tuple([PyNumber_Index(extent) for extent in what])
    if any(extent < 0 for extent in shape):
        raise ValueError(f"a shape has no negative extents: {shape}")
    return shape


cdef ArrayLayout new_layout(object dtype, object ptr, tuple shape, tuple strides, bint readonly):
    """The layout of an array with these strides (in bytes; None: contiguous).

    Raises BufferError if the elements do not lie inside of the address space.
    """
    cdef ArrayLayout layout = ArrayLayout.__new__(ArrayLayout)
    itemsize = dtype.itemsize
    size = 1
    for length in shape:
        size *= length
    layout.dtype = dtype
    layout.shape = shape
    layout.strides = c_strides(shape, itemsize) if strides is None else strides
    layout.readonly = readonly
    layout.itemsize = itemsize
    if size == 0:
        return layout
    low = high = ptr
    for length, stride in zip(shape, layout.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    extent = high - low + itemsize
    if low <= 0 or low + extent > UINT64_MAX or max(size * itemsize, extent) > INT64_MAX:
        raise BufferError(f"{size} elements of {itemsize} bytes, the first of them at {ptr:#x}, do not lie in the "
                          f"address space: [{low:#x}, {low + extent:#x})")
    layout.ptr = ptr
    layout.size = size
    layout.start = low
    layout.extent = extent
    return layout


cdef ArrayLayout plain_layout(object dtype, int64_t itemsize, uint64_t ptr, Extents* given, bint readonly):
    """The layout of an array with elements, by integers of 64 bits; None for others, and for one that does not lie in
    the address space: those are for `new_layout`."""
    cdef int64_t steps[MOST_DIMENSIONS]
    cdef ArrayLayout layout
    cdef int64_t stride = itemsize
    cdef Reach reach
    cdef int i
    if not find_reach(given.ndim, given.shape, given.strides, given.unit, itemsize, &reach):
        return None
    if ptr <= <uint64_t>reach.below or ptr + <uint64_t>reach.above < ptr:
        return None
    for i in range(given.ndim - 1, -1, -1):
        steps[i] = given.strides[i] * given.unit if given.strides != NULL else stride
        stride *= given.shape[i]                        # at most the bytes of the array
    layout = ArrayLayout.__new__(ArrayLayout)
    layout.dtype = dtype
    layout.shape = tuple_of(given.ndim, given.shape)
    layout.strides = tuple_of(given.ndim, steps)
    layout.readonly = readonly
    layout.itemsize = itemsize
    layout.ptr = ptr
    layout.size = reach.size
    layout.start = ptr - <uint64_t>reach.below
    layout.extent = <size_t>reach.below + <size_t>reach.above
    return layout


cdef tuple tuple_of(int count, const int64_t* numbers):
    cdef tuple made = PyTuple_New(count)
    cdef object number
    cdef int i
    for i in range(count):
        number = numbers[i]
        Py_INCREF(number)                               # the tuple takes one
        PyTuple_SET_ITEM(made, i, number)
    return made


cdef ArrayLayout part_of(ArrayLayout whole, object offset, tuple shape, tuple strides):
    """Some elements of an array, the first of them at this offset: inside the address space, as the whole array is."""
    cdef ArrayLayout part = ArrayLayout.__new__(ArrayLayout)
    cdef int64_t length, reach, below = 0, above = 0
    cdef size_t size = 1
    part.dtype = whole.dtype
    part.itemsize = whole.itemsize
    part.readonly = whole.readonly
    part.shape = shape
    part.strides = strides
    if whole.size == 0 or 0 in shape:
        return part
    for extent, stride in zip(shape, strides):
        length = extent
        size *= <size_t>length
        if length > 1:                                  # else the stride may be any integer
            reach = (length - 1) * <int64_t>stride
            if reach < 0:
                below += reach
            else:
                above += reach
    part.ptr = whole.ptr + <int64_t>offset
    part.size = size
    part.start = part.ptr + below
    part.extent = above - below + whole.itemsize
    return part


@cython.final
@cython.auto_pickle(False)
cdef class ArrayLayout:
    """The place and the kind of the elements of an array."""

    def __dealloc__(self):
        free(self.extents)

    cdef size_t nbytes(self) noexcept:
        """Bytes of all elements together; `extent` includes the gaps between them."""
        return self.size * self.itemsize

    # ------------------------------------------------------------------------------------------ checks
    cdef bint is_contiguous(self) except -1:
        full_strides = c_strides(self.shape, self.itemsize)
        return self.size == 0 or all(
            stride == full or extent == 1
            for stride, full, extent in zip(self.strides, full_strides, self.shape, strict=True))

    cdef bint has_whole_strides(self) except -1:
        """True if the strides are whole numbers of elements."""
        for stride in self.strides:
            if stride % <int64_t>self.itemsize:
                return False
        return True

    cdef bint is_aligned(self) except -1:
        """True if the address of every element is a multiple of the element's size."""
        return self.size == 0 or (self.ptr % self.itemsize == 0 and self.has_whole_strides())

    cdef int64_t* for_dlpack(self) except NULL:
        """The shape and then the strides in elements, which live as long as the layout.  Raises BufferError for strides
        that are not whole numbers of elements."""
        cdef size_t i, ndim
        cdef int64_t* extents
        cdef Section section
        if self.extents != NULL:
            return self.extents
        if not self.has_whole_strides():
            raise BufferError("the strides are not whole numbers of elements")
        ndim = len(self.shape)
        extents = <int64_t*>malloc((2 * ndim + 1) * sizeof(int64_t))
        if extents == NULL:
            raise MemoryError("no host memory for the shape of a tensor")
        try:
            for i in range(ndim):
                extents[i] = self.shape[i]
                extents[ndim + i] = self.strides[i] // <int64_t>self.itemsize
            self.code = self.dtype.code
        except BaseException:
            free(extents)
            raise
        section.begin(self)
        if self.extents == NULL:
            self.extents = extents
        else:
            free(extents)                               # another thread was quicker
        return self.extents

    cdef int refuse_strided(self, str what) except -1:
        if not self.is_contiguous():
            raise ValueError(what)
        return 0

    cdef int refuse_other(self, object dtype, tuple shape) except -1:
        """Raise if an array of this dtype and shape cannot be copied to or from here."""
        if dtype is not self.dtype:
            raise TypeError(f"dtype {dtype.name} is not the buffer's, {self.dtype.name}")
        if shape != self.shape:
            raise ValueError(f"shape {shape} is not the buffer's, {self.shape}")
        return 0

    # ------------------------------------------------------------------------------------------ other layouts
    cdef ArrayLayout at(self, uint64_t ptr):
        """The layout of the same array in other memory, which may be written."""
        return new_layout(self.dtype, ptr, self.shape, self.strides, False)

    cdef ArrayLayout item(self, object key):
        """The part that integers, slices and an ellipsis select."""
        offset, shape, strides = 0, [], []
        for item, extent, stride in zip(expand_key(key, len(self.shape)), self.shape, self.strides, strict=True):
            if isinstance(item, slice):
                start, stop, step = item.indices(extent)
                length = len(range(start, stop, step))
                offset += start * stride if length else 0
                shape.append(length)
                strides.append(step * stride)
            else:
                if not PyIndex_Check(item):
                    raise TypeError(f"an index of a buffer is an int, a slice or an ellipsis, not {item!r}")
                number = PyNumber_Index(item)
                if not -extent <= number < extent:
                    raise IndexError(f"index {number} is out of bounds for {extent} elements")
                offset += number % extent * stride
        return part_of(self, offset, tuple(shape), tuple(strides))

    cdef ArrayLayout seen_as(self, object dtype, object shape):
        """The same bytes as another dtype or shape; None keeps the dtype or shape."""
        row = self.dtype if dtype is None else dtype_of(dtype)
        nbytes = self.nbytes()
        self.refuse_strided("only a contiguous buffer can be seen as another one")
        if shape is None:
            if row is self.dtype:
                shape = self.shape
            elif nbytes % row.itemsize:
                raise ValueError(f"{nbytes} bytes are not a whole number of {row.name}")
            else:
                shape = (nbytes // row.itemsize,)
        shape = shape_of(shape)
        wanted = row.itemsize
        for extent in shape:
            wanted *= extent
        if wanted != nbytes:
            raise ValueError(f"{nbytes} bytes cannot be seen as {row.name} of shape {shape}")
        return new_layout(row, self.ptr, shape, None, self.readonly)

    cdef ArrayLayout reshaped(self, object wanted):
        """The same elements in the same order in another shape; one extent may be -1, for the remaining elements.
        Raises if no strides describe the elements in this shape."""
        shape = fill_shape(wanted, self.size)
        strides = c_strides(shape, self.itemsize) if self.size == 0 else strides_of_shape(self, shape)
        if strides is None:
            raise ValueError(f"elements of shape {self.shape} with strides {self.strides} cannot be seen as shape "
                             f"{shape} without a copy")
        return part_of(self, 0, shape, strides)

    cdef ArrayLayout transposed(self):
        """The layout with the dimensions in the reverse order."""
        return part_of(self, 0, tuple(reversed(self.shape)), tuple(reversed(self.strides)))

    cdef ArrayLayout without_elements(self):
        """A layout with as many dimensions (at least one), and no elements."""
        return new_layout(self.dtype, 0, (0,) * max(1, len(self.shape)), None, self.readonly)


cdef list expand_key(object key, Py_ssize_t ndim):
    """A key with one item for each dimension: an ellipsis, or the end of the key, stands for all dimensions left out.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, item in enumerate(keys) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has one ellipsis at most")
    if len(keys) - len(dots) > ndim:
        raise IndexError(f"too many indices: {len(keys) - len(dots)} for {ndim} dimension(s)")
    at = dots[0] if dots else len(keys)
    keys[at:at + len(dots)] = [slice(None)] * (ndim - len(keys) + len(dots))
    return keys


cdef tuple fill_shape(object wanted, object size):
    """A shape for `size` elements; one extent of `wanted` may be -1."""
    shape = [PyNumber_Index(extent) for extent in ((wanted,) if PyIndex_Check(wanted) else wanted)]
    known = 1
    for extent in shape:
        known *= extent if extent != -1 else 1
    if shape.count(-1) == 1 and known > 0 and size % known == 0:
        shape[shape.index(-1)] = size // known
        known = size
    if known != size or any(extent < 0 for extent in shape):
        raise ValueError(f"{size} elements cannot have shape {tuple(shape)}")
    return tuple(shape)


cdef tuple strides_of_shape(ArrayLayout layout, tuple wanted):
    """The strides of the same elements in another shape; None if no strides describe it.  The array is not empty."""
    runs = []                               # dimensions that lie as one: how many elements, and the stride of the last
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[len(runs) - 1][1] == extent * stride:
            runs[len(runs) - 1] = (runs[len(runs) - 1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    strides = []
    left, step = 1, layout.itemsize         # of the run that is being cut, from its end
    for extent in reversed(wanted):
        if left == 1 and extent != 1:
            left, step = runs.pop()
        if left % extent:
            return None
        strides.append(step)
        step *= extent
        left //= extent
    return tuple(reversed(strides))
