"""Resolvers: objects that consist of several blocks."""
from __future__ import annotations

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
    with pytest.raises(StreamMisuseError, match=r"LaunchRecorder\.read: untracked buffer rejected: Special"), \
            use(T, read=[Special(Pair(4096))]):
        pass
    with use(T, read=[Special(Pair(4096))], mode="permissive") as recorder:
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
    with pytest.raises(TypeError, match="cannot be called"):
        register_resolver(Pair, 3)
    register_resolver(Pair, None)                       # there is none: nothing happens
