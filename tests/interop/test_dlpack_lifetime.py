"""How long exported memory lives, and where its deleter may run."""
from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest
from capsules import CPU, Taken, settle
from children import variables
from places import HELPERS

from xlogmem import (
    DeviceRuntime,
    DeviceState,
)


@pytest.mark.simulator
@pytest.mark.promise(190, 194)
def test_an_export_outlives_all_its_owners(driver):
    """Buffer, state, runtime: the deleter releases the last reference."""
    runtime = DeviceRuntime()
    state = DeviceState(runtime)
    buffer = state.full(1000, 7, "uint8")
    taken = Taken(buffer[100:].__dlpack__(stream=1, max_version=(1, 0)))
    buffer.to_numpy()
    del buffer, state, runtime
    settle()
    assert driver.live_bytes() == 1000
    assert driver.peek(taken.tensor.data, 900) == b"\7" * 900
    taken.delete()
    settle()
    assert driver.live_bytes() == 0


@pytest.mark.simulator
@pytest.mark.promise(190)
def test_a_capsule_without_a_consumer_releases_its_export(driver, state):
    buffer = state.full(1000, 7, "uint8")
    for _ in range(50):
        buffer.__dlpack__(stream=1)
        buffer.__dlpack__(stream=1, max_version=(1, 0))
        buffer.__dlpack__(dl_device=(CPU, 0))
    del buffer
    settle()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0
    assert driver.live_bytes() == 0


@pytest.mark.promise(194)
@pytest.mark.parametrize("library", [ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE])
@pytest.mark.parametrize("where", ["here", "a thread"])
def test_deleters_run_anywhere(state, library, where):
    """In a thread that Python does not know of as well, with the GIL and without."""
    runtime = state.runtime
    for turn in range(20):
        buffer = state.full(1000, turn, "uint8")
        taken = Taken(buffer.__dlpack__(stream=1, max_version=(1, 0) if turn % 2 else None))
        del buffer
        if where == "here":
            taken.delete(library)
        else:
            thread = threading.Thread(target=taken.delete, args=(library,))
            thread.start()
            thread.join()
    settle()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_deleters_run_in_threads_that_python_never_saw(state):
    """pthread_create calls the deleter itself, many at once."""
    libc = ctypes.CDLL(None)
    libc.pthread_create.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    libc.pthread_join.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    for _ in range(10):
        taken = [Taken(state.full(64, 1, "uint8").__dlpack__(stream=1)) for _ in range(8)]
        threads = [ctypes.c_ulong() for _ in taken]
        for one, thread in zip(taken, threads, strict=True):
            assert libc.pthread_create(ctypes.byref(thread), None, one.managed.deleter, one.address) == 0
        for thread in threads:
            libc.pthread_join(thread, None)
    settle()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


@pytest.mark.simulator
def test_a_deleter_waits_for_nothing(driver, state):
    """Not for a thread that holds the runtime's lock or is in a driver call; it makes no driver call itself."""
    buffer = state.full(64, 1, "uint8")
    taken = Taken(buffer.__dlpack__(stream=1))
    hold = driver.hold("cuMemAllocFromPoolAsync")
    thread = threading.Thread(target=lambda: state.empty(64, "uint8"))
    thread.start()
    assert hold.reached()
    calls = driver.all_calls()
    taken.delete(ctypes.PYFUNCTYPE)                     # keeps the GIL: no pending call gets in
    assert driver.all_calls() == calls
    assert hold.release()
    thread.join()


@pytest.mark.parametrize("when", ["alive", "at exit", "after exit", "never"])
@pytest.mark.parametrize("kind", ["dlpack", "arrow"])
def test_a_deleter_at_the_end_of_the_process_is_silent(when, kind):
    """In a destructor of the C library, after the interpreter was finalized, at the latest."""
    program = f"""
import atexit, ctypes, sys
sys.path[:0] = {[str(HELPERS)]!r}
import xlogmem
from xlogmem.commands.start import start_driver
start_driver()
from capsules import Taken, arrow_array
state = xlogmem.get_device_state()
buffer = state.full(100, 1, "uint8")
if {kind!r} == "dlpack":
    capsule = buffer.__dlpack__(stream=1)
    taken = Taken(capsule)
    function, address = taken.managed.deleter, taken.address
else:
    schema, capsule = buffer.__arrow_c_device_array__()
    array = arrow_array(capsule)
    moved = type(array).from_buffer_copy(array)
    array.array.release = None
    function, address = moved.array.release, ctypes.addressof(moved)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(moved))
del buffer
when = {when!r}
if when == "alive":
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(address)
elif when == "at exit":
    atexit.register(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function), address)
elif when == "after exit":
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    assert libc.__cxa_atexit(function, address, id(libc)) == 0      # by the C library, after Python has ended
print("done", flush=True)
"""
    run = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=100,
                         env=variables())
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


@pytest.mark.simulator
def test_a_buffer_that_another_thread_releases_during_its_export_is_exported(driver, state):
    """The export has the block from its beginning.  An array interface is made without a release of the GIL."""
    buffer = state.full(16, 7, "uint8")
    made = []
    hold = driver.hold("cuStreamIsCapturing", 2)
    thread = threading.Thread(target=lambda: made.append(buffer.__dlpack__(stream=1)))
    thread.start()
    assert hold.reached(5)
    buffer.release()
    hold.release()
    thread.join()
    assert made
    made.clear()
    settle()
    state.runtime.reap_pending()
    assert driver.live_bytes() == 0
