"""Errors of xlogmem.hpp: each class, with a text that says what is wrong; nothing is open, queued or lost after it."""
from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from c_table import Table, functions
from children import variables
from four_streams import Capture, nothing_happens
from native_calls import Thrown, build, own_table
from places import ROOT

from xlogmem import LimitingResourceAdaptor, PoolMemoryResource, use

pytestmark = pytest.mark.simulator
REFUSE_CONFLICTS = 1


def thrown(name: str, text: str):
    """An exception of this class; its text matches."""
    return pytest.raises(Thrown, match=text, check=lambda error: error.name == name)


@pytest.fixture
def still_right(native):
    """Whatever was refused: the blocks can be used and freed, and nothing is left."""
    b, runtime = native()
    blocks = [b.alloc(b.S) for _ in range(2)]
    yield b, runtime, blocks
    while blocks:                                       # pytest keeps the list, which must not keep the runtime
        block = blocks.pop()
        if block.state.name == "LIVE":
            with runtime.launch(b.S.handle, write=[block.ptr]):
                pass
            block.free()
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0                    # no window is open


def test_memory_that_was_freed(still_right):
    b, runtime, (block, _) = still_right
    named = runtime.find(block.ptr)
    block.free()
    again = b.alloc(b.S)                                # perhaps at the same address
    with nothing_happens(b.driver, b.runtime):
        for call in (lambda: named.use(b.S.handle), named.ready, named.synchronize):
            with thrown("use_after_free", r"freed|stale"):
                call()
    named.delete()
    again.free()


def test_memory_that_is_not_tracked(still_right, memory):
    b, runtime, (block, _) = still_right
    with nothing_happens(b.driver, b.runtime):
        with thrown("untracked_memory", rf"access 2 of 2: no block .*{memory:#x}.*adopt"):
            runtime.open(b.T.handle, read=[block.ptr], write=[memory])
        for call in (runtime.find, lambda ptr: runtime.wait(b.S.handle, ptr)):
            with thrown("untracked_memory", f"{memory:#x}"):
                call(memory)
    with pytest.raises(Thrown, match="no block"):
        runtime.record_use(memory, b.T.handle)


def test_a_stream_that_captures(still_right):
    b, runtime, (block, _) = still_right
    with Capture(b.T), nothing_happens(b.driver, b.runtime), thrown("capturing_stream", "captur"):
        runtime.open(b.T.handle, read=[block.ptr])


def test_a_use_that_conflicts(still_right):
    b, runtime, (block, other) = still_right
    with use(b.T, write=block):
        waits = b.waits()
        with thrown("conflicting_use", "open"):         # of this very thread: it would wait for itself
            runtime.open(b.U.handle, read=[other.ptr, block.ptr])
        with thrown("conflicting_use", "open"):
            runtime.open(b.U.handle, write=[block.ptr], flags=REFUSE_CONFLICTS)
    assert (b.runtime.counters()["uses"], b.waits()) == (1, waits)


def test_arguments_that_are_wrong(still_right, library):
    b, runtime, (block, _) = still_right
    with nothing_happens(b.driver, b.runtime), thrown("invalid_argument", "flags.*0x100"):
        runtime.open(b.T.handle, read=[block.ptr], flags=256)
    named = runtime.find(block.ptr)
    with thrown("invalid_argument", "flags.*0x100"):
        named.use(b.T.handle, flags=256)
    named.delete()
    launch = runtime.open(b.T.handle, read=[block.ptr])
    launch.commit()
    with thrown("invalid_argument", "has ended"):
        launch.commit()
    launch.cancel()                                     # does nothing
    launch.delete()
    assert (b.runtime.counters()["uses"], b.runtime.counters()["cancelled"]) == (1, 0)
    with thrown("invalid_argument", "not an xlogmem.DeviceRuntime"):
        library.make("open_runtime", ctypes.py_object("no runtime"))


def test_a_failure_of_the_driver(still_right, driver):
    b, runtime, (block, _) = still_right
    b.use(b.T, (block, "write"))
    driver.fail("cuStreamWaitEvent", 1, 999)
    with thrown("error", "cuStreamWaitEvent"):
        runtime.open(b.U.handle, read=[block.ptr])
    with runtime.launch(b.S.handle, write=[block.ptr]):
        pass


def test_python_s_own(library, native):
    _, runtime = native()
    with thrown("python_error", "TypeError: .*object"):
        runtime.identify(object())
    with thrown("python_error", "ValueError: .*99"):
        library.make("runtime_of_device", 99)


def test_memory_that_is_used_up(native):
    b, runtime = native(resource=LimitingResourceAdaptor(PoolMemoryResource(), 1 << 20))
    with thrown("out_of_memory", "requested 2097152 bytes.*0 bytes live"):
        runtime.allocate(1 << 21, b.S.handle)


def test_a_device_that_is_lost(library):
    """In a process of its own: nothing works there any more."""
    program = '''
import sys
from pathlib import Path
sys.path.insert(0, "tests/helpers")
import xlogmem
from cuda.bindings import driver as cuda
from native_calls import Library, NativeRuntime, Thrown
from xlogmem.sim import simulator
library = Library(Path(sys.argv[1]))
library.import_table()
made = xlogmem.DeviceRuntime()
runtime = NativeRuntime.of(library, made)
stream, other = made.acquire_stream(), made.acquire_stream()
memory = runtime.allocate(100, stream.handle)
runtime.open(stream.handle, write=[memory]).delete()
simulator().fail("cuStreamWaitEvent", 1, 700)
for _ in range(2):
    try:
        runtime.open(other.handle, read=[memory])
    except Thrown as error:
        print(error.name, error)
'''
    done = subprocess.run([sys.executable, "-c", program, library.path], capture_output=True, text=True, cwd=ROOT,
               env=variables(XLOGMEM_SIMULATE=1), timeout=100)
    first, second = done.stdout.splitlines()
    assert first.startswith("device_lost"), done.stderr
    assert second.startswith("device_lost"), done.stderr


# ------------------------------------------------------------------------------------------------ the table
def test_a_library_without_a_table_says_what_to_call(tmp_path):
    fresh = build(tmp_path)
    with thrown("invalid_argument", r"import_table\(\) first"):
        fresh.make("open_runtime", ctypes.py_object("anything"))


@pytest.mark.parametrize(("field", "value"), [("size", 64), ("version", 2), ("version", 0)])
def test_another_table_is_refused_before_any_call(library, field, value):
    """`size` 64 is that of a core without uses.  """
    old = Table()                                       # without functions: a call would crash
    old.version, old.size = functions.version, functions.size
    setattr(old, field, value)
    with thrown("invalid_argument", "too old for this extension, or too new"):
        library.use_this_table(ctypes.addressof(old))
    library.use_this_table(own_table())                 # and the one that was there before goes on to work
