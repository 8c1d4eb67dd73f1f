# `await` for blocks and events, and `async with use(host, …)`: the event loop goes on while the device works.
#
# A stream of the runtime's own, a lane, waits for the work.  Behind that wait stands a host function: C alone, without
# the GIL, a lock or a call of the driver.  It lists a ticket and writes to the eventfd of the loop, and the loop then
# completes the future that has the ticket's number.  So no thread waits, and no stream of the program is delayed.
#
# A lane works in order.  Each pending future has one of its own where there are enough; beyond that the lane with the
# fewest is shared, and a future may come as late as those before it.
#
# No host function runs on a lost device, so a loop with pending futures looks once a second if the device is lost.

import weakref
from contextlib import suppress

from libc.stdint cimport uint64_t
from posix.unistd cimport close, read, write

from xlogmem._base.cpp cimport atomic, make_new, push
from xlogmem._base.failures cimport Failure
from xlogmem._core cimport block_in_slot, look_at_block, refuse_lost, wait_for_block
from xlogmem._driver cimport Scope, launch_host_function
from xlogmem._order cimport enter_stream, leave_stream
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.streams cimport Event, Stream, StreamPool, core_of

from xlogmem.errors import DriverError, StreamMisuseError
from xlogmem.blocks import set_awaiter as set_awaiter_of_blocks
from xlogmem.streams import set_awaiter as set_awaiter_of_events


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    int EFD_CLOEXEC
    int EFD_NONBLOCK


cdef enum:
    LOOKS = 4                               # before an access waits in the loop's thread: its memory is always in use
    MOST_LANES = 32                         # of a loop, in a runtime

cdef double LOSS = 1.0                      # seconds between two looks for a lost device

cdef object wakeups = weakref.WeakValueDictionary()     # of each loop, by its address


# ---------------------------------------------------------------------------------------------- without the GIL
cdef cppclass Ticket:
    Wake* wake
    uint64_t number
    Ticket* next


cdef cppclass Wake:
    # Lives until the loop and the last host function have released it.
    atomic[int] references
    atomic[Ticket*] listed
    int file


cdef void release_wake(Wake* wake) noexcept nogil:
    if wake.references.fetch_sub(1) == 1:
        drop_tickets(wake.listed.exchange(NULL))
        close(wake.file)
        del wake


cdef void drop_tickets(Ticket* ticket) noexcept nogil:
    cdef Ticket* following
    while ticket != NULL:
        following = ticket.next
        del ticket
        ticket = following


cdef void call_wake(void* data) noexcept nogil:
    """The host function."""
    cdef Ticket* ticket = <Ticket*>data
    cdef Wake* wake = ticket.wake
    cdef uint64_t one = 1
    push(wake.listed, ticket)                           # from here on the loop may drop it
    write(wake.file, &one, sizeof(one))
    release_wake(wake)


cdef int launch_wake(Stream lane, Wake* wake, uint64_t number, Failure* failure) except -1 nogil:
    """Have the loop woken behind the work on the lane."""
    cdef Ticket* ticket
    cdef Scope scope
    if enter_stream(lane.state, &scope, failure):
        return 1
    ticket = make_new[Ticket]()
    ticket.wake = wake
    ticket.number = number
    wake.references.fetch_add(1)
    if leave_stream(lane.state, &scope, launch_host_function(lane.state.handle, call_wake, ticket, failure), failure):
        del ticket
        release_wake(wake)
        return 1
    return 0


# ---------------------------------------------------------------------------------------------- of a loop
cdef class Lane:
    """A stream that waits for what futures wait for."""
    cdef Stream stream
    cdef Core core
    cdef int pending                        # futures


