"""Arrow device arrays, out and in: the capsules of the C device data interface.

An array carries one event.  Ours is recorded on a stream that was ordered after all who wrote the memory, and goes back
to the spare ones when the array is released: on any thread, with or without the GIL, so the release gives back a
`Export`, as a DLPack deleter does.

What the arrays mean stands in `buffers` and `interchange`; here are the structs and who owns them.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cuda.bindings cimport cydriver as cy
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen

from xlogmem._core cimport LAUNCHED
from xlogmem._driver cimport Scope, enter_context, event_record, leave_context, take_event
from xlogmem._failures cimport Failure
from xlogmem.blocks cimport release_export

cdef const char* SCHEMA = "arrow_schema"
cdef const char* ARRAY = "arrow_device_array"

cdef cppclass ArrowExport:
    # What a consumer's array hangs on; the consumer has moved the struct itself somewhere else.
    Export base
    const void* buffers[2]      # which elements are valid: all; the data


# ---------------------------------------------------------------------------------------------- schemas
cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    free(<void*>schema.format)
    schema.release = NULL


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, SCHEMA)
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef object schema_capsule(str text):
    """A column of this format, without nulls and without a name."""
    cdef bytes encoded = text.encode()
    cdef const char* format = encoded
    cdef ArrowSchema* schema = <ArrowSchema*>malloc(sizeof(ArrowSchema))
    cdef char* copy = <char*>malloc(strlen(format) + 1)
    memcpy(copy, format, strlen(format) + 1)
    memset(schema, 0, sizeof(ArrowSchema))
    schema.format = copy
    schema.name = ""
    schema.release = release_schema
    return PyCapsule_New(schema, SCHEMA, drop_schema)


# ---------------------------------------------------------------------------------------------- arrays out
cdef void delete_export(void* shell) noexcept nogil:
    cdef ArrowExport* export = <ArrowExport*>shell
    del export


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef ArrowExport* export = <ArrowExport*>array.private_data
    array.release = NULL
    release_export(&export.base)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    if device.array.release != NULL:
        device.array.release(&device.array)
    free(device)


cdef object array_capsule(DeviceBlock block, LaunchRecorder recorder, size_t ptr, size_t length, int ordinal):
    """An array over the memory, which the recorder's stream is ordered after (None: zero elements)."""
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>malloc(sizeof(ArrowDeviceArray))
    cdef ArrowExport* export = new ArrowExport()
    memset(export, 0, sizeof(ArrowExport))
    memset(device, 0, sizeof(ArrowDeviceArray))
    export.base.shell = export
    export.base.destroy = delete_export
    export.buffers[1] = <const void*>ptr
    device.array.length = length
    device.array.n_buffers = 2
    device.array.buffers = export.buffers
    device.array.private_data = export
    device.array.release = release_array
    device.device_id = ordinal
    device.device_type = ARROW_DEVICE_CUDA
    capsule = PyCapsule_New(device, ARRAY, drop_array)
    if recorder is not None:
        recorder.open()
        try:
            record_event(recorder.runtime, recorder.stream, &export.base)
            recorder.runtime.export_block(block, NULL, False, &export.base)
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


# ---------------------------------------------------------------------------------------------- arrays in
@cython.final
@cython.no_gc
cdef class ArrowImport:
    """Somebody else's array, ours to release."""

    def __dealloc__(self):
        if self.array.array.release != NULL:
            self.array.array.release(&self.array.array)


cdef ArrowSchema* look_into_schema(object capsule) except NULL:
    cdef ArrowSchema* schema
    if not PyCapsule_IsValid(capsule, SCHEMA):
        raise TypeError(f"{capsule!r} is no capsule of an Arrow schema")
    schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, SCHEMA)
    if schema.release == NULL:
        raise BufferError("the Arrow schema was used before: each is taken once")
    return schema


cdef ArrowDeviceArray* look_into_array(object capsule) except NULL:
    cdef ArrowDeviceArray* device
    if not PyCapsule_IsValid(capsule, ARRAY):
        raise TypeError(f"{capsule!r} is no capsule of an Arrow device array")
    device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    if device.array.release == NULL:
        raise BufferError("the Arrow array was used before: each is taken once")
    return device


cdef ArrowImport take_array(object capsule):
    """Own what `look_into_array` found."""
    cdef ArrowDeviceArray* device = <ArrowDeviceArray*>PyCapsule_GetPointer(capsule, ARRAY)
    cdef ArrowImport taken = ArrowImport.__new__(ArrowImport)
    taken.array = device[0]
    device.array.release = NULL
    return taken
