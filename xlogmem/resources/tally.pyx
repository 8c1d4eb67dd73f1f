"""Bytes and calls by key, for adaptors: a hash table with linear probing.

A program has few tags and streams.  The table is bounded even for a program that makes a tag for each block: before the
table grows, rows without bytes are removed, unless their totals are wanted (`keeps_totals`).
"""
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport larger
from xlogmem._base.labels cimport held, object_of, release
from xlogmem._base.locks cimport mutex

__all__ = []                                # it is for C alone

cdef enum:
    FIRST = 64                  # places of a new table


cdef Row* find_row(Tally* tally, uint64_t key) noexcept nogil:
    """The row of a key; NULL if there is none."""
    cdef size_t mask, place
    if tally.places.empty():
        return NULL
    mask = tally.places.size() - 1
    place = place_of(key, mask)
    while tally.places[place]:
        if tally.rows[tally.places[place] - 1].key == key:
            return &tally.rows[tally.places[place] - 1]
        place = (place + 1) & mask
    return NULL


cdef Row* row_of(Tally* tally, uint64_t key, Label* tag) noexcept nogil:
    """The row of a key, made if there is none."""
    cdef size_t mask, place
    cdef Row* row = find_row(tally, key)
    if row != NULL:
        return row
    if tally.rows.size() * 2 >= tally.places.size():
        rehash(tally)
    mask = tally.places.size() - 1
    place = place_of(key, mask)
    while tally.places[place]:
        place = (place + 1) & mask
    row = &tally.rows.emplace_back()
    row.key = key
    row.tag = held(tag)
    row.nbytes = row.count = row.peak_bytes = row.peak_count = row.total_bytes = row.total_count = 0
    tally.places[place] = <uint32_t>tally.rows.size()
    return row


cdef Row* row_within(Tally* tally, uint64_t key, Label* tag, size_t most) noexcept nogil:
    """`row_of`, with a limit: once there are `most` rows, all keys without a row share one further row."""
    cdef Row* row = find_row(tally, key)
    if row != NULL or tally.rows.size() < most:
        return row if row != NULL else row_of(tally, key, tag)
    return row_of(tally, key_of_rest(), NULL)


cdef void rehash(Tally* tally) noexcept nogil:
    """Remove empty rows, unless their totals are wanted, and make room for twice the remaining rows."""
    cdef size_t i, kept = 0, size = FIRST, place
    for i in range(tally.rows.size()):
        if tally.rows[i].count == 0 and not tally.keeps_totals:
            release(tally.rows[i].tag)
        else:
            tally.rows[kept] = tally.rows[i]
            kept += 1
    tally.rows.resize(kept)
    while size < 4 * (kept + 1):
        size *= 2
    tally.places.clear()
    tally.places.resize(size)
    for i in range(kept):
        place = place_of(tally.rows[i].key, size - 1)
        while tally.places[place]:
            place = (place + 1) & (size - 1)
        tally.places[place] = <uint32_t>(i + 1)


cdef void add_to(Row* row, uint64_t nbytes) noexcept nogil:
    row.nbytes += nbytes
    row.count += 1
    row.total_bytes += nbytes
    row.total_count += 1
    row.peak_bytes = larger(row.peak_bytes, row.nbytes)
    row.peak_count = larger(row.peak_count, row.count)


cdef void take_from(Row* row, uint64_t nbytes) noexcept nogil:
    row.nbytes -= nbytes
    row.count -= 1


cdef void restore_to(Row* row, uint64_t nbytes) noexcept nogil:
    """Undo `take_from`: the free failed."""
    row.nbytes += nbytes
    row.count += 1
    row.peak_bytes = larger(row.peak_bytes, row.nbytes)
    row.peak_count = larger(row.peak_count, row.count)


cdef list read_rows(Tally* tally, mutex* lock):
    """Read each row as its key, its tag, and its figures: now, at most and in total, bytes before calls.  Objects are
    made from a copy of the rows, because no object may be made under the lock."""
    cdef vector[Row] rows
    cdef Row* row
    cdef size_t i
    cdef list found = []
    with nogil:
        lock.lock()
        rows = tally.rows
        for i in range(rows.size()):
            held(rows[i].tag)
        lock.unlock()
    try:
        for i in range(rows.size()):
            row = &rows[i]
            found.append((row.key, object_of(row.tag), (row.nbytes, row.count, row.peak_bytes, row.peak_count,
                                                        row.total_bytes, row.total_count)))
    finally:
        release_rows(&rows)
    return found


cdef void release_rows(vector[Row]* rows) noexcept nogil:
    cdef size_t i
    for i in range(rows.size()):
        release(rows[0][i].tag)
    rows.clear()


cdef void forget_all(Tally* tally) noexcept nogil:
    release_rows(&tally.rows)
    tally.places.clear()
