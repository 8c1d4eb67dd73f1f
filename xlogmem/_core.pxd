# Who may touch which memory: blocks, windows, frees.  _core.pyx explains it.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic, few, first_of_line, flag, unlikely, vector
from xlogmem._base.failures cimport DEVICE_IS_LOST, LOST, PROCESS_WAS_FORKED, Failure, is_sticky
from xlogmem._base.index cimport NO_STREAM, AddressIndex
from xlogmem._base.labels cimport Label
from xlogmem._base.locks cimport mutex, signal
from xlogmem._base.modes cimport (
    ACCESSED, ADOPT_UNTRACKED, CACHED, CANCELLED, CAPTURE_WAS_CHECKED, CHECK_CAPTURE, COUNT_CONFLICTS, DONE, FREED,
    FREEING, HAND_BACK_ALL, HAND_BACK_WRITES, IGNORE_UNTRACKED, KEEP_STREAM_BUSY, LAUNCHED, LIVE, LOCAL, NOT_AT_ONCE,
    NOT_PREPARED, NO_THREAD, RAISE_UNTRACKED, READ, READ_WRITE, REFUSED, REFUSE_CONFLICTS, RELEASE_STREAM, RETIRED,
    UNFINISHED, UNKNOWN_ACCESS, WAIT_FOR_CONFLICTS, WAIT_OR_COUNT, WRITE, AccessFlags, AfterCall, AtOnce, CaptureCheck,
    HandBack, OnConflict, Outcome, State, Untracked,
)
from xlogmem._base.survey cimport Seen, Survey
from xlogmem._driver cimport process_was_forked
from xlogmem._order cimport Dependency, OrderState, StreamState
from xlogmem.observe._history cimport EventKind
from xlogmem.resources.base cimport Allocation, ResourceTable
from xlogmem.resources.tally cimport Tally


cdef struct Entry:
    # One line of a frontier: the next user has to be ordered after (stream, position).
    uint64_t position
    uint32_t stream
    uint32_t kind               # EntryKind


cdef struct ExportedStream:
    # A consumer may queue unrecorded work on the block there.
    StreamState* stream
    bint pinned                 # until the export is released; else until the block is freed


cdef enum Passing:
    # Which conflicting windows a waiting one need not wait for.
    IN_TURN
    PASSES_QUEUE                # those that wait longer
    PASSES_ALL


cdef struct Waiter:
    # A window that waits for a block.
    Window* window
    uint64_t generation         # of the block, whose slot may have another one by now
    uint32_t access
    uint64_t first              # the bytes that it wants: addresses
    uint64_t end


cdef cppclass Block:
    # What every use looks at comes first, in two lines of the cache.
    first_of_line generation    # identity; 0 while the slot is empty
    uint32_t exported           # the number of `exports`
    uint32_t windows            # open windows: while there is one the memory cannot be freed
    uint32_t writers            # windows that write
    uint8_t state
    uint8_t raised              # no unrecorded work can follow: see `free_without_its_stream_unlocks`
    uint8_t fresh               # no use on another stream than its own has been filed yet
    uint8_t named               # a free has named the stream it is to be on
    StreamState* home           # freed here; NULL: the host waits
    few[Entry] frontier         # at most one entry for each kind and stream
    StreamState* stream         # allocated here: identity, for ever; NULL: for the host, or adopted without a stream
    StreamState* window_stream  # the stream of all windows, NULL: of several
    atomic[StreamCache*] cache  # where the block is LOCAL or CACHED, or IN_PARTS; NULL: it is known to all
    uint64_t writer             # number + 1 of the stream of the newest use that wrote, 0: none
    uint64_t operation          # scratch of prepare: seen by this operation, as its use number `use`
    size_t use
    uint64_t ptr
    size_t nbytes
    uint32_t slot
    bint adopted                # foreign memory: its owner is dropped instead of a free
    bint host_accessible        # of adopted memory: see `is_host_accessible`
    uint32_t pins               # exports that are not released: not freed before, as in a window
    vector[ExportedStream] exports
    void* owner                 # of adopted memory: the Python object that is held for it (may be NULL)
    ResourceTable* resource     # where the memory came from; of adopted memory the runtime's own, which gets none of it
    void* resource_block        # the memory's name in a resource that keeps frontiers
    Label* tag                  # owned; NULL: none
    Label* freed_by             # the stack of the free, owned; NULL: not wanted, or not freed yet
    Block* next                 # in the list of dropped blocks
    atomic[uint32_t] listed     # it is in that list, or was taken from it and is looked at next
    vector[Waiter] waiting      # in the order of the queue
    vector[Block*] parts        # by address, if the block is in parts: see core/parts.pxi
    Block* whole                # the block that this is a part of; NULL: it is none
    Block* next_cached          # of the same size
    uint64_t position           # of the stream, when the memory was freed last


