"""Foreign streams, default streams, streams that die: the programs of the ordering model and what people do with
them."""
from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref

import pytest
from bench import READ, READ_WRITE, WRITE, Bench
from cuda.bindings import driver as cuda

from xlogmem import (
    BlockingStreamWarning,
    BlockState,
    DeviceRuntime,
    DriverError,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    use,
)
from xlogmem._kernels import check

NON_BLOCKING = 1


class Foreign:
    """A stream of somebody else's library: destroys the CUDA stream when it is dropped, as CuPy's do."""

    def __init__(self, flags: int = NON_BLOCKING) -> None:
        self.stream = check(cuda.cuStreamCreate(flags))

    @property
    def handle(self) -> int:
        return int(self.stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def destroy(self) -> None:
        if self.stream is not None:
            check(cuda.cuStreamDestroy(self.stream))
            self.stream = None

    def __del__(self) -> None:
        self.destroy()


# ---------------------------------------------------------------------------------------- what may be called a stream
def test_every_spelling_of_a_stream():
    runtime = DeviceRuntime()
    owner = Foreign()
    registered = runtime.register_stream(owner)

    class Spelling:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)

        def synchronize(self):
            """What has a pointer and this is a stream; arrays and blocks have a pointer too."""

    class Pointer:
        value = owner.handle

    for spelled in (owner.handle, owner.stream, owner, registered, Spelling(__cuda_stream__=lambda: (0, owner.handle)),
                    Spelling(cuda_stream=owner.handle), Spelling(ptr=owner.handle), Spelling(handle=Pointer()),
                    Spelling(handle=owner.handle), Spelling(value=lambda: owner.handle)):
        assert runtime.register_stream(spelled) == registered, spelled
    assert registered.foreign
    assert registered.handle == owner.handle
    assert registered.discipline == "ordinary"
    for wrong in ("a stream", "5", 5.0, object(), None, [1], runtime.allocate(64), runtime.allocate(64).id):
        with pytest.raises(TypeError, match="no CUDA stream"):
            runtime.register_stream(wrong)
    with pytest.raises(ValueError, match="no CUDA stream handle"):
        runtime.register_stream(-5)


def test_the_legacy_stream_has_two_names_and_is_opaque():
    runtime = DeviceRuntime()
    legacy = runtime.register_stream(0)
    assert legacy == runtime.register_stream(1)
    assert legacy.discipline == "opaque"


def test_the_per_thread_stream_is_another_in_every_thread():
    runtime = DeviceRuntime()
    seen = [runtime.register_stream(2), runtime.register_stream(2)]
    assert seen[0] == seen[1]
    assert seen[0].discipline == "opaque"

    def elsewhere():
        seen.append(runtime.register_stream(2))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen[2] != seen[0]


def test_a_blocking_stream_is_warned_about():
    runtime = DeviceRuntime()
    owner = Foreign(flags=0)
    with pytest.warns(BlockingStreamWarning, match="blocking stream"):
        runtime.register_stream(owner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.register_stream(owner)                  # once is enough
        runtime.register_stream(Foreign())


@pytest.mark.simulator
def test_streams_of_other_devices_are_refused():
    check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(1))))
    elsewhere = Foreign()
    check(cuda.cuCtxPopCurrent())
    with pytest.raises(StreamMisuseError, match="another context or device"):
        DeviceRuntime().register_stream(elsewhere)


def test_use_finds_the_runtime_of_the_blocks(monkeypatch):
    own = DeviceRuntime()
    block, owner = own.allocate(64), Foreign()
    with use(owner, read=block) as recorder:
        assert recorder.runtime is own
    made = []

    def get_runtime(ordinal):
        made.append(DeviceRuntime(ordinal))
        return made[-1]

    monkeypatch.setattr("xlogmem.runtime.get_runtime", get_runtime)
    with use(owner) as recorder:
        assert recorder.runtime is made[0]
    with use(owner, runtime=own) as recorder:
        assert recorder.runtime is own
    with pytest.raises(StreamMisuseError, match="another runtime"):
        use(own.acquire_stream(), runtime=made[0])


