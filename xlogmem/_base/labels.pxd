# Names of memory that the core carries without the GIL: tags, and the stacks of calls.  _base/labels.pyx explains it.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic

cdef cppclass Label:
    # One object, wherever it is used.
    atomic[uint64_t] references     # of C structures; where there is none, `sweep` may delete it
    void* object                    # what it stands for: a str, or a `Stack`
    uint32_t number                 # of a tag, by which a history names it, from 1 and never used again; else 0
    uint32_t place                  # of a stack: its number in `xlogmem check`; 0: none


# These need no lock and no GIL; NULL is no label.
cdef inline Label* held(Label* label) noexcept nogil:
    """Add a reference, for a holder of one."""
    if label != NULL:
        label.references.fetch_add(1)
    return label


cdef inline void release(Label* label) noexcept nogil:
    if label != NULL:
        label.references.fetch_sub(1)


cdef extern from *:
    """
    // Without the GIL: the text of a tag that is ASCII, or that was encoded before; else null.
    static inline const char* xlogmem_utf8_of(void* tag) {
        auto* object = static_cast<PyObject*>(tag);
        if (PyUnicode_IS_COMPACT_ASCII(object)) return reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(object));
        return reinterpret_cast<PyCompactUnicodeObject*>(object)->utf8;
    }
    """
    const char* utf8_of "xlogmem_utf8_of"(void* tag) noexcept nogil


cdef inline const char* utf8_of_tag(Label* tag) noexcept nogil:
    return utf8_of(tag.object)


# Call with the GIL: the line of an instruction of a code object, by the instruction's offset in bytes.
cdef int line_of(object code, Py_ssize_t instruction) except -1

# Call with the GIL; these return a new reference.
cdef Label* label_of_tag(str tag) except? NULL
cdef Label* label_of_stack(int depth) except? NULL

# For `xlogmem check`: `find` numbers the stack of a call.
ctypedef uint32_t (*PlaceFinder)() noexcept nogil
cdef void number_places(PlaceFinder find) noexcept

cdef inline Label* stack_for(int depth) except? NULL:
    """The stack of this call, for a resource that wants `depth` frames; NULL if `depth` is 0."""
    return label_of_stack(depth) if depth else NULL


cdef int parse_depth(object depth) except -1

cdef object object_of(Label* label)

# For a history; call with the GIL.  While tags are kept, no label is deleted; `seen` is called for each new tag.
ctypedef void (*TagSeen)(uint32_t number, str tag) noexcept
cdef void keep_tags(TagSeen seen) noexcept
cdef void end_keeping_tags() noexcept
cdef dict tags_by_number()
cdef uint32_t largest_tag() noexcept
