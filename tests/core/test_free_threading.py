"""Threads that meet in what the GIL guards, or a section where there is no GIL (`_base/sections.pxd`).

With a GIL these tests say that nothing is lost where threads take turns.  On a free-threaded Python they fail where
sections do nothing: build with `CXXFLAGS=-DXLOGMEM_NO_SECTIONS` and run this file.
"""
from __future__ import annotations

import contextlib
import gc
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from stress import in_its_own_process, nothing_lost, together

import xlogmem
from xlogmem import (
    DeviceRuntime,
    DeviceState,
    LaunchRecorder,
    StaleBufferError,
    StreamMisuseError,
    StreamPool,
    capture,
    scope,
    use,
)
from xlogmem._base.labels import label_count
from xlogmem._driver import ProcessLock

THREADS = 4
ROUNDS = 200
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(autouse=True)
def _often():
    """Threads take turns as often as they can."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former)


@pytest.mark.skipif(not FREE_THREADED or sys._is_gil_enabled(), reason="needs a free-threaded Python without its GIL")
def test_no_module_switches_the_gil_on():
    """A compiled module that does not say that it is safe switches the GIL on for the whole process."""
    root = Path(xlogmem.__file__).parent
    names = [".".join(("xlogmem", *path.relative_to(root).parent.parts, path.name.split(".")[0]))
             for path in root.glob("**/*.so") if b"PyInit_" in path.read_bytes()]
    names = [name for name in names if not name.startswith(("xlogmem.check.neighbours", "xlogmem.rmm"))]
    assert "xlogmem.check.sites" in names
    assert len(names) > 20
    assert in_its_own_process("import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
                              "print(sys._is_gil_enabled())", *names).split()[-1] == "False"


def test_a_tag_has_one_label():
    """Threads that give the same new tags at once intern each once."""
    runtime = DeviceRuntime()
    before = label_count()

    def work(number: int) -> None:
        for turn in range(ROUNDS):
            runtime.allocate(256, tag=f"tag {turn} of test_a_tag_has_one_label").free()

    together(work, THREADS)
    assert label_count() - before == ROUNDS
    nothing_lost(runtime, THREADS * ROUNDS)


def test_labels_are_swept_while_others_are_made():
    runtime = DeviceRuntime()

    def work(number: int) -> None:
        for turn in range(3000):
            block = runtime.allocate(256, tag=f"{number} {turn}")
            assert block.tag == f"{number} {turn}"

    together(work, THREADS)
    assert label_count() < 4 * 3000
    nothing_lost(runtime, THREADS * 3000)


def test_a_stream_pool_stays_within_its_capacity():
    pool = StreamPool(max_streams=3)
    runtime = DeviceRuntime(stream_pool=pool)
    handles: set[int] = set()

    def work(number: int) -> None:
        held = []
        for turn in range(ROUNDS):
            held.append(runtime.acquire_stream())
            handles.add(held[-1].handle)
            with contextlib.suppress(StreamMisuseError):
                assert runtime.stream_pool.stream(held[-1].id).handle in handles
            if turn % 3 == 2:
                held.clear()

    together(work, THREADS)
    gc.collect()
    assert len(handles) <= 3
    assert len(pool) == 0


def test_the_last_handles_of_a_stream_are_dropped_in_two_threads():
    """A stream returns to the pool once: else two callers have it who do not know of each other."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=64))
    for _ in range(ROUNDS):
        stream = runtime.acquire_stream()
        block = runtime.allocate(256, stream)
        handed = [[stream], [stream]]
        del stream

        def work(number: int, block=block, handed=handed) -> None:
            handed[number].clear()
            runtime.find_block(block.ptr)               # which makes handles of the stream

        together(work, 2)
        block.free()
    taken = [runtime.acquire_stream() for _ in range(8)]
    assert len({stream.id for stream in taken}) == 8
    assert len({stream.handle for stream in taken}) == 8


def release_while_others_read(state: DeviceState) -> None:
    shared = state.empty((4, 4), "float32")
    seen = []

    def work(number: int) -> None:
        if number == 0:
            shared.release()
            return
        for _ in range(5):
            with contextlib.suppress(StaleBufferError):
                seen.append(shared.reshape(16))
            with contextlib.suppress(StaleBufferError):
                shared.fill(1)
            with contextlib.suppress(StaleBufferError):
                assert shared.__dlpack_device__()[1] == 0
            assert shared.nbytes in (0, 64)

    together(work, THREADS)
    assert shared.nbytes == 0
    assert {buffer.nbytes for buffer in seen} <= {64}


def test_a_buffer_is_released_while_others_read_it(state):
    """They see it whole, or that it was released."""
    for _ in range(ROUNDS):
        release_while_others_read(state)