def test_the_owner_is_held_and_released_when_only_we_hold_it():
    runtime = DeviceRuntime()
    kept = Foreign()
    runtime.register_stream(kept)
    block = runtime.allocate(64, kept)
    number = runtime.register_stream(kept).id
    owners = []
    for _ in range(200):
        owner = Foreign()
        runtime.register_stream(owner)
        owners.append(weakref.ref(owner))
    del owner
    gc.collect()
    assert sum(owner() is not None for owner in owners) < 100       # most were let go on the way
    assert runtime.register_stream(kept).id == number
    block.free()


def test_a_bare_handle_of_our_own_stream_is_that_stream():
    """It is not registered a second time, as somebody else's whose owner nobody knows."""
    runtime = DeviceRuntime()
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    assert runtime.register_stream(stream.handle) == stream != other
    with use(stream.handle, write=block):
        pass
    before = runtime.counters()
    with use(stream, write=block):
        pass
    after = runtime.counters()
    assert (after["records"], after["waits"]) == (before["records"], before["waits"])
    with pytest.raises(StreamMisuseError, match="one of the pool's own"):
        runtime.register_stream(stream.handle, discipline="opaque")


@pytest.mark.contract(158)
def test_pools_give_streams_back():
    pool = StreamPool(max_streams=2)
    runtime = DeviceRuntime(stream_pool=pool)
    first, second = pool.acquire(), pool.acquire()
    handle, number = first.handle, first.id
    with pytest.raises(StreamMisuseError, match="capacity"):
        pool.acquire()
    block = runtime.allocate(64, first)
    del first
    with pytest.raises(StreamMisuseError, match="capacity"):
        pool.acquire()                                  # the block still holds it
    block.free()
    del block
    third = pool.acquire()
    assert third.handle == handle
    assert third.id not in (number, second.id)          # the stream comes back, the id does not
    assert len(pool) == 2


def test_a_stream_that_is_found_again_goes_back_to_its_pool_once():
    """A dropped block waits to be freed; whoever asks for its address gets a handle of a stream that nobody held."""
    runtime = DeviceRuntime()
    first = runtime.acquire_stream()
    block = runtime.allocate(64, first)
    ptr = block.ptr
    del first, block
    runtime.find_block(ptr)                             # it is on its way back to the pool ...
    runtime.acquire_stream(discipline="sealed")         # ... and is sorted there
    found = runtime.find_block(ptr)
    assert runtime.acquire_stream().handle != found.alloc_stream.handle
    del found
    streams = [runtime.acquire_stream() for _ in range(3)]
    assert len({stream.handle for stream in streams}) == 3
    runtime.reap_pending()


