"""Defects on purpose: every rule that the library lives by can be broken, to see whether somebody notices.

In a debug build (XLOGMEM_BUILD=debug) one defect at a time is planted by `plant`, or by ``XLOGMEM_DEFECT=name`` in
the environment, for the whole process; in a release build the places where they would be are not even compiled.
Such a place reads ``if planted(SOMETHING):`` and stands at the rule that it breaks.  What they are stands here, in one
table; no rule, no driver call and no other state may live here.
"""
import os
from collections import namedtuple

from libc.stdint cimport uint64_t

from xlogmem._cpp cimport atomic

__all__ = ["DEFECTS", "PlantedDefect", "plant", "reached"]

cdef atomic[int] selected                   # one for all compiled modules, which ask through `is_planted`
cdef atomic[uint64_t] hits

PlantedDefect = namedtuple("PlantedDefect", "number rule what")


def _named(*rows):
    return {name: PlantedDefect(number, rule, what) for number, name, rule, what in rows}


# The rule that is broken (a paragraph of the ordering rules, a weakness W of the contract), and what happens instead.
DEFECTS = _named(
    (KNOWN_BEFORE_WAIT, "known-before-wait", "order T after (S, n): knowledge is raised only if the wait succeeded",
     "A stream counts as ordered before its wait is queued, also if the wait fails."),
    (FENCE_COVERS_NEXT, "fence-covers-next", "order T after (S, n): take a fence that covers n",
     "A fence is taken for the position after the one that it covers too."),
    (POSITION_SAMPLED_LATE, "position-sampled-late", "terms: a fence's position is sampled before the record call",
     "A fence claims what was committed while it was being recorded."),
    (KNOWLEDGE_SAMPLED_LATE, "knowledge-sampled-late", "terms: a fence's knowledge is sampled before the record call",
     "A fence claims what its stream came to know while it was being recorded."),
    (LAST_WAIT_SKIPPED, "last-wait-skipped", "order T after (S, n): a launch makes one wait per source stream",
     "Of several sources the last is not waited for."),
    (HIDDEN_TAKES_NO_POSITION, "hidden-takes-no-position", "hidden work: entries are raised to a touch of S",
     "Hidden work is raised to the position that its stream has, which an old fence may cover."),
    (FRESH_IGNORED, "fresh-ignored", "hidden work: of fresh blocks on their allocation stream (W6)",
     "What was filled without a recorder before the first use elsewhere is not waited for."),
    (WRITE_FORGETS_READERS, "write-forgets-readers", "prepare: write and read-write order after all entries",
     "A write is not ordered after the readers of what it overwrites."),
    (OLDER_NEED_KEPT, "older-need-kept", "order T after (S, n): one wait per source, for the newest position",
     "Of two positions on one source the first that was found is waited for."),
    (FINISH_REMOVES_ALL, "finish-removes-all", "finish: a write removes the entries of its ticket, nothing else (W2, W3)",
     "A write forgets the uses that slipped in between its prepare and its finish."),
    (FREE_FORGETS_READERS, "free-forgets-readers", "free: waits for the whole frontier",
     "A free is not ordered after the readers of the block."),
    (FREE_FORGETS_WRITERS, "free-forgets-writers", "free: waits for the whole frontier",
     "A free is not ordered after the writers of the block."),
)


cdef bint is_planted(Defect defect) noexcept nogil:
    if selected.load() != defect:
        return False
    hits.fetch_add(1)
    return True


def plant(name):
    """Plant a defect in this process, instead of the one planted before; None: in none.

    Raises
    ------
    ValueError
        There is no defect of this name.
    RuntimeError
        This is a release build.
    """
    if name is not None and name not in DEFECTS:
        raise ValueError(f"defect {name!r} is unknown; choose one of {', '.join(DEFECTS)}")
    if name is not None and not COMPILED_IN:
        raise RuntimeError(f"defect {name!r} cannot be planted: this is a release build. Make a debug build with "
                           "XLOGMEM_BUILD=debug pip install -e .")
    selected.store(NO_DEFECT if name is None else DEFECTS[name].number)
    hits.store(0)


def reached():
    """How often the code broke its rule since the last `plant`."""
    return hits.load()


plant(os.environ.get("XLOGMEM_DEFECT") or None)
