"""Arrow device arrays: the capsules of the C device data interface in both directions, and its arrays as layouts.

An array carries one event.  Our event is recorded on a stream that was ordered after all writers of the memory, and
returns to the spare events when the array is released: on any thread, with or without the GIL, so the release only
releases an `Export`, as a DLPack deleter does.

`buffers` and `interchange` order the streams; this module has the structs, their ownership, and the layouts that they
describe.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

from xlogmem._base.failures cimport Failure
from xlogmem._core cimport LAUNCHED
from xlogmem._driver cimport Scope, enter_context, event_record, give_event, leave_context, take_event
from xlogmem.blocks cimport Core, release_export
from xlogmem.interop._layout cimport ArrayLayout, new_layout
from xlogmem.streams cimport Stream

from xlogmem.interop._dtypes import dtype_of_arrow

cdef const char* SCHEMA = "arrow_schema"
cdef const char* ARRAY = "arrow_device_array"

cdef cppclass ArrowExport:
    # The data that a consumer's array points to; the consumer may move the struct itself to another place.
    Export base
    const void* buffers[2]      # the validity bitmap (none: all elements are valid), the data


# ---------------------------------------------------------------------------------------------- schemas
cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    free(<void*>schema.format)
    schema.release = NULL


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, SCHEMA)
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef str format_of(ArrayLayout layout):
    """Arrow's name for the dtype; TypeError if Arrow has no such array."""
    if layout.dtype.arrow is None:
        raise TypeError(f"Arrow has no such fixed-width type: {layout.dtype.name}")
    if len(layout.shape) != 1 or not layout.is_contiguous():
        raise TypeError("an Arrow array has one dimension and is contiguous")
    return layout.dtype.arrow


cdef object schema_capsule(ArrayLayout layout):
    """The capsule of a schema: a column of this array's format, without nulls and without a name."""
    cdef bytes encoded = format_of(layout).encode()
    cdef const char* format = encoded
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    cdef char* copy = <char*>malloc(strlen(format) + 1)
    try:
        if schema == NULL or copy == NULL:
            raise MemoryError("no host memory for an Arrow schema")
        memcpy(copy, format, strlen(format) + 1)
        schema.format = copy
        schema.name = ""
        schema.release = release_schema
        return PyCapsule_New(schema, SCHEMA, drop_schema)
    except BaseException:
        free(copy)
        free(schema)
        raise


# ---------------------------------------------------------------------------------------------- exports
cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef ArrowExport* export = <ArrowExport*>array.private_data
    array.release = NULL
    release_export(&export.base)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    if device.array.release != NULL:
        device.array.release(&device.array)
    free(device)


cdef object new_array_capsule(ArrowDeviceArray** result, ArrowExport** result_export):
    """Make a capsule of an array that is not filled in; the capsule owns both structures."""
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>calloc(1, sizeof(ArrowDeviceArray))
    cdef ArrowExport* export = <ArrowExport*>calloc(1, sizeof(ArrowExport))
    try:
        if device == NULL or export == NULL:
            raise MemoryError("no host memory for an Arrow array")
        capsule = PyCapsule_New(device, ARRAY, drop_array)
    except BaseException:
        free(export)
        free(device)
        raise
    export.base.shell = export
    export.base.destroy = free
    device.array.private_data = export
    device.array.release = release_array
    result[0] = device
    result_export[0] = export
    return capsule


