"""Several threads on one runtime: nothing is lost, nothing blocks for ever."""
from __future__ import annotations

import contextlib
import gc
import logging
import queue
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator

import pytest
from bench import WRITE, Bench
from conftest import SIMULATED
from cuda.bindings import driver as cuda
from stress import PATIENCE, held_up, together, words_at

from xlogmem import (
    AsyncMemoryResource,
    BlockingStreamWarning,
    BlockState,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    LaunchRecorder,
    PoolMemoryResource,
    Stream,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    _driver,
    sim,
    use,
)
from xlogmem._dtypes import DTYPES
from xlogmem._kernels import Kernels, check
from xlogmem.buffers import mint

THREADS = 8
MANY = 16


@pytest.fixture
def _quiet():
    """Recorders are dropped on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def nothing_lost(runtime: DeviceRuntime, allocations: int | None = None) -> None:
    """The books at the end, when the threads and all their handles are gone."""
    gc.collect()
    runtime.reap_pending()
    counters = runtime.counters()
    assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (0, 0, 0)
    assert counters["live_blocks"] == 0
    assert counters["allocations"] == counters["frees"] > 0
    assert allocations in (None, counters["allocations"])


@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(16)
def test_allocate_use_and_free_from_many_threads(policy, _context):
    runtime = DeviceRuntime(policy=policy, stream_pool=StreamPool(max_streams=THREADS))
    streams = [runtime.acquire_stream() for _ in range(THREADS)]
    kernels = Kernels()
    shared = runtime.allocate(4 * THREADS, streams[0])
    with use(streams[0], write=shared):
        kernels.fill(streams[0].handle, shared.ptr, 0, THREADS)

    def work(number):
        check(cuda.cuCtxSetCurrent(_context))
        own, other = streams[number], streams[(number + 1) % THREADS]
        for turn in range(60):
            block = runtime.allocate(256, own)
            with use(own, write=block):
                kernels.fill(own.handle, block.ptr, turn, 64)
            with use(other, read=block, read_write=shared):
                kernels.add(other.handle, shared.ptr + 4 * number, 1, 1)
                kernels.count_unequal(other.handle, shared.ptr + 4 * number, block.ptr, turn, 64)
            if turn % 3 == 0:
                block.free()
            elif turn % 3 == 1:
                block.free(other)
            if turn % 10 == 0:
                runtime.reap_pending(blocking=turn % 20 == 0)
            del block

    together(work, THREADS)
    seen = bytearray(4 * THREADS)
    with use(streams[0], read=shared):
        check(cuda.cuMemcpyDtoHAsync(seen, shared.ptr, len(seen), streams[0].handle))
    check(cuda.cuStreamSynchronize(streams[0].handle))
    assert [int.from_bytes(seen[4 * i:4 * i + 4], "little") for i in range(THREADS)] == [60] * THREADS
    shared.free()
    runtime.reap_pending()
    counters = runtime.counters()
    assert runtime.bytes_outstanding == 0
    assert counters["allocations"] == counters["frees"] == 60 * THREADS + 1
    assert counters["uses"] == 120 * THREADS + 2
    kernels.close()


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(54)
def test_accounting_never_loses_a_byte_in_between():
    """A reader never sees bytes in neither live nor pending while they move (W27)."""
    runtime = DeviceRuntime()
    stop = threading.Event()
    kept = runtime.allocate(1000)
    least = []

    def watch():
        while not stop.is_set():
            least.append(runtime.bytes_outstanding)

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = 0
    while done < 300 or len(least) < 300:           # whenever it is that the watcher is scheduled
        runtime.allocate(64).free()
        done += 1
    stop.set()
    watcher.join()
    assert min(least) >= 1000
    runtime.reap_pending()
    assert runtime.bytes_outstanding == kept.nbytes


@pytest.mark.usefixtures("_busy_interpreter")
def test_a_block_is_freed_once_whoever_frees_it():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    for _ in range(40):
        block = runtime.allocate(64, stream)
        recorder = LaunchRecorder(stream).read(block)
        recorder.preflight()

        def free(number, block=block, recorder=recorder):
            if number == 0:
                recorder.commit()
                return 0
            try:
                block.free()
            except Exception as error:
                assert "use-after-free" in str(error)
                return 0
            return 1

        assert sum(together(free, 4)) == 1
    counters = runtime.counters()
    assert counters["allocations"] == counters["frees"] == 40


# ---------------------------------------------------------------------------------------- everything at once
@pytest.mark.usefixtures("_busy_interpreter", "_quiet")
@pytest.mark.contract(16, 54)
@pytest.mark.parametrize(("policy", "resource", "turns"), [
    ("adaptive", AsyncMemoryResource, 300), ("precise", AsyncMemoryResource, 300), ("lazy", AsyncMemoryResource, 300),
    ("adaptive", DirectMemoryResource, 60)])                # whose frees wait for the device
def test_sixteen_threads_mix_everything(policy, resource, turns, kernels, _context):
    """Blocks on a board that all threads reach: whoever comes by reads one, frees it, drops it or puts a new one.  All
    add to one hot word, as far as nobody else is at it."""
    if SIMULATED:
        sim.simulator().reset("seeded", seed=16)
    runtime = DeviceRuntime(policy=policy, resource=resource(), stream_pool=StreamPool(max_streams=128))
    streams = [runtime.acquire_stream() for _ in range(MANY)]
    board: list[tuple[DeviceBlock, int] | None] = [None] * 24
    hot = runtime.allocate(4, streams[0])
    wrong = [runtime.allocate(4, stream) for stream in streams]
    for block in (hot, *wrong):
        kernels.fill(block.stream.handle, block.ptr, 0, 1)

    def put(draw: random.Random, stream: Stream) -> tuple[DeviceBlock, int]:
        block, value = runtime.allocate(4 * draw.randint(1, 200), stream), draw.randrange(1000)
        if draw.random() < 0.5:
            kernels.fill(stream.handle, block.ptr, value, block.nbytes // 4)    # new memory: nobody is told
        else:
            other = draw.choice(streams)
            with use(other, write=block):
                kernels.fill(other.handle, block.ptr, value, block.nbytes // 4)
        return block, value

    def read(number: int, stream: Stream, block: DeviceBlock, value: int) -> None:
        with use(stream, read=block, read_write=wrong[number]):
            kernels.count_unequal(stream.handle, wrong[number].ptr, block.ptr, value, block.nbytes // 4)

    def leave_a_window_open(draw: random.Random, stream: Stream, block: DeviceBlock) -> None:
        recorder = LaunchRecorder(stream).read(block)
        recorder.preflight()
        if draw.random() < 0.5:
            cycle = [recorder, block]
            cycle.append(cycle)

    def work(number: int) -> tuple[int, int]:
        check(cuda.cuCtxSetCurrent(_context))
        draw = random.Random(f"mix {number}")
        allocated = added = 0
        for turn in range(turns):
            stream, place = draw.choice(streams), draw.randrange(len(board))
            found = board[place]
            action = draw.randrange(12)
            if action < 4 or found is None:
                board[place] = put(draw, runtime.acquire_stream() if action == 0 else stream)
                allocated += 1
                continue
            block, value = found
            with contextlib.suppress(UseAfterFreeError):            # somebody else was quicker
                if action < 7:
                    read(number, stream, block, value)
                elif action == 7:
                    block.free(draw.choice((None, stream)))
                elif action == 8:
                    board[place] = None
                elif action == 9:
                    leave_a_window_open(draw, stream, block)
                elif action == 10:
                    runtime.record_block_use(block, stream)
                else:
                    with use(stream, read=block.id) as recorder:
                        recorder.cancel()
            del block, found
            if turn % 8 == 0:
                runtime.reap_pending(blocking=turn % 16 == 0)
            with contextlib.suppress(StreamMisuseError), use(stream, read_write=hot, on_conflict="raise"):
                kernels.add(stream.handle, hot.ptr, 1, 1)
                added += 1
        return allocated, added

    done = together(work, MANY)
    with use(streams[0], read=[hot, *wrong]):
        assert words_at(hot.ptr, 1, streams[0]) == [sum(added for _, added in done)]
        assert [words_at(block.ptr, 1, streams[0]) for block in wrong] == [[0]] * MANY
    board.clear()
    for block in (hot, *wrong):
        block.free()
    nothing_lost(runtime, 1 + MANY + sum(allocated for allocated, _ in done))
    assert runtime.counters()["abandoned"] > 0


@pytest.mark.usefixtures("_busy_interpreter", "_quiet")
def test_what_one_thread_made_is_dropped_in_another(kernels, _context):
    """Blocks, recorders with open windows, streams, alone and in cycles: finalizers run in threads that never used the
    runtime, and wherever the collector happens to run."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=200))
    streams = [runtime.acquire_stream() for _ in range(4)]
    handed: queue.SimpleQueue[object] = queue.SimpleQueue()
    made = 40

    def make(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        for turn in range(made):
            stream = runtime.acquire_stream() if turn % 4 == 0 else streams[number]
            block = runtime.allocate(256, stream)
            other = streams[(number + 1) % 4]
            recorder = LaunchRecorder(other).write(block)
            recorder.preflight()
            kernels.fill(other.handle, block.ptr, turn, 64)
            thing = [block, recorder, stream]
            if turn % 2:
                thing.append(thing)
            handed.put(thing)
            del thing, block, recorder, stream
        handed.put(None)

    def drop() -> None:
        while handed.get(timeout=PATIENCE) is not None:
            pass

    together(lambda number: make(number) if number < 4 else drop(), 8)
    nothing_lost(runtime, 4 * made)
    assert runtime.counters()["abandoned"] == runtime.counters()["uses"] == 4 * made
    assert len(runtime.stream_pool) == 4


@pytest.mark.usefixtures("_busy_interpreter")
def test_runtimes_come_and_go_in_threads(kernels, _context):
    """Made, used and dropped at once by many; what is left of one is dropped in another thread, after the runtime."""
    handed: queue.SimpleQueue[object] = queue.SimpleQueue()
    seen = []

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        for turn in range(12):
            runtime = DeviceRuntime(policy=("lazy", "precise", "adaptive")[turn % 3])
            seen.append(weakref.ref(runtime))
            S, T = runtime.acquire_stream(), runtime.acquire_stream()
            blocks = [runtime.allocate(256, S) for _ in range(3)]
            with use(T, write=blocks):
                kernels.fill(T.handle, blocks[turn % 3].ptr, turn, 64)
            handed.put([blocks.pop(), S])
            blocks.pop().free()
            del runtime, S, T, blocks
            handed.get(timeout=PATIENCE)

    together(work, THREADS)
    gc.collect()
    assert len(seen) == 12 * THREADS
    assert not any(runtime() for runtime in seen)


# ---------------------------------------------------------------------------------------- whom the runtime calls
class Caller:
    """Uses the runtime in whatever it is called from; not again in what that calls in turn."""

    def __init__(self, runtime: DeviceRuntime, stream: Stream) -> None:
        self.runtime, self.stream = runtime, stream
        self.inside = threading.local()
        self.calls = 0

    def __call__(self) -> None:
        if getattr(self.inside, "now", False):
            return
        self.inside.now = True
        try:
            kept = self.runtime.allocate(128, self.stream)
            with use(self.stream, write=kept):
                pass
            self.runtime.allocate(64, self.stream).free()
            assert self.runtime.find_block(kept.ptr + 5) == kept.id
            assert self.runtime.bytes_outstanding >= kept.nbytes
            self.runtime.reap_pending(blocking=self.calls % 2 == 0)
            self.calls += 1
        finally:
            self.inside.now = False


class Owner:
    """Somebody's memory, whose finalizer uses the runtime that tracked it."""

    def __init__(self, call: Callable[[], None], gone: list[int], number: int) -> None:
        self.call, self.gone, self.number = call, gone, number

    def __del__(self) -> None:
        self.call()
        self.gone.append(self.number)


@pytest.mark.usefixtures("_busy_interpreter")
def test_owners_of_adopted_memory_use_the_runtime_when_they_go(kernels, _context):
    """Every owner goes exactly once, in whichever thread and call lets it go, and may do anything there."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=THREADS + 1))
    streams = [runtime.acquire_stream() for _ in range(THREADS + 1)]
    call = Caller(runtime, streams[-1])
    arena = int(check(cuda.cuMemAlloc(256 * 30 * THREADS)))
    gone: list[int] = []
    board: list[DeviceBlock | None] = [None] * 10

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        draw = random.Random(f"owners {number}")
        for turn in range(30):
            own, other = streams[number], draw.choice(streams)
            name = 30 * number + turn
            block = runtime.adopt(arena + 256 * name, 256, own if turn % 3 else None, owner=Owner(call, gone, name))
            with use(other, write=block):
                kernels.fill(other.handle, block.ptr, turn, 64)
            if turn % 2:
                block.free()
            else:
                board[draw.randrange(len(board))] = block           # drops another thread's
            del block

    together(work, THREADS)
    board.clear()
    runtime.reap_pending()
    assert sorted(gone) == list(range(30 * THREADS))
    assert call.calls > 0
    nothing_lost(runtime)
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(arena))


class Social(DeviceMemoryResource):
    """Passes everything on, and uses the runtime above it while it does."""

    call: Callable[[], None] | None = None
    last_words: list[int]

    def __init__(self, inner: DeviceMemoryResource) -> None:
        super().__init__()
        self.inner = inner

    def allocate(self, nbytes, stream):
        ptr = self.inner.allocate(nbytes, stream)
        if self.call:
            self.call()
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        if self.call:
            self.call()
        self.inner.deallocate(ptr, nbytes, stream)

    def __del__(self):
        if self.call:
            call, self.call = self.call, None
            call()
            call.runtime.reap_pending()                 # what it dropped may come too late for the runtime's own end
            self.last_words.append(call.calls)


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.parametrize(("order", "turns"), [("stream", 20), ("host", 6)])
def test_resources_in_python_use_the_runtime_above_them(order, turns, kernels, _context):
    """From allocate and deallocate in many threads, and from the finalizer, which the collector calls while both are
    still whole."""
    class Ordered(Social):
        pass

    Ordered.order = order
    last_words = Ordered.last_words = []

    def run() -> tuple[weakref.ref[DeviceRuntime], int]:
        resource = Ordered(AsyncMemoryResource() if order == "stream" else DirectMemoryResource())
        runtime = DeviceRuntime(resource=resource, stream_pool=StreamPool(max_streams=THREADS + 1))
        streams = [runtime.acquire_stream() for _ in range(THREADS + 1)]
        call = resource.call = Caller(runtime, streams[-1])

        def work(number: int) -> None:
            check(cuda.cuCtxSetCurrent(_context))
            for turn in range(turns):
                own, other = streams[number], streams[number - 1]
                block = runtime.allocate(256, own)
                with use(other, write=block):
                    kernels.fill(other.handle, block.ptr, turn, 64)
                if turn % 2:
                    block.free()
                del block

        together(work, THREADS)
        resource.call = None                            # what it drops itself would be freed by the next call only
        nothing_lost(runtime)
        resource.call = call
        return weakref.ref(runtime), call.calls

    gone, calls = run()
    gc.collect()
    assert gone() is None
    assert calls >= turns * THREADS
    assert last_words == [calls + 1]


def test_a_resource_that_refers_to_its_runtime_gets_back_what_was_dropped():
    """The two are a cycle: the collector empties the resource before the runtime's own end."""
    returned = []

    class Mine(Social):
        order = "stream"

        def deallocate(self, ptr, nbytes, stream):
            super().deallocate(ptr, nbytes, stream)
            returned.append(nbytes)

    resource = Mine(AsyncMemoryResource())
    resource.runtime = runtime = DeviceRuntime(resource=resource)
    block = runtime.allocate(64)
    gone = weakref.ref(runtime)
    del block, runtime, resource
    gc.collect()
    assert gone() is None
    assert returned == [64]


@contextlib.contextmanager
def told(sink: str, call: Callable[[], None]) -> Iterator[list[type[Warning]]]:
    """Warnings go to a hook, or to a log, that uses the runtime."""
    seen: list[type[Warning]] = []

    def hook(message, category, filename, lineno, file=None, line=None):
        seen.append(category)
        call()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(ResourceWarning if "ResourceWarning" in record.getMessage() else BlockingStreamWarning)
            call()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        if sink == "hook":
            warnings.showwarning = hook
            yield seen
            return
        handler = Handler()
        logging.captureWarnings(True)
        logging.getLogger("py.warnings").addHandler(handler)
        try:
            yield seen
        finally:
            logging.captureWarnings(False)
            logging.getLogger("py.warnings").removeHandler(handler)


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(107)
@pytest.mark.parametrize("sink", ["hook", "logging"])
def test_those_who_are_warned_may_use_the_runtime(sink, kernels, _context):
    """A dropped recorder warns from a finalizer, a blocking stream while it is registered."""
    runtime = DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(5)]
    blocking = [int(check(cuda.cuStreamCreate(0))) for _ in range(4)]
    own = Caller(runtime, streams[-1])

    def call() -> None:
        own()
        runtime.allocate(32, blocking[0]).free()        # which is registered by then, or warns itself

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        runtime.register_stream(blocking[number])
        for turn in range(25):
            block = runtime.allocate(256, streams[number])
            recorder = use(streams[number - 1], write=block)
            recorder.preflight()
            kernels.fill(streams[number - 1].handle, block.ptr, turn, 64)
            del recorder, block

    with told(sink, call) as seen:
        together(work, 4)
    assert seen.count(ResourceWarning) == 100
    assert seen.count(BlockingStreamWarning) >= 4
    assert own.calls > 0
    nothing_lost(runtime)
    assert runtime.counters()["abandoned"] == 100
    for stream in blocking:
        runtime.unregister_stream(stream)
        check(cuda.cuStreamDestroy(stream))
    runtime.reap_pending()


