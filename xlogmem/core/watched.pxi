# Hooks for `xlogmem check`: see cpp/engine/hooks.hpp.
#
# Nothing here is on a path that runs without a check.  Under a check a runtime has a table of its own in place of its
# resource's table; it calls the resource's table and reports what was handed out and freed, as a guard would
# (`watched`).  It wants stacks, so that no operation is done at once, and there are no caches: no call would show
# memory that a cache hands out again.  `prepare` reports the opening of a window, and `file_window_locked` its close.
#
# A free into a pool is reported by its meaning: it orders nothing; the next owner of the bytes has to come after all
# uses.

from cpython.unicode cimport PyUnicode_AsUTF8

from xlogmem._base.cpp cimport make_new
from xlogmem._base.labels cimport Label, PlaceFinder, number_places, utf8_of_tag
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, FrontierTable


cdef extern from "engine/hooks.hpp" nogil:
    ctypedef enum xlogmem_check_end:
        XLOGMEM_CHECK_ORDERED
        XLOGMEM_CHECK_BY_HOST
        XLOGMEM_CHECK_LATER
    ctypedef enum xlogmem_check_piece:
        XLOGMEM_CHECK_WHOLE
        XLOGMEM_CHECK_PIECE
        XLOGMEM_CHECK_FOR_HOST
    ctypedef struct xlogmem_check_range:
        uint64_t begin
        uint64_t bytes
        int access
    ctypedef struct xlogmem_check_hooks:
        void (*find_site)() noexcept nogil
        void (*piece_allocated)(void* context, void* stream, uint64_t address, uint64_t nbytes, const char* tag,
                                int pooled) noexcept nogil
        void (*piece_freed)(void* context, void* stream, uint64_t address, xlogmem_check_end end,
                            int guarded) noexcept nogil
        void (*window_opened)(uint64_t window, void* context, void* stream, const xlogmem_check_range* ranges,
                              size_t count) noexcept nogil
        void (*window_closed)(uint64_t window, int launched) noexcept nogil
        PlaceFinder site_of_caller
        void (*act_for)(uint32_t site) noexcept nogil

cdef enum:
    FRAMES_OF_A_PLACE = 12                          # as many as the check looks at: xlogmem/check/sites.hpp

cdef xlogmem_check_hooks* hooks = NULL              # set once, before the first runtime is made


cdef cppclass Watched:
    ResourceTable table
    FrontierTable frontiers
    ResourceTable* watched_resource
    OrderState* order


cdef vector[Watched*] all_watched                   # kept: what is left of a runtime may free blocks at any time


cdef void set_hooks(size_t address) noexcept:
    """Set the hooks for runtimes that are made from now on."""
    global hooks
    hooks = <xlogmem_check_hooks*>address
    number_places(hooks.site_of_caller)


cdef ResourceTable* watched(OrderState* order, ResourceTable* resource) noexcept:
    """Return the table that a runtime calls.  Called with the GIL."""
    cdef Watched* watch
    if hooks == NULL:
        return resource
    watch = make_new[Watched]()
    all_watched.push_back(watch)
    watch.watched_resource = resource
    watch.order = order
    watch.table = resource[0]
    watch.table.self = watch
    watch.table.allocate = watched_allocate
    watch.table.deallocate = watched_deallocate
    if resource.trim != NULL:
        watch.table.trim = watched_trim
    if resource.settled != NULL:
        watch.table.settled = watched_settled
    if resource.evicted != NULL:
        watch.table.evicted = watched_evicted
    watch.table.stack_depth = resource.stack_depth if resource.stack_depth else FRAMES_OF_A_PLACE
    if resource.frontiers != NULL:
        watch.frontiers = resource.frontiers[0]
        watch.frontiers.allocate = watched_allocate_from_pool
        watch.frontiers.allocate_at_once = NULL
        watch.frontiers.deallocate = watched_deallocate_into_pool
        watch.frontiers.trim = watched_trim_pool
        watch.frontiers.end = watched_end
        watch.frontiers.grain = 0
        watch.table.frontiers = &watch.frontiers
    return &watch.table


cdef void find_site_for_check() noexcept nogil:
    """Find the site of a call that may report, for a resource that wants stacks.  Called before the call, without the
    lock."""
    if hooks != NULL:
        hooks.find_site()


cdef int encode_for_check(Label* tag) except -1:
    """Encode the text of a tag, for readers without the GIL; a tag that has no UTF-8 is not reported."""
    if hooks != NULL:
        try:
            PyUnicode_AsUTF8(<object>tag.object)
        except UnicodeEncodeError:
            pass
    return 0