cdef class Wakeups:
    """The pending futures of one event loop.  Belongs to the thread of the loop, which holds it until it is closed."""
    cdef Wake* wake
    cdef object loop                        # a weak reference
    cdef object __weakref__
    cdef dict futures                       # number -> (future, lane)
    cdef list lanes                         # with futures
    cdef uint64_t number
    cdef bint looks                         # for lost devices, in a while

    def __cinit__(self):
        self.wake = make_new[Wake]()
        self.wake.references.store(1)
        self.wake.file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self.futures = {}
        self.lanes = []
        if self.wake.file < 0:
            raise OSError("await: the system has no eventfd left (ulimit -n)")

    def __dealloc__(self):
        release_wake(self.wake)

    cdef Lane lane_in(self, Core core):
        """Return a lane without futures; if there are too many, the one with the fewest."""
        cdef Lane lane
        cdef list of_core = [lane for lane in self.lanes if (<Lane>lane).core is core]
        if len(of_core) < MOST_LANES:
            lane = Lane.__new__(Lane)
            lane.core = core
            lane.stream = (<StreamPool>core.stream_pool).lane()
            return lane
        return min(of_core, key=pending_in)

    cdef object future_behind(self, Lane lane, object loop):
        """Return a future for the work on the lane."""
        cdef Failure failure
        cdef int failed
        future = loop.create_future()                   # first: what follows is not interrupted
        self.number += 1
        with nogil:
            failed = launch_wake(lane.stream, self.wake, self.number, &failure)
        if failed:
            lane.core.fail(&failure, "waking an event loop")
        self.futures[self.number] = (future, lane)
        if lane.pending == 0:
            self.lanes.append(lane)
        lane.pending += 1
        if not self.looks:
            loop.call_later(LOSS, self.look_for_loss, loop)
            self.looks = True
        return future

    def woken(self):
        """Complete the futures of the tickets that are listed."""
        cdef Ticket* ticket
        cdef Ticket* following
        cdef uint64_t count, number
        read(self.wake.file, &count, sizeof(count))     # before the list is taken: what is listed later wakes again
        ticket = self.wake.listed.exchange(NULL)
        try:
            while ticket != NULL:
                following = ticket.next
                number = ticket.number
                del ticket
                ticket = following
                self.complete(number)
        finally:
            if ticket != NULL:                          # an interrupt: the others are completed in the next turn
                self.list_again(ticket)

    cdef int list_again(self, Ticket* ticket) except -1:
        cdef Ticket* following
        cdef uint64_t one = 1
        while ticket != NULL:
            following = ticket.next
            push(self.wake.listed, ticket)
            ticket = following
        write(self.wake.file, &one, sizeof(one))
        return 0

    cdef int complete(self, uint64_t number) except -1:
        cdef Lane lane
        if number not in self.futures:                  # of a device that was lost
            return 0
        future, lane = self.futures.pop(number)
        lane.pending -= 1
        if lane.pending == 0:
            self.lanes.remove(lane)                     # its stream returns to the pool
        if not future.done():                           # cancelled
            future.set_result(None)
        return 0

    def look_for_loss(self, loop):
        """Complete the futures of lost devices: each coroutine then meets the error itself."""
        cdef Lane lane
        self.looks = bool(self.futures)
        if not self.looks:
            return
        loop.call_later(LOSS, self.look_for_loss, loop)
        for core in {(<Lane>lane).core for lane in self.lanes}:
            with suppress(DriverError, StreamMisuseError):
                core.ready                              # a query finds the loss out, and no other error matters here
            if core.lost:
                for number in [number for number, (_, lane) in self.futures.items() if (<Lane>lane).core is core]:
                    self.complete(number)


def pending_in(Lane lane):
    return lane.pending


cdef object running_loop():
    import asyncio                                      # takes longer than all of xlogmem

    return asyncio.get_running_loop()


cdef Wakeups wakeups_of(object loop):
    cdef Wakeups made = wakeups.get(id(loop))
    if made is None or made.loop() is not loop:
        made = Wakeups.__new__(Wakeups)
        made.loop = weakref.ref(loop)
        loop.add_reader(made.wake.file, made.woken)     # this holds it
        wakeups[id(loop)] = made
    return made


