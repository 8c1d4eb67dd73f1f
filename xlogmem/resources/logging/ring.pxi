# Records, and the ring that the hooks put them into.
#
# A place in the order is taken under the lock of the ring, so a sink gets its records in rising order.

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from xlogmem._base.cpp cimport atomic
from xlogmem._base.failures cimport Failure
from xlogmem._base.labels cimport Label, held, release
from xlogmem._base.locks cimport mutex, signal
from xlogmem._driver cimport process_was_forked
from xlogmem.resources.base cimport Allocation


cdef extern from *:
    """
    #include <ctime>
    #include <sys/syscall.h>
    #include <unistd.h>
    static inline uint64_t xlogmem_wall_clock() {
        std::timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
    }
    static inline int64_t xlogmem_thread_number() {
        static thread_local int64_t number = 0;
        if (number == 0) number = syscall(SYS_gettid);
        return number;
    }
    """
    uint64_t nanoseconds_since_epoch "xlogmem_wall_clock"() noexcept nogil
    # As RMM logs it, and `threading.get_native_id`.
    int64_t thread_number "xlogmem_thread_number"() noexcept nogil

cdef enum Action:
    ALLOCATED
    ALLOCATE_FAILED
    FREED
    FREE_FAILED

cdef enum:
    IDLE_WAIT = 900             # milliseconds that the thread sleeps where there is nothing to write
    GATHERING = 5               # that it lets records gather, so that hooks seldom wake it
    AWAKE_AT = 4                # a ring of which this part is full wakes it all the same

cdef struct Record:
    uint64_t order
    uint64_t nanoseconds
    int64_t thread
    uint64_t handle
    uint64_t stream             # number + 1; 0: none
    uint64_t ptr
    uint64_t nbytes
    uint64_t generation
    Label* tag                  # a reference
    Failure* failure            # owned, without references
    Action action


cdef cppclass Ring:
    mutex lock                  # a leaf; of all but the atomic ones
    Record* records
    uint64_t capacity
    uint64_t pushed             # that were taken in, ever
    uint64_t taken              # of these, by the writer
    bint closed                 # nothing is taken in any more
    bint idle                   # the writer sleeps until it is woken
    atomic[uint64_t] written    # of those taken: given to the sink, or dropped
    atomic[uint64_t] dropped
    atomic[uint64_t] ends       # 1: the writer has to end when nothing is left
    atomic[int64_t] writer      # its thread
    signal wake

cdef atomic[uint64_t] last_order            # of this process, shared by all logs


cdef void push_record(Ring* ring, Action action, Allocation* call, Failure* failure) noexcept nogil:
    cdef int64_t thread = thread_number()
    cdef Record* record
    cdef bint wakes
    if process_was_forked() or thread == ring.writer.load():
        return
    ring.lock.lock()
    if ring.closed or ring.pushed - ring.taken >= ring.capacity:
        ring.dropped.fetch_add(1)
        ring.lock.unlock()
        return
    record = &ring.records[ring.pushed % ring.capacity]
    record.order = last_order.fetch_add(1) + 1
    record.nanoseconds = nanoseconds_since_epoch()
    record.thread = thread
    record.action = action
    fill_record(record, call)
    record.failure = copied_failure(failure) if failure != NULL else NULL
    ring.pushed += 1
    wakes = ring.idle or ring.pushed - ring.taken == ring.capacity // AWAKE_AT
    ring.idle = False
    ring.lock.unlock()
    if wakes:
        ring.wake.set()


cdef inline void fill_record(Record* record, Allocation* call) noexcept nogil:
    record.handle = <uint64_t>call.handle
    record.stream = call.stream.number + 1 if call.stream != NULL else 0
    record.ptr = call.ptr
    record.nbytes = call.nbytes
    record.generation = call.generation
    record.tag = held(call.tag)
    if record.action == ALLOCATE_FAILED:
        record.ptr = record.generation = 0


cdef Failure* copied_failure(Failure* failure) noexcept nogil:
    """A copy of a failure without its references; NULL if there is no memory."""
    cdef Failure* copy = <Failure*>malloc(sizeof(Failure))
    if copy != NULL:
        memcpy(copy, failure, sizeof(Failure))
        copy.exception = NULL
        copy.budget.holding_count = 0
    return copy


# The writer's side.  Records that wait in the ring do not change, so they are read without the lock.
cdef size_t waiting_records(Ring* ring, size_t most) noexcept nogil:
    """The number of waiting records, at most `most`.  If there is none, the next record wakes the writer."""
    cdef size_t count
    ring.lock.lock()
    count = ring.pushed - ring.taken
    ring.idle = count == 0
    ring.lock.unlock()
    return count if count < most else most


cdef inline Record* waiting_record(Ring* ring, size_t place) noexcept nogil:
    return &ring.records[(ring.taken + place) % ring.capacity]


cdef void drop_records(Ring* ring, size_t count) noexcept nogil:
    """Drop the first `count` records, which have been read: others may take their places."""
    cdef size_t i
    for i in range(count):
        release(waiting_record(ring, i).tag)
        free(waiting_record(ring, i).failure)
    ring.lock.lock()
    ring.taken += count
    ring.lock.unlock()


cdef void request_end(Ring* ring) noexcept nogil:
    """Take no more records in, and have the writer end."""
    ring.lock.lock()
    ring.closed = True
    ring.lock.unlock()
    ring.ends.store(1)
    ring.wake.set()


# ---------------------------------------------------------------------------------------------- hooks
cdef void log_allocated(void* self, Allocation* made) noexcept nogil:
    push_record(<Ring*>self, ALLOCATED, made, NULL)


cdef void log_failed(void* self, Allocation* wanted, Failure* failure) noexcept nogil:
    push_record(<Ring*>self, ALLOCATE_FAILED, wanted, failure)


cdef void log_freeing(void* self, Allocation* freed) noexcept nogil:
    push_record(<Ring*>self, FREED, freed, NULL)


cdef void log_not_freed(void* self, Allocation* freed, Failure* failure) noexcept nogil:
    push_record(<Ring*>self, FREE_FAILED, freed, failure)