def test_one_thread_enters_a_recorder():
    """The others are refused, and the use is filed once."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(256, stream)
    for turn in range(ROUNDS):
        recorder = LaunchRecorder(stream).write(block)
        entered = []

        def work(number: int, recorder=recorder, entered=entered) -> None:
            with contextlib.suppress(StreamMisuseError):
                recorder.preflight()
                entered.append(number)
            with contextlib.suppress(StreamMisuseError):
                recorder.commit()
                entered.append(number)

        together(work, 2)
        assert len(entered) == 2
        assert runtime.counters()["uses"] == turn + 1
    block.free()
    nothing_lost(runtime, 1)


def test_a_process_lock_knows_how_often_it_was_entered():
    lock = ProcessLock()

    def work(number: int) -> None:
        for _ in range(10 * ROUNDS):
            with lock as depth:
                assert depth == 1
                with lock as inside:
                    assert inside == 2

    together(work, THREADS)


def test_a_scope_tags_allocations_whatever_other_threads_open():
    runtime = DeviceRuntime()

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            with scope(f"scope {number}"):
                assert runtime.allocate(256).tag == f"scope {number}"
            assert runtime.allocate(256).tag is None

    together(work, THREADS)
    nothing_lost(runtime, 2 * THREADS * ROUNDS)


def test_runtimes_begin_and_end_while_histories_do():
    runtime = DeviceRuntime()
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(20):
                with xlogmem.record_history(max_events=1000) as recording:
                    runtime.allocate(256, tag="recorded").free()
                    assert recording.history() is not None
            done.set()
            return
        while not done.is_set():
            other = DeviceRuntime()
            stream = other.acquire_stream()
            block = other.allocate(256, stream, tag=f"of {number}")
            with use(stream, write=block):
                pass
            block.free()
            other.reap_pending()

    together(work, 3)
    nothing_lost(runtime, 20)


def test_one_runtime_gets_a_stream_pool():
    for _ in range(ROUNDS // 4):
        pool = StreamPool()
        made = []

        def work(number: int, pool=pool, made=made) -> None:
            with contextlib.suppress(StreamMisuseError):
                made.append(DeviceRuntime(stream_pool=pool))

        together(work, 2)
        assert len(made) == 1


def test_resources_are_named_for_the_first_time_by_many():
    runtime = DeviceRuntime()
    for _ in range(ROUNDS // 10):
        resources = [xlogmem.PinnedMemoryResource() for _ in range(2)]

        def work(number: int, resources=resources) -> None:
            for resource in (resources, resources[::-1])[number % 2]:
                block = runtime.allocate(256, resource=resource)
                assert block.resource is resource
                block.free()

        together(work, THREADS)
        assert [sum(each is resource for each in runtime.resources) for resource in resources] == [1, 1]
    nothing_lost(runtime, ROUNDS // 10 * THREADS * 2)


def capture_in_threads(runtime: DeviceRuntime) -> None:
    streams = [runtime.acquire_stream() for _ in range(THREADS)]
    blocks = [runtime.allocate(256, streams[0]) for _ in range(THREADS)]
    with capture(streams[0]) as graph:
        for stream in streams[1:]:
            graph.fork(stream)

        def work(number: int) -> None:
            for turn in range(THREADS):
                with use(streams[number], read=blocks[turn], write=blocks[number]):
                    pass

        together(work, THREADS)
    assert len(graph.writes) == THREADS
    graph.launch(streams[0])
    together(lambda number: (graph.writes, repr(graph), graph.close() if number == 0 else None), 2)
    assert (graph.closed, graph.writes) == (True, ())


@pytest.mark.simulator
def test_threads_take_part_in_one_capture():
    runtime = DeviceRuntime()
    for _ in range(ROUNDS // 20):
        capture_in_threads(runtime)
    nothing_lost(runtime, ROUNDS // 20 * THREADS)


def test_everything_through_one_runtime_at_once():
    """Allocate, use, hand over, name, look, free, snapshot: one runtime, many threads."""
    runtime = DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(THREADS)]
    shared = [runtime.allocate(1024, stream) for stream in streams]

    def work(number: int) -> None:
        mine, other = streams[number], streams[(number + 1) % THREADS]
        for turn in range(ROUNDS):
            block = runtime.allocate(256 * (1 + turn % 5), mine, tag=f"{turn % 50}" if turn % 2 else None)
            with use(other, read=[block, shared[turn % THREADS]]):
                pass
            with use(mine, write=block, read=shared[(turn + 1) % THREADS]):
                pass
            assert runtime.find_block(block.ptr).generation == block.generation
            if turn % 20 == 0:
                assert runtime.snapshot() is not None
                assert runtime.counters()["live_blocks"] >= THREADS
            if turn % 3:
                block.free(other)
            del block

    together(work, THREADS)
    for block in shared:
        block.free()
    nothing_lost(runtime, THREADS * ROUNDS + THREADS)
