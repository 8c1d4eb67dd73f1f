# Statistics of the pool.

from libc.string cimport memset

from xlogmem._base.units import counted, format_bytes
from xlogmem._base.cpp cimport check, larger
from xlogmem._order cimport count_cached_locked


cdef FreeMemory measure_free_memory_locked(PoolState* pool) noexcept nogil:
    """Measure the figures that require a visit to every span."""
    check(pool.order.lock.held(), "the lock is held")
    cdef FreeMemory found
    cdef size_t together, i
    cdef Span* span
    found.places = found.largest = found.idle = 0
    for i in range(pool.chunks.size()):
        found.idle += pool.chunks[i].nbytes if pool.chunks[i].in_use == 0 else 0
        span = pool.chunks[i].first
        together = 0
        while span != NULL:
            together = together + span.nbytes if span.free_list != NULL else 0
            found.places += together != 0 and together == span.nbytes
            found.largest = larger(found.largest, together)
            span = span.above
    return found


cdef void read_figures_locked(PoolState* pool, PoolFigures* figures) noexcept nogil:
    """Read the pool's figures.  The caches of streams were emptied before, as far as other threads let them be
    empty."""
    check(pool.order.lock.held(), "the lock is held")
    figures.counters = pool.counters
    figures.counters.allocations += count_cached_locked(pool.order, pool)
    figures.size, figures.used, figures.peak = pool.size, pool.used, pool.peak
    figures.chunks = pool.chunks.size()
    figures.found = measure_free_memory_locked(pool)


cdef dict figures_of(PoolState* pool):
    """Return the figures of `PoolMemoryResource.statistics`.  Takes the lock."""
    cdef PoolFigures figures
    if pool.order == NULL:                  # no runtime has it yet, and no other thread
        memset(&figures, 0, sizeof(figures))
        figures.counters = pool.counters
    else:
        with nogil:
            pool.order.lock.lock()
            empty_own_caches_locked(pool, NULL)       # what streams have there is free
            read_figures_locked(pool, &figures)
            pool.order.lock.unlock()
    return figures_as_dict(&figures)


cdef dict figures_as_dict(PoolFigures* figures):
    cdef PoolCounters* counters = &figures.counters
    cdef FreeMemory* found = &figures.found
    cdef size_t unused = figures.size - figures.used
    return {"pool_size": figures.size, "used_bytes": figures.used, "peak_bytes": figures.peak, "free_bytes": unused,
            "largest_free_bytes": found.largest,
            "fragmentation": 1 - <double>found.largest / <double>unused if unused else 0.0,
            "idle_bytes": found.idle, "chunks": figures.chunks, "free_spans": found.places,
            "allocations": counters.allocations, "waited": counters.waited, "grown": counters.grown,
            "released": counters.released, "splits": counters.splits, "joins": counters.joins}


cdef str summary_of(PoolState* pool):
    """Return the figures as text, a line for each subject."""
    cdef dict figures = figures_of(pool)
    cdef dict sizes = {name: format_bytes(figures[name]) for name in figures if name.endswith(("_bytes", "_size"))}
    cdef str limit = "none" if pool.maximum >= LARGEST_REQUEST else format_bytes(pool.maximum)
    return (f"  from upstream   {sizes['pool_size']:>12} in {counted(figures['chunks'], 'chunk')}, limit {limit}\n"
            f"  in use          {sizes['used_bytes']:>12}, at most {sizes['peak_bytes']} so far\n"
            f"  free            {sizes['free_bytes']:>12} in {counted(figures['free_spans'], 'place')}, the largest "
            f"{sizes['largest_free_bytes']} (fragmentation {figures['fragmentation']:.0%})\n"
            f"  idle chunks     {sizes['idle_bytes']:>12}, which trim() would return\n"
            f"  allocations     {figures['allocations']:>12}, {figures['waited']} had to wait for another stream's "
            "use of the memory\n"
            f"  chunks          {figures['grown']:>12} taken, {figures['released']} returned")
