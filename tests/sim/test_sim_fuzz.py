"""Random programs: the race checker against an oracle that knows nothing of vector clocks.

The oracle keeps, for every operation, the set of operations that happen before it, and compares each new use of a
block with all earlier ones. After each call both have to agree on whether there has been a race yet. Programs
without a race have to give the same bytes in every schedule.
"""

from __future__ import annotations

import random

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, event, fill, free, ok, stream, sync

pytestmark = pytest.mark.simulator


class Oracle:
    """Happens-before as plain sets of operation numbers."""

    def __init__(self, streams):
        self.before = [set() for _ in range(streams)]  # what the next operation of a stream comes after
        self.host = set()
        self.count = 0
        self.uses = {}  # block -> [(operation, kind)] since its allocation
        self.freed = {}  # block -> operation
        self.race = False

    def operation(self, s):
        self.before[s] |= self.host
        number, self.count = self.count, self.count + 1
        earlier = set(self.before[s])
        self.before[s].add(number)
        return number, earlier

    def use(self, s, block, kind):
        number, earlier = self.operation(s)
        if kind == "alloc":
            self.uses[block] = []
            self.freed.pop(block, None)
        elif block in self.freed:
            self.race = True  # a use of freed memory is wrong, ordered or not
        for other, other_kind in self.uses[block]:
            if (kind != "read" or other_kind != "read") and other not in earlier:
                self.race = True
        self.uses[block].append((number, kind))
        if kind == "free":
            self.freed[block] = number

    def position(self, s):
        number, _ = self.operation(s)
        return self.before[s] | {number}


class Program:
    """Makes a random call at a time, on the simulator and on the oracle. `careless` is how often a wait or a
    record that the program needs is left out."""

    STREAMS, EVENTS = 3, 3

    def __init__(self, seed, careless):
        self.random, self.careless = random.Random(seed), careless
        self.streams = [stream() for _ in range(self.STREAMS)]
        self.events = [(event(), set()) for _ in range(self.EVENTS)]
        self.oracle = Oracle(self.STREAMS)
        self.blocks, self.value, self.out = [], 0, [cu.Pinned() for _ in range(8)]
        self.reads = 0

    def prepare(self, s):
        """Order s after all other streams, or not."""
        for other in range(self.STREAMS):
            if other == s or self.random.random() < self.careless:
                continue
            e, _ = self.events[0]
            ok(driver.cuEventRecord(e, self.streams[other]))
            position = self.oracle.position(other)
            self.events[0] = (e, position)
            ok(driver.cuStreamWaitEvent(self.streams[s], e, 0))
            self.oracle.before[s] |= position

    def step(self):
        pick, s = self.random.random(), self.random.randrange(self.STREAMS)
        handle = self.streams[s]
        if pick < 0.15 or not self.blocks:
            p = alloc(handle)
            self.oracle.use(s, p, "alloc")
            self.blocks.append(p)
            fill(p, 0, handle)
            self.oracle.use(s, p, "write")
        elif pick < 0.35:
            p = self.random.choice(self.blocks)
            self.prepare(s)
            self.value = self.value % 255 + 1
            fill(p, self.value, handle)
            self.oracle.use(s, p, "write")
        elif pick < 0.55 and self.reads < len(self.out):
            p = self.random.choice(self.blocks)
            self.prepare(s)
            self.out[self.reads].read_from(p, handle)
            self.reads += 1
            self.oracle.use(s, p, "read")
        elif pick < 0.65:
            p = self.blocks.pop(self.random.randrange(len(self.blocks)))
            self.prepare(s)
            free(p, handle)
            self.oracle.use(s, p, "free")
        elif pick < 0.75:
            i = self.random.randrange(1, self.EVENTS)
            e, _ = self.events[i]
            ok(driver.cuEventRecord(e, handle))
            self.events[i] = (e, self.oracle.position(s))
        elif pick < 0.85:
            e, position = self.events[self.random.randrange(1, self.EVENTS)]
            ok(driver.cuStreamWaitEvent(handle, e, 0))
            self.oracle.before[s] |= position
        elif pick < 0.92:
            e, position = self.events[self.random.randrange(1, self.EVENTS)]
            ok(driver.cuEventSynchronize(e))
            self.oracle.host |= position
        else:
            sync(handle)
            self.oracle.host |= self.oracle.before[s]

    def finish(self):
        ok(driver.cuCtxSynchronize())
        data = b"".join(out.bytes() for out in self.out)
        for out in self.out:
            out.close()
        cu.clean_up()
        return data


@pytest.mark.parametrize("careless", [0.0, 0.05, 0.3])
def test_checker_agrees_with_the_oracle(scheduled, careless):
    raced = 0
    for seed in range(60):
        scheduled.clear_races()
        program = Program(seed, careless)
        for _ in range(40):
            program.step()
            assert bool(scheduled.races()) == program.oracle.race, (seed, scheduled.races())
            if program.oracle.race:
                raced += 1
                break
        program.finish()
    assert raced == 0 if careless == 0 else raced > 5


def test_programs_without_races_compute_the_same_in_every_schedule(simulator):
    def run(number, policy, seed):
        simulator.reset(policy, seed)
        program = Program(number, careless=0.0)
        for _ in range(40):
            program.step()
        data = program.finish()
        assert simulator.races() == []
        return data

    for number in range(30):
        assert len({run(number, policy, seed) for policy, seed in cu.SCHEDULES}) == 1
