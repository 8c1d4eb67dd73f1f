"""A forked child answers or refuses every operation, whatever other threads of its parent were doing."""
from __future__ import annotations

import threading

import pytest
from forking import Everything, inside, outcomes
from stress import in_its_own_process, together
from xlogmem_bench._loops import Addresses, lookups

from xlogmem import AsyncMemoryResource, DeviceRuntime, DeviceState, PoolMemoryResource, get_runtime, runtime
from xlogmem.interop import devices

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),       # of forking beside threads, in Python 3.12
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),    # JAX, where another test has imported it
]


@pytest.fixture(params=[PoolMemoryResource, AsyncMemoryResource])
def everything(request, foreign):
    everything = Everything(DeviceRuntime(resource=request.param()), foreign)
    yield everything
    everything.close()


def test_a_child_looks_at_everything_and_changes_nothing(everything):
    answered, refused = everything.answered(), everything.refused()
    assert outcomes(answered) == dict.fromkeys(answered, "answered")
    assert outcomes(refused) == dict.fromkeys(refused, "refused")


def test_no_lock_is_held_in_a_child(everything):
    """Other threads hold the runtime's lock about half of the time."""
    operations = everything.answered() | everything.refused()
    first = {name: operations[name] for name in ("state", "live_bytes", "find_block", "free")}
    addresses, stop = Addresses([everything.block.ptr] * 10_000), threading.Event()

    def look() -> None:
        while not stop.is_set():
            lookups(everything.runtime, addresses, 10_000)

    def churn() -> None:
        while not stop.is_set():
            everything.runtime.allocate(256, everything.stream).free()

    def fork(number: int) -> None:
        if number:
            return (look if number < 3 else churn)()
        try:
            for _ in range(10):
                assert list(outcomes(first)) == list(first)
            assert list(outcomes(operations)) == list(operations)
        finally:
            stop.set()

    together(fork, 4)
    everything.runtime.reap_pending()


@pytest.mark.simulator
@pytest.mark.usefixtures("_cold")
@pytest.mark.parametrize("inside_of", ["acquire_stream", "get_runtime", "recover", "the locks of Python code"])
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have(everything, driver, inside_of):
    """Another thread is inside an operation that holds a lock of Python code around driver calls."""
    operations = everything.answered() | everything.refused()
    operations["get_runtime(n)"] = lambda: get_runtime(1)
    lost, own = DeviceState(DeviceRuntime()), everything.runtime
    operations["recover"] = lost.recover
    lost.mark_lost()
    work, site = {
        "acquire_stream": (lambda: [own.acquire_stream() for _ in range(2)], "cuStreamCreateWithPriority"),
        "get_runtime": (lambda: get_runtime(1), "cuMemPoolCreate"),
        "recover": (lost.recover, "cuMemPoolCreate"),
        "the locks of Python code": (None, None),
    }[inside_of]
    if work is not None:
        held = driver.hold(site)
        until, release = held.reached, held.release
    else:
        reached, go_on = threading.Event(), threading.Event()
        until, release = lambda: reached.wait(60), go_on.set

        def work() -> None:
            with runtime._locks[1], own._prepared_lock, everything.state._lock, lost._lock, devices._lock:
                reached.set()
                go_on.wait(60)

    with inside(work, until=until, release=release):
        found = outcomes(operations)
    assert list(found) == list(operations)
    assert set(found.values()) == {"answered", "refused"}
    assert {found[name] for name in ("acquire_stream", "get_runtime(n)", "recover")} == {"refused"}


def test_a_child_ends_as_other_processes_do():
    """Its finalizers run at its exit."""
    in_its_own_process("""
import os, sys, threading, warnings, xlogmem
warnings.simplefilter("ignore")
from xlogmem_bench._loops import Addresses, lookups
runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource())
stream = runtime.acquire_stream()
block, other = runtime.allocate(64, stream), runtime.allocate(64, stream)
addresses = Addresses([block.ptr] * 10_000)
def look():
    while True:
        lookups(runtime, addresses, 10_000)
threading.Thread(target=look, daemon=True).start()
for number in range(10):
    child = os.fork()
    if child == 0:
        del block
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
os._exit(0)
""")


def test_a_child_may_start_the_driver_while_its_parent_was_about_to():
    """A lock of Python code that another thread of the parent holds is a new one in the child, where that may go on."""
    in_its_own_process("""
import os, threading, warnings, xlogmem
from xlogmem import runtime
warnings.simplefilter("ignore")
held, go_on = threading.Event(), threading.Event()
def hold():
    with runtime._locks[0]:
        held.set()
        go_on.wait(60)
threading.Thread(target=hold).start()
held.wait(60)
child = os.fork()
if child == 0:
    xlogmem.get_runtime().allocate(64).free()
    os._exit(42)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
go_on.set()
""")
