"""The rules for conflicting windows, executable, and every interleaving of small programs under them.

`docs/ordering.md` has the rules (conflict, conflict-queue, conflict-circle); `core/contested.pxi` is the product.  A
program is, for each thread, a list of windows to open and close.  `explore` tries every order in which the threads can
take their steps, and says what can go wrong: two conflicting windows are open at once, threads wait for ever, a window
overtakes one that waits longer, or one is refused.  A thread that waits may run other code meanwhile (a signal handler,
a hook of warnings): `during` a wait it may take some steps, once.
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
    during: tuple[Open | Close, ...] = ()
    moved: bool = False         # another thread has touched the recorder: it is unknown which one will close the window
    refuses: bool = False       # on_conflict="raise"

    def conflicts(self, other: Open) -> bool:
        return self.stream != other.stream and bool(
            set(self.writes) & set(other.reads + other.writes) or set(self.reads) & set(other.writes))


@dataclass(frozen=True)
class Close:
    """Any thread may close a window that is open; before that it waits for the other thread in its own way."""

    name: str


Step = Open | Close
Program = Sequence[Sequence[Step]]


@dataclass(frozen=True)
class Rules:
    """Each is True in the product."""

    waits: bool = True
    in_order: bool = True               # a window waits for conflicting ones that wait longer
    refuses_circles: bool = True
    refuses_in_order: bool = True           # what would not wait is refused for those that wait, too
    unknown_are_no_circle: bool = True      # a window that any thread may close
    queue_may_be_overtaken: bool = True     # by a window whose thread the one ahead waits for


ALL_RULES = Rules()


@dataclass(frozen=True)
class Entry:
    """A window that is open or in the queue; `depth` is how many waits its thread has interrupted for it."""

    thread: int
    depth: int
    window: Open


@dataclass(frozen=True)
class State:
    frames: tuple[tuple[tuple[tuple[Step, ...], int], ...], ...]    # of each thread: what it runs, and its next step
    opened: frozenset[Entry] = frozenset()
    queue: tuple[Entry, ...] = ()
    refused: frozenset[str] = frozenset()


def in_the_way(state: State, window: Open) -> list[Entry]:
    """The open windows that conflict with this one."""
    return [other for other in state.opened if other.window.conflicts(window)]


def stuck_behind(state: State, entry: Entry, through_queue: bool, rules: Rules) -> set[Entry]:
    """What is not closed, or does not go on, before this window's thread does; with `through_queue` also because of
    what waits longer, and because of windows that this thread may have to close."""
    known = through_queue or not rules.unknown_are_no_circle
    found = {other for other in state.opened
             if (other.thread == entry.thread and (known or not other.window.moved))
             or (through_queue and other.window.moved)}
    found |= {other for other in state.queue if other.thread == entry.thread and other.window.name != entry.window.name}
    while True:
        more = {other for place, other in enumerate(state.queue) if any(
            first.window.conflicts(other.window) for first in found
            if first in state.opened or (through_queue and first in state.queue[:place]))}
        more |= {outer for waiting in found | more if waiting in state.queue
                 for outer in (*state.opened, *state.queue)
                 if outer.thread == waiting.thread and not outer.window.moved
                 and outer.depth < waiting.depth + (outer in state.opened)}
        if more <= found:
            return found
        found |= more


def ahead_of(state: State, entry: Entry, rules: Rules) -> list[Entry]:
    """Conflicting windows that wait longer, and not for this thread."""
    names = [other.window.name for other in state.queue]
    place = names.index(entry.window.name) if entry.window.name in names else len(names)
    found = [other for other in state.queue[:place] if other.window.conflicts(entry.window)]
    if found and rules.queue_may_be_overtaken:
        stuck = stuck_behind(state, entry, True, rules)
        found = [other for other in found if other not in stuck]
    return found


def is_blocked(state: State, entry: Entry, rules: Rules) -> bool:
    in_order = rules.in_order and (rules.refuses_in_order or not entry.window.refuses)
    return rules.waits and bool(
        in_the_way(state, entry.window) or (in_order and ahead_of(state, entry, rules)))


def is_circle(state: State, entry: Entry, rules: Rules) -> bool:
    return not stuck_behind(state, entry, False, rules).isdisjoint(in_the_way(state, entry.window))


def moves(state: State, rules: Rules) -> Iterator[State]:
    """Every next state: a thread takes a step, or goes on with a window that it waited for."""
    for thread, frames in enumerate(state.frames):
        steps, at = frames[-1]
        waiting = [other for other in state.queue if (other.thread, other.depth) == (thread, len(frames) - 1)]
        if waiting:
            yield from after_wait(state, waiting[0], rules)
        elif at < len(steps):
            yield from step(state, Entry(thread, len(frames) - 1, steps[at]) if isinstance(steps[at], Open) else
                            steps[at], thread, rules)
        elif len(frames) > 1:
            yield with_frames(state, thread, frames[:-1])


def after_wait(state: State, entry: Entry, rules: Rules) -> Iterator[State]:
    """It goes on, or its thread runs what it may run meanwhile."""
    others = tuple(other for other in state.queue if other != entry)
    if not is_blocked(state, entry, rules):
        yield opening(replace(state, queue=others), entry)
    if entry.window.during:
        once = replace(entry, window=replace(entry.window, during=()))
        queue = tuple(once if other == entry else other for other in state.queue)
        yield with_frames(replace(state, queue=queue), entry.thread,
                          (*state.frames[entry.thread], (entry.window.during, 0)))


def step(state: State, what: Entry | Close, thread: int, rules: Rules) -> Iterator[State]:
    if isinstance(what, Close):
        left = frozenset(other for other in state.opened if other.window.name != what.name)
        if left != state.opened or what.name in state.refused:
            yield further(replace(state, opened=left), thread)
    elif not is_blocked(state, what, rules):
        yield opening(state, what)
    elif what.window.refuses or (rules.refuses_circles and is_circle(state, what, rules)):
        yield further(replace(state, refused=state.refused | {what.window.name}), thread)
    else:
        yield replace(state, queue=(*state.queue, what))


def opening(state: State, entry: Entry) -> State:
    return further(replace(state, opened=state.opened | {entry}), entry.thread)


def further(state: State, thread: int) -> State:
    *outer, (steps, at) = state.frames[thread]
    return with_frames(state, thread, (*outer, (steps, at + 1)))


def with_frames(state: State, thread: int, frames: tuple[tuple[tuple[Step, ...], int], ...]) -> State:
    return replace(state, frames=(*state.frames[:thread], frames, *state.frames[thread + 1:]))


def is_at_the_end(state: State) -> bool:
    return all(at == len(steps) for frames in state.frames for steps, at in frames)


def explore(program: Program, rules: Rules = ALL_RULES) -> set[str]:
    """What can go wrong in any order of the threads; also ``refused NAME`` for windows that can be refused."""
    wrong: set[str] = set()
    seen, to_do = set(), [State(frames=tuple(((tuple(steps), 0),) for steps in program))]
    while to_do:
        state = to_do.pop()
        if state in seen:
            continue
        seen.add(state)
        following = list(moves(state, rules))
        wrong |= {f"refused {name}" for name in state.refused}
        if not following and not is_at_the_end(state):
            wrong.add("for ever")
        if any(a is not b and a.window.conflicts(b.window) for a in state.opened for b in state.opened):
            wrong.add("conflict")
        for after in following:
            if any(ahead_of(state, entry, ALL_RULES) for entry in after.opened - state.opened):
                wrong.add("overtaken")
        to_do += following
    return wrong
