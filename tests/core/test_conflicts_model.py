"""The rules for conflicting windows in every interleaving of small programs, and without each of them."""
from __future__ import annotations

import itertools
import random

import pytest
from waiting_model import Close, Open, Rules, explore


def nested(*windows: Open) -> list[Open | Close]:
    return [*windows, *(Close(window.name) for window in reversed(windows))]


READERS_AND_A_WRITER = [nested(Open("r", "S", reads="x")), nested(Open("w", "T", writes="x")),
                        nested(Open("q", "U", reads="x"))]
CROSSED = [nested(Open("a", "S", writes="x"), Open("b", "S", writes="y")),
           nested(Open("c", "T", writes="y"), Open("d", "T", writes="x"))]
OWN = [nested(Open("a", "S", writes="x"), Open("b", "T", reads="x"))]
ONCE_MORE = [nested(Open("a", "S", reads="x"), Open("b", "T", reads="x")), nested(Open("w", "U", writes="x"))]
THREE = [nested(Open("a", "S", writes="x"), Open("b", "V", writes="y")),
         nested(Open("c", "T", writes="y"), Open("d", "V", writes="z")),
         nested(Open("e", "U", writes="z"), Open("f", "V", writes="x"))]


def test_what_the_rules_refuse():
    assert explore(READERS_AND_A_WRITER) == set()
    assert explore(CROSSED) == {"refused b", "refused d"}
    assert explore(OWN) == {"refused b"}
    assert explore(ONCE_MORE) == set()
    assert explore(THREE) == {"refused b", "refused d", "refused f"}


@pytest.mark.parametrize(("rule", "program", "wrong"), [
    ("waits", READERS_AND_A_WRITER, "conflict"),
    ("in_order", READERS_AND_A_WRITER, "overtaken"),
    ("refuses_circles", CROSSED, "for ever"),
    ("refuses_circles", OWN, "for ever"),
    ("refuses_circles", THREE, "for ever"),
    ("queue_may_be_overtaken", ONCE_MORE, "for ever"),
])
def test_each_rule_is_needed(rule, program, wrong):
    assert wrong in explore(program, Rules(**{rule: False}))


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    """Never two conflicting windows at once, never for ever, never out of turn."""
    draw = random.Random(seed)
    names = map(str, itertools.count())

    def window() -> Open:
        reads, writes = (draw.sample("xyz", draw.randint(0, 2)) for _ in range(2))
        return Open(next(names), draw.choice("STU"), "".join(reads), "".join(writes))

    program = [nested(*(window() for _ in range(draw.randint(1, 2)))) + nested(window()) for _ in range(3)]
    assert not {what for what in explore(program) if not what.startswith("refused")}
