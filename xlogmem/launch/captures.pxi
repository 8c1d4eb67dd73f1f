# Captures of graphs: a core of its own for each.
#
# A use on a stream that takes part in a capture is a use in the core of the capture, where adopted memory stands in for
# the blocks of the runtime (core/graphs.pxi).  A recorder that begins on such a stream begins there; nothing else knows
# of captures.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem.resources.direct import DirectMemoryResource
from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport SOURCE_IS_CAPTURING, STREAM_IS_CAPTURING
from xlogmem._base.sections cimport Section
from xlogmem._core cimport (
    HeldBlock,
    Range,
    StreamOutside,
    access_of,
    adopt,
    allow_unrecorded_work,
    end_calls,
    end_order,
    hold_block,
    order_after_all,
    order_after_itself,
    release_block,
)
from xlogmem._driver cimport PER_THREAD, SPOILT_CAPTURE, Context, Scope, capture_of, enter_context, leave_context
from xlogmem._order cimport (
    OPAQUE,
    ORDINARY,
    SEALED,
    Discipline,
    OrderState,
    Ordering,
    StreamState,
    register_stream_locked,
)
from xlogmem.streams cimport StreamPool, handle_of, parse


cdef enum:
    NO_SLOT = 0xFFFFFFFF                    # of a block that was freed


@cython.final
@cython.no_gc_clear                         # a graph that is garbage releases it after a collector cleared the rest
cdef class Held:
    """A block that a graph holds."""
    cdef HeldBlock block
    cdef Core core
    cdef uint32_t access                    # of a launch
    cdef bint is_held

    cdef int release(self) except -1:
        """Hold the block no longer."""
        cdef Section section
        section.begin(self)
        if self.is_held:
            self.is_held = False
            with nogil:
                release_block(&self.core.state, &self.block)
        return 0


cdef Held hold(Core core, uint32_t slot, uint64_t generation, vector[StreamOutside]* streams):
    """Hold a block; None if it was freed before.  See `hold_block`."""
    cdef Held held = Held.__new__(Held)
    with nogil:
        held.is_held = hold_block(&core.state, slot, generation, &held.block, streams)
    held.core = core
    return held if held.is_held else None


@cython.final
cdef class StandIn:
    """A block of the runtime, and the memory that stands in for it in a capture."""
    cdef Held held
    cdef uint32_t slot                      # in the core of the capture
    cdef uint64_t generation
    cdef bint is_named                      # with its access, for the work of another library
    cdef bint is_graphs                     # allocated in the capture: what has filled it is not known
    cdef bint is_at_home                    # its home takes part since before
    cdef bint may_be_written                # by work that is not recorded, before it was named last
    cdef vector[StreamOutside] streams      # on which unrecorded work on the block may be queued


