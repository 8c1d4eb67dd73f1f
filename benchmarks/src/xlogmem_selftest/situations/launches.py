"""Situations of launches: fences, windows of several launches, and work without a window."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import StreamMisuseError, UseAfterFreeError
from xlogmem.launch import LaunchRecorder
from xlogmem.sim.kernels import check
from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations.scene import HALF, Scene
from xlogmem_selftest.world import READ, READ_WRITE, WRITE, World, refused


@situation
def a_fence_in_use(world: World, rng: Random) -> None:
    """T waits for a fence of S; before that is noted, S records more fences than its ring holds."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        first, later = x.block(S), [x.block(S) for _ in range(8)]

        def others() -> None:
            for block in later:
                x.use(S, (block, WRITE))
                x.use(U, (block, READ))

        x.simulator.on_call("cuStreamWaitEvent", others, when="after")
        x.use(T, (first, READ))
        for block in later:
            x.use(T, (block, READ))


@situation
def a_wait_while_a_fence_is_recorded(world: World, rng: Random) -> None:
    """S is ordered after U between the record on S, made for T, and its bookkeeping; T is not, by that."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        one, two = x.block(S), x.block(U)
        x.use(U, (two, WRITE))
        x.simulator.on_call("cuEventRecord", lambda: x.use(S, (two, READ)), when="after")
        x.use(T, (one, READ))
        x.use(T, (two, READ))


@situation
def a_fence_that_the_host_waited_for(world: World, rng: Random) -> None:
    """The fence that covers a free is older than a write; a reap that waited for it proves nothing about the write."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block, freed = x.block(S), x.block(S)
        freed.free()
        x.use(T, (block, READ))
        x.use(S, (block, WRITE))
        x.runtime.reap_pending()
        x.use(T, (block, READ))


@situation
def two_launches_at_once(world: World, rng: Random) -> None:
    """A use that conflicts with an unfinished one can be refused."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        first, second = rng.choice([(READ, WRITE), (WRITE, READ), (WRITE, READ_WRITE)])
        window = x.prepare(S, (block, first))
        refused(world, StreamMisuseError, lambda: x.prepare(T, (block, second), on_conflict="raise"),
                f"a {second} beside an open {first}")
        window.cancel()


def refused_or_rescued(world: World, window: LaunchRecorder, call: Callable[[], object], what: str) -> None:
    """`refused`, for a call that must not wait for this window.  Where it does, another thread ends that after a while.
    The window is closed afterwards."""
    rescue = threading.Timer(1, window.cancel)
    rescue.start()
    refused(world, StreamMisuseError, call, what)
    rescue.cancel()
    rescue.join()
    with suppress(StreamMisuseError):
        window.cancel()


@situation
def a_window_of_the_same_thread(world: World, rng: Random) -> None:
    """A thread does not wait for itself."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        window = x.prepare(S, (block, WRITE))
        refused_or_rescued(world, window, lambda: x.prepare(T, (block, READ), on_conflict="wait"),
                           "a wait for a window of the same thread")


@situation
def threads_in_the_queue(world: World, rng: Random) -> None:
    """A reader that comes after a writer waits behind it, and two threads do not wait for each other."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        one, two = x.block(S), x.block(S)
        came: list[str] = []

        def launch(stream: Any, access: str, holds: LaunchRecorder | None = None) -> None:
            window = x.prepare(stream, (one, access), on_conflict="wait")
            came.append(access)
            window.commit()
            if holds is not None:
                holds.commit()

        def queued(work: Callable[[], None]) -> threading.Thread:
            waits = x.runtime.counters()["conflict_waits"]
            thread = threading.Thread(target=work)
            thread.start()
            while x.runtime.counters()["conflict_waits"] == waits and thread.is_alive():
                time.sleep(0)
            return thread

        mine = x.prepare(S, (one, READ))
        writer = queued(lambda: launch(T, WRITE, x.prepare(T, (two, WRITE))))
        reader = queued(lambda: launch(U, READ))
        refused_or_rescued(world, mine, lambda: x.prepare(S, (two, READ), on_conflict="wait"),
                           "a wait for a thread that waits for this one")
        writer.join()
        reader.join()
        x.expect(came == [WRITE, READ], f"a later reader was first: {came}")


@situation
def one_source_of_two_captures(world: World, rng: Random) -> None:
    """Nothing is queued for a launch that is refused because of another of its sources."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        one, two = x.block(S), x.block(U)
        x.use(S, (one, WRITE))
        x.use(U, (two, WRITE))
        queued = x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")
        check(cuda.cuStreamBeginCapture(S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        with suppress(StreamMisuseError):               # a fence may be there from before the capture
            x.prepare(T, (two, READ), (one, READ)).cancel()
            queued = x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")
        x.expect(queued == (x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")),
                 "something was queued for a launch that was refused")
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(S.handle))))


