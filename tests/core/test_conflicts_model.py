"""The rules for conflicting windows in every interleaving of small programs, and without each of them."""
from __future__ import annotations

import itertools
import random
from dataclasses import replace

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
# A signal handler that uses the block that its thread waits for, behind another thread that waits for it.
HANDLER = [[Open("a", "S", writes="x"), Close("a")],
           nested(Open("b", "T", writes="x", during=(Open("h", "U", reads="x"), Close("h")))),
           nested(Open("c", "V", writes="x"))]
# The handler needs what a thread holds that waits behind this one.
HANDLER_AND_HOLDER = [nested(Open("a", "S", writes="x")),
                      nested(Open("b", "T", writes="x", during=(Open("h", "U", reads="y"), Close("h")))),
                      nested(Open("c", "V", writes="y"), Open("d", "W", reads="x"))]
# What a handler opens and closes is no reason to refuse another thread that holds what the interrupted wait is for.
HANDLER_HOLDS = [nested(Open("a", "S", writes="x"), Open("d", "V", reads="y")),
                 nested(Open("b", "T", writes="x", during=(Open("h", "U", writes="y"), Close("h"))))]
# Thread 0 prepares for thread 1, and is used for something else.
MOVED = [[Open("a", "S", writes="x", moved=True), Open("b", "T", reads="x"), Close("b")], [Close("a")]]
MOVED_AND_USED = [[Open("a", "S", reads="x", moved=True)], nested(Open("w", "T", writes="x")),
                  [*nested(Open("b", "U", reads="x", moved=True)), Close("a")]]
RAISING = [nested(Open("r", "S", reads="x")), nested(Open("w", "T", writes="x")),
           nested(Open("q", "U", reads="x", refuses=True))]


def test_what_the_rules_refuse():
    assert explore(READERS_AND_A_WRITER) == set()
    assert explore(CROSSED) == {"refused b", "refused d"}
    assert explore(OWN) == {"refused b"}
    assert explore(ONCE_MORE) == set()
    assert explore(THREE) == {"refused b", "refused d", "refused f"}
    for program in (HANDLER, HANDLER_AND_HOLDER, HANDLER_HOLDS, MOVED, MOVED_AND_USED):
        assert explore(program) == set()
    assert explore(RAISING) == {"refused q"}


@pytest.mark.parametrize(("rule", "program", "wrong"), [
    ("waits", READERS_AND_A_WRITER, "conflict"),
    ("in_order", READERS_AND_A_WRITER, "overtaken"),
    ("refuses_circles", CROSSED, "for ever"),
    ("refuses_circles", OWN, "for ever"),
    ("refuses_circles", THREE, "for ever"),
    ("queue_may_be_overtaken", ONCE_MORE, "for ever"),
    ("queue_may_be_overtaken", HANDLER, "for ever"),
    ("queue_may_be_overtaken", HANDLER_AND_HOLDER, "for ever"),
    ("queue_may_be_overtaken", MOVED_AND_USED, "for ever"),
    ("unknown_are_no_circle", MOVED, "refused b"),
    ("refuses_in_order", RAISING, "overtaken"),
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
    if seed % 2:                                        # the first thread may be interrupted in its first wait
        program[0][0] = replace(program[0][0], during=tuple(nested(window())))
    assert not {what for what in explore(program) if not what.startswith("refused")}