@cython.final
@cython.auto_pickle(False)
cdef class CaptureCore(Core):
    """The core of one capture: the order inside the graph."""
    cdef Core runtime                       # whose blocks are used
    cdef bint is_foreign                    # another library captures, and records none of its work
    cdef bint is_over
    cdef dict members                       # streams that take part, by their handles: the first is captured
    cdef set living                         # the first and the runtime's own: other handles may be used again
    cdef list owners                        # what keeps these streams
    cdef Stream outside                     # where memory of the graph is allocated
    cdef dict stand_ins                     # by the generation of the block
    cdef dict blocks                        # the same, by the generation of the stand-in

    # ------------------------------------------------------------------------------------------ streams
    cdef Stream entered(self, cy.CUstream handle, Stream known):
        """Return the stream of a use that begins, which the runtime knows as `known`, or not at all.  A handle of
        another library may be that of another stream by now: it comes after the last use under this handle."""
        cdef Stream stream = self.members.get(<size_t>handle)
        cdef Failure failure
        cdef int failed
        if stream is None:
            stream = self.member(handle, known)
            self.catch_up(stream)
        elif <size_t>handle not in self.living:
            with nogil:
                failed = order_after_itself(&self.state, stream.state, &failure)
            if failed:
                self.fail(&failure, "beginning a use in a capture")
        return stream

    cdef Stream member(self, cy.CUstream handle, Stream known):
        """Return the stream that takes part under this handle."""
        cdef Stream stream = self.members.get(<size_t>handle)
        cdef OrderState* order = &self.ordering.state
        cdef bint opaque = self.is_foreign and not self.members
        cdef uint64_t number = known.state.number if known is not None else 0
        cdef Discipline discipline
        cdef StreamState* state
        cdef Section section
        section.begin(self)
        if stream is not None:
            return stream
        with nogil:
            discipline = discipline_by_handle(&self.runtime.ordering.state, handle)
            if opaque:
                discipline = OPAQUE
            order.lock.lock()
            state = register_stream_locked(order, handle, discipline)
            state.driver_id = 1                         # not ours
            if number:
                state.number = number
            order.lock.unlock()
        if <size_t>handle in self.members:              # another thread was quicker
            return self.members[<size_t>handle]
        stream = handle_of(self.ordering, state)
        stream.core = self
        if not self.members or (known is not None and not known.state.driver_id):
            self.living.add(<size_t>handle)
            self.owners.append(known)
        self.members[<size_t>handle] = stream
        for item in list(self.stand_ins.values()):
            self.allow_on(<StandIn>item, <size_t>handle)
        return stream

    cdef int forget(self, Stream member) except -1:
        """Forget a stream that could not join."""
        self.members.pop(<size_t>member.state.handle, None)
        self.living.discard(<size_t>member.state.handle)
        with nogil:
            self.ordering.state.lock.lock()
            member.state.alive.store(False)
            self.ordering.state.lock.unlock()
        return 0

    cdef int order_after(self, Stream stream, Stream source, str what) except -1:
        """Order a stream after all that is captured on another one so far."""
        cdef bint lives = <size_t>source.state.handle in self.living
        cdef Failure failure
        cdef int failed
        with nogil:
            failed = order_after_all(&self.state, stream.state, source.state, lives, &failure)
        if failed:
            self.fail(&failure, what)
        return 0

    cdef int catch_up(self, Stream late) except -1:
        """Order a stream that has joined after the uses of memory on which unrecorded work may follow there."""
        cdef bint may = False
        for item in list(self.stand_ins.values()):
            may = may or may_follow_on(<StandIn>item, <size_t>late.state.handle)
        for item in list(self.members.values()) if may else ():
            if item is not late:
                self.order_after(late, <Stream>item, "joining a capture")
        return 0

    cdef int meet(self, StandIn block) except -1:
        """Let unrecorded work on a stand-in follow on the streams that take part, also those that the program has made
        join by events of its own."""
        cdef Context context = self.ordering.context
        cdef vector[StreamOutside] streams = streams_of(block)
        cdef size_t i
        for i in range(streams.size()):
            if (streams[i].lives and streams[i].handle not in self.members
                    and capture_on(<cy.CUstream>streams[i].handle, context) is self):
                self.catch_up(self.member(<cy.CUstream>streams[i].handle, None))
        for handle in list(self.members):
            self.allow_on(block, handle)
        return 0

    cdef Stream first(self):
        """Return the stream that is captured; the others have joined it."""
        return next(iter(self.members.values()))

    cdef int allow_on(self, StandIn block, size_t handle) except -1:
        """Let unrecorded work on a stand-in follow on a stream, if it may on the block."""
        cdef Stream stream = self.members[handle]
        if may_follow_on(block, handle):
            with nogil:
                allow_unrecorded_work(&self.state, block.slot, stream.state)
        return 0

    cdef int join_all(self) except -1:
        """Order the captured stream after all streams that take part."""
        cdef Stream first = self.first()
        for item in list(self.members.values()):
            if item is not first:
                self.order_after(first, <Stream>item, "joining the streams of a capture")
        return 0

    # ------------------------------------------------------------------------------------------ blocks
    cdef Resolved resolve(self, object what, Found* found, Extent* extent, str where) except? UNTRACKED:
        """Resolve an argument as the runtime does, to the memory that stands in for its block."""
        cdef Resolved known = self.runtime.resolve(what, found, extent, where)
        if known == TRACKED or known == READ_ONLY_HERE:
            self.stand_in(found)
        return known

    cdef int stand_in(self, Found* found) except -1:
        """Find the memory that stands in for a block of the runtime, which is held from now on."""
        cdef StandIn block
        cdef Held held
        cdef vector[StreamOutside] streams
        self.refuse_over()
        held = hold(self.runtime, found.slot, found.generation, &streams)
        if held is None:
            found.slot = NO_SLOT                        # on entry the use says so
            return 0
        block = self.stand_ins.get(found.generation)
        if block is None:
            block = self.make_stand_in(held, streams, self.first() if self.is_foreign else None)
        else:
            held.release()
            if self.may_be_written(block):              # by consumers that have released the memory meanwhile
                block.may_be_written = True
            set_streams(block, streams)                 # there may be more consumers by now
        self.meet(block)
        found.slot = block.slot
        found.generation = block.generation
        return 0

    cdef DeviceBlock allocate(self, size_t nbytes, Stream stream, str tag, object resource):
        """Allocate memory of the graph on a stream that takes part: it is new there, and outside it is ready."""
        cdef DeviceBlock block = self.runtime.allocate(nbytes, self.stream_outside(), tag=tag, resource=resource)
        self.own(block.block.slot, block.generation, self.entered(stream.state.handle, stream))
        return block

    cdef Stream stream_outside(self):
        """Return the stream on which memory of the graph is allocated."""
        cdef Section section
        section.begin(self)
        if self.outside is None:
            lane = self.runtime.stream_pool.lane()
            if self.outside is None:                    # else another thread was quicker
                self.outside = lane
        return self.outside

    cdef int own(self, uint32_t slot, uint64_t generation, Stream stream) except -1:
        """Make a new block memory of the graph, which is new on a stream that takes part."""
        cdef vector[StreamOutside] streams
        cdef Held held = hold(self.runtime, slot, generation, &streams)
        self.make_stand_in(held, streams, stream).is_graphs = True
        return 0

    cdef int refuse_over(self) except -1:
        if self.is_over:
            raise StreamMisuseError("the capture that this use began in has ended")
        return 0

    cdef StandIn make_stand_in(self, Held held, vector[StreamOutside] streams, Stream home):
        cdef StandIn block = StandIn.__new__(StandIn)
        cdef Failure failure
        cdef Range memory
        cdef Found found
        cdef Section section
        cdef int failed
        block.held = held
        block.streams = streams
        if home is None:
            home = self.members.get(held.block.home)    # None: it takes no part, so no work is captured there
        memory.ptr = held.block.ptr
        memory.nbytes = held.block.nbytes
        block.is_at_home = home is not None and <size_t>home.state.handle == held.block.home
        memory.stream = home.state if home is not None else NULL
        memory.owner = memory.tag = NULL
        memory.host_accessible = held.block.host_accessible
        memory.only_tracked = False
        with nogil:
            failed = adopt(&self.state, &memory, &found, &failure)
        if failed:
            held.release()
            self.fail(&failure, "naming memory in a capture")
        block.slot = found.slot
        block.generation = found.generation
        section.begin(self)
        if self.is_over:                                # since another thread has ended it
            held.release()
            self.refuse_over()
        if self.stand_ins.setdefault(held.block.generation, block) is not block:
            held.release()                              # another thread was quicker
            return self.stand_ins[held.block.generation]
        self.blocks[block.generation] = block
        return block

    cdef int fail(self, Failure* failure, str what, str where="") except -1:
        cdef StandIn block = self.blocks.get(failure.generation)
        self.refuse_over()
        if failure.kind in (STREAM_IS_CAPTURING, SOURCE_IS_CAPTURING):
            raise StreamMisuseError(f"{where}{what}: the capture was ended, or spoilt by a call that CUDA does not "
                                    "allow in one, such as a wait for the stream, or a stream that takes part was "
                                    "destroyed: capture again without it")
        if block is not None:
            failure.generation = block.held.block.generation
        return self.runtime.fail(failure, what, where)

    # ------------------------------------------------------------------------------------------ the end
    cdef bint has_open_window(self):
        return any([(<Stream>stream).state.windows for stream in list(self.members.values())])

    cdef bint may_be_written(self, StandIn block) except -1:
        """True if work that is not recorded may have written a block in the capture: the fill of new memory, that of an
        opaque stream or of a consumer, that of the library that captures."""
        cdef bint may = block.may_be_written or self.is_foreign or block.held.block.home in self.members
        cdef vector[StreamOutside] streams = streams_of(block)
        cdef size_t i
        for i in range(streams.size()):
            may = may or streams[i].handle in self.members
        return may

    cdef int note_over(self) except -1:
        """From here on no block is named in the capture."""
        cdef Section section
        section.begin(self)
        self.is_over = True
        return 0

    cdef list end(self, bint failed):
        """End the order of the capture.  Returns the blocks that launches of the graph use; after a failure none."""
        cdef StandIn block
        cdef list used = []
        self.note_over()
        for item in list(self.stand_ins.values()):
            block = <StandIn>item
            with nogil:
                block.held.access = READ_WRITE if block.is_graphs else access_of(&self.state, block.slot)
            if block.held.access and not block.is_named and self.may_be_written(block):
                block.held.access = READ_WRITE
            if failed or not block.held.access:
                block.held.release()
            else:
                used.append(block.held)
        self.ordering.end_core()                        # other runtimes look at these streams no more
        with nogil:
            end_order(&self.state)
        self.members.clear()
        self.living.clear()
        self.owners.clear()
        self.stand_ins.clear()
        self.outside = None
        self.runtime.free_dropped()
        return used