cdef enum:
    CACHED_SIZES = 16           # of memory in a cache
    CACHED_OF_A_SIZE = 1024     # blocks
    CACHE_WAYS = 4
    LEAST_SETS = 256
    MOST_SETS = 1024
    GROUP = 64                  # blocks of a batch, for which a lock is held without a pause
    NO_HANDLE = ~<size_t>0
    HOST_HANDLE = ~<size_t>1    # in place of a stream's, of a cache of the host
    HANDLE_OF_ID = <size_t>1 << 63      # with the driver's id: in place of the handle of a stream that may be destroyed
    HOST_CACHES = 4             # resources of which the host caches memory
    IN_PARTS = 1                # in place of a block's cache
    MOST_PARTS = 256            # of a block
    PARTS_OF_A_RANGE = 8        # more are merged


cdef struct CachedSize:
    size_t nbytes               # a multiple of the grain; 0: none yet
    Block* newest
    uint32_t count
    uint32_t wanted             # how often it was allocated from the pool, counted up to a few


cdef struct CachedPlace:
    uint64_t ptr
    Block* block


cdef cppclass StreamCache:
    # Memory that a stream, or the host, has freed, and the local blocks that are in such memory again: see
    # core/caches.pxi.
    mutex cache_lock            # a leaf
    StreamState* stream         # NULL: closed
    ResourceTable* resource     # whose memory it has
    atomic[size_t]* room        # bytes that it may have
    size_t handle               # or what stands in its place
    flag by_id                  # the driver's id does: the stream may be destroyed, and another one get its handle
    size_t cached_bytes
    uint64_t generation         # the last that was given
    uint64_t last_generation    # of those that may be
    uint64_t live_bytes         # of local blocks; the core does not count these
    uint64_t live_blocks
    uint64_t allocations
    uint64_t frees
    uint64_t fenced_frees       # of a stream that may be destroyed: those behind which it has a fence
    CachedSize sizes[CACHED_SIZES]
    vector[CachedPlace] places          # sets of CACHE_WAYS
    uint32_t shift              # of a hash, which leaves the number of a set
    StreamState as_stream       # in place of a stream's, of a cache of the host
    atomic[size_t] host_room


cdef struct Found:
    # A block, as it is found by address.
    uint64_t ptr
    uint64_t generation
    size_t nbytes
    uint32_t slot
    StreamState* stream
    bint adopted                # adopt: a new block was made


cdef struct HeldBlock:
    # By a graph, or by its capture.
    Block* block
    uint32_t slot
    uint64_t generation
    uint64_t ptr
    size_t nbytes
    bint host_accessible
    size_t home                 # the handle of the stream on which unrecorded work may be queued, by its owner; 0: none


cdef struct StreamOutside:
    # On which unrecorded work on a block may be queued.
    size_t handle
    bint is_home                # of the block's owner, and not of a consumer
    bint lives                  # as long as the runtime, or by its owner, which is held


cdef struct Range:
    # Memory to adopt.
    uint64_t ptr
    size_t nbytes
    StreamState* stream         # where the owner's work on it was queued; NULL: it is ready on every stream
    void* owner                 # a Python object that is held for it; NULL: none
    Label* tag                  # NULL: none
    bint host_accessible
    bint only_tracked           # nothing is adopted: the range is looked for in a block


