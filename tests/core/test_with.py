"""How a use is entered and left: `with` calls the recorder itself, and everything else finds the methods."""
from __future__ import annotations

import contextlib
import sys

import pytest
from four_streams import READ, WRITE

from xlogmem import LaunchRecorder, use

pytestmark = pytest.mark.simulator


@pytest.fixture
def x(four):
    return four()


def ways_in():
    """Ways to enter a use and leave it; each returns what it has entered."""
    def with_statement(recorder):
        with recorder as entered:
            return entered

    def exit_stack(recorder):
        with contextlib.ExitStack() as stack:
            return stack.enter_context(recorder)

    def methods(recorder):
        entered = recorder.__enter__()
        recorder.__exit__(None, None, None)
        return entered

    def methods_of_the_class(recorder):
        entered = LaunchRecorder.__enter__(recorder)
        LaunchRecorder.__exit__(recorder, None, None, None)
        return entered

    return [with_statement, exit_stack, methods, methods_of_the_class]


@pytest.mark.parametrize("way", ways_in(), ids=lambda way: way.__name__)
def test_each_way_in_opens_the_use_and_files_it(x, way):
    block = x.alloc(x.S)
    recorder = use(x.S, write=block)
    assert way(recorder) is recorder
    assert x.runtime.counters()["uses"] == 1
    assert "done" in repr(recorder)


@pytest.mark.parametrize("way", ["with", "methods"])
def test_an_exception_files_the_use_and_goes_on(x, way):
    block = x.alloc(x.S)
    with pytest.raises(ZeroDivisionError):
        if way == "with":
            with use(x.S, write=block):
                raise ZeroDivisionError
        recorder = use(x.S, write=block)
        recorder.__enter__()
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            assert recorder.__exit__(*sys.exc_info()) is None
            raise
    assert x.runtime.counters()["uses"] == 1


def test_an_error_on_entry_enters_nothing(x):
    block = x.alloc(x.S)
    block.free()
    entered = False
    with pytest.raises(Exception, match="freed"), use(x.S, read=block):
        entered = True
    assert not entered
    assert x.runtime.counters()["uses"] == 0


@pytest.mark.parametrize(("arguments", "names"), [((1,), {}), ((1, 2), {}), ((1, 2, 3, 4), {}), ((), {"read": 1})])
def test_a_recorder_is_not_called(x, arguments, names):
    recorder = x.recorder(x.S, (x.alloc(x.S), WRITE))
    with pytest.raises(TypeError, match="entered by a `with` statement"):
        recorder(*arguments, **names)
    recorder.cancel()


def test_a_use_makes_no_method_objects(x):
    """Up to Python 3.13 the statement binds what it finds; a recorder gives itself."""
    recorder = x.recorder(x.S, (x.alloc(x.S), READ))
    assert recorder.__enter__ is recorder
    assert recorder.__exit__ is recorder
    assert callable(LaunchRecorder.__enter__)
    assert LaunchRecorder.__enter__.__name__ == "__enter__"
    recorder.cancel()