# ---------------------------------------------------------------------------------------- calls that do not return
def go_on(runtime: DeviceRuntime, kernels: Kernels, context: object, *streams: Stream, reap: bool = True) -> None:
    """What four threads do on two streams while a fifth does not return from the driver."""
    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(context))
        own, other = streams[number % 2], streams[1 - number % 2]
        for turn in range(10):
            block = runtime.allocate(256, own)
            with use(own, write=block):
                kernels.fill(own.handle, block.ptr, turn, 64)
            with use(other, read=block):
                pass
            assert runtime.find_block(block.ptr) == block.id
            assert runtime.counters()["live_blocks"] > 0
            assert runtime.bytes_outstanding >= block.nbytes
            if turn % 2:
                block.free()
            del block
            if reap:
                runtime.reap_pending(blocking=False)

    together(work, 4)


def read_on(stream: Stream, block: DeviceBlock) -> None:
    with use(stream, read=block):
        pass


def see_another(runtime: DeviceRuntime) -> None:
    other = DeviceRuntime()
    stream = other.acquire_stream()
    runtime.register_stream(stream.handle)
    runtime.unregister_stream(stream.handle)


def come_and_go() -> None:
    other = DeviceRuntime()
    read_on(other.acquire_stream(), other.allocate(64))


def run_out_of_memory(x: Bench) -> None:
    x.driver.fail("cuMemAllocFromPoolAsync", code=2)
    x.alloc(x.S)


