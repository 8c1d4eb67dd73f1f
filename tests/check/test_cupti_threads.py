"""Threads that make calls at once, and a report while they do."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from cupti_library import NEEDED, library
from fabricated import LEGACY, PINNED, A, B, Program, X, Y, out, u64
from places import HELPERS

pytestmark = NEEDED
ROUNDS = 60
MEMORY, STREAM = 0x7100_0000_0000, 0x100000


def at_once(watch: Callable[[], None], *loops: Callable[[int], None]) -> None:
    """Runs the loops in threads, each `ROUNDS` times, and watches until all are done."""
    failed: list[BaseException] = []

    def run(loop: Callable[[int], None]) -> None:
        try:
            for turn in range(ROUNDS):
                loop(turn)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=run, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    watch()
    while any(thread.is_alive() for thread in threads):
        watch()
    assert not failed, failed


def worker(p: Program, number: int, wrong: bool) -> Callable[[int], None]:
    """Allocates, works and frees on streams and memory of its own; with `wrong` on one stream without a wait."""
    def run(turn: int) -> None:
        memory, stream, other = MEMORY + number * 0x100000, STREAM + number * 16, STREAM + number * 16 + 8
        for made in (stream, other):
            p.create(made)
        p.allocate(memory, stream)
        p.fill(memory, stream)
        event = 0x900000 + number
        p.call("cuEventCreate", phEvent=out(event))
        p.call("cuEventRecord", hEvent=event, hStream=stream)
        if not wrong:
            p.wait(other, event)
        p.call("cuMemcpyDtoHAsync_v2", dstHost=PINNED + number * 64, srcDevice=memory, ByteCount=64, hStream=other)
        p.call("cuLaunchKernel", f=0x1000 + turn % 100, hStream=other, kernelParams=(u64 * 1)(0))
        p.free(memory, other)
        p.synchronize(other)
        p.call("cuEventDestroy_v2", hEvent=event)
        for made in (stream, other):
            p.call("cuStreamDestroy_v2", hStream=made)

    return run


@pytest.mark.simulator                                  # a real driver follows a made-up handle, and crashes
@pytest.mark.parametrize("wrong", [False, True])
def test_two_threads_and_a_report(wrong):
    p = Program(library())
    reports = []
    at_once(lambda: reports.append(len(p.findings())), worker(p, 1, wrong), worker(p, 2, wrong))
    assert reports == sorted(reports)
    report = p.report()
    assert report["launches"] == 2 * ROUNDS
    assert bool(report["findings"]) is wrong
    assert {one["pair"] for one in report["findings"]} <= {"write/read", "write/free", "alloc/use"}


@pytest.mark.parametrize("wrong", [False, True])
def test_more_work_than_is_noted_at_once(wrong):
    """A thread of the check's own feeds the engine: see backlog.hpp."""
    p = Program(library())

    def fills(memory: int, stream: int) -> Callable[[int], None]:
        def run(turn: int) -> None:
            for _ in range(100):
                p.fill(memory, stream)

        return run

    at_once(lambda: time.sleep(0.01), fills(X, A), fills(X if wrong else Y, B))
    assert set(p.findings()) == ({"certain write/write"} if wrong else set())
    assert "xlogmem check\n" in [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]


def test_threads_that_come_and_go():
    """The default stream of a thread is given up with it."""
    p = Program(library())
    for _ in range(100):
        p.in_thread(lambda: p.call("cuMemsetD8Async_ptsz", dstDevice=X, N=1, hStream=0))
        p.call("cuCtxSynchronize")
    assert p.findings() == []
    p.fill(X, LEGACY)
    assert p.findings() == []


def test_findings_are_forgotten_and_found_again():
    p = Program(library())
    for _ in range(2):
        p.fill(X, A)
        p.fill(X, A + 0x1000)
        assert p.findings() == ["certain write/write"]
        p.library.xcheck_clear_findings()
        assert p.findings() == []
        p.call("cuCtxSynchronize")


WITHOUT_KEYS = """
import ctypes, sys
from threading import Thread
from fabricated import Program, A, X

libc = ctypes.CDLL(None)
libc.pthread_getspecific.restype = ctypes.c_void_p
key = ctypes.c_uint()
while not libc.pthread_key_create(ctypes.byref(key), None):
    pass
p = Program(sys.argv[1])
p.synchronize(A)

def call():
    values = [libc.pthread_getspecific(key) for key in range(1024)]
    p.fill(X, A)
    changed.extend(key for key in range(1024) if libc.pthread_getspecific(key) != values[key])

changed = []
thread = Thread(target=call)
thread.start()
thread.join()
assert not changed and p.findings() == []
"""


def test_a_process_may_have_no_key_left_for_threads():
    """Keys of the process are others'."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_KEYS, library()], capture_output=True, text=True, timeout=100,
                          env=os.environ | {"PYTHONPATH": str(HELPERS)})
    assert done.returncode == 0, done.stderr
