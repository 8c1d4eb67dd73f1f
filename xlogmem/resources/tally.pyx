"""Bytes and calls by key, for adaptors: a hash table with linear probing.

A program has few tags and streams.  One that makes a tag for each block is bounded all the same: before the table
grows, rows without bytes are removed, unless their totals are wanted (`keeps_totals`).
"""
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._cpp cimport larger
from xlogmem._labels cimport held, release

cdef enum:
    FIRST = 64                  # places of a new table


cdef inline size_t place_of(uint64_t key, size_t mask) noexcept nogil:
    return <size_t>((key * <uint64_t>0x9E3779B97F4A7C15) >> 20) & mask


cdef Row* row_of(Tally* tally, uint64_t key, Label* tag) noexcept nogil:
    """The row of a key, made if there is none."""
    cdef size_t mask, place
    cdef Row* row
    if tally.rows.size() * 2 >= tally.places.size():
        rehash(tally)
    mask = tally.places.size() - 1
    place = place_of(key, mask)
    while tally.places[place]:
        row = &tally.rows[tally.places[place] - 1]
        if row.key == key:
            return row
        place = (place + 1) & mask
    row = &tally.rows.emplace_back()
    row.key = key
    row.tag = held(tag)
    row.nbytes = row.count = row.peak_bytes = row.peak_count = row.total_bytes = row.total_count = 0
    tally.places[place] = <uint32_t>tally.rows.size()
    return row


cdef void rehash(Tally* tally) noexcept nogil:
    """Remove what is empty, and make room for twice what is left."""
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


cdef void forget_all(Tally* tally) noexcept nogil:
    cdef size_t i
    for i in range(tally.rows.size()):
        release(tally.rows[i].tag)
    tally.rows.clear()
    tally.places.clear()