cdef struct Piece:
    # A block of a batch: see core/many.pxi.
    size_t nbytes               # wanted; 0: none is
    uint64_t ptr
    uint64_t generation
    Block* block                # NULL: it is not allocated yet, or was freed


cdef struct Request:
    # A registered use, before it is merged and validated.
    uint32_t slot
    uint32_t access
    uint64_t generation


cdef struct ByteRange:
    # The part of a block that a request names.
    size_t request              # its number
    uint64_t first              # address of the first byte
    uint64_t end                # and behind the last


cdef enum:
    NOT_READY = -0x40000000     # as the number of launches of a graph


cdef cppclass GraphState:
    # What a launch of a graph needs; it stays as it is while one is under way.
    vector[Request] requests
    cy.CUgraphExec executable           # NULL: another library has it
    atomic[int] launching               # launches that are under way; less than 0: the graph is not ready, or closed


cdef struct Use:
    Block* block
    uint32_t access
    bint plain                  # all that it was ordered after was the launch stream's own, and is in no snapshot
    size_t first                # its snapshot: window.snapshot[first:end]; if `Window.turn` is set, the block's entry
    size_t end                  # that it replaces


cdef struct Wanted:
    # What a waiting window is for.
    Block* block
    uint64_t generation
    uint32_t access
    uint64_t first              # addresses: of a range, or all that there are
    uint64_t end


cdef struct Hold:
    # Why a window waits: another one is open, or waits longer.
    Window* window              # for its own runtime
    uint64_t thread
    uint64_t inside             # it does not depend on waits of that thread up to this ticket
    bint queued                 # it waits longer


cdef cppclass Window:
    # The time between prepare and finish of one launch.
    StreamState* stream
    HandBack hand_back
    OnConflict on_conflict
    bint is_graphs              # a launch of a graph, which holds its blocks: they may be RETIRED
    Untracked untracked         # what its recorder does with memory that no runtime tracks
    bint is_open
    uint32_t discipline_changes     # before it was opened
    uint64_t thread             # that opened it, or waits to; NO_THREAD: it ended meanwhile, and the use is filed
    uint64_t position
    uint64_t turn               # of the lock in which it was opened, if each use replaces one entry; else 0
    vector[Request] requests
    vector[ByteRange] ranges    # of the requests that name one, in their order
    vector[Use] uses            # one for each block, or part
    vector[Entry] snapshot      # what the uses were ordered after, in the order of `uses`
    vector[Dependency] dependencies     # what the launch stream is not ordered after yet: one for each source stream
    vector[Dependency] homes    # opaque homes, and streams of exports, that have to be ordered after the launch
    vector[Block*] claimed      # retired blocks whose last window this was
    bint record                 # the commit records its fence at once
    bint has_ended_freshness    # of its blocks, when their uses were filed
    Window* next                # in the list of abandoned windows
    size_t place                # in `CoreState.windows`
    # Conflicting windows: see core/contested.pxi.
    bint moved                  # another thread has touched the recorder before, so any may close it
    bint is_anyones             # the program says that any thread may close it
    bint is_kept                # by the runtime: nothing else refers to the recorder
    void* table_hold            # of the C table, which has prepared it; NULL: a recorder's
    uint64_t inside             # the ticket of the wait that its thread had interrupted for it; 0: none
    bint is_waiting             # in the queue
    bint was_reported           # for being open so long
    signal may_go_on            # set when no other window is in the way any more
    uint64_t ticket             # rises with each wait of the process
    Window* next_waiting
    Window* previous_waiting
    vector[Wanted] wanted       # one for each request
    size_t found_at             # in `CoreState.windows`: the open window that was in the way when last looked
    bint overtakes              # it may be allowed to pass others in the queue
    Passing passes
    uint64_t search             # scratch: stuck, by this search
    # For other runtimes: see core/circles.pxi, whose lock guards these, `thread` and `ticket`.
    bint is_known               # noted there
    vector[Hold] holds
    uint64_t noted              # when that was: the ticket of a wait that had begun by then
    uint64_t visited            # scratch
    # For a history.
    uint64_t opened_at          # in ticks; 0: this was not recorded
    uint32_t site               # where in the program