# Driver call -> what makes it, given a block that was written on S; bytes are pending on S.
CALLS: dict[str, Callable[[Bench, DeviceBlock], object]] = {
    "cuCtxGetCurrent": lambda x, block: x.alloc(x.S),
    "cuCtxPopCurrent": lambda x, block: x.alloc(x.S),
    "cuCtxPushCurrent": lambda x, block: x.alloc(x.S),
    "cuEventCreate": lambda x, block: read_on(x.T, block),
    "cuEventDestroy": lambda x, block: (come_and_go(), _driver.trim_events()),
    "cuEventQuery": lambda x, block: x.runtime.reap_pending(blocking=False),
    "cuEventRecord": lambda x, block: read_on(x.T, block),
    "cuEventSynchronize": lambda x, block: x.runtime.reap_pending(),
    "cuMemAlloc": lambda x, block: x.alloc(x.S),
    "cuMemAllocFromPoolAsync": lambda x, block: x.alloc(x.S),
    "cuMemFree": lambda x, block: block.free(),
    "cuMemFreeAsync": lambda x, block: block.free(),
    "cuMemPoolCreate": lambda x, block: come_and_go(),
    "cuMemPoolDestroy": lambda x, block: come_and_go(),
    "cuMemPoolTrimTo": lambda x, block: run_out_of_memory(x),
    "cuStreamCreateWithPriority": lambda x, block: x.runtime.acquire_stream(),
    "cuStreamDestroy": lambda x, block: come_and_go(),
    "cuStreamGetId": lambda x, block: see_another(x.runtime),
    "cuStreamIsCapturing": lambda x, block: x.alloc(x.S),
    "cuStreamWaitEvent": lambda x, block: read_on(x.T, block),
}