@situation
def a_read_on_an_opaque_stream(world: World, rng: Random) -> None:
    """A stream that may read without a record may also write, later and unrecorded."""
    with Scene(world, rng) as x:
        S, T, home = x.stream("opaque"), x.stream(), x.stream()
        block = x.block(home)
        x.use(home, (block, WRITE))
        x.use(S, (block, READ))
        x.work(S.handle, block, WRITE)
        x.use(T, (block, READ))


@situation
def a_hand_back_that_cannot_be_queued(world: World, rng: Random) -> None:
    """Then the host waits, so that what the opaque home gets afterwards is in order all the same."""
    with Scene(world, rng) as x:
        home, T = x.stream("opaque"), x.stream()
        block = x.block(home)
        window = x.prepare(T, (block, WRITE))
        x.work(T.handle, block, WRITE)
        x.simulator.fail("cuStreamWaitEvent", 1, 999)
        window.commit()
        x.work(home.handle, block, READ_WRITE)


@situation
def work_recorded_beside_a_reader(world: World, rng: Random) -> None:
    """Recording work that was not prepared removes no entry: the reader is still waited for."""
    with Scene(world, rng) as x:
        S, T, U, V = x.stream(), x.stream(), x.stream(), x.stream()
        block = x.block(S)
        x.use(S, (block, WRITE))
        check(cuda.cuCtxSynchronize())
        x.use(T, (block, READ))
        x.work(U.handle, block, READ)
        x.runtime.record_block_use(block, U)
        x.use(V, (block, WRITE))


@situation
def work_recorded_on_a_fresh_block(world: World, rng: Random) -> None:
    """It waited for no other stream, so it implies nothing about the work at home."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        block, other = x.block(S), x.block(S)
        check(cuda.cuCtxSynchronize())
        x.work(U.handle, block, WRITE, 0, HALF)
        x.runtime.record_block_use(block, U)
        x.use(T, (other, READ))
        x.work(S.handle, block, WRITE, HALF, HALF)
        x.use(T, (block, READ))


@situation
def work_recorded_on_a_retired_block(world: World, rng: Random) -> None:
    """It is recorded, then refused: the free that is still to come waits for it."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        block = x.block(S)
        check(cuda.cuCtxSynchronize())
        window = x.prepare(T, (block, WRITE))
        x.work(T.handle, block, WRITE, 0, HALF)
        block.free()
        x.work(U.handle, block, WRITE, HALF, HALF)
        refused(world, UseAfterFreeError, lambda: x.runtime.record_block_use(block, U), "work on a retired block")
        window.commit()


@situation
def a_fill_inside_the_first_use_elsewhere(world: World, rng: Random) -> None:
    """T uses one half of a new block, while the other half is still being filled where it was allocated."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        block = x.block(S)
        access = rng.choice([READ, WRITE])
        window = x.prepare(T, (block, access))
        x.work(S.handle, block, WRITE, HALF, HALF)
        x.work(T.handle, block, access, 0, HALF)
        window.commit()
        if rng.random() < .5:
            x.use(U, (block, WRITE if access == READ else READ))
        else:
            block.free(T)


@situation
def work_that_a_capture_took(world: World, rng: Random) -> None:
    """It is queued with the graph, so nothing can be recorded of it before."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        check(cuda.cuStreamBeginCapture(T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        refused(world, StreamMisuseError, lambda: x.runtime.record_block_use(block, T), "work of a graph")
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(T.handle))))
