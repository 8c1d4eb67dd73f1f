"""DLPack: its capsules in both directions, and its tensors as layouts.

A capsule is named ``dltensor``, or ``dltensor_versioned`` since DLPack 1.0, until its consumer renames the capsule and
owns the tensor inside.  From then on the consumer calls the deleter: on any thread, with or without the GIL, at the end
of the process or never.  Our deleter releases an `Export`, which takes no lock, makes no driver call and waits for
nothing.

`buffers` and `interchange` order the streams; this module has the capsules, their ownership, and the layouts that they
describe.  The structs are in `_foreign/dltensor`; `_foreign/named` reads a capsule that it does not consume.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from xlogmem._foreign.dltensor cimport MOST_DIMENSIONS, PLAIN, USED_PLAIN, USED_VERSIONED, VERSIONED
from xlogmem._foreign.named cimport parts_of_tensor
from xlogmem.blocks cimport release_export
from xlogmem.interop._layout cimport ArrayLayout, Extents, new_layout, plain_layout

from xlogmem.interop._dtypes import DTYPES

cdef dict dtypes = {row.code << 8 | 8 * row.itemsize: row for row in DTYPES.values()}


# ---------------------------------------------------------------------------------------------- exports
cdef DLPackExport* new_export(ArrayLayout layout) except NULL:
    """Make an export with room for this shape; the tensor is not filled in."""
    cdef size_t ndim = len(layout.shape)
    cdef DLPackExport* export = <DLPackExport*>malloc(sizeof(DLPackExport) + 2 * ndim * sizeof(int64_t))
    if export == NULL:
        raise MemoryError("no host memory for a DLPack tensor")
    export.extents = <int64_t*>(export + 1)
    export.host = NULL
    export.base.block = NULL
    export.base.stream = NULL
    export.base.event = NULL
    export.base.shell = export
    export.base.destroy = delete_export
    return export


cdef void* make_host_copy(DLPackExport* export, size_t nbytes) except NULL:
    """Allocate host memory that is freed with the export."""
    export.host = malloc(nbytes)
    if export.host == NULL:
        raise MemoryError(f"no host memory for a copy of {nbytes} bytes")
    return export.host


cdef void delete_export(void* shell) noexcept nogil:
    free((<DLPackExport*>shell).host)
    free(shell)


cdef void delete_plain(DLManagedTensor* tensor) noexcept nogil:
    release_export(&(<DLPackExport*>tensor.manager_ctx).base)


cdef void delete_versioned(DLManagedTensorVersioned* tensor) noexcept nogil:
    release_export(&(<DLPackExport*>tensor.manager_ctx).base)


cdef void drop_plain(object capsule) noexcept:
    """Delete the tensor in a capsule that was not consumed."""
    cdef DLManagedTensor* tensor
    if PyCapsule_IsValid(capsule, PLAIN):
        tensor = <DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)
        tensor.deleter(tensor)


cdef void drop_versioned(object capsule) noexcept:
    cdef DLManagedTensorVersioned* tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        tensor = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        tensor.deleter(tensor)


cdef int fill_tensor(DLTensor* tensor, ArrayLayout layout, void* data, DLDevice device, int64_t* extents) except -1:
    """Describe an array whose first element is at `data`.  `extents` gets its shape and strides; NULL: they are used
    where the layout has them."""
    cdef size_t ndim = len(layout.shape)
    cdef int64_t* known = layout.for_dlpack()
    if extents == NULL:
        extents = known
    elif ndim:
        memcpy(extents, known, 2 * ndim * sizeof(int64_t))
    tensor.data = data
    tensor.byte_offset = 0
    tensor.device = device
    tensor.ndim = ndim
    tensor.dtype.code = layout.code
    tensor.dtype.bits = 8 * layout.itemsize
    tensor.dtype.lanes = 1
    tensor.shape = extents if ndim else NULL
    tensor.strides = extents + ndim if ndim else NULL
    return 0


cdef DLManagedTensorVersioned* versioned_of(DLPackExport* export) noexcept:
    """The versioned tensor of an export whose tensor and `versioned.flags` are filled in."""
    export.versioned.dl_tensor = export.plain.dl_tensor
    export.versioned.version.major = 1
    export.versioned.version.minor = 0
    export.versioned.manager_ctx = export
    export.versioned.deleter = delete_versioned
    return &export.versioned


cdef DLPackExport* own_export(DLManagedTensorVersioned* tensor) noexcept:
    """The export that a tensor belongs to; NULL for a tensor of another library."""
    return <DLPackExport*>tensor.manager_ctx if tensor.deleter == delete_versioned else NULL


cdef object capsule_of(DLPackExport* export, bint versioned):
    """Make the capsule of an export whose tensor and `versioned.flags` are filled in.  On a failure the export is
    released."""
    try:
        if versioned:
            return PyCapsule_New(versioned_of(export), VERSIONED, drop_versioned)
        export.plain.manager_ctx = export
        export.plain.deleter = delete_plain
        return PyCapsule_New(&export.plain, PLAIN, drop_plain)
    except BaseException:
        release_export(&export.base)
        raise


# ---------------------------------------------------------------------------------------------- imports
@cython.final
@cython.no_gc
cdef class DLPackImport:
    """A foreign tensor that this object deletes."""

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef ArrayLayout tensor_layout(DLTensor* tensor, bint read_only):
    """The layout of a tensor; BufferError if a buffer cannot have such an array."""
    cdef ArrayLayout layout = None
    cdef uint64_t first = <uint64_t>tensor.data + tensor.byte_offset
    cdef Extents given
    dtype = dtypes.get(<uint32_t>tensor.dtype.code << 8 | tensor.dtype.bits)
    if dtype is None or tensor.dtype.lanes != 1:
        raise BufferError(f"DLPack code {tensor.dtype.code} with {tensor.dtype.bits} bits and {tensor.dtype.lanes} "
                          "lane(s) is not a supported dtype")
    if tensor.data != NULL and first >= tensor.byte_offset and 0 <= tensor.ndim <= <int>MOST_DIMENSIONS and (
            tensor.shape != NULL or tensor.ndim == 0):
        given.ndim, given.shape, given.strides, given.unit = (
            tensor.ndim, tensor.shape, tensor.strides, tensor.dtype.bits // 8)
        layout = plain_layout(dtype, given.unit, first, &given, read_only)
    if layout is None:
        ptr, shape, strides = parts_of_tensor(tensor, dtype.itemsize)
        layout = new_layout(dtype, ptr, shape, strides, read_only)
    if layout.size and (layout.ptr % layout.itemsize or <uint64_t>tensor.data % layout.itemsize):
        raise BufferError(f"the tensor's memory ({layout.ptr:#x}) is not aligned to its elements of {layout.itemsize} "
                          "bytes")
    return layout


cdef DLPackImport take_tensor(object capsule):
    """Take ownership of the tensor that `peek_tensor` found; of one that was taken before, return it."""
    cdef DLPackImport taken
    if isinstance(capsule, DLPackImport):
        return capsule
    taken = DLPackImport.__new__(DLPackImport)
    if PyCapsule_IsValid(capsule, PLAIN):
        taken.plain = <DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)
        PyCapsule_SetName(capsule, USED_PLAIN)
    else:
        taken.versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        PyCapsule_SetName(capsule, USED_VERSIONED)
    return taken
