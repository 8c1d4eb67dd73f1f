# Capsules of both kinds; see _dlpack.pyx.

from libc.stdint cimport int64_t

from xlogmem._foreign.dltensor cimport DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor
from xlogmem.blocks cimport Export
from xlogmem.interop._layout cimport ArrayLayout


cdef cppclass DLPackExport:
    # What a consumer gets, in one piece: deleted when the release of the export is filed.
    DLManagedTensor plain
    DLManagedTensorVersioned versioned
    int64_t* extents            # the shape, then the strides: in the same piece of memory
    void* host                  # a copy in host memory; NULL: none
    Export base


cdef class DLPackImport:
    # A tensor that was taken out of a capsule: the producer's deleter runs when this is deallocated.
    cdef DLManagedTensor* plain
    cdef DLManagedTensorVersioned* versioned


cdef DLPackExport* new_export(ArrayLayout layout) except NULL
cdef void* make_host_copy(DLPackExport* export, size_t nbytes) except NULL
cdef int fill_tensor(DLTensor* tensor, ArrayLayout layout, void* data, DLDevice device, int64_t* extents) except -1
cdef DLManagedTensorVersioned* versioned_of(DLPackExport* export) noexcept
cdef DLPackExport* own_export(DLManagedTensorVersioned* tensor) noexcept
cdef object capsule_of(DLPackExport* export, bint versioned)
cdef ArrayLayout tensor_layout(DLTensor* tensor, bint read_only)
cdef DLPackImport take_tensor(object capsule)
