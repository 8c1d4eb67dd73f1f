"""Outstanding allocations of an adaptor: a hash table by address, with linear probing.

A free takes three steps, because another thread may get the address as soon as upstream has it: the record is marked
(`begin_free`), upstream is called, and the record is removed (`end_free`) or is outstanding again (`undo_free`).  If
the address was handed out again in between, the new record has replaced the marked record, and the end of the former
free leaves the new record alone: a free recognises its own record by the call.
"""
from libc.stdint cimport uint64_t

from xlogmem.resources.tally cimport key_of_rest, place_of

__all__ = []                                # it is for C alone

cdef enum:
    FIRST = 64                  # places of a new table


cdef Record* find_record(Outstanding* outstanding, uint64_t ptr) noexcept nogil:
    """The record of an address, marked or not; else the empty place for it.  The table has places."""
    cdef size_t mask = outstanding.places.size() - 1
    cdef size_t place = place_of(ptr, mask)
    while outstanding.places[place].ptr not in (0, ptr):
        place = (place + 1) & mask
    return &outstanding.places[place]


cdef bint add_record(Outstanding* outstanding, Record* record, Record* replaced) noexcept nogil:
    """Add a record.  True if the address had a record already: this is `replaced`, and its memory was being freed, or
    was lost by a resource that handed out memory twice."""
    cdef Record* place
    if 2 * (outstanding.count + 1) > outstanding.places.size():
        grow(outstanding)
    place = find_record(outstanding, record.ptr)
    replaced[0] = place[0]
    place[0] = record[0]
    outstanding.count += replaced.ptr == 0
    return replaced.ptr != 0


cdef void grow(Outstanding* outstanding) noexcept nogil:
    cdef vector[Record] before = outstanding.places
    cdef size_t i
    outstanding.places.clear()
    outstanding.places.resize(2 * before.size() if before.size() else <size_t>FIRST)       # filled with zeros
    for i in range(before.size()):
        if before[i].ptr:
            find_record(outstanding, before[i].ptr)[0] = before[i]


cdef Record* begin_free(Outstanding* outstanding, Allocation* freed) noexcept nogil:
    """Mark the record of a free; NULL if no memory is outstanding at the address."""
    cdef Record* record
    if outstanding.places.empty():
        return NULL
    record = find_record(outstanding, freed.ptr)
    if record.ptr == 0 or record.freeing != NULL:
        return NULL
    record.freeing = freed
    return record


cdef Record* marked_by(Outstanding* outstanding, Allocation* freed) noexcept nogil:
    cdef Record* record
    if outstanding.places.empty():
        return NULL
    record = find_record(outstanding, freed.ptr)
    return record if record.ptr and record.freeing == freed else NULL


cdef Record* undo_free(Outstanding* outstanding, Allocation* freed) noexcept nogil:
    """Make a record outstanding again, after upstream has refused.  NULL if this call has marked none."""
    cdef Record* record = marked_by(outstanding, freed)
    if record != NULL:
        record.freeing = NULL
    return record


cdef bint end_free(Outstanding* outstanding, Allocation* freed, Record* removed) noexcept nogil:
    """Remove the record of memory that upstream has.  True if the record that this call has marked still exists: it is
    copied to `removed`."""
    cdef Record* record = marked_by(outstanding, freed)
    cdef size_t mask = outstanding.places.size() - 1
    cdef size_t hole, place
    if record == NULL:
        return False
    removed[0] = record[0]
    hole = place = record - outstanding.places.data()
    while True:                                         # what was put behind it for want of its own place moves up
        place = (place + 1) & mask
        if outstanding.places[place].ptr == 0:
            break
        if ((place - place_of(outstanding.places[place].ptr, mask)) & mask) >= ((place - hole) & mask):
            outstanding.places[hole] = outstanding.places[place]
            hole = place
    outstanding.places[hole].ptr = 0
    outstanding.count -= 1
    return True


cdef object name_of_stream(uint64_t key):
    """The id of a stream; for a stream that no runtime knows, its handle as logs show it; None for the key of the rest.
    """
    if key == key_of_rest():
        return None
    return hex(key - (<uint64_t>1 << 63)) if key >> 63 else key