# ---------------------------------------------------------------------------------------- ordering on foreign streams
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [None, 1])
def test_foreign_streams_are_ordered_like_our_own(bench, driver, dropped):
    x = bench()
    a, b = Foreign(), Foreign()
    S, T = x.runtime.register_stream(a), x.runtime.register_stream(b.handle)
    block = x.alloc(S)
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    write = x.use(S, (block, WRITE))
    x.use(T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    assert x.ordered(write, T) == (not dropped)
    block.free()
    del a


@pytest.mark.simulator
def test_a_handle_that_the_driver_used_again_is_another_stream(bench, driver):
    """Nobody told us that the stream was destroyed: the next one with its handle is told apart by the driver's
    number, and what was queued on the dead one is waited for."""
    x = bench()
    first = Foreign()
    handle = first.handle
    S = x.runtime.register_stream(handle)               # a raw handle: we cannot keep it alive
    block = x.alloc(x.T)
    write = x.use(S, (block, WRITE))
    first.destroy()
    second = Foreign()
    assert second.handle == handle
    again = x.runtime.register_stream(handle)
    assert again != S
    assert not S.registered
    x.use(again, (block, READ))
    assert x.ordered(write, again)
    with pytest.raises(StreamMisuseError, match="was unregistered"):
        x.prepare(S, (block, READ))


@pytest.mark.simulator
@pytest.mark.parametrize("handback", ["all", "none"])
def test_cudfs_pattern(bench, driver, handback):
    """Unrecorded work on the legacy stream, uses on side streams, writes in place afterwards, frees on either.
    cuDF cannot be told to wait, so its stream is ordered after each use; without that hand-back the race is
    reported."""
    x = bench()
    legacy = x.runtime.register_stream(0)
    for turn in range(20):
        column = x.alloc(legacy)
        x.work(legacy, (column, WRITE))
        if handback == "none":
            driver.drop("cuStreamWaitEvent", 2)
        x.use((x.T, x.U)[turn % 2], (column, READ))
        x.work(legacy, (column, READ_WRITE))
        x.use(x.U, (column, READ))
        if turn % 2:
            column.free()
        else:
            column.free(x.T)
        x.marked = 0
        check(cuda.cuCtxSynchronize())
    races = driver.races()
    driver.clear_races()
    assert bool(races) == (handback == "none")


@pytest.mark.simulator
def test_a_per_thread_stream_is_used_from_its_thread_and_waited_for_from_others(bench, driver, _context):
    """Its handle names it in its own thread only, so nobody else can record on it: the host waits for the context."""
    x = bench()
    block = x.alloc(x.S)
    done = []

    def work():
        check(cuda.cuCtxSetCurrent(_context))
        mine = x.runtime.register_stream(2)
        with use(mine, write=block):
            x.kernels.fill(2, block.ptr, 1, 1)
        x.kernels.fill(2, block.ptr, 2, 1)              # nobody recorded this: the stream is opaque
        done.append(mine)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    x.use(x.T, (block, READ_WRITE))
    assert not driver.races()
    other = x.runtime.allocate(64, x.S)
    own = x.runtime.register_stream(2)
    assert own != done[0]
    with use(own, read_write=other):
        x.kernels.fill(2, other.ptr, 1, 1)
    x.use(x.T, (other, READ_WRITE))
    block.free()
    other.free()


@pytest.mark.simulator
def test_a_block_of_another_threads_default_stream_is_freed_elsewhere(bench, driver, _context):
    x = bench()
    blocks = []

    def work():
        check(cuda.cuCtxSetCurrent(_context))
        blocks.append(x.runtime.allocate(512, 2))
        x.kernels.fill(2, blocks[0].ptr, 1, 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    blocks.pop().free()
    assert not driver.races()
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0


# ---------------------------------------------------------------------------------------- streams that die
def foreign(x: Bench):
    owner = Foreign()
    return owner, x.runtime.register_stream(owner)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_h8_last_fence_covers_the_fill(bench, driver, dropped):
    """S is unregistered after a fill; an older fence already has S's newest position."""
    x = bench()
    owner, S = foreign(x)
    b, other = x.alloc(S), x.alloc(S)
    x.use(x.T, (other, READ))
    fill = x.work(S, (b, WRITE))
    if dropped:
        driver.drop("cuEventRecord")                    # the twin: the last fence is not recorded
    x.runtime.unregister_stream(S, heir=x.V)
    owner.destroy()
    x.use(x.T, (b, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert x.ordered(fill, x.T) == (not dropped)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.contract(47)
def test_h9_free_on_the_heir_remembers_stream_order(bench, driver, dropped):
    """T wrote b, so S's entry is gone; then S is used again, ordered by its author; S dies and b is freed on V."""
    x = bench()
    owner, S = foreign(x)
    b = x.alloc(S)
    x.use(x.T, (b, WRITE))
    own_event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own_event, x.T.handle))
    check(cuda.cuStreamWaitEvent(S.handle, own_event, 0))
    late = x.work(S)
    x.runtime.unregister_stream(S, heir=x.V)
    owner.destroy()
    if dropped:
        driver.drop("cuStreamWaitEvent", 2)
        driver.drop("cuStreamWaitEvent", 1)
    b.free()
    driver.clear_races()
    assert x.ordered(late, x.V) == (not dropped)
    assert b.state is BlockState.FREED
    check(cuda.cuEventDestroy(own_event))


@pytest.mark.simulator
def test_h10_unregister_with_an_open_window(bench):
    x = bench()
    _owner, T = foreign(x)
    b = x.alloc(x.S)
    window = x.prepare(T, (b, READ))
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtime.unregister_stream(T, heir=x.V)
    op = x.work(T, (b, READ))
    window.commit()
    x.runtime.unregister_stream(T)
    b.free()
    assert x.ordered(op, x.S)


@pytest.mark.simulator
def test_h12_event_moves_to_another_stream_before_the_wait(bench, driver):
    """A fence of S is chosen for a wait; before the wait S dies, and its events are used elsewhere.  The pinned one
    is not."""
    x = bench(policy="lazy")
    owner, S = foreign(x)
    b, c = x.alloc(S), x.alloc(x.U)
    write = x.use(S, (b, WRITE))
    x.use(x.T, (b, READ))                               # a fence covers the write now, and b is not fresh any more

    def meanwhile():
        x.runtime.unregister_stream(S, heir=x.U)
        for _ in range(12):
            x.use(x.U, (c, READ_WRITE))
            x.use(x.T, (c, READ_WRITE))

    driver.on_call("cuStreamWaitEvent", meanwhile)
    x.use(x.V, (b, READ))
    assert x.ordered(write, x.V)
    del owner


@pytest.mark.simulator
def test_h18_two_threads_unregister_each_other(bench, driver):
    x = bench()
    (a, S), (b, T) = foreign(x), foreign(x)
    refused = []

    def crosswise():
        try:
            x.runtime.unregister_stream(T, heir=S)
        except StreamMisuseError as error:
            refused.append(str(error))

    driver.on_call("cuEventRecord", crosswise)
    try:
        x.runtime.unregister_stream(S, heir=T)
    except StreamMisuseError as error:
        refused.append(str(error))
    assert len(refused) == 1
    assert S.registered != T.registered
    del a, b


@pytest.mark.simulator
def test_a_stream_cannot_die_while_a_fence_is_recorded_on_it(bench, driver):
    x = bench()
    owner, S = foreign(x)
    b = x.alloc(S)
    refused = []

    def unregister():
        with pytest.raises(StreamMisuseError, match="in use") as error:
            x.runtime.unregister_stream(S, heir=x.U)
        refused.append(error)

    driver.on_call("cuEventRecord", unregister)
    x.use(x.T, (b, READ))
    assert len(refused) == 1
    del owner


@pytest.mark.simulator
def test_a_use_while_the_last_fence_is_recorded_keeps_the_stream(bench, driver):
    """The fence does not cover the use, so it cannot be the last."""
    x = bench()
    owner, S = foreign(x)
    b = x.alloc(x.U)
    late = []
    driver.on_call("cuEventRecord", lambda: late.append(x.use(S, (b, WRITE))), when="after")
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtime.unregister_stream(S, heir=x.V)
    assert S.registered
    x.use(x.T, (b, READ))
    assert x.ordered(late[0], x.T)
    x.runtime.unregister_stream(S, heir=x.V)
    del owner


@pytest.mark.simulator
def test_the_last_fence_is_kept_until_it_is_complete(bench, driver):
    """A reap that only looks finds work that a dead stream has not done yet."""
    x = bench()
    owner, S = foreign(x)
    b = x.alloc(x.U)
    driver.set_policy("min")
    write = x.use(S, (b, WRITE))
    x.runtime.unregister_stream(S, heir=x.V)
    owner.destroy()
    x.runtime.reap_pending(blocking=False)
    assert driver.pending_operations() > 0
    x.use(x.T, (b, READ))
    assert x.ordered(write, x.T)


@pytest.mark.simulator
@pytest.mark.contract(47)
def test_refused_unregistrations(bench, driver):
    x = bench()
    owner, S = foreign(x)
    block = x.alloc(S)
    with pytest.raises(StreamMisuseError, match="pool's own"):
        x.runtime.unregister_stream(x.T)
    with pytest.raises(StreamMisuseError, match="unregistered"):
        x.runtime.unregister_stream(S, heir=S)
    driver.fail("cuEventRecord", code=999)
    with pytest.raises(Exception, match="cuEventRecord"):
        x.runtime.unregister_stream(S)
    assert S.registered
    check(cuda.cuStreamBeginCapture(S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        x.runtime.unregister_stream(S)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(S.handle))))
    x.runtime.unregister_stream(owner)
    assert not S.registered
    for dead in (lambda: x.runtime.allocate(64, S), lambda: block.free(S), lambda: x.runtime.unregister_stream(S)):
        with pytest.raises(StreamMisuseError, match=r"unregistered|not registered"):
            dead()
    assert x.runtime.register_stream(owner) != S


@pytest.mark.simulator
def test_another_discipline_is_the_same_registration(bench, driver):
    x = bench()
    owner, S = foreign(x)
    b = x.alloc(S)
    fill = x.work(S, (b, WRITE))
    assert x.runtime.register_stream(owner, discipline="opaque") == S
    assert S.registered
    assert S.discipline == "opaque"
    assert x.runtime.register_stream(owner) == x.runtime.register_stream(S, discipline="opaque") == S
    x.use(x.T, (b, READ))
    assert x.ordered(fill, x.T)
    with x.recorder(S, (b, READ)), pytest.raises(StreamMisuseError, match="in use while changing its discipline"):
        x.runtime.register_stream(owner, discipline="sealed")
    b.free()
    for what in (owner, S):
        with pytest.raises(ValueError, match="discipline"):
            x.runtime.register_stream(what, discipline="careless")
    for own in (x.T, x.T.handle):
        with pytest.raises(StreamMisuseError, match="keep their discipline"):
            x.runtime.register_stream(own, discipline="opaque")
    x.runtime.unregister_stream(S)
    with pytest.raises(StreamMisuseError, match="unregistered while changing its discipline"):
        x.runtime.register_stream(S, discipline="sealed")


def covered_so_far(x, stream):
    """There is a fence for what was filed there; what is queued later needs another one."""
    block = x.alloc(stream)
    x.use(x.V, (block, READ))
    block.free()


DISCIPLINES = ("ordinary", "opaque", "sealed")


@pytest.mark.simulator
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("last", [READ, WRITE])
@pytest.mark.parametrize("first", ["allocated", "written", "read", "elsewhere", "replaced"])
def test_what_a_discipline_allowed_is_waited_for_under_another(bench, first, last, registered):
    """Whatever disciplines the stream has one after the other: the work that each of them hides comes before T's."""
    x = bench()
    for chain in itertools.product(DISCIPLINES, repeat=4):
        owner, S = foreign(x)
        block = x.alloc(x.T if first == "elsewhere" else S)
        if first in ("written", "read"):
            x.use(S, (block, WRITE if first == "written" else READ))
        elif first == "replaced":                       # by a writer: S, where it will be freed, has no entry
            x.use(x.U, (block, WRITE))
            check(cuda.cuStreamSynchronize(x.U.handle))
        hidden = []
        for turn, discipline in enumerate(chain):
            x.runtime.register_stream(owner, discipline=discipline)
            covered_so_far(x, S)
            if first == "elsewhere" and turn == 0:
                x.use(S, (block, READ))
            if discipline == "opaque" or (discipline == "ordinary" and first not in ("elsewhere", "replaced")):
                hidden.append(x.work(S, (block, WRITE)))
            elif turn:
                x.use(S, (block, READ))                 # what is filed here replaces no older entry that hides work
        if not registered:
            x.runtime.unregister_stream(owner)
        x.use(x.T, (block, last))
        for operation in hidden:
            assert x.ordered(operation, x.T), chain
        block.free()


@pytest.mark.simulator
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(DISCIPLINES, 2)))
def test_a_discipline_that_changes_inside_a_window(bench, before, after):
    """A writer removes the entries that it was ordered after, and not what was hidden behind them meanwhile."""
    x = bench()
    owner, S = foreign(x)
    x.runtime.register_stream(owner, discipline=before)
    block = x.alloc(x.U)
    x.use(S, (block, WRITE))
    covered_so_far(x, S)
    with x.recorder(x.T, (block, WRITE)):
        hidden = [x.work(S, (block, READ))] if before == "opaque" else []
        x.runtime.register_stream(owner, discipline=after)
    hidden += [x.work(S, (block, READ))] if after == "opaque" else []
    x.use(x.U, (block, WRITE))
    assert all(x.ordered(operation, x.U) for operation in hidden)
    check(cuda.cuCtxSynchronize())
    x.driver.clear_races()                              # of hidden readers and T's writer, which is theirs to order