@contextlib.contextmanager
def meanwhile(work: Callable[[], object], ready: Callable[[], bool], end: Callable[[], object]) -> Iterator[None]:
    """A thread does the work, and is inside it until `end`."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready(), "the call did not come"
        yield
        assert thread.is_alive(), "it did not wait, or had lost patience before the others were done"
    finally:
        end()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.simulator
@pytest.mark.contract(82)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_return_stops_nobody_else(bench, driver, _context, call):
    """The driver keeps one thread: neither a lock nor the GIL is kept across the call, so others go on elsewhere."""
    _driver.trim_events()
    x = bench(resource=DirectMemoryResource() if call in ("cuMemAlloc", "cuMemFree") else None)
    blocks = [x.alloc(x.S)]
    x.work(x.S, (blocks[0], WRITE))
    x.alloc(x.S).free()
    hold = driver.hold(call)
    returned = []
    with meanwhile(lambda: CALLS[call](x, blocks[0]), hold.reached, lambda: returned.append(hold.let_go())):
        go_on(x.runtime, x.kernels, _context, x.U, x.V)
    assert returned == [True], "the others went on only after the call had lost patience"
    blocks.clear()
    nothing_lost(x.runtime)


@pytest.mark.simulator
def test_unregistering_a_stream_that_is_held_up_stops_nobody_who_names_others(bench, driver, _context):
    """By their handles, as foreign streams are; the last fence of the dying one cannot be recorded yet."""
    x = bench()
    foreign = [int(check(cuda.cuStreamCreate(1))) for _ in range(3)]
    for handle in foreign:
        x.alloc(handle).free()
    hold = driver.hold("cuEventRecord")
    returned = []
    with meanwhile(lambda: x.runtime.unregister_stream(foreign[0]), hold.reached,
                   lambda: returned.append(hold.let_go())):
        for handle in foreign[1:] * 2:
            x.runtime.register_stream(handle)
            block = x.alloc(handle)
            read_on(x.S, block)
            block.free(handle)
    assert returned == [True]
    for handle in foreign[1:]:
        x.runtime.unregister_stream(handle)
    nothing_lost(x.runtime)
    for handle in foreign:
        check(cuda.cuStreamDestroy(handle))


# What blocks while the queue of S is full, given blocks of S and T -> the driver call that does.
FULL: dict[str, tuple[str, Callable[[Bench, DeviceBlock, DeviceBlock], object]]] = {
    "a launch": ("cuLaunchKernel", lambda x, mine, other: x.use(x.S, (mine, WRITE))),
    "an allocation": ("cuMemAllocFromPoolAsync", lambda x, mine, other: x.alloc(x.S)),
    "a record": ("cuEventRecord", lambda x, mine, other: read_on(x.T, mine)),
    "a wait": ("cuStreamWaitEvent", lambda x, mine, other: read_on(x.S, other)),
    "a free": ("cuMemFreeAsync", lambda x, mine, other: mine.free()),
    "a reap": ("cuEventRecord", lambda x, mine, other: x.runtime.reap_pending()),
}


@pytest.mark.simulator
@pytest.mark.contract(82)
@pytest.mark.parametrize("what", FULL)
def test_a_full_queue_stops_who_needs_it_and_nobody_else(bench, driver, _context, what):
    """Launches fill the queue of a stream that is held up; whatever has to go there waits in the driver, really.  If
    others stand still too, the simulated driver's watchdog ends the process and shows all stacks."""
    x = bench()
    call, work = FULL[what]
    blocks = [x.alloc(x.S), x.alloc(x.T)]
    if what == "a reap":
        x.alloc(x.S).free()
    inside, opened = threading.Event(), contextlib.ExitStack()
    opened.enter_context(held_up(x.S))
    with opened:
        while driver.pending_operations() <= 1024:      # and one runs
            x.kernels.delay(x.S.handle, 1)
        driver.on_call(call, inside.set)
        with meanwhile(lambda: work(x, *blocks), lambda: inside.wait(PATIENCE), opened.close):
            # A reap would have to record on S, where bytes are pending.
            go_on(x.runtime, x.kernels, _context, x.U, x.V, reap=what != "a reap")
    blocks.clear()
    nothing_lost(x.runtime)


