"""RMM's C++ on a runtime, without the GIL and in threads."""
from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest
from foreign_streams import ForeignStream
from gil import bindings_without_gil
from rmm_if_installed import RuntimeMemoryResource, Stream, _binding, needs_rmm, rmm, runtime_resource
from xlogmem_bench._loops import Allocator

from xlogmem import sim, use

pytestmark = needs_rmm


@pytest.mark.simulator
@bindings_without_gil
@pytest.mark.parametrize("kind", ["ours", "callback"])
def test_allocations_in_cpp_need_no_gil(kind):
    """The main thread keeps the GIL and watches: ours goes on, callbacks (the twin) do not."""
    calls = ctypes.PyDLL(sim.simulator()._library._name).xsim_calls     # PyDLL: the GIL is kept
    calls.restype, calls.argtypes = ctypes.c_uint64, [ctypes.c_char_p]
    sleep = ctypes.PyDLL(None).usleep                   # the processor is yielded, the GIL is kept
    seen: list[int] = []
    if kind == "ours":
        mr = runtime_resource()
    else:
        mr = rmm.mr.CallbackMemoryResource(lambda nbytes, stream: seen.append(nbytes) or 4096, lambda *freed: None)

    def progress() -> int:
        return calls(b"cuMemAllocFromPoolAsync") if kind == "ours" else len(seen)

    def made_meanwhile(seconds: float) -> int:
        first = progress()
        thread = threading.Thread(target=Allocator.of(_binding.upstream_of(mr)).pairs, args=(64, [0], 3000))
        thread.start()                                  # comes back when the thread releases the GIL: in the loop,
        before = progress()                             # or after it, if this thread was late
        until = time.monotonic() + seconds
        while progress() - before < 100 and progress() - first < 3000 and time.monotonic() < until:
            sleep(100)
        made = progress() - before
        thread.join()
        return made

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        if kind == "ours":
            assert any(made_meanwhile(30) >= 100 for _ in range(100))
        else:
            assert made_meanwhile(0.1) == 0
    finally:
        sys.setswitchinterval(switch)


def test_the_loops_of_the_benchmarks_run_on_rmms_resources():
    ours = runtime_resource()
    loops = Allocator.of(_binding.upstream_of(ours))
    assert len(loops.each_pair(64, [0], 100)) == 100
    assert loops.pairs(64, [0], 50) > 0
    assert ours.runtime.counters()["allocations"] == ours.runtime.counters()["frees"] == 150


@pytest.mark.simulator
def test_threads(four):
    b = four()
    mr = RuntimeMemoryResource(b.runtime)
    failures = []

    def run(stream: Stream) -> None:
        try:
            for turn in range(100):
                kept = [rmm.DeviceBuffer(size=256 + turn, stream=stream, mr=mr) for _ in range(3)]
                with use(b.T, read=kept, on_conflict="count"):
                    pass
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(stream,)) for stream in (
        Stream(b.S), Stream(b.U), Stream(ForeignStream()), rmm.pylibrmm.stream.DEFAULT_STREAM)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    b.runtime.reap_pending()
    assert (b.runtime.live_bytes, b.runtime.counters()["frees"]) == (0, 1200)