@pytest.mark.simulator
def test_an_opaque_heir_may_hide_work_as_on_what_was_allocated_there(bench):
    x = bench(opaque="S")
    owner, former = foreign(x)
    block = x.alloc(former)
    x.use(x.T, (block, WRITE))
    x.runtime.unregister_stream(owner, heir=x.S)
    x.use(x.T, (block, WRITE))                          # with a hand-back to the heir
    late = x.work(x.S, (block, WRITE))
    x.use(x.T, (block, WRITE))
    assert x.ordered(late, x.T)
    block.free()


@pytest.mark.simulator
@pytest.mark.parametrize("how", ["use", "free", "drop"])
@pytest.mark.parametrize("policy", ["adaptive", "precise", "lazy"])
def test_a_raw_stream_that_changed_its_discipline_may_be_destroyed(bench, policy, how):
    """As before: what was filed there is covered by a fence that is there."""
    x = bench(policy=policy)
    stream = check(cuda.cuStreamCreate(NON_BLOCKING))
    S = x.runtime.register_stream(int(stream))
    block = x.alloc(x.T)
    wrote = x.use(S, (block, WRITE))
    x.runtime.register_stream(int(stream), discipline="sealed")
    check(cuda.cuStreamDestroy(stream))
    if how == "use":
        x.use(x.T, (block, READ))
        block.free()
    elif how == "free":
        block.free()
    else:
        del block
        x.runtime.reap_pending()
    assert x.ordered(wrote, x.T)
    x.runtime.reap_pending()


