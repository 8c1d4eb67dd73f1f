# How an array lies in memory; see _layout.pyx.

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class ArrayLayout:
    cdef readonly object dtype          # DType
    cdef readonly uint64_t ptr          # of the first element; 0: there are no elements
    cdef readonly tuple shape
    cdef readonly tuple strides         # in bytes
    cdef readonly bint readonly
    cdef readonly size_t itemsize
    cdef readonly size_t size           # elements
    cdef readonly uint64_t start        # the elements are in `extent` bytes from here
    cdef readonly size_t extent
    cdef int64_t* extents               # what `for_dlpack` returns; NULL: not computed yet
    cdef uint8_t code                   # of the dtype, in DLPack; valid with `extents`
    cdef size_t nbytes(self) noexcept
    cdef bint is_contiguous(self) except -1
    cdef bint is_aligned(self) except -1
    cdef bint has_whole_strides(self) except -1
    cdef int64_t* for_dlpack(self) except NULL
    cdef int refuse_strided(self, str what) except -1
    cdef int refuse_other(self, object dtype, tuple shape) except -1
    cdef ArrayLayout at(self, uint64_t ptr)
    cdef ArrayLayout item(self, object key)
    cdef ArrayLayout seen_as(self, object dtype, object shape)
    cdef ArrayLayout reshaped(self, object wanted)
    cdef ArrayLayout transposed(self)
    cdef ArrayLayout without_elements(self)


cdef struct Extents:
    # Shape and strides, as a description in C has them.
    int ndim
    const int64_t* shape
    const int64_t* strides              # NULL: contiguous
    int64_t unit                        # of the strides, in bytes


cdef ArrayLayout plain_layout(object dtype, int64_t itemsize, uint64_t ptr, Extents* given, bint readonly)
cdef ArrayLayout new_layout(object dtype, object ptr, tuple shape, tuple strides, bint readonly)
