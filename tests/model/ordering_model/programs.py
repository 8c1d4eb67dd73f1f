"""Random programs of up to three threads.

Each thread takes actions; wherever the rules drop the lock (a `yield`), another thread may run.  This has to hold, by
the names of the violations:

conflict    A use comes after every earlier conflicting access that was closed before its prepare began.
hand-back   Unrecorded work on an opaque home comes after uses elsewhere.
reuse       The next owner of bytes comes after all accesses to them.
release     Bytes are returned to the driver, or to another owner, after all accesses to them.
misuse      No call uses a dead handle or a captured event, or frees twice.
index       No address comes back while its former block is in the index.
leak        At the end everything is freed, nothing is counted, pinned or in flight, and the events are bounded.
"""
from __future__ import annotations

from ordering_model.actions import Action, Actions, Configuration
from ordering_model.driver import DriverError, Violation
from ordering_model.frontiers import State
from ordering_model.rules import Operation, StreamMisuse, UseAfterFree

STEPS = 150

CONFIGURATIONS = {
    "plain": Configuration(("driver",)),
    "opaque": Configuration(opaque=2),
    "pool": Configuration(("pool",)),
    "adopted": Configuration(("driver", "adopted", "pool"), opaque=1),
    "unregistering": Configuration(opaque=1, unregister=True),
    "failing": Configuration(opaque=1, failures=True),
    "capturing": Configuration(opaque=1, capture=True),
    "threads": Configuration(opaque=1, threads=3),
    "everything": Configuration(("driver", "pool", "adopted"), opaque=1, threads=3, failures=True, unregister=True,
                                capture=True),
}


class Program(Actions):
    def actions(self) -> list[tuple[Action, int]]:
        """Each action and its weight."""
        configuration = self.configuration
        table: list[tuple[Action, int]] = [
            (self.allocate, 14), (self.fill, 8), (self.prepare, 22), (self.launch, 12), (self.finish, 18),
            (self.free, 9), (self.record_use, 3), (self.reap, 2), (self.change_policy, 1), (self.fill_late, 4)]
        if configuration.opaque:
            table.append((self.work_unrecorded, 10))
        if "pool" in configuration.memory:
            table.append((self.trim, 1))
        if configuration.unregister:
            table += [(self.unregister, 3), (self.reap_tombstone, 1)]
        if configuration.failures:
            table.append((self.fail, 4))
        if configuration.capture:
            table.append((self.capture, 3))
        return table

    def step(self, operation: Operation[None]) -> bool:
        """Run a thread until the lock is dropped; False when its action is over."""
        try:
            next(operation)
            return True
        except (StopIteration, DriverError, StreamMisuse, UseAfterFree):
            pass
        except Violation as violation:
            self.oracle.report("misuse", str(violation))
        except AssertionError as error:
            self.oracle.report("index", str(error))
        self.operations += 1
        return False

    def run_alone(self, operation: Operation[None]) -> None:
        while self.step(operation):
            pass

    def play(self) -> Program:
        actions, weights = zip(*self.actions(), strict=True)
        threads: list[Operation[None] | None] = [None] * self.configuration.threads
        alone = len(threads) == 1
        for _ in range(STEPS if alone else 3 * STEPS):
            number = self.random.randrange(len(threads))
            operation = threads[number] or self.random.choices(actions, weights)[0]()
            if alone:
                self.run_alone(operation)
            else:
                threads[number] = operation if self.step(operation) else None
            if self.oracle.is_broken:
                break
        for rest in threads:
            if rest is not None:
                self.run_alone(rest)
        if not self.oracle.is_broken:
            self.end()
        return self

    def end(self) -> None:
        """Close and free everything; nothing may be left."""
        self.oracle.failures.clear()
        for stream in self.streams:
            stream.handle.capturing = False
        while self.launches:
            self.run_alone(self._finish(self.launches[0]))
        for track in self.tracks:
            if not track.freed:
                self.run_alone(self._free(track))
        self.run_alone(self.core.free_deferred())
        self.run_alone(self.core.reap())
        self._check_nothing_left()

    def _check_nothing_left(self) -> None:
        core, streams = self.core, self.core.streams.values()
        left = [track.block.generation for track in self.tracks if track.block.state is not State.FREED]
        if left or core.live or core.pending or core.to_retry or core.dropped:
            self.oracle.report("leak", f"blocks {left}, {core.live} live and {core.pending} pending cells")
        if any(stream.in_use for stream in streams):
            self.oracle.report("leak", "a stream is still in use")
        if any(fence.pins for stream in streams for fence in stream.ring):
            self.oracle.report("leak", "a fence is still pinned")
        bound = len(streams) * (core.rules.ring + 1) + 3 * self.configuration.threads + 4
        if self.oracle.calls["event_create"] > bound:
            self.oracle.report("leak", f"{self.oracle.calls['event_create']} events were created, bound {bound}")