@pytest.mark.simulator
def test_a_sealed_free_hands_over_what_was_hidden_before(bench):
    """Into a pool, which gives the bytes to another stream: its own entries are not enough for what came before."""
    x = bench(resource=PoolMemoryResource(maximum_pool_size=1024))
    owner, S = foreign(x)
    block = x.alloc(S)
    covered_so_far(x, S)
    x.alloc(x.V).free()                                 # the other half of the pool is V's, which is not done with it
    fill = x.work(S, (block, WRITE))
    x.runtime.register_stream(owner, discipline="sealed")
    block.free()
    again = x.alloc(x.T)
    assert x.ordered(fill, x.T)
    again.free()


@pytest.mark.simulator
def test_a_stream_of_many_disciplines_keeps_one_place(bench):
    x = bench()
    owner, _S = foreign(x)
    block = x.alloc(x.S)
    places = x.runtime.stream_count()
    for turn in range(300):
        x.use(x.runtime.register_stream(owner, discipline=DISCIPLINES[turn % 3]), (block, READ))
    assert x.runtime.stream_count() == places
    assert len(block.frontier) == 3
    block.free()


class Named:
    """Names somebody's stream, as Numba's ``external_stream`` does, and does not keep it alive."""

    external = True

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def synchronize(self) -> None: ...


