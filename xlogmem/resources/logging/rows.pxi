# Records as rows of text, made without the GIL, except for tags, which are looked up in Python once for many rows.
#
# A program controls only the tag in a row, and the message in the row of a failed call: both stand in a JSON string in
# which everything but plain ASCII has an escape.  RMM's columns have numbers alone.

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy
from libc.time cimport localtime_r, time_t, tm

from xlogmem.resources.sinks import AllocationRecord
from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport PYTHON_RAISED, Failure, class_of, format_failure
from xlogmem._base.labels cimport Label, object_of
from xlogmem._driver cimport LEGACY


cdef extern from "<cstring>" nogil:
    char* stpcpy(char* target, const char* text)

cdef enum:
    MOST = 255                  # bytes of UTF-8 in a message, as many as a `Failure` keeps
    ROW = 512                   # bytes of a row but for its tag and message, at most
    KNOWN_TAGS = 256

cdef cppclass Rows:
    vector[char] text
    size_t used
    int device
    time_t second               # of `clock`
    char[16] clock              # local time of that second, HH:MM:SS.


cdef char* room_for(Rows* rows, size_t size) noexcept nogil:
    """The end of the text, with room for `size` bytes behind it."""
    if rows.used + size > rows.text.size():
        rows.text.resize(2 * (rows.used + size))
    return rows.text.data() + rows.used


cdef inline void end_at(Rows* rows, char* end) noexcept nogil:
    rows.used = end - rows.text.data()