cdef vector[StreamOutside] streams_of(StandIn block) noexcept:
    cdef Section section
    section.begin(block)
    return block.streams


cdef void set_streams(StandIn block, vector[StreamOutside]& streams) noexcept:
    cdef Section section
    section.begin(block)
    block.streams = streams


cdef void add_stream(StandIn block, StreamOutside* outside) noexcept:
    cdef Section section
    section.begin(block)
    block.streams.push_back(outside[0])


cdef bint may_follow_on(StandIn block, size_t handle) noexcept:
    """True if unrecorded work on a stand-in may follow on this stream, which is not its home since it was named."""
    cdef Section section
    cdef size_t i
    section.begin(block)
    for i in range(block.streams.size()):
        if block.streams[i].handle == handle and not (block.streams[i].is_home and block.is_at_home):
            return True
    return False


cdef Discipline discipline_by_handle(OrderState* order, cy.CUstream handle) noexcept nogil:
    """Get the discipline of the stream that a runtime knows under a handle.  The stream itself cannot be looked at
    while it captures, so the strictest counts of those that had the handle."""
    cdef Discipline found = SEALED
    cdef bint there = False
    cdef size_t i
    order.lock.lock()
    for i in range(order.streams.size()):
        if order.streams[i].alive and order.streams[i].handle == handle:
            there = True
            if order.streams[i].discipline == OPAQUE or found == SEALED:
                found = order.streams[i].discipline
    order.lock.unlock()
    return found if there else OPAQUE if <size_t>handle == PER_THREAD else ORDINARY


cdef CaptureCore make_capture_core(Core runtime, bint is_foreign):
    """Make the core of a capture that begins."""
    cdef StreamPool pool = StreamPool.__new__(StreamPool)
    cdef CaptureCore core
    pool.ordering = Ordering.__new__(Ordering, runtime.ordering.context)
    pool.states, pool.spare, pool.priorities = [], {}, {}
    core = CaptureCore.__new__(CaptureCore, pool, DirectMemoryResource(runtime.device_id), policy="precise",
                               may_wait=False)
    core.runtime = runtime
    core.streams = None                                 # it has no names for streams of others
    end_calls(&core.state)                              # what happens inside is no history: a launch is
    core.is_foreign = is_foreign
    core.members, core.stand_ins, core.blocks, core.living, core.owners = {}, {}, {}, set(), []
    return core