cdef object array_capsule(ArrayLayout layout, int device_id, DeviceBlock block, LaunchRecorder recorder):
    """Make the capsule of an array over part of a block.  Its event is recorded in the recorder's use; `recorder` is
    None if there are no elements."""
    cdef ArrowDeviceArray* device
    cdef ArrowExport* export
    capsule = new_array_capsule(&device, &export)
    export.buffers[1] = <const void*>layout.ptr
    device.array.length = layout.size
    device.array.n_buffers = 2
    device.array.buffers = export.buffers
    device.device_id = device_id
    device.device_type = ARROW_DEVICE_CUDA
    if recorder is not None:
        recorder.open()
        try:
            record_event(recorder.runtime, recorder.stream, &export.base)
            recorder.runtime.export_block(block, NULL, False, &export.base)
        except BaseException:
            if export.base.event != NULL:               # without the block nothing keeps its pool until the release
                give_event(export.base.events, export.base.event)
                export.base.event = NULL
            raise
        finally:
            recorder.finish(LAUNCHED)
        device.sync_event = &export.base.event
    return capsule


cdef int record_event(Core core, Stream stream, Export* export) except -1:
    cdef Failure failure
    cdef Scope scope
    cdef cy.CUevent event = NULL
    cdef int failed
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &failure)
        if not failed:
            failed = take_event(core.state.order.events, &event, &failure)
            if event != NULL:
                export.events = core.state.order.events
                export.event = event
                failed = event_record(event, stream.state.handle, &failure)
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"recording an event on {stream!r}")
    return 0


# ---------------------------------------------------------------------------------------------- imports
@cython.final
@cython.no_gc
cdef class ArrowImport:
    """A foreign array that this object releases."""

    def __dealloc__(self):
        if self.array.array.release != NULL:
            self.array.array.release(&self.array.array)


cdef ArrowSchema* peek_schema(object capsule) except NULL:
    """The schema in a capsule that was not consumed yet; the capsule still owns the schema."""
    cdef ArrowSchema* schema
    if not PyCapsule_IsValid(capsule, SCHEMA):
        raise TypeError(f"{capsule!r} is not a capsule of an Arrow schema")
    schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, SCHEMA)
    if schema.release == NULL:
        raise BufferError("the Arrow schema was used before: each is consumed once")
    return schema


cdef ArrowDeviceArray* peek_array(object capsule) except NULL:
    """The array in a capsule that was not consumed yet; the capsule still owns the array."""
    cdef ArrowDeviceArray* device
    if not PyCapsule_IsValid(capsule, ARRAY):
        raise TypeError(f"{capsule!r} is not a capsule of an Arrow device array")
    device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    if device.array.release == NULL:
        raise BufferError("the Arrow array was used before: each is consumed once")
    return device


cdef object schema_dtype(ArrowSchema* schema):
    """The dtype of a column; TypeError if a buffer cannot have it."""
    dtype = dtype_of_arrow((<bytes>schema.format).decode(errors="replace")) if schema.format != NULL else None
    if dtype is None or schema.n_children or schema.dictionary != NULL:
        raise TypeError(f"Arrow's format {schema.format if schema.format != NULL else None!r} is not a supported dtype")
    return dtype


cdef ArrayLayout array_layout(ArrowArray* array, object dtype):
    """The layout of a column of this dtype; BufferError if a buffer cannot have such an array."""
    cdef ArrayLayout layout
    if (array.n_buffers != 2 or array.buffers == NULL or array.n_children or array.dictionary != NULL
            or array.length < 0 or array.offset < 0):
        raise BufferError("the array is not of a fixed-width type")
    if array.null_count > 0 or (array.null_count < 0 and array.buffers[0] != NULL):
        raise BufferError("the array has nulls")
    if array.length and array.buffers[1] == NULL:
        raise BufferError("the array has elements, and no memory")
    ptr = int(<uint64_t>array.buffers[1]) + array.offset * dtype.itemsize
    layout = new_layout(dtype, ptr, (array.length,), None, True)
    if not layout.is_aligned():
        raise BufferError(f"the array's memory ({layout.ptr:#x}) is not aligned to its elements of {layout.itemsize} "
                          "bytes")
    return layout


cdef ArrowImport take_array(object capsule):
    """Take ownership of the array that `peek_array` found."""
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    cdef ArrowImport taken = ArrowImport.__new__(ArrowImport)
    taken.array = device[0]
    device.array.release = NULL
    return taken