cdef struct OpenUse:
    # The use that a thread is inside of.
    StreamState* stream         # NULL: of none
    bint several                # of several, on different streams
    bint is_far                 # on a stream of another device, at least one
    uint32_t access             # to the bytes of a block; 0: not all of them are named there
    uint32_t on_host            # by the thread itself, which is inside of an access by the host


cdef cppclass HostThread:
    # A thread that accesses memory itself: see core/host.pxi.
    StreamState as_stream       # in the windows of its accesses
    uint64_t thread             # its number


cdef struct Share:
    # Bytes of a marker that go to another resource than the runtime's own.
    ResourceTable* resource
    uint64_t nbytes


cdef cppclass Marker:
    # Bytes that were freed on a stream: complete once the host is ordered after the position.
    uint64_t position
    uint64_t nbytes             # all of them
    uint64_t room               # for how many more frees, before a fence is due; 0: no more are added
    vector[Share] shares


cdef struct CoreCounters:
    uint64_t allocations
    uint64_t frees
    uint64_t deferred_frees     # requested inside a window, or while an export or a capture put them off
    uint64_t uses               # windows filed
    uint64_t cancelled
    uint64_t abandoned          # windows whose recorder was dropped
    uint64_t failed_frees       # frees inside another operation that failed and will be tried again
    uint64_t conflicts          # windows opened, or refused, because of a conflicting one on another stream
    uint64_t conflict_waits     # windows that the host waited to open, because a conflicting one was open
    uint64_t evictions          # live blocks whose addresses the resource handed out again


cdef struct Figures:
    # With what caches have.
    uint64_t live_bytes
    uint64_t live_blocks
    CoreCounters counters


cdef enum Mark:
    # Beside LOST: the device's context is broken.
    IS_RECORDED = 2             # a history is
    WANTS_STACKS = 4            # the resource does


cdef enum Watcher:
    BY_CHECK = 1
    BY_HISTORY = 2


cdef cppclass CoreState:
    # What every allocation and free looks at comes first.
    OrderState* order           # its lock is the lock of everything here
    ResourceTable* resource     # the runtime's own
    atomic[Block*] dropped      # by finalizers, and retired blocks whose free failed inside another operation
    atomic[Window*] abandoned   # by finalizers
    atomic[uint32_t] marks      # `Mark`: what a call looks at before its own work
    uint32_t watched            # `Watcher`: under the lock, and under that of any of the caches
    uint64_t live_bytes
    uint64_t live_blocks
    uint64_t pending_bytes
    uint64_t in_caches          # bytes of live blocks that only caches know, and of memory that these keep, in grains
    uint64_t peak_bytes         # the most that was live or in caches at a time, since `take_peak_locked`
    uint64_t whole_peak         # the same, since the runtime was made, or since it began anew
    vector[uint64_t*] peaks     # the same, of spans that are open
    AddressIndex index          # base address -> block that is LIVE or RETIRED
    vector[Block*] blocks       # by slot
    vector[uint32_t] empty      # slots
    vector[Block*] parts        # all, of all blocks
    vector[Block*] spare_parts
    vector[vector[Marker]] pending      # by stream index: bytes that a reap may release, oldest first
    CoreCounters counters
    vector[Dependency] freed_frontier   # scratch of a free into a pool
    Block* deferred_by_capture          # the newest of those that only a capture put off
    Failure unreported_failure          # the newest failure without a caller: raised by the next reap
    bint unreported             # ... because what failed is not tried again
    uint64_t requeued           # frees that failed since the list of dropped blocks was last gone through
    vector[void*] pending_decrefs       # owners of adopted memory that was freed: DECREF'd by the next GIL holder
    flag has_pending_decrefs    # readable without the lock
    flag has_evicted            # until a warning of the first evicted block was given; readable without the lock
    size_t most_at_once         # requests of a launch that is prepared with the GIL: see core/at_once.pxi
    uint64_t evicted_ptr        # of the first
    size_t evicted_nbytes
    vector[Block*] returned_without_stream      # exports released without a known stream: pinned until a blocking reap
    Window* waiting                     # to be opened, and in conflict with an open one or one that waits longer
    Window* last_waiting
    uint32_t overtakers                 # of these
    uint64_t searches
    vector[Window*] stuck               # scratch
    vector[HostThread*] host_threads    # that have accessed memory
    vector[ResourceTable*] others       # resources that allocations have named; written under the lock, in a section
    bint keeps_frontiers                # one of the resources does; written with the GIL, as this:
    int stack_depth                     # frames of the stack of a free that one of them wants
    vector[StreamCache*] caches         # open and closed
    atomic[StreamCache*] host_caches[HOST_CACHES]       # those of the host, each of another resource; NULL behind them
    uint64_t cached_allocations         # from caches that were closed
    flag wants_cache                    # a stream, or the host, had none: see `add_cache`
    mutex windows_lock                  # of these two; a leaf
    vector[Window*] windows             # all
    vector[Window*] spare_windows       # for the next recorders: their vectors have the memory that a launch needs


