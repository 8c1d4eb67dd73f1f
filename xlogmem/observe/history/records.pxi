# Definitions that events refer to, in the file of a running recording: lines of JSON behind the ring.
#
# A tag is written when its label is made, and a stack when it is found, both before an event has the number.  Writing
# needs the GIL, and so is never done under the lock of a runtime.  A process that is killed leaves no event without its
# names.

from xlogmem._base.cpp cimport atomic, make_new
from xlogmem._base.failures cimport UnderWay, put_back, set_aside
from xlogmem._base.labels cimport end_keeping_tags, keep_tags, tags_by_number
from xlogmem._base.sections cimport Section


cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef enum:
    ALL_STACKS = 0xFFFFFFFF

cdef object quoted = None               # json's function, from the first recording on: importing xlogmem brings no json
cdef object text_of_stack = None
cdef atomic[uint32_t]* stacks_written = make_new[atomic[uint32_t]]()    # numbers up to this one; never destroyed
stacks_written.store(ALL_STACKS)


cdef void in_child() noexcept nogil:
    ring.in_child()


pthread_atfork(NULL, NULL, in_child)


cdef int begin_records(object stack_text) except -1:
    """Write the existing tags, and have new tags and stacks written from now on."""
    global quoted, text_of_stack
    from json.encoder import encode_basestring_ascii as quoted

    keep_tags(write_tag)
    if not ring.has_file():
        return 0
    for number, tag in tags_by_number().items():
        write_tag(number, tag)
    if ring.stacks != NO_STACKS:
        text_of_stack = stack_text
        stacks_written.store(0)
    return 0


cdef void end_records() noexcept:
    global text_of_stack
    end_keeping_tags()
    stacks_written.store(ALL_STACKS)
    text_of_stack = None


cdef void write_tag(uint32_t number, str tag) noexcept:
    if ring.has_file():
        write_record(f'{{"tag": {number}, "text": {quoted(tag)}, "clock": {list(clock())}}}')


cdef object stack_text_now():
    cdef Section section
    section.begin(recording)
    return text_of_stack


cdef void write_stacks() noexcept with gil:
    """Write the stacks that were found since the last stack was written."""
    cdef uint32_t number = 0, last = xlogmem_place
    cdef UnderWay exception
    text = stack_text_now()
    if text is None:
        return
    set_aside(&exception)
    try:
        for number in range(stacks_written.load() + 1, last + 1):
            write_record(f'{{"stack": {number}, "frames": {text(number)}, "clock": {list(clock())}}}')
    except MemoryError:                                 # a call at a new place tries again
        last = number - 1
    finally:
        put_back(&exception)
    if stacks_written.load() < last:                    # another thread, while this one had to give up the GIL
        stacks_written.store(last)


cdef int write_record(str text) except -1:
    """Append a line to the file.  It begins with a line end, in case the line before was cut off."""
    cdef bytes line = f"\n{text}\n".encode("ascii")
    cdef Section section
    section.begin(recording)                 # the file is not closed meanwhile
    ring.append(line, len(line))
    return 0