# ---------------------------------------------------------------------------------------------- memory
cdef void report_piece(Watched* watch, Allocation* made, int kind) noexcept nogil:
    cdef const char* tag = utf8_of_tag(made.tag) if made.tag != NULL else NULL
    if made.stream == NULL:
        kind |= XLOGMEM_CHECK_FOR_HOST
    hooks.piece_allocated(watch.order.context, made.handle, made.ptr, made.nbytes, tag, kind)


cdef int watched_allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef Watched* watch = <Watched*>self
    if watch.watched_resource.allocate(watch.watched_resource.self, wanted, failure):
        return 1
    report_piece(watch, wanted, XLOGMEM_CHECK_WHOLE)
    return 0


cdef inline void begin_free(Allocation* freed) noexcept nogil:
    """Let the free have the place of the drop, or of the call that requested it, however late it is carried out."""
    if freed.stack != NULL:
        hooks.act_for(freed.stack.place)


cdef int watched_deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    """Report the free before carrying it out: afterwards another thread may have the memory."""
    cdef Watched* watch = <Watched*>self
    begin_free(freed)
    hooks.piece_freed(watch.order.context, freed.handle, freed.ptr,
                      XLOGMEM_CHECK_BY_HOST if watch.table.order == HOST_SYNCHRONOUS else XLOGMEM_CHECK_ORDERED,
                      watch.table.guard != NULL)
    try:
        return watch.watched_resource.deallocate(watch.watched_resource.self, freed, failure)
    finally:
        hooks.act_for(0)


cdef int watched_allocate_from_pool(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef Watched* watch = <Watched*>self
    if watch.watched_resource.frontiers.allocate(watch.watched_resource.self, wanted, failure):
        return 1
    report_piece(watch, wanted, XLOGMEM_CHECK_PIECE)
    return 0


cdef void watched_deallocate_into_pool(void* self, Allocation* freed, vector[Dependency]* frontier) noexcept nogil:
    cdef Watched* watch = <Watched*>self
    begin_free(freed)
    hooks.piece_freed(watch.order.context, freed.handle, freed.ptr, XLOGMEM_CHECK_LATER, watch.table.guard != NULL)
    watch.watched_resource.frontiers.deallocate(watch.watched_resource.self, freed, frontier)
    hooks.act_for(0)


# ---------------------------------------------------------------------------------------------- the rest is passed on
cdef int watched_trim(void* self, Failure* failure) except -1 nogil:
    cdef ResourceTable* resource = (<Watched*>self).watched_resource
    return resource.trim(resource.self, failure)


cdef int watched_trim_pool(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil:
    cdef ResourceTable* resource = (<Watched*>self).watched_resource
    return resource.frontiers.trim(resource.self, nbytes, stream, failure)


cdef int watched_end(void* self) except -1 nogil:
    cdef ResourceTable* resource = (<Watched*>self).watched_resource
    return resource.frontiers.end(resource.self)


cdef void watched_settled(void* self, uint64_t nbytes) noexcept nogil:
    cdef ResourceTable* resource = (<Watched*>self).watched_resource
    resource.settled(resource.self, nbytes)


cdef void watched_evicted(void* self, Allocation* lost) noexcept nogil:
    cdef ResourceTable* resource = (<Watched*>self).watched_resource
    resource.evicted(resource.self, lost)


# ---------------------------------------------------------------------------------------------- windows
cdef void report_window(CoreState* core, Window* window) noexcept nogil:
    """Report an open window, by the bytes that it names.  Its blocks are not freed meanwhile."""
    cdef vector[xlogmem_check_range] ranges
    cdef xlogmem_check_range one
    cdef size_t i
    for i in range(window.uses.size()):
        if names_all(window, window.uses[i].block):
            one.begin = window.uses[i].block.ptr
            one.bytes = window.uses[i].block.nbytes
            one.access = window.uses[i].access
            ranges.push_back(one)
    for i in range(window.ranges.size()):
        one.begin = window.ranges[i].first
        one.bytes = window.ranges[i].end - window.ranges[i].first
        one.access = window.requests[window.ranges[i].request].access
        ranges.push_back(one)
    hooks.find_site()
    hooks.window_opened(<uint64_t>window, core.order.context, window.stream.handle, ranges.data(), ranges.size())


cdef bint names_all(Window* window, Block* block) noexcept nogil:
    """True if a window names all of a block that it uses, and not ranges of it alone."""
    cdef size_t i, ranges = 0
    for i in range(window.requests.size()):
        if ranges < window.ranges.size() and window.ranges[ranges].request == i:
            ranges += 1
        elif window.requests[i].slot == block.slot and block.whole == NULL:
            return True
    return False
