"""Resolvers: objects that consist of several blocks."""
from __future__ import annotations

import sys
import threading
import weakref

import pytest
from arrays import CudaArray

import xlogmem
from xlogmem import DeviceRuntime, LaunchRecorder, StreamMisuseError, register_resolver, use


class Pair:
    """Two things, and an attribute that must not be looked at."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("was called for what its resolver knows better")


class Special(Pair):
    pass


class Lock:
    pass


@pytest.fixture
def pairs():
    register_resolver(Pair, lambda pair, hold: pair.parts)
    yield
    register_resolver(Pair, None)


def test_a_resolver_names_several_blocks(pairs):
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    a, b, c, d = (runtime.allocate(64, S) for _ in range(4))
    with use(T, read=Pair(a, Special(b.ptr + 8, CudaArray(c.ptr))), write=[Pair(d), Pair()]) as recorder:
        assert recorder.recorded_count == 4
    for block in (a, b, c):
        assert ("has-read", T.id) in block.frontier
    assert ("written", T.id) in d.frontier


def test_the_resolver_of_the_nearest_class_is_called(pairs):
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    a, b = (runtime.allocate(64, S) for _ in range(2))
    register_resolver(Special, lambda special, hold: [b])
    try:
        with use(T, read=Special(a)):
            pass
    finally:
        register_resolver(Special, None)
    assert ("has-read", T.id) not in a.frontier
    assert ("has-read", T.id) in b.frontier
    with use(T, read=Special(a)):
        pass
    assert ("has-read", T.id) in a.frontier


def test_what_a_resolver_holds_lives_until_the_use_is_recorded():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    locks = []

    def locked(pair, hold):
        lock = Lock()
        locks.append(weakref.ref(lock))
        hold(lock)
        yield block

    register_resolver(Pair, locked)
    try:
        with use(T, read=[Pair(), Pair()]):
            assert all(lock() is not None for lock in locks)
        assert [lock() for lock in locks] == [None, None]
        recorder = LaunchRecorder(T).write(Pair())
        recorder.preflight()
        assert locks[2]() is not None
        recorder.cancel()
        assert locks[2]() is None
        recorder = LaunchRecorder(T).write(Pair())
        del recorder
        assert locks[3]() is None
        with pytest.raises(ZeroDivisionError), use(T, read=Pair()):
            raise ZeroDivisionError
        assert locks[4]() is None
    finally:
        register_resolver(Pair, None)


def test_an_untracked_part_is_refused_by_the_name_that_the_user_gave(pairs):
    runtime = DeviceRuntime()
    T = runtime.acquire_stream()
    with pytest.raises(StreamMisuseError, match=r"read=: \S*Special .*is not tracked by"), \
            use(T, read=[Special(Pair(4096))]):
        pass
    with use(T, read=[Special(Pair(4096))], untracked="ignore") as recorder:
        assert recorder.recorded_count == 0


def test_an_error_in_a_resolver_reaches_the_user_and_nothing_is_queued():
    runtime = DeviceRuntime()
    T = runtime.acquire_stream()

    def broken(pair, hold):
        raise LookupError("gone")

    register_resolver(Pair, broken)
    try:
        before = runtime.counters()
        with pytest.raises(LookupError, match="gone"), use(T, read=Pair()):
            pass
        assert runtime.counters() == before
    finally:
        register_resolver(Pair, None)


def test_single_uses_take_one_block(pairs):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    block = runtime.allocate(64, S)
    for call in (lambda: runtime.record_block_use(Pair(block), S),
                 lambda: runtime.finish_block_use(Pair(block), S, xlogmem.Access.READ)):
        with pytest.raises(TypeError, match=r"Pair may consist of several blocks"):
            call()


def test_what_is_not_a_resolver_is_refused():
    with pytest.raises(TypeError, match="is not a type"):
        register_resolver("Pair", None)
    with pytest.raises(TypeError, match="resolver must be a function"):
        register_resolver(Pair, 3)
    register_resolver(Pair, None)                       # there is none: nothing happens


class Nested:
    """Its resolver names what it holds."""

    def __init__(self, *parts: object) -> None:
        self.parts = list(parts)


@pytest.fixture
def nested():
    register_resolver(Nested, lambda what, hold: what.parts)
    yield
    register_resolver(Nested, None)


def lazily(what, hold):
    yield from what.parts


def test_resolvers_that_name_each_other_without_an_end(nested):
    """The stack of the thread has room for no more than it has: a circle is an error, and nothing is recorded."""
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    itself, one, two, three = (Nested() for _ in range(4))
    itself.parts = [itself]
    one.parts, two.parts, three.parts = [two], [three, 5], [runtime.allocate(64, S), one]
    wide = Nested()
    wide.parts = [wide] * 1000
    for resolver in (lambda what, hold: what.parts, lazily, lambda what, hold: iter(what.parts)):
        register_resolver(Nested, resolver)
        for circle in (itself, one, wide, [itself], Nested(itself)):
            for option in ("read", "write", "read_write"):
                with pytest.raises(RecursionError, match=rf"{option}=: the resolvers of \S*Nested"):
                    use(S, **{option: circle})
    register_resolver(Nested, lambda what, hold: [Nested()])        # never the same object
    with pytest.raises(RecursionError):
        use(S, read=Nested())


def test_parts_may_be_as_deep_as_calls(nested):
    """In a thread with a small stack too."""
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    a, b = runtime.allocate(64, S), runtime.allocate(64, S)
    limit, seen = sys.getrecursionlimit(), []

    def deep(levels: int) -> Nested:
        what = Nested(a)
        for _ in range(levels - 1):
            what = Nested(what, b)
        return what

    def run() -> None:
        with use(T, read=deep(limit)) as recorder:
            seen.append(recorder.recorded_count)
        with pytest.raises(RecursionError):
            use(T, read=deep(limit + 1))
        sys.setrecursionlimit(20 * limit)
        with use(T, read=deep(20 * limit)) as recorder:
            seen.append(recorder.recorded_count)

    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    assert seen == [limit, 20 * limit]
    assert ("has-read", T.id) in a.frontier


def test_what_a_resolver_gives_has_to_be_iterable(nested):
    runtime = DeviceRuntime()
    for wrong in (None, 5, 1.5, object(), Nested()):
        register_resolver(Nested, lambda what, hold, wrong=wrong: wrong)
        with pytest.raises(TypeError, match=r"the resolver of \S*Nested gave .*, not an iterable of parts"):
            use(runtime.default_stream, read=Nested())


def test_blocks_name_themselves(nested):
    """Whatever is registered."""
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    register_resolver(object, lambda what, hold: pytest.fail("was called for a block"))
    try:
        with use(runtime.default_stream, read=[block, Nested(block)]) as recorder:
            assert recorder.recorded_count == 2
    finally:
        register_resolver(object, None)