ExternalStream = type("ExternalStream", (Named,), {"external": None})   # CuPy's and PyTorch's class is called that


@pytest.mark.simulator
@pytest.mark.parametrize("kind", [Named, ExternalStream, int])
def test_an_object_that_only_names_a_stream_keeps_none_alive(bench, driver, kind):
    """The registry's sweep asks streams that only it holds; these may be destroyed, and asking would crash."""
    x = bench()
    block = x.alloc(x.S)
    streams = [check(cuda.cuStreamCreate(NON_BLOCKING)) for _ in range(40)]
    for stream in streams[:20]:
        x.use(x.runtime.register_stream(kind(int(stream))), (block, READ))
    for stream in streams[:20]:
        check(cuda.cuStreamDestroy(stream))
    for stream in streams[20:]:
        x.use(x.runtime.register_stream(kind(int(stream))), (block, READ))
    x.use(x.T, (block, WRITE))                          # by fences that are there
    for stream in streams[20:]:
        check(cuda.cuStreamDestroy(stream))
    block.free()
    x.runtime.reap_pending()
    assert driver.races() == []


@pytest.mark.simulator
def test_dead_streams_give_their_places_back(bench, driver):
    """A thousand short-lived streams, each used: the tables do not grow, old positions keep their meaning."""
    x = bench()
    b = x.alloc(x.S)
    for turn in range(1000):
        owner = Foreign()
        T = x.runtime.register_stream(owner)
        with use(T, read_write=b):
            x.kernels.add(T.handle, b.ptr, 1, 1)
        x.runtime.unregister_stream(T)
        owner.destroy()
        del T
        if turn % 10 == 9:
            x.runtime.reap_pending()
    assert not driver.races()
    x.use(x.V, (b, READ_WRITE))
    assert not driver.races()
    assert x.runtime.stream_count() < 40


