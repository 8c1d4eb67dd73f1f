"""Random programs compute what a serial one would."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from stress import STREAMS, Program, in_its_own_process, together
from which_driver import SIMULATED

from xlogmem import (
    DeviceRuntime,
    sim,
)
from xlogmem.sim.kernels import check

THREADS = 8


@pytest.mark.simulator
@pytest.mark.promise(215)
@pytest.mark.parametrize("seed", range(8))
def test_the_random_programs_notice_a_missing_wait(kernels, driver, seed):
    """The twin: nothing covers for the first wait of a program."""
    driver.reset("seeded", seed)
    program = Program(seed)
    for dropped in (False, True):
        own = DeviceRuntime()
        streams = [own.acquire_stream() for _ in range(STREAMS)]
        if dropped:
            driver.drop("cuStreamWaitEvent")
        assert program.run(own, streams, kernels) == program.serial() or dropped
        assert bool(driver.races()) == dropped
        driver.clear_races()


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.promise(215)
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.parametrize("shared", [True, False])
def test_threads_compute_what_one_would(kernels, _context, shared, policy):
    """Eight threads of 32 programs on the streams of one runtime, and in runtimes of their own in one context."""
    if SIMULATED:
        sim.simulator().reset("seeded", seed=215)
    one = DeviceRuntime(policy=policy)
    common = [one.acquire_stream() for _ in range(STREAMS)]
    runtimes = {one}

    def work(number: int) -> list[str]:
        check(cuda.cuCtxSetCurrent(_context))
        own, streams = one, common
        if not shared:
            own = DeviceRuntime(policy=policy)
            streams = [own.acquire_stream() for _ in range(STREAMS)]
            runtimes.add(own)
        wrong = []
        for iteration in range(32):
            program = Program(seed := 1000 * number + iteration)
            if program.run(own, streams, kernels) != program.serial():
                wrong.append(f"stress.Program({seed}) in thread {number}")
        return wrong

    assert together(work, THREADS) == [[]] * THREADS
    assert len(runtimes) == (1 if shared else THREADS + 1)
    for own in runtimes:
        own.reap_pending()
        assert own.bytes_outstanding == own.counters()["live_blocks"] == 0
        assert own.counters()["allocations"] == own.counters()["frees"]


@pytest.mark.promise(215)
@pytest.mark.parametrize("seed", [100, 200, 300, 400])
def test_fresh_processes_compute_what_a_serial_one_would(seed):
    policy = ("lazy", "precise", "adaptive", "adaptive")[seed // 100 - 1]
    printed = in_its_own_process("import stress; stress.main()", seed, 4, XLOGMEM_POLICY=policy)
    assert printed.splitlines() == [*(str(Program(seed + number).serial()) for number in range(4)), "races: 0"], (
        f"replay: PYTHONPATH=tests/helpers XLOGMEM_POLICY={policy} python -c 'import stress; stress.main()' {seed} 4")
