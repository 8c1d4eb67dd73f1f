"""`use` as nearly all programs write it takes a short way: the same results, and nothing is left for the next one."""
from __future__ import annotations

import gc
import inspect
import pickle
import sys
import threading
import warnings

import pytest
from arrays import Column
from four_streams import READ, WRITE
from stress import PATIENCE

import xlogmem
from xlogmem import DeviceRuntime, LaunchRecorder, StreamMisuseError, UseAfterFreeError, register_resolver, use


class Scene:
    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.stream = self.runtime.acquire_stream()
        self.blocks = [self.runtime.allocate(64, self.stream) for _ in range(4)]

    def kinds(self) -> list[set[str]]:
        return [{kind for kind, _ in block.frontier} - {"allocated"} for block in self.blocks]


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.__dict__.clear()


READ_IT, WROTE_IT, NOTHING = {"has-read"}, {"written"}, set()


# ---------------------------------------------------------------------------------------------- arguments
@pytest.mark.parametrize(("call", "expected"), [
    (lambda s, a, b, c, d: use(s, a), [READ_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, a, b), [READ_IT, WROTE_IT, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, a, b, c), [READ_IT, WROTE_IT, WROTE_IT, NOTHING]),
    (lambda s, a, b, c, d: use(s, a, read_write=c, write=b), [READ_IT, WROTE_IT, WROTE_IT, NOTHING]),
    (lambda s, a, b, c, d: use(s, (), [b], read_write=(c, d)), [NOTHING, WROTE_IT, WROTE_IT, WROTE_IT]),
    (lambda s, a, b, c, d: use(s, read=[a, b.id, c.ptr, Column(d)]), [READ_IT] * 4),
    (lambda s, a, b, c, d: use(s, read=(a.ptr, b), write=[c.id, d]), [READ_IT, READ_IT, WROTE_IT, WROTE_IT]),
    (lambda s, a, b, c, d: use(**{"stream": s, "read": a}), [READ_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, **{"".join(["wri", "te"]): a}), [WROTE_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, read=a, untracked="ignore"), [READ_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, write=a, runtime=s.ordering and a.core), [WROTE_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s.handle, write=a), [WROTE_IT, NOTHING, NOTHING, NOTHING]),
    (lambda s, a, b, c, d: use(s, ()), [NOTHING] * 4),
], ids=range(13))
def test_arguments_by_place_and_by_name(scene, call, expected):
    with call(scene.stream, *scene.blocks) as recorder:
        assert recorder.runtime is scene.runtime
        assert recorder.stream == scene.stream
    assert scene.kinds() == expected


@pytest.mark.parametrize(("call", "error"), [
    (lambda s, a: use(), TypeError),
    (lambda s, a: use(None), TypeError),
    (lambda s, a: use(None, a), TypeError),
    (lambda s, a: use(s, a, a, a, a), TypeError),
    (lambda s, a: use(s, a, read=a), TypeError),
    (lambda s, a: use(s, a, stream=s), TypeError),
    (lambda s, a: use(s, reads=a), TypeError),
    (lambda s, a: use(s, read=a, **{"write": a, "when": 1}), TypeError),
    (lambda s, a: use(s, untracked=1), TypeError),
    (lambda s, a: use(s, untracked="sloppy"), ValueError),
    (lambda s, a: use(s, read=None), TypeError),
    (lambda s, a: use(s, write=[a, object()]), TypeError),
    (lambda s, a: use(s, read="text"), TypeError),
    (lambda s, a: use(read=a), TypeError),
    (lambda s, a: use(s, read=DeviceRuntime().allocate(8)), StreamMisuseError),
], ids=range(15))
def test_what_is_wrong_is_said_as_ever(scene, call, error):
    with pytest.raises(error):
        call(scene.stream, scene.blocks[0])
    with use(scene.stream, write=scene.blocks[0]):
        pass
    assert scene.kinds() == [WROTE_IT, NOTHING, NOTHING, NOTHING]


