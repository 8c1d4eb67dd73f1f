"""DLPack capsules, out and in.

A capsule is named ``dltensor``, or ``dltensor_versioned`` since DLPack 1.0, until its consumer renames it and owns what
is inside.  From then on the deleter is his to call: on any thread, with or without the GIL, at the end of the process
or never.  Ours gives back a `Export`, which takes no lock, makes no driver call and waits for nothing.

What shapes and dtypes mean stands in `buffers` and `interchange`; here are the structs and who owns them.
"""
cimport cython

from cpython.pycapsule cimport (
    PyCapsule_GetName,
    PyCapsule_GetPointer,
    PyCapsule_IsValid,
    PyCapsule_New,
    PyCapsule_SetName,
)
from libc.string cimport memset

from xlogmem.blocks cimport release_export

cdef const char* PLAIN = "dltensor"
cdef const char* VERSIONED = "dltensor_versioned"
cdef const char* USED_PLAIN = "used_dltensor"
cdef const char* USED_VERSIONED = "used_dltensor_versioned"


# ---------------------------------------------------------------------------------------------- out
cdef DLPackExport* new_export() noexcept nogil:
    cdef DLPackExport* export = new DLPackExport()
    memset(&export.plain, 0, sizeof(export.plain))
    memset(&export.versioned, 0, sizeof(export.versioned))
    memset(&export.base, 0, sizeof(export.base))
    export.base.shell = export
    export.base.destroy = delete_export
    return export


cdef void delete_export(void* shell) noexcept nogil:
    cdef DLPackExport* export = <DLPackExport*>shell
    del export


cdef void delete_plain(DLManagedTensor* tensor) noexcept nogil:
    release_export(&(<DLPackExport*>tensor.manager_ctx).base)


cdef void delete_versioned(DLManagedTensorVersioned* tensor) noexcept nogil:
    release_export(&(<DLPackExport*>tensor.manager_ctx).base)


cdef void drop_plain(object capsule) noexcept:
    """A capsule that nobody took."""
    cdef DLManagedTensor* tensor
    if PyCapsule_IsValid(capsule, PLAIN):
        tensor = <DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)
        tensor.deleter(tensor)


cdef void drop_versioned(object capsule) noexcept:
    cdef DLManagedTensorVersioned* tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        tensor = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        tensor.deleter(tensor)


cdef object capsule_of(DLPackExport* export, bint versioned):
    """The capsule of an export whose tensor is filled in (`plain.dl_tensor`, `versioned.flags`).  On a failure the
    export is given back."""
    try:
        if versioned:
            export.versioned.dl_tensor = export.plain.dl_tensor
            export.versioned.version.major = 1
            export.versioned.version.minor = 0
            export.versioned.manager_ctx = export
            export.versioned.deleter = delete_versioned
            return PyCapsule_New(&export.versioned, VERSIONED, drop_versioned)
        export.plain.manager_ctx = export
        export.plain.deleter = delete_plain
        return PyCapsule_New(&export.plain, PLAIN, drop_plain)
    except BaseException:
        release_export(&export.base)
        raise


# ---------------------------------------------------------------------------------------------- in
@cython.final
@cython.no_gc
cdef class Import:
    """Somebody else's tensor, ours to delete."""

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef DLTensor* look_into(object capsule, bint* read_only) except NULL:
    """The tensor in a capsule that nobody took yet; it stays the capsule's.

    Raises BufferError for what is no such capsule, or of a version that nobody here knows.
    """
    cdef DLManagedTensorVersioned* versioned
    cdef const char* name
    read_only[0] = False
    if PyCapsule_IsValid(capsule, PLAIN):
        return &(<DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)).dl_tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        if versioned.version.major != 1:
            raise BufferError(f"the capsule is of DLPack {versioned.version.major}.{versioned.version.minor}; 1 is "
                              "known here, and was asked for")
        read_only[0] = versioned.flags & READ_ONLY
        return &versioned.dl_tensor
    if PyCapsule_IsValid(capsule, USED_PLAIN) or PyCapsule_IsValid(capsule, USED_VERSIONED):
        raise BufferError("the DLPack capsule was used before: each is taken once")
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(f"{type(capsule).__name__} is no DLPack capsule, and has no __dlpack__")
    name = PyCapsule_GetName(capsule)
    raise BufferError(f"a capsule named {name.decode(errors='replace') if name != NULL else None!r} is no DLPack "
                      "capsule")


cdef Import take(object capsule):
    """Own what `look_into` found."""
    cdef Import taken = Import.__new__(Import)
    if PyCapsule_IsValid(capsule, PLAIN):
        taken.plain = <DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)
        PyCapsule_SetName(capsule, USED_PLAIN)
    else:
        taken.versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        PyCapsule_SetName(capsule, USED_VERSIONED)
    return taken
