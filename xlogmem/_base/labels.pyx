"""Labels: Python objects that the core carries along with memory without the GIL.

A tag and the stack of a call are Python objects, and memory is allocated, freed and accounted for by threads that do
not have the GIL.  So each distinct tag and stack is interned, with the GIL or in a section of `interning`; C structures
hold a pointer to its `Label` and count their references without the GIL.  A label without references is kept until
there are many, and is deleted then: the next block usually has the tag of an earlier block.

A stack is interned by its code objects and their current instructions, read frame by frame; lines and names are looked
up when a person reads the stack.  `xlogmem bench --family adaptors` measures the cost.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.sections cimport Section

from xlogmem._base.texts import printable
from xlogmem._base.units import parse_number

__all__ = ["Stack", "label_count"]

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    ctypedef struct PyCodeObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    PyFrameObject* PyFrame_GetBack(PyFrameObject* frame)        # a new reference
    PyCodeObject* PyFrame_GetCode(PyFrameObject* frame)         # a new reference
    int PyFrame_GetLasti(PyFrameObject* frame)
    object PyBytes_FromStringAndSize(const char* text, Py_ssize_t size)
    void Py_XINCREF(void* object)
    void Py_XDECREF(void* object)

cdef enum:
    UNUSED = 4096               # labels beyond those in use, before a sweep
    DEEPEST = 256               # frames of a stack

cdef struct Place:
    PyObject* code
    Py_ssize_t instruction     # as wide as a pointer: keys have no padding


cdef class Stack:
    """The Python frames of a call, the innermost first.  Made by xlogmem; `str` gives text as in a traceback."""

    cdef vector[Place] places

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.places.size()):
            Py_XDECREF(self.places[i].code)

    def frames(self):
        """Code objects and line numbers, the innermost first."""
        cdef size_t i
        return [((<object>self.places[i].code), line_of(<object>self.places[i].code, self.places[i].instruction))
                for i in range(self.places.size())]

    def __str__(self):
        return "\n".join(printable(f"  {code.co_filename}:{line} in {code.co_qualname}")
                         for code, line in self.frames())

    def __repr__(self):
        return f"<{type(self).__name__} of {self.places.size()} frames>"


cdef int line_of(object code, Py_ssize_t instruction) except -1:
    for first, last, line in code.co_lines():
        if first <= instruction < last:
            return line or code.co_firstlineno
    return code.co_firstlineno


cdef object interning = object()    # whose section guards what follows
cdef dict numbers = {}              # of the label in `labels`, by what it stands for
ctypedef vector[Label*] Labels

cdef Labels* labels = make_new[Labels]()                # never destroyed, as what they stand for is not
cdef size_t sweep_at = UNUSED
cdef uint32_t tags_numbered = 0
cdef bint all_are_kept = False
cdef TagSeen tag_seen = NULL
cdef PlaceFinder place_finder = NULL


cdef Label* interned(object key) except? NULL:
    """The label of a key, with one more reference; NULL if there is none."""
    cdef PyObject* known = PyDict_GetItem(numbers, key)
    return held(labels[0][<size_t><object>known]) if known != NULL else NULL


cdef Label* intern(object key, object value) except NULL:
    global sweep_at, tags_numbered
    cdef Label* label
    if labels.size() >= sweep_at and not all_are_kept:
        sweep()
        sweep_at = 2 * labels.size() + UNUSED
    label = make_new[Label]()
    label.references.store(1)
    label.object = <void*>value
    label.number = label.place = 0
    Py_INCREF(value)
    numbers[key] = labels.size()
    labels.push_back(label)
    if isinstance(value, str):
        tags_numbered += 1
        label.number = tags_numbered
        if tag_seen != NULL:
            tag_seen(label.number, value)
    return label


cdef int sweep() except -1:
    """Delete the labels that nothing refers to.  A first reference is made in the section: none is used again."""
    cdef vector[Label*] kept
    cdef vector[Label*] unused
    cdef dict renumbered = {}
    cdef Label* label
    cdef size_t i
    for key, number in numbers.items():
        label = labels[0][<size_t>number]
        if label.references.load():
            renumbered[key] = kept.size()
            kept.push_back(label)
        else:
            unused.push_back(label)
    labels[0] = kept
    numbers.clear()
    numbers.update(renumbered)
    for i in range(unused.size()):
        Py_DECREF(<object>unused[i].object)
        label = unused[i]
        del label
    return 0


cdef Label* label_of_tag(str tag) except? NULL:
    """The label of a tag; NULL for None."""
    cdef Label* label
    cdef Section section
    if tag is None:
        return NULL
    section.begin(interning)
    label = interned(tag)
    return label if label != NULL else intern(tag, tag)


cdef Label* label_of_stack(int depth) except? NULL:
    """The label of the calling thread's Python stack, of at most `depth` frames; NULL outside of Python."""
    cdef vector[Place] places
    cdef Label* label
    cdef Stack stack
    cdef Section section
    cdef size_t i
    read_stack(depth, places)
    if places.empty():
        return NULL
    key = PyBytes_FromStringAndSize(<char*>places.data(), places.size() * sizeof(Place))
    section.begin(interning)
    label = interned(key)
    if label == NULL:
        stack = Stack.__new__(Stack)
        stack.places = places
        for i in range(places.size()):                  # the key is right for as long as these live
            Py_XINCREF(places[i].code)
        label = intern(key, stack)
        if place_finder != NULL:
            label.place = place_finder()
    for i in range(places.size()):
        Py_XDECREF(places[i].code)
    return label


cdef void number_places(PlaceFinder find) noexcept:
    global place_finder
    place_finder = find


cdef int parse_depth(object depth) except -1:
    """Parse the user's number of frames for a resource."""
    return parse_number("depth", depth, 0, DEEPEST, "a number of frames")


cdef int read_stack(int depth, vector[Place]& places) except -1:
    """Read the innermost frames.  The code objects are new references."""
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyFrameObject* outer
    cdef Place place
    Py_XINCREF(frame)
    while frame != NULL and <int>places.size() < depth:
        place.code = <PyObject*>PyFrame_GetCode(frame)
        place.instruction = PyFrame_GetLasti(frame)
        places.push_back(place)
        outer = PyFrame_GetBack(frame)
        Py_XDECREF(frame)
        frame = outer
    Py_XDECREF(frame)
    return 0


cdef object object_of(Label* label):
    """The object that a label stands for; None for no label."""
    return <object>label.object if label != NULL else None


cdef void keep_tags(TagSeen seen) noexcept:
    """Keep all labels, and report new tags to `seen`, until `end_keeping_tags`."""
    global all_are_kept, tag_seen
    cdef Section section
    section.begin(interning)
    all_are_kept = True
    tag_seen = seen


cdef void end_keeping_tags() noexcept:
    """Allow the deletion of labels without references again."""
    global all_are_kept, tag_seen
    cdef Section section
    section.begin(interning)
    all_are_kept = False
    tag_seen = NULL


cdef dict tags_by_number():
    """All existing tags, by number."""
    cdef Section section
    cdef size_t i
    section.begin(interning)
    return {labels[0][i].number: <object>labels[0][i].object for i in range(labels.size()) if labels[0][i].number}


cdef uint32_t largest_tag() noexcept:
    return tags_numbered


def label_count():
    """The number of labels, used or not."""
    return labels.size()