def test_an_unknown_name_is_in_the_message(scene):
    with pytest.raises(TypeError, match=r"use\(\) has no argument 'reads'; did you mean 'read'\?"):
        use(scene.stream, reads=scene.blocks[0])


def test_it_looks_like_a_function_of_python():
    assert str(inspect.signature(use)) == ("(stream, read=(), write=(), read_write=(), *, runtime=None, "
                                           "untracked='raise', handback='all', on_conflict='wait')")
    assert (use.__name__, use.__module__) == ("use", "xlogmem.launch")
    assert use.__doc__.startswith("Protect a launch")
    assert pickle.loads(pickle.dumps(use)) is use is xlogmem.use is xlogmem.launch.use


def test_a_list_that_changes_while_it_is_read(scene):
    """Code of others runs wherever an argument is not a block."""
    class Changing:
        @property
        def __cuda_array_interface__(self):
            things[1:] = [scene.blocks[1]]
            return {"data": (scene.blocks[0].ptr, False), "shape": (64,), "typestr": "|u1", "version": 3}

    things = [Changing(), *scene.blocks[2:], None]
    with use(scene.stream, write=things):
        pass
    assert scene.kinds() == [WROTE_IT, WROTE_IT, NOTHING, NOTHING]


# ---------------------------------------------------------------------------------------------- nothing is left
def leave_rejections(scene) -> None:
    use(scene.stream, read=1234)


def leave_an_error(scene) -> None:
    with pytest.raises(TypeError):
        use(scene.stream, write=[scene.blocks[0], None])


def leave_requests(scene) -> None:
    use(scene.stream, write=scene.blocks)


def leave_options(scene) -> None:
    LaunchRecorder(scene.stream, untracked="ignore", handback="writes", on_conflict="count").write(scene.blocks[0])


def leave_another_thread(scene) -> None:
    recorder = use(scene.stream, read=scene.blocks[0])
    thread = threading.Thread(target=recorder.preflight)
    thread.start()
    thread.join(PATIENCE)
    recorder.cancel()


def leave_a_use(scene) -> None:
    with use(scene.stream, read=scene.blocks[0]):
        pass


def leave_a_cancelled_one(scene) -> None:
    with use(scene.stream, write=scene.blocks[0]) as recorder:
        recorder.cancel()


def leave_a_failed_one(scene) -> None:
    stale = scene.runtime.allocate(64, scene.stream)
    stale.free()
    recorder = use(scene.stream, write=[scene.blocks[0], stale])
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()


def leave_what_a_resolver_holds(scene) -> None:
    class Held:
        pass

    def resolve(what, hold):
        hold(what)
        return [scene.blocks[0]]

    register_resolver(Held, resolve)
    try:
        use(scene.stream, read=Held())
    finally:
        register_resolver(Held, None)


def leave_one_in_its_window(scene) -> None:
    recorder = use(scene.stream, read=scene.blocks[0])
    recorder.preflight()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del recorder


@pytest.mark.parametrize("leave", [
    leave_rejections, leave_an_error, leave_requests, leave_options, leave_another_thread, leave_a_use,
    leave_a_cancelled_one, leave_a_failed_one, leave_what_a_resolver_holds, leave_one_in_its_window])
def test_a_recorder_begins_with_nothing(scene, leave):
    """Its memory, and its window, were another's before."""
    leave(scene)
    recorder = use(scene.stream)
    assert (recorder.recorded_count, recorder.untracked, recorder.preflighted) == (0, "raise", False)
    assert repr(recorder) == f"<LaunchRecorder on stream {scene.stream.id}, untracked='raise': 0 uses, recording>"
    recorder.write(scene.blocks[3])
    assert recorder.recorded_count == 1
    recorder.preflight()
    recorder.commit()
    assert scene.kinds()[3] == WROTE_IT
    assert scene.kinds()[0] <= READ_IT
    with pytest.raises(StreamMisuseError, match="untracked"):
        use(scene.stream, read=1234).preflight()