# ---------------------------------------------------------------------------------------------- of uses
cdef bint is_ready(LaunchRecorder recorder) except -1:
    """True if the work that the uses come after is complete."""
    cdef Core core = recorder.runtime
    cdef Request* request
    cdef Failure failure
    cdef bint ready = True
    cdef int failed = 0
    cdef size_t i
    with nogil:
        for i in range(recorder.window.requests.size()):
            request = &recorder.window.requests[i]
            if ready and not failed:
                failed = look_at_block(&core.state, block_in_slot(&core.state, request.slot), request.generation,
                                       request.access, &ready, &failure)
    if failed:
        core.fail(&failure, "awaiting work", recorder.arguments_of(failure.generation))
    core.drop_owners()
    return ready


cdef object future_of(LaunchRecorder recorder, object loop):
    """Return a future for the work that the uses come after."""
    cdef Wakeups here = wakeups_of(loop)
    cdef Core core = recorder.runtime
    cdef Lane lane = here.lane_in(core)
    cdef Stream stream = lane.stream
    cdef Request* request
    cdef Failure failure
    cdef int failed = 0
    cdef size_t i
    with nogil:
        for i in range(recorder.window.requests.size()):
            request = &recorder.window.requests[i]
            if not failed:
                failed = wait_for_block(&core.state, block_in_slot(&core.state, request.slot), request.generation,
                                        request.access, stream.state, &failure)
    if failed:
        core.fail(&failure, "awaiting work", recorder.arguments_of(failure.generation))
    return here.future_behind(lane, loop)


async def until_ready(LaunchRecorder recorder, int looks):
    """Return when the work that the uses come after is complete, or after so many looks."""
    cdef LaunchRecorder part
    cdef list parts
    loop = running_loop()
    if recorder.unsettled is not None:                  # the preflight refuses or adopts these
        return
    parts = [recorder] + (recorder.together.others if recorder.together is not None else [])
    for _ in range(looks):
        futures = [future_of(part, loop) for part in parts if not is_ready(part)]
        for future in futures:
            await future
        if not futures:
            return


async def until_accessible(LaunchRecorder recorder not None):
    """Return when an access by the host may be opened, as a rule without a wait."""
    if recorder.cancelled or recorder.preflighted or recorder.done:
        recorder.settle()                               # raises
    refuse_device_memory_in(recorder)
    await until_ready(recorder, LOOKS)


async def until_block_is_ready(DeviceBlock block):
    cdef LaunchRecorder recorder
    running_loop()
    if block is None:                                   # of a buffer without elements
        return
    if block.core is None:                              # of no bytes
        block.synchronize()                             # raises if it was freed
        return
    recorder = LaunchRecorder.__new__(LaunchRecorder)
    begin_access(recorder, block.core)
    add_use(recorder, block, READ_WRITE, block)
    await until_ready(recorder, 1)
    refuse_loss(block.core)


async def until_event_is_ready(Event event):
    cdef Core core = core_of(event.stream)
    cdef Wakeups here
    cdef Lane lane
    loop = running_loop()
    if event.ready:
        return
    here = wakeups_of(loop)
    lane = here.lane_in(core)
    lane.stream.wait(event)
    await here.future_behind(lane, loop)
    refuse_loss(core)


cdef int refuse_loss(Core core) except -1:
    """Raise if the device was lost, which ends every waiting."""
    cdef Failure failure
    if refuse_lost(&core.state, &failure):
        core.fail(&failure, "awaiting work")
    return 0


def awaiter_of(what):
    """What ``await what`` iterates over."""
    return (until_event_is_ready(what) if isinstance(what, Event) else until_block_is_ready(what)).__await__()


set_awaiter_of_blocks(awaiter_of)
set_awaiter_of_events(awaiter_of)