@pytest.mark.simulator
@pytest.mark.parametrize("foreign_streams", [1, 4])
def test_random_lives_of_streams(bench, driver, foreign_streams):
    """Register, use, unregister and destroy in random order: no race, whatever the order."""
    import random

    x = bench()
    rng = random.Random(foreign_streams)
    owners, blocks = [], []
    for _ in range(1500):
        if len(owners) < foreign_streams:
            owners.append(Foreign())
        streams = [x.S, x.T, *owners]
        action = rng.randrange(6)
        if action == 0:
            blocks.append(x.runtime.allocate(256, rng.choice(streams)))
        elif action in (1, 2, 3) and blocks:
            stream, block = rng.choice(streams), rng.choice(blocks)
            handle = x.runtime.register_stream(stream).handle
            write = rng.random() < 0.5
            with use(stream, **{"read_write" if write else "read": block}):
                if write:
                    x.kernels.add(handle, block.ptr, 1, 1)
                else:
                    x.kernels.count_unequal(handle, x.next_word(), block.ptr, 0, 1)
        elif action == 4 and blocks:
            blocks.pop(rng.randrange(len(blocks))).free()
        elif action == 5:
            owner = owners.pop(rng.randrange(len(owners)))
            x.runtime.register_stream(owner)
            x.runtime.unregister_stream(owner, heir=rng.choice([x.S, x.T]))
            owner.destroy()
    assert not driver.races()
    block = None
    blocks.clear()
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0


# ---------------------------------------------------------------------------------------- what a stress run found
def test_default_streams_of_ended_threads_are_let_go():
    runtime = DeviceRuntime()

    def work():
        runtime.allocate(256, 2).free()

    for _ in range(200):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    runtime.reap_pending()
    assert runtime.stream_count() < 80


@pytest.mark.simulator
def test_raw_handles_are_not_touched_by_the_sweep(driver):
    """They may be destroyed, and on a GPU the driver crashes when it is asked about a destroyed stream."""
    runtime = DeviceRuntime()
    owners = [Foreign() for _ in range(40)]
    for owner in owners[:-1]:
        runtime.register_stream(owner.handle)
    for owner in owners[:-1]:
        owner.destroy()
    before = driver.calls("cuStreamIsCapturing")
    runtime.register_stream(owners[-1])
    assert driver.calls("cuStreamIsCapturing") - before == 1


@pytest.mark.simulator
def test_an_opaque_stream_stays_opaque(bench, driver):
    x = bench()
    opaque = Foreign()
    x.runtime.register_stream(opaque.handle, discipline="opaque")
    others = [Foreign() for _ in range(80)]
    for other in others:
        x.runtime.register_stream(other)
    assert x.runtime.register_stream(opaque.handle).discipline == "opaque"


@pytest.mark.simulator
def test_a_dropped_recorder_does_not_keep_its_stream_in_use():
    runtime = DeviceRuntime()
    block, owner = runtime.allocate(256), Foreign()
    recorder = use(owner, read=block)
    recorder.preflight()
    with pytest.warns(ResourceWarning):
        del recorder
    runtime.unregister_stream(owner)


@pytest.mark.simulator
def test_a_failed_look_is_told_and_the_stream_stays(driver):
    runtime = DeviceRuntime()
    owner = Foreign()
    stream = runtime.register_stream(owner)
    driver.fail("cuStreamGetId", code=999)
    with pytest.raises(DriverError, match="cuStreamGetId"):
        runtime.unregister_stream(owner)
    assert stream.registered
    assert driver.calls("cuCtxSynchronize") == 0
    with pytest.raises(StreamMisuseError, match="not registered"):
        runtime.unregister_stream(Foreign())


@pytest.mark.simulator
def test_a_capture_is_not_spoiled_by_waiting_for_everything(bench, driver, _context):
    """cuCtxSynchronize fails during a capture and spoils it, on a GPU in relaxed mode too: it is refused."""
    x = bench()
    first = Foreign()
    handle = first.handle
    x.runtime.register_stream(handle)
    first.destroy()
    second = Foreign()
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        x.runtime.register_stream(second.handle)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert x.runtime.register_stream(second.handle).registered
