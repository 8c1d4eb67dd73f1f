"""What the counterexamples share: a runtime of the model with four streams, and short names for the steps."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ordering_model.driver import Driver, Op
from ordering_model.frontiers import Block, Range
from ordering_model.ranges import RangeCore
from ordering_model.rules import HostRules, RangeRules, run
from ordering_model.streams import Stream
from ordering_model.windows import Window


def needs(switch: str, **options: Any) -> Callable[[Callable[[RangeRules], bool]], Callable[[], None]]:
    """Makes a test of a counterexample: it is right under the rules, and goes wrong if this one is left out."""
    def make_test(counterexample: Callable[[RangeRules], bool]) -> Callable[[], None]:
        def test() -> None:
            rules, without = RangeRules(**options), RangeRules(**{**options, switch: False})
            assert counterexample(rules)
            assert not counterexample(without), f"it does not need {switch}"
        test.__name__, test.__doc__ = counterexample.__name__, counterexample.__doc__
        return test
    return make_test


class Bench:
    """The streams S, T, U and V are ordinary, but for those that `opaque` and `sealed` name."""

    def __init__(self, rules: HostRules, opaque: str = "", sealed: str = "") -> None:
        self.driver = Driver()
        self.core = RangeCore(self.driver, rules if isinstance(rules, RangeRules) else RangeRules(**vars(rules)))
        self.S, self.T, self.U, self.V = (
            self.core.register(self.driver.stream_create(), opaque=name in opaque, sealed=name in sealed)
            for name in "STUV")

    def allocate(self, stream: Stream, cells: int = 1, memory: str = "driver") -> Block:
        return run(self.core.allocate(cells, stream, memory))

    def work(self, stream: Stream, what: str = "work") -> Op:
        """Work that is enqueued without a record."""
        return self.driver.launch(stream.handle, what)

    def prepare(self, stream: Stream, *uses: tuple[Block | Range, str]) -> Window:
        return run(self.core.prepare(stream, list(uses)))

    def use(self, stream: Stream, *uses: tuple[Block | Range, str]) -> Op:
        """Prepare, launch and finish."""
        window = self.prepare(stream, *uses)
        op = self.work(stream, "use")
        run(self.core.finish(window))
        return op

    def free(self, block: Block) -> None:
        run(self.core.free(block))

    def wait_with_own_event(self, stream: Stream, source: Stream) -> None:
        """The program orders one stream after another, and the runtime does not hear of it."""
        event = self.driver.event_create()
        self.driver.event_record(event, source.handle)
        self.driver.stream_wait(stream.handle, event)

    def unregister_and_destroy(self, stream: Stream, successor: Stream) -> None:
        run(self.core.unregister(stream, successor))
        self.driver.stream_destroy(stream.handle)

    def is_ordered(self, op: Op, stream: Stream) -> bool:
        """Is the operation ordered before everything that is enqueued on the stream from now on?"""
        return self.driver.is_before_later_work(op, stream.handle)
