"""Random programs with accesses of the host, and a model of what orders them: see tests/check/test_host_random.py.

    python random_host.py SEED STEPS [PROGRAMS [THREADS]]

prints the number of accesses that nothing orders, and of all; a line with "differs" for each that the check judges
otherwise.  With several threads, each of which runs a program: the number of findings.
"""
from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from dataclasses import dataclass, field

import numpy as np

from xlogmem.check import start

front_end = start.watch()
from cuda.bindings import driver  # noqa: E402

KINDS = ("page-locked", "managed", "registered")
BYTES = 5 * 4096
WORDS = {ctypes.sizeof(word): word for word in (ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64)}
STREAMS = 2


def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None


def found() -> int:
    return sum(one["count"] for one in front_end.report().findings)


@dataclass
class Pending:
    stream: int
    number: int
    begin: int
    end: int
    writes: bool


@dataclass
class Model:
    """Operations that the host does not know to be done, and what each stream and event comes after."""

    known: list[int] = field(default_factory=lambda: [0] * STREAMS)
    newest: list[int] = field(default_factory=lambda: [0] * STREAMS)
    after: list[list[int]] = field(default_factory=lambda: [[0] * STREAMS for _ in range(STREAMS)])
    events: dict[int, list[int]] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)

    def queue(self, stream: int) -> int:
        self.newest[stream] += 1
        self.after[stream][stream] = self.newest[stream]
        return self.newest[stream]

    def learn(self, clock: list[int]) -> None:
        self.known = newer(self.known, clock)
        self.pending = [one for one in self.pending if one.number > self.known[one.stream]]

    def is_race(self, begin: int, end: int, write: bool) -> bool:
        return any(one.begin < end and begin < one.end and (write or one.writes) for one in self.pending)


def newer(one: list[int], other: list[int]) -> list[int]:
    return [max(pair) for pair in zip(one, other, strict=True)]


class Program:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed, self.races, self.accesses = seed, 0, 0
        ok(driver.cuCtxSetCurrent(context))
        self.streams = [ok(driver.cuStreamCreate(1)) for _ in range(STREAMS)]
        self.events = [ok(driver.cuEventCreate(2)) for _ in range(STREAMS)]
        self.device = ok(driver.cuMemAlloc(1 << 20))
        self.array = np.zeros(BYTES + 4096, np.uint8)
        at = (self.array.ctypes.data + 4095) & ~4095
        ok(driver.cuMemHostRegister(at, BYTES, 0))
        self.areas = {"page-locked": int(ok(driver.cuMemHostAlloc(BYTES, 0))),
                      "managed": int(ok(driver.cuMemAllocManaged(BYTES, 1))), "registered": at}
        self.pipe = os.pipe()
        self.copied = ctypes.create_string_buffer(8)
        self.model = Model()

    def run(self, steps: int, judged: bool) -> None:
        for _ in range(steps):
            action = self.random.choices((self.work, self.record, self.wait, self.synchronize, None),
                                         (35, 10, 5, 6, 44))[0]
            if action:
                action(self.random.randrange(STREAMS))
            else:
                self.access(judged)
        self.wait_for_all()

    def range(self) -> tuple[str, int, int]:
        kind = self.random.choice(KINDS)
        at = self.areas[kind]
        begin = at + self.random.randrange(0, BYTES - 8) // 8 * 8
        return kind, begin, min(at + BYTES, begin + self.random.choice((8, 16, 64, 200, 4096, 9000)))

    def end(self) -> None:
        ok(driver.cuMemFreeHost(self.areas["page-locked"]))
        ok(driver.cuMemFree(self.areas["managed"]))
        ok(driver.cuMemHostUnregister(self.areas["registered"]))
        ok(driver.cuMemFree(self.device))
        for stream in self.streams:
            ok(driver.cuStreamDestroy(stream))
        for event in self.events:
            ok(driver.cuEventDestroy(event))
        for file in self.pipe:
            os.close(file)

    def work(self, which: int) -> None:
        kind, begin, end = self.range()
        up, stream = self.random.random() < 0.5, self.streams[which]
        if kind == "managed" and self.random.random() < 0.1:
            up = False
            ok(driver.cuMemsetD8Async(begin, 3, end - begin, stream))
        elif up:
            ok(driver.cuMemcpyHtoDAsync(self.device, begin, end - begin, stream))
        else:
            ok(driver.cuMemcpyDtoHAsync(begin, self.device, end - begin, stream))
        self.model.pending.append(Pending(which, self.model.queue(which), begin, end, not up))

    def record(self, which: int) -> None:
        ok(driver.cuEventRecord(self.events[which], self.streams[which]))
        self.model.queue(which)
        self.model.events[which] = list(self.model.after[which])

    def wait(self, which: int) -> None:
        if which not in self.model.events:
            return
        clock, other = self.model.events[which], 1 - which
        if self.random.random() < 0.5:
            ok(driver.cuStreamWaitEvent(self.streams[other], self.events[which], 0))
            self.model.after[other] = newer(self.model.after[other], clock)
        else:
            ok(driver.cuEventSynchronize(self.events[which]))
            self.model.learn(clock)

    def synchronize(self, which: int) -> None:
        ok(driver.cuStreamSynchronize(self.streams[which]))
        self.model.learn(self.model.after[which])

    def wait_for_all(self) -> None:
        for stream in self.streams:
            ok(driver.cuStreamSynchronize(stream))
        self.model.learn(self.model.newest)

    def access(self, judged: bool) -> None:
        _, begin, _ = self.range()
        write, size = self.random.random() < 0.5, self.random.choice((1, 2, 4, 8))
        expected, before = self.model.is_race(begin, begin + size, write), found() if judged else 0
        self.touch(begin, size, write)
        self.accesses += 1
        self.races += expected
        if judged and (found() > before) != expected:
            print("differs:", self.seed, "write" if write else "read", hex(begin), size, "a race:", expected)
        if expected:
            self.wait_for_all()

    def touch(self, begin: int, size: int, write: bool) -> None:
        if self.random.random() < 0.2:                  # by the system
            memory = (ctypes.c_char * size).from_address(begin)
            if write:
                os.write(self.pipe[1], b"x" * size)
                assert os.readv(self.pipe[0], [memory]) == size
            else:
                assert os.write(self.pipe[1], memory) == size
                os.read(self.pipe[0], size)
        elif self.random.random() < 0.5:                # by libc
            ctypes.memset(begin, 7, size) if write else ctypes.memmove(self.copied, begin, size)
        else:
            word = WORDS[size].from_address(begin)
            if write:
                word.value = 7
            else:
                assert word.value >= 0


def main(seed: int, steps: int, programs: int = 1, threads: int = 1) -> None:
    if threads == 1:
        races = accesses = 0
        for i in range(programs):
            program = Program(seed + i)
            program.run(steps, judged=True)
            program.end()
            front_end.clear()
            races, accesses = races + program.races, accesses + program.accesses
        print(races, accesses)
        return
    workers = [threading.Thread(target=lambda i=i: Program(seed + i).run(steps, judged=False)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(len(front_end.report().findings))


ok(driver.cuInit(0))
context = ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxSetCurrent(context))
main(*map(int, sys.argv[1:]))
