"""Numbers of places: the stack of the calling thread, read without the interpreter's help."""
from __future__ import annotations

import ctypes
import inspect
import sys
import threading

import pytest

from xlogmem.check import sites


@pytest.fixture(autouse=True)
def started():
    assert sites.start()


def here():
    """The number of this call, and what Python says about the stack."""
    number = sites.site_of_caller()
    frames = []
    frame = sys._getframe()
    while frame is not None and len(frames) < 12:
        frames.append((frame.f_code.co_filename, frame.f_code.co_qualname))
        frame = frame.f_back
    return number, frames


def deep(n):
    return here() if n == 0 else deep(n - 1)


@pytest.mark.parametrize("depth", [0, 3, 30])
def test_a_number_stands_for_the_innermost_frames(depth):
    number, frames = deep(depth)
    found = sites.frames_at(number)
    assert [(frame.file, frame.function) for frame in found] == frames
    assert found[0].line == inspect.getsourcelines(here)[1] + 2
    assert len(found) == min(12, len(inspect.stack()) + 2 + depth) or depth == 30


def test_a_place_has_one_number():
    before = sites.site_count()
    numbers = {deep(2)[0] for _ in range(100)}
    assert len(numbers) == 1
    first, second = here()[0], here()[0]                # two calls in one line
    assert first != second
    assert sites.site_count() == before + 3


def test_generators_and_comprehensions_are_frames():
    def numbers():
        yield here()[0]

    names = [frame.function for frame in sites.frames_at(next(iter(numbers())))]
    assert names[0] == "here"
    assert names[1].endswith("numbers")


def test_other_threads_and_calls_without_the_gil():
    function = ctypes.CFUNCTYPE(ctypes.c_uint32)(sites.address_of_function())       # ctypes drops the GIL
    found = {}

    def work(name):
        for _ in range(1000):
            found.setdefault(name, set()).add(function())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(numbers) == 1 for numbers in found.values())
    assert len(set.union(*found.values())) == 1         # the same place
    assert sites.frames_at(found[0].pop())[0].function.endswith("work")


def test_code_that_is_gone_keeps_its_name():
    names = []
    for number in range(50):                            # each code object could have the address of the one before
        space = {"here": here}
        exec(f"def made_{number}(): return here()[0]", space)
        names.append(sites.frames_at(space[f"made_{number}"]())[1].function)
    assert names == [f"made_{number}" for number in range(50)]


def test_no_place():
    assert sites.frames_at(0) == []
    with pytest.raises(ValueError, match="no place has the number"):
        sites.frames_at(sites.site_count() + 1)


def test_calls_can_be_timed():
    assert sites.time_calls(1000) > 0