@pytest.mark.contract(54, 82)
def test_a_reap_waits_for_a_stream_that_is_held_up_and_stops_nobody_else(kernels, _context):
    runtime = DeviceRuntime()
    S, U, V = (runtime.acquire_stream() for _ in range(3))
    block = runtime.allocate(4096, S)
    inside, opened = threading.Event(), contextlib.ExitStack()
    opened.enter_context(held_up(S))
    with opened:
        block.free()
        if SIMULATED:
            sim.simulator().on_call("cuEventSynchronize", inside.set)
        else:
            inside.set()                                # a GPU cannot tell; it is inside before it returns
        with meanwhile(runtime.reap_pending, lambda: inside.wait(PATIENCE), opened.close):
            go_on(runtime, kernels, _context, U, V)
            assert runtime.pending_bytes >= 4096
    nothing_lost(runtime)


class Theirs:
    """A stream, and memory, of somebody else's library."""

    def __init__(self):
        self.stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.ptr = int(check(cuda.cuMemAlloc(4096)))

    def __cuda_stream__(self):
        return 0, int(self.stream)

    def __del__(self):
        check(cuda.cuMemFree(self.ptr))
        check(cuda.cuStreamDestroy(self.stream))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.filterwarnings("ignore:.* was dropped between preflight and commit:ResourceWarning")