# `snprintf` takes ten times as long.  Each of these functions returns the new end.
cdef inline char* put_number(char* end, uint64_t number) noexcept nogil:
    cdef char[24] digits
    cdef int count = 0
    while True:
        digits[count] = <char>(48 + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        end[0] = digits[count]
        end += 1
    return end


cdef inline char* put_known(char* end, uint64_t number) noexcept nogil:
    """Write a number; 0 stands for none and becomes null."""
    return put_number(end, number) if number else stpcpy(end, "null")


cdef inline char* put_hex(char* end, uint64_t number) noexcept nogil:
    cdef int shift = 60
    end = stpcpy(end, "0x")
    while number >> shift == 0:
        shift -= 4
    while shift >= 0:
        end[0] = "0123456789abcdef"[number >> shift & 15]
        end += 1
        shift -= 4
    return end


# ---------------------------------------------------------------------------------------------- RMM's
cdef void append_rmm(Rows* rows, Record* record) noexcept nogil:
    """Append a row ``Thread,Time,Action,Pointer,Size,Stream`` in the format of RMM 26.10: times of day in local time,
    the default stream as 0."""
    cdef char* end = room_for(rows, ROW)
    if record.action == FREE_FAILED:
        return
    end = put_number(end, <uint64_t>record.thread)
    end = put_clock(rows, stpcpy(end, ","), record.nanoseconds)
    end = stpcpy(stpcpy(end, ","), name_of(record.action))
    end = stpcpy(end, ",")
    end = put_hex(end, record.ptr) if record.ptr else stpcpy(end, "(nil)")
    end = put_number(stpcpy(end, ","), record.nbytes)
    end = stpcpy(end, ",")
    end = put_number(end, 0) if record.handle <= <uint64_t>LEGACY else put_hex(end, record.handle)
    end_at(rows, stpcpy(end, "\n"))


cdef char* put_clock(Rows* rows, char* end, uint64_t nanoseconds) noexcept nogil:
    """Write the local time of day, to the microsecond."""
    cdef time_t second = <time_t>(nanoseconds // 1000000000)
    cdef uint64_t micros = nanoseconds // 1000 % 1000000
    cdef uint64_t place = 100000
    cdef tm parts
    if second != rows.second or rows.clock[0] == 0:
        rows.second = second
        localtime_r(&second, &parts)
        snprintf(rows.clock, sizeof(rows.clock), "%02u:%02u:%02u.", <unsigned int>parts.tm_hour % 24,
                 <unsigned int>parts.tm_min % 60, <unsigned int>parts.tm_sec % 61)
    end = stpcpy(end, rows.clock)
    while place:
        end[0] = <char>(48 + micros // place % 10)
        end += 1
        place //= 10
    return end


# ---------------------------------------------------------------------------------------------- JSON
cdef int append_json(Rows* rows, Record* record, dict tags) except -1 nogil:
    """Append a row with the fields of an `AllocationRecord`, in the format of `json.dumps`."""
    cdef char* end = room_for(rows, ROW)
    end = stpcpy(stpcpy(end, "{\"action\": \""), name_of(record.action))
    end = put_number(stpcpy(end, "\", \"device\": "), rows.device)
    end = stpcpy(end, ", \"stream\": ")
    end = put_number(end, record.stream - 1) if record.stream else stpcpy(end, "null")
    end = put_number(stpcpy(end, ", \"handle\": "), record.handle)
    end = put_known(stpcpy(end, ", \"ptr\": "), record.ptr)
    end = put_number(stpcpy(end, ", \"bytes\": "), record.nbytes)
    end = stpcpy(end, ", \"tag\": ")
    if record.tag == NULL:
        end = stpcpy(end, "null")
    else:
        end_at(rows, end)
        append_tag(rows, record.tag, tags)
        end = room_for(rows, ROW)
    end = put_known(stpcpy(end, ", \"generation\": "), record.generation)
    end = put_number(stpcpy(end, ", \"thread\": "), <uint64_t>record.thread)
    end = put_number(stpcpy(end, ", \"order\": "), record.order)
    end = put_number(stpcpy(end, ", \"nanoseconds\": "), record.nanoseconds)
    end = stpcpy(end, ", \"result\": ")
    if record.action in (ALLOCATED, FREED):
        end = stpcpy(end, "\"Ok\"")
    else:
        end_at(rows, end)
        append_result(rows, record)
        end = room_for(rows, ROW)
    end_at(rows, stpcpy(end, "}\n"))
    return 0


cdef const char* name_of(Action action) noexcept nogil:
    if action == ALLOCATED:
        return "allocate"
    if action == ALLOCATE_FAILED:
        return "allocate failure"
    return "free" if action == FREED else "free failure"


cdef int append_tag(Rows* rows, Label* tag, dict tags) except -1 nogil:
    with gil:
        append_text(rows, text_of_tag(tag, tags))
    return 0


cdef int append_result(Rows* rows, Record* record) except -1 nogil:
    with gil:
        append_text(rows, as_json(result_of(record)))
    return 0


cdef bytes as_json(object what):
    import json                                         # few programs write such a log
    return json.dumps(what).encode()


cdef int append_text(Rows* rows, bytes text) except -1:
    memcpy(room_for(rows, len(text) + 1), <const char*>text, len(text))
    rows.used += len(text)
    return 0


cdef bytes text_of_tag(Label* tag, dict tags):
    """The text of a tag as JSON, cached.  A program has few tags; for a program that makes many the cache is bounded.
    """
    name = object_of(tag)
    known = tags.get(name)
    if known is None:
        if len(tags) >= KNOWN_TAGS:
            tags.clear()
        known = tags[name] = as_json(name)
    return known


# ---------------------------------------------------------------------------------------------- results
cdef object result_of(Record* record):
    """``"Ok"``, or the failure: the name of the exception that callers in Python get, and its sentence."""
    cdef char[512] text
    cdef Failure* failure = record.failure
    if record.action in (ALLOCATED, FREED):
        return "Ok"
    if failure == NULL:
        return {"kind": "DriverError", "message": ""}
    if failure.kind == PYTHON_RAISED:
        kind, _, message = cut(failure.text).partition(": ")
        return {"kind": kind, "message": message}
    with nogil:
        format_failure(failure, text, sizeof(text))
    return {"kind": class_of(failure).__name__, "message": cut(text)}


cdef str cut(bytes text):
    """The text in at most `MOST` bytes, with an ellipsis if there was more: a text of this length was cut before."""
    if len(text) < MOST:
        return text.decode(errors="replace")
    return text[:MOST - 3].decode(errors="ignore") + "…"


cdef object record_of(Record* record, int device):
    return AllocationRecord(
        name_of(record.action).decode(), device, record.stream - 1 if record.stream else None, record.handle,
        record.ptr or None, record.nbytes, object_of(record.tag), record.generation or None, record.thread,
        record.order, record.nanoseconds, result_of(record))