# How a function's name says what it does with the lock: `_locked` needs it, `_unlocks` needs it and drops it meanwhile,
# `_locks` returns with it held, no suffix: it does not need the lock.  A function that is given only a block, a window
# or a stream needs it too; there is no table at hand to check.

# Operations.  Without the GIL; they take the lock themselves and make driver calls.
cdef int allocate(CoreState* core, ResourceTable* resource, Allocation* wanted, Block** result,
                  Failure* failure) except -1 nogil
cdef int adopt(CoreState* core, Range* memory, Found* result, Failure* failure) except -1 nogil
cdef int record_use(CoreState* core, Request* request, StreamState* stream, Failure* failure) except -1 nogil
cdef int file_unprepared_unlocks(OrderState* order, Block* block, StreamState* stream, uint32_t access) except -1 nogil
cdef bint may_allocate_at(size_t handle) except -1 nogil
cdef bint allocate_from_cache(CoreState* core, StreamCache* cache, size_t handle, Allocation* wanted,
                              Block** result) except -1 nogil
cdef bint free_into_cache(CoreState* core, Block* block, uint64_t generation, StreamState* stream) noexcept nogil
cdef bint free_at_into_cache(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil
cdef void bring_in_at_locked(CoreState* core, StreamState* stream, uint64_t ptr) noexcept nogil
cdef bint free_by_id_into_cache(StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil
cdef bint is_fence_due_locked(StreamState* stream, uint32_t frees, uint32_t at) noexcept nogil
cdef bint allocate_by_handle(CoreState* core, StreamCache* cache, size_t handle, size_t nbytes,
                             Block** result) noexcept nogil
cdef bint free_plainly_at(CoreState* core, uint64_t ptr) noexcept nogil
cdef bint free_by_handle(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil
cdef bint allocate_group_by_handle(CoreState* core, StreamCache* cache, size_t handle, Label* tag, Piece* pieces,
                                   size_t count) noexcept nogil
cdef size_t free_group_by_handle(CoreState* core, StreamCache* cache, size_t handle, uint64_t* ptrs,
                                 size_t count) noexcept nogil
cdef int allocate_many(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                       Failure* failure) except -1 nogil
cdef int free_many(CoreState* core, Piece* pieces, size_t count, StreamState* stream, Label* stack,
                   vector[Failure]* failures) except -1 nogil
cdef int free_block(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream, Label* stack,
                    Failure* failure) except -1 nogil
cdef int prepare(CoreState* core, Window* window, Failure* failure) except -1 nogil
cdef int prepare_on_host(CoreState* core, Window* window, Failure* failure) except -1 nogil
cdef int refuse_device_memory(CoreState* core, Window* window, Failure* failure) noexcept nogil
cdef int finish_rest(CoreState* core, Window* window, Failure* failure) except -1 nogil
cdef int end_export(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                    uint32_t access) except -1 nogil
cdef bint end_export_at_once(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                             uint32_t access) noexcept
cdef int fence_export(CoreState* core, StreamState* stream) except -1 nogil
cdef int reap(CoreState* core, bint blocking, bint with_guard, vector[Failure]* failures) except -1 nogil
cdef int wait_for_pending(CoreState* core) except -1 nogil
cdef int wait_for_block(CoreState* core, Block* block, uint64_t generation, int access, StreamState* stream,
                        Failure* failure) except -1 nogil
cdef int look_at_block(CoreState* core, Block* block, uint64_t generation, int access, bint* ready,
                       Failure* failure) except -1 nogil
cdef Block* block_in_slot(CoreState* core, uint32_t slot) noexcept nogil
cdef int wait_for_streams(CoreState* core, Failure* failure) except -1 nogil
cdef int look_at_streams(CoreState* core, bint* ready, Failure* failure) except -1 nogil
cdef uint64_t new_identity() noexcept nogil
cdef uint64_t peak_of(CoreState* core, uint64_t* peak) noexcept nogil
cdef void begin_peak(CoreState* core, uint64_t* peak) noexcept nogil
cdef void end_peak(CoreState* core, uint64_t* peak) noexcept nogil
cdef bint look(CoreState* core) except -1 nogil
cdef bint tear_down(CoreState* core, bint handles_are_gone, bint owners_live, bint may_sync) except -1 nogil
cdef void hand_over(CoreState* core, CoreState* target) noexcept nogil
# Declared here so that the compiler does not put them into an allocation or a free, which are hot paths.
cdef int get_bytes_for_host_locks(CoreState* core, ResourceTable* resource, Allocation* wanted,
                                  Failure* failure) except -1 nogil
cdef void begin_marker_locked(CoreState* core, StreamState* home) noexcept nogil
cdef void add_share(Marker* marker, ResourceTable* resource, uint64_t nbytes) noexcept nogil
cdef void settle_pending(CoreState* core) noexcept nogil
cdef int drain_if_abandoned(CoreState* core) except -1 nogil
cdef int drain_by_itself(CoreState* core) except -1 nogil
cdef int drain(CoreState* core) except -1 nogil

# With the GIL, and without waiting for anything.  They return an `AtOnce`; see core/at_once.pxi.
cdef int prepare_at_once(CoreState* core, Window* window, Failure* failure) except -1
cdef int prepare_rest(CoreState* core, Window* window, Failure* failure) except -1 nogil
cdef int prepare_on_host_at_once(CoreState* core, Window* window, Failure* failure) except -1
cdef AtOnce open_known_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil
cdef int allocate_at_once(CoreState* core, ResourceTable* resource, Allocation* wanted, Block** result,
                          Failure* failure) except -1 nogil
cdef int free_at_once(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream) except -1
cdef int allocate_many_at_once(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                               Failure* failure) except -1
cdef bint free_many_at_once(CoreState* core, Piece* pieces, size_t count, StreamState* stream) except -1

# For a check: see core/watched.pxi.
cdef void set_hooks(size_t address) noexcept
cdef ResourceTable* watched(OrderState* order, ResourceTable* resource) noexcept
cdef void find_site_for_check() noexcept nogil
cdef int encode_for_check(Label* tag) except -1

# For a history: see core/recorded.pxi.  What is declared here the compiler does not put into hot paths.
cdef bint heed_marks(CoreState* core) noexcept nogil
cdef bint has_more_than_a_history(CoreState* core) noexcept nogil
cdef bint allocate_recorded(CoreState* core, StreamCache* cache, size_t handle, Allocation* wanted,
                            Block** result) noexcept nogil
cdef bint free_recorded(CoreState* core, Block* block, uint64_t generation, StreamState* stream) noexcept nogil
cdef bint free_at_recorded(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil
cdef bint open_recorded(CoreState* core, Window* window) noexcept nogil
cdef void note_block(CoreState* core, EventKind kind, Block* block, StreamState* stream) noexcept nogil
cdef void report_opening(CoreState* core, Window* window) noexcept nogil
cdef void report_close_locked(CoreState* core, Window* window, Outcome outcome) noexcept nogil
cdef void note_needs_locked(OrderState* order, Window* window) noexcept nogil
cdef void note_needs_of_free_locked(OrderState* order, Block* block, StreamState* stream) noexcept nogil
cdef void note_out_of_memory_locked(CoreState* core, Allocation* wanted, Failure* failure) noexcept nogil
cdef void start_calls(CoreState* core) noexcept
cdef void end_calls(CoreState* core) noexcept
cdef void switch_history(bint is_on) noexcept

# Inside of these.  The context is current where they need it.
cdef int allocate_in_call(CoreState* core, ResourceTable* resource, Allocation* wanted, AfterCall after, Block** result,
                          Failure* failure) except -1 nogil
cdef int allocate_group_in_call(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                                Failure* failure) except -1 nogil
cdef int free_found_unlocks(CoreState* core, Block* block, StreamState* stream, CaptureCheck check_capture,
                            Failure* failure) except -1 nogil
cdef void keep_stack_of_free(Block* block, Label* stack) noexcept nogil
cdef int free_without_wait(CoreState* core, uint64_t ptr, StreamState* stream, Block** result,
                           Failure* failure) except -1 nogil

# Conflicting windows, and uses that are not plain.  What is declared here the compiler does not put into its only
# caller, which is a hot path.
cdef void file_use_locked(CoreState* core, Window* window, Use* use) noexcept nogil
cdef bint refuse_contested_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil
cdef int wait_and_open(CoreState* core, Window* window, Failure* failure) except -1 nogil
cdef void wake_after_close_locked(CoreState* core, Window* window) noexcept nogil
cdef void note_thread(Window* window) noexcept nogil

# No driver call.
cdef void set_resource(CoreState* core, ResourceTable* resource) noexcept nogil
cdef void add_resource(CoreState* core, ResourceTable* resource) noexcept nogil
cdef bint is_kept_by_guard(CoreState* core, uint64_t ptr, uint64_t generation) noexcept nogil
cdef void report_refused_free_locked(CoreState* core, uint64_t ptr, Label* stack) noexcept nogil
cdef bint bring_in_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil
cdef bint join_parts_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil
cdef void use_caches(CoreState* core) noexcept nogil
cdef void count_all_locked(CoreState* core, Figures* figures) noexcept nogil
cdef void survey_locked(CoreState* core, Survey* survey) noexcept nogil
cdef bint see_generation_locked(CoreState* core, uint64_t generation, Seen* seen) noexcept nogil
cdef void tally_tags_locked(CoreState* core, Tally* tally, Figures* figures) noexcept nogil
cdef Block* live_block_at_locked(CoreState* core, uint64_t ptr) noexcept nogil
cdef bint hold_block(CoreState* core, uint32_t slot, uint64_t generation, HeldBlock* held,
                     vector[StreamOutside]* streams) noexcept nogil
cdef int release_block(CoreState* core, HeldBlock* held) except -1 nogil
cdef void allow_unrecorded_work(CoreState* core, uint32_t slot, StreamState* stream) noexcept nogil
cdef uint32_t access_of(CoreState* core, uint32_t slot) noexcept nogil
cdef int order_after_all(CoreState* core, StreamState* stream, StreamState* source, bint lives,
                         Failure* failure) except -1 nogil
cdef int order_after_itself(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil
cdef void end_order(CoreState* core) noexcept nogil
cdef int fence_before_capture(CoreState* core, cy.CUstream handle) except -1 nogil
cdef bint begin_launch(GraphState* graph) noexcept nogil
cdef void end_launch(GraphState* graph) noexcept nogil
cdef bint begin_close(GraphState* graph) noexcept nogil
cdef bint add_export_locked(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                            bint pin) noexcept nogil
cdef void find_open_use_locked(CoreState* core, Block* block, uint64_t generation, ByteRange* part,
                               OpenUse* use) noexcept nogil
cdef bint export_in_use_locked(CoreState* core, Block* block, uint64_t generation, ByteRange* part,
                               OpenUse* use) noexcept nogil
cdef bint file_window_locked(CoreState* core, Window* window, Outcome outcome) noexcept nogil
cdef bint find_from_locked(CoreState* core, uint64_t ptr, uint64_t last, Found* found) noexcept nogil
cdef bint find_by_address_locked(CoreState* core, uint64_t ptr, Found* found) noexcept nogil
cdef void requeue_free_locked(CoreState* core, Block* block, Failure* failure) noexcept nogil
cdef void keep_unreported_locked(CoreState* core, Failure* failure) noexcept nogil
cdef void drop_exception_locked(CoreState* core, Failure* failure) noexcept nogil
cdef void defer_decref_locked(CoreState* core, void* owner) noexcept nogil
cdef Block* block_at(CoreState* core, uint32_t slot) noexcept nogil

cdef Window* take_window(CoreState* core) noexcept nogil
cdef void return_window(CoreState* core, Window* window) noexcept nogil

# For finalizers: no lock, no driver call.
cdef void defer_free(CoreState* core, Block* block) noexcept nogil
cdef void abandon(CoreState* core, Window* window) noexcept nogil

cdef inline bint is_host(StreamState* stream) noexcept nogil:
    """True if what a window has for its stream stands for a thread: see core/host.pxi."""
    return stream.index == <uint32_t>NO_STREAM


cdef inline bint is_host_accessible(Block* block) noexcept nogil:
    """True if the host can read and write the memory: it is page-locked, or managed."""
    return block.host_accessible if block.adopted else block.resource.host_accessible


cdef inline bint is_in_parts(Block* block) noexcept nogil:
    """True if launches have named ranges of the block: see core/parts.pxi."""
    return <size_t>block.cache.load() == <size_t>IN_PARTS


cdef inline StreamCache* cache_of(Block* block) noexcept nogil:
    """Return the cache that alone knows a block; NULL if there is none.  Read once: without the lock another thread may
    cut the block meanwhile."""
    cdef StreamCache* cache = block.cache.load()
    if <size_t>cache == <size_t>IN_PARTS:
        return NULL
    return cache


cdef inline bint is_still_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil:
    """Whether the block still has this generation.  One that only a cache knows is brought in, and parts are joined."""
    if unlikely(block.cache.load() != NULL):
        return bring_in_locked(core, block, generation)
    return block.generation == generation


cdef inline bint has_deferred_work(CoreState* core) noexcept nogil:
    """Whether a call has more to do than its own work."""
    return core.dropped.load() != NULL or core.abandoned.load() != NULL or core.marks.load() or process_was_forked()


cdef inline bint goes_slowly(CoreState* core) noexcept nogil:
    """Whether a call cannot take a quick way, recorded or not."""
    return unlikely(has_deferred_work(core)) and has_more_than_a_history(core)


cdef inline bint is_lost(CoreState* core) noexcept nogil:
    """Where a call begins, without the lock."""
    return unlikely(core.marks.load() != 0) and heed_marks(core)


# With these the doors of every room begin and end.
cdef inline int refuse_lost(CoreState* core, Failure* failure) noexcept nogil:
    if not is_lost(core):
        return 0
    failure.kind = DEVICE_IS_LOST
    return 1


cdef inline int refuse_forked(Failure* failure) noexcept nogil:
    """Before the lock: in a forked child it may be held by a thread that the child does not have."""
    if not process_was_forked():
        return 0
    failure.kind = PROCESS_WAS_FORKED
    return 1


cdef inline int mark_lost_if_sticky(CoreState* core, int failed, Failure* failure) noexcept nogil:
    """After a sticky error every later operation fails at once.  Returns `failed`."""
    if failed and is_sticky(failure):
        core.marks.fetch_or(LOST)
    return failed


cdef inline size_t handle_of_id(uint64_t driver_id) noexcept nogil:
    """Return what stands in the place of the handle of a stream that may be destroyed: no other stream has its id."""
    return <size_t>driver_id | <size_t>HANDLE_OF_ID


cdef inline size_t handle_in_cache(StreamState* stream) noexcept nogil:
    """Return the handle of a stream as its cache has it."""
    return handle_of_id(stream.driver_id) if <bint>stream.unowned else <size_t>stream.handle


cdef inline StreamCache* host_cache_of(CoreState* core, ResourceTable* resource) noexcept nogil:
    """The cache of the host in front of a resource; NULL if there is none."""
    cdef StreamCache* cache
    cdef size_t i
    for i in range(HOST_CACHES):
        cache = core.host_caches[i].load()
        if cache == NULL or cache.resource == resource:
            return cache
    return NULL