def test_every_operation_beside_every_other(seed, pooled, _context):
    """Twelve threads share a runtime, streams and blocks, and do to them whatever a program may do.

    What is asserted here is the books; under `.ci/sanitize tsan` this is where two threads meet in the core.
    """
    count = 12
    pool = PoolMemoryResource(chunk_size=8192) if pooled else None
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=4 * count), resource=pool)
    streams = [runtime.acquire_stream(discipline=kind) for kind in ("ordinary", "opaque", "sealed", "ordinary")]
    shared = [runtime.allocate(4096, stream) for stream in streams]
    state, loans = DeviceState(runtime), []

    def work(number):
        check(cuda.cuCtxSetCurrent(_context))
        chance = random.Random(f"{seed} {number}")
        theirs = Theirs()
        calls = {"allocations": 5, "uses": 1}
        mine = state.full(64, number, "uint8")
        kept = []

        def pick():
            """A block that any thread may have freed by the time it is used."""
            return shared[chance.randrange(len(shared))]

        def launch(stream):
            with contextlib.suppress(UseAfterFreeError), use(stream, read=[pick(), pick()], write=pick()):
                calls["uses"] += 1

        def exchange():
            kept.append(runtime.allocate(256, chance.choice(streams)))
            calls["allocations"] += 1
            place = chance.randrange(len(shared))
            kept[-1], shared[place] = shared[place], kept[-1]       # the last reference may be another thread's

        def free():
            with contextlib.suppress(UseAfterFreeError):
                (kept.pop() if kept and chance.random() < 0.7 else pick()).free(chance.choice([None, *streams]))

        def lend():
            block = runtime.adopt(theirs.ptr, 4096, chance.choice([None, theirs]), owner=theirs)
            with contextlib.suppress(UseAfterFreeError):            # the block of the last time, about to be let go
                with use(chance.choice(streams), read=block):
                    calls["uses"] += 1
                if chance.random() < 0.5:
                    block.free()

        def part():
            block = pick()
            with contextlib.suppress(UseAfterFreeError, StreamMisuseError), \
                    use(chance.choice(streams), read=runtime.adopt(block.ptr, 16)):
                calls["uses"] += 1

        def unregister(stream):
            while True:
                try:
                    return runtime.unregister_stream(stream, heir=chance.choice(streams))
                except StreamMisuseError as error:                      # another thread is waiting for it right now
                    assert "is in use" in str(error)

        def leave():
            """A stream that comes and goes; another one frees what was allocated there."""
            stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
            known = runtime.register_stream(stream, discipline=chance.choice(["ordinary", "opaque"]))
            kept.append(runtime.allocate(64, known))
            calls["allocations"] += 1
            launch(known)
            unregister(stream)
            check(cuda.cuStreamDestroy(stream))

        def forget():
            """A stream that nobody unregisters: the registry sweeps it away one day."""
            launch(Theirs())

        def drop_recorder():
            recorder = LaunchRecorder(chance.choice(streams)).read_write(pick())
            with contextlib.suppress(UseAfterFreeError):
                recorder.preflight()
                calls["uses"] += 1

        def ask():
            block = pick()
            runtime.find_block(block.ptr)
            assert all(kind in ("allocated", "written", "has-read") for kind, _ in block.frontier)
            assert block.state in BlockState
            assert runtime.counters()["allocations"] >= len(streams)
            assert runtime.stream_count() > len(streams)
            assert runtime.stream_pool.stream(streams[0].id) == streams[0]

        def one_use():
            with contextlib.suppress(UseAfterFreeError):
                runtime.record_block_use(pick(), chance.choice(streams))

        def buffer():
            block = pick()
            return mint(state._standing, runtime, 0, block, (block.nbytes,), DTYPES["uint8"])

        def export():
            """The deleter may run in another thread, beside everything else."""
            with contextlib.suppress(UseAfterFreeError):
                if chance.random() < 0.3:
                    loans.append(buffer().__dlpack__(stream=-1))
                    return
                stream = chance.choice([1, theirs, *streams])
                loans.append(buffer().__dlpack__(stream=stream, max_version=chance.choice([None, (1, 0)])))
                calls["uses"] += 1

        def show():
            with contextlib.suppress(UseAfterFreeError):
                if chance.random() < 0.5:
                    loans.append(buffer().__arrow_c_device_array__())
                else:
                    assert buffer().__cuda_array_interface__["stream"]
                calls["uses"] += 1

        def give_back():
            with contextlib.suppress(IndexError):
                loans.pop(chance.randrange(len(loans) + 1))

        def copy():
            """On memory of this thread: uses that two threads queue at once are in no order."""
            if chance.random() < 0.5:
                mine.fill(chance.randrange(256), chance.choice(streams))
            else:
                assert len(set(mine.to_numpy(chance.choice(streams)))) == 1
            calls["uses"] += 1

        operations = [
            export, export, show, give_back, give_back, copy,
            lambda: launch(chance.choice(streams)), lambda: launch(theirs), lambda: launch(runtime.acquire_stream()),
            exchange, exchange, free, free, kept.clear, lend, part, leave, forget, drop_recorder, ask, one_use,
            lambda: runtime.reap_pending(blocking=chance.random() < 0.3),
        ]
        if pool is not None:
            operations += [pool.trim, runtime.memory_summary]
        for _ in range(300):
            chance.choice(operations)()
        kept.clear()
        runtime.reap_pending()
        return calls

    done = together(work, count)
    shared.clear()
    loans.clear()
    runtime.reap_pending()
    counters = runtime.counters()
    assert runtime.bytes_outstanding == counters["live_blocks"] == 0
    assert counters["allocations"] == counters["frees"] == 4 + sum(calls["allocations"] - 4 for calls in done)
    assert counters["uses"] == sum(calls["uses"] for calls in done)