@pytest.mark.simulator
@pytest.mark.parametrize("leave", [leave_options, leave_another_thread])
def test_options_are_not_left_to_the_next_recorder(four, driver, leave):
    """A conflict is not counted because the last recorder wanted that; a hand-back is not left out."""
    x = four(opaque="S")
    scene = Scene()
    scene.runtime, scene.stream, scene.blocks = x.runtime, x.T, [x.alloc(x.S) for _ in range(4)]
    leave(scene)
    waits = x.waits()
    with use(x.T, read=scene.blocks[1]):
        read = x.work(x.T, (scene.blocks[1], READ))
    assert x.waits() == waits + 2                       # T waits for S, and S for T: the hand-back
    assert x.ordered(read, x.S)
    with use(x.T, write=scene.blocks[2]):
        leave(scene)
        inner = use(x.U, write=scene.blocks[2])
        with pytest.raises(StreamMisuseError, match="cannot be left while this one"):
            inner.preflight()
    assert x.runtime.counters()["conflicts"] == 0
    scene.__dict__.clear()


def test_many_recorders_at_once(scene):
    """More than are kept for later."""
    for _ in range(2):
        recorders = [use(scene.stream, read=scene.blocks[0]) for _ in range(200)]
        for recorder in recorders:
            recorder.preflight()
        for recorder in reversed(recorders):
            recorder.commit()
    assert scene.runtime.counters()["uses"] == 400


def test_windows_are_the_runtime_s_own(scene):
    """A window that one runtime has kept is not given to another's recorder, and goes with its runtime."""
    other = Scene()
    for _ in range(40):
        for one in (scene, other):
            with use(one.stream, read=one.blocks[0]):
                pass
    other.__dict__.clear()
    gc.collect()
    with use(scene.stream, write=scene.blocks[0]):
        pass
    assert scene.runtime.counters()["uses"] == 41


# ---------------------------------------------------------------------------------------------- the end of a recorder
def test_one_that_was_never_initialised_is_refused(scene):
    never = LaunchRecorder.__new__(LaunchRecorder)
    for call in (lambda: never.read(scene.blocks[0]), never.preflight, never.commit, never.cancel, never.__enter__,
                 lambda: never.__exit__(None, None, None), never._keep_by_runtime,
                 lambda: never._take_from(scene.runtime)):
        with pytest.raises(StreamMisuseError, match="never initialised"):
            call()
    assert repr(never) == "<LaunchRecorder that was never initialised>"
    assert (never.recorded_count, never.preflighted, never.runtime, never.stream) == (0, False, None, None)
    with pytest.raises(ValueError, match="sloppy"):
        never.__init__(scene.stream, untracked="sloppy")
    never.__init__(scene.stream)
    with pytest.raises(RuntimeError, match="initialised once"):
        never.__init__(scene.stream)
    never.write(scene.blocks[0]).preflight()
    never.commit()
    assert scene.kinds()[0] == WROTE_IT


def test_an_exception_that_is_under_way_survives_the_drop(scene):
    """The recorder is dropped while the exception leaves the frame; the warning neither replaces nor changes it."""
    def work() -> None:
        recorder = use(scene.stream, write=scene.blocks[0])
        recorder.preflight()
        raise KeyError("mine")

    with pytest.warns(ResourceWarning, match="1 use, entered> was entered, and was dropped"):
        try:
            work()
        except KeyError as error:
            assert error.args == ("mine",)
            assert error.__context__ is None
            del error


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_not_raised_by_the_drop(scene, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: seen.append(about.exc_type))
    recorder = use(scene.stream, write=scene.blocks[0])
    recorder.preflight()
    del recorder
    assert seen == [ResourceWarning]
    scene.runtime.reap_pending()
    assert scene.kinds()[0] == WROTE_IT


@pytest.mark.simulator
def test_a_block_may_be_dropped_while_an_exception_is_under_way(four):
    x = four()

    def work() -> None:
        block = x.alloc(x.S)
        x.use(x.T, (block, WRITE))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as error:
        work()
    assert error.value.__context__ is None
    del error
    gc.collect()
    x.runtime.reap_pending()
    assert x.runtime.counters()["live_blocks"] == 0
