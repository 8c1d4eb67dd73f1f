"""The rules for conflicting windows, executable, and every interleaving of small programs under them.

`docs/ordering.md` has the rules (conflict, conflict-queue, conflict-circle); `core/contested.pxi` is the product.  A
program is, for each thread, a list of windows to open and close.  `explore` tries every order in which the threads can
take their steps, and says what can go wrong: two conflicting windows are open at once, threads wait for ever, a window
overtakes one that waits longer, or one is refused although the others would have let it go on.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["Close", "Open", "Rules", "explore"]


@dataclass(frozen=True)
class Open:
    """A thread requests a window; `writes` and `reads` are blocks."""

    name: str
    stream: str
    reads: str = ""
    writes: str = ""

    def conflicts(self, other: Open) -> bool:
        return self.stream != other.stream and bool(
            set(self.writes) & set(other.reads + other.writes) or set(self.reads) & set(other.writes))


@dataclass(frozen=True)
class Close:
    name: str


Program = Sequence[Sequence[Open | Close]]


@dataclass(frozen=True)
class Rules:
    """Each is True in the product."""

    waits: bool = True
    in_order: bool = True               # a window waits for conflicting ones that wait longer
    refuses_circles: bool = True
    queue_may_be_overtaken: bool = True     # by a window whose thread the one ahead waits for


ALL_RULES = Rules()


@dataclass(frozen=True)
class State:
    at: tuple[int, ...]                             # of each thread, its next step
    opened: frozenset[tuple[int, Open]] = frozenset()
    queue: tuple[tuple[int, Open], ...] = ()
    refused: frozenset[str] = frozenset()


def in_the_way(state: State, window: Open) -> list[int]:
    """The threads that have conflicting windows open."""
    return [thread for thread, other in state.opened if other.conflicts(window)]


def waits_for(state: State, waiting: int, thread: int, through_queue: bool, seen: frozenset[int] = frozenset()) -> bool:
    """Whether what a thread has in the queue can only go on after `thread`."""
    for place, (owner, window) in enumerate(state.queue):
        if owner != waiting or waiting in seen:
            continue
        behind = in_the_way(state, window)
        if through_queue:
            behind += [ahead for ahead, other in state.queue[:place] if other.conflicts(window)]
        return any(other == thread or waits_for(state, other, thread, through_queue, seen | {waiting})
                   for other in behind)
    return False


def ahead_of(state: State, thread: int, window: Open, rules: Rules) -> list[Open]:
    """Conflicting windows that wait longer, and not for this thread."""
    found = []
    for owner, other in state.queue:
        if (owner, other) == (thread, window):
            break
        if other.conflicts(window) and not (
                rules.queue_may_be_overtaken and waits_for(state, owner, thread, through_queue=True)):
            found.append(other)
    return found


def is_blocked(state: State, thread: int, window: Open, rules: Rules) -> bool:
    return rules.waits and bool(
        in_the_way(state, window) or (rules.in_order and ahead_of(state, thread, window, rules)))


def is_circle(state: State, thread: int, window: Open) -> bool:
    return any(owner == thread or waits_for(state, owner, thread, through_queue=False)
               for owner in in_the_way(state, window))


def moves(program: Program, state: State, rules: Rules) -> Iterator[State]:
    """Every next state: a thread takes a step, or goes on with a window that it waited for."""
    for thread, steps in enumerate(program):
        queued = [window for owner, window in state.queue if owner == thread]
        if queued:
            if not is_blocked(state, thread, queued[0], rules):
                yield opening(replace(state, queue=tuple(x for x in state.queue if x[0] != thread)), thread, queued[0])
        elif state.at[thread] < len(steps):
            yield step(state, thread, steps[state.at[thread]], rules)


def step(state: State, thread: int, what: Open | Close, rules: Rules) -> State:
    if isinstance(what, Close):
        return further(replace(state, opened=frozenset(x for x in state.opened if x[1].name != what.name)), thread)
    if not is_blocked(state, thread, what, rules):
        return opening(state, thread, what)
    if rules.refuses_circles and is_circle(state, thread, what):
        return further(replace(state, refused=state.refused | {what.name}), thread)
    return replace(state, queue=(*state.queue, (thread, what)))


def opening(state: State, thread: int, window: Open) -> State:
    return further(replace(state, opened=state.opened | {(thread, window)}), thread)


def further(state: State, thread: int) -> State:
    return replace(state, at=tuple(at + (owner == thread) for owner, at in enumerate(state.at)))


def explore(program: Program, rules: Rules = ALL_RULES) -> set[str]:
    """What can go wrong in any order of the threads; also ``refused NAME`` for windows that can be refused."""
    wrong: set[str] = set()
    seen, to_do = set(), [State(at=(0,) * len(program))]
    while to_do:
        state = to_do.pop()
        if state in seen:
            continue
        seen.add(state)
        following = list(moves(program, state, rules))
        wrong |= {f"refused {name}" for name in state.refused}
        if not following and any(at < len(steps) for at, steps in zip(state.at, program, strict=True)):
            wrong.add("for ever")
        if any(a is not b and a[1].conflicts(b[1]) for a in state.opened for b in state.opened):
            wrong.add("conflict")
        for after in following:
            for thread, window in after.opened - state.opened:
                if ahead_of(state, thread, window, ALL_RULES):
                    wrong.add("overtaken")
        to_do += following
    return wrong
