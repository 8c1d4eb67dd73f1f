"""A history as one page for a browser, which needs nothing else.

The events go into it as they were recorded, packed by gzip: a million of them are 64 MB in the page's memory, and what
the page derives from them is about as large.  xlogmem/observe/history/page has its parts.
"""
from __future__ import annotations

import base64
import gzip
import json
from importlib.resources import files
from typing import Any

from xlogmem._base.texts import encodable
from xlogmem.check.frames import Frame, place_in
from xlogmem.observe.history.events import ACCESSES, KINDS, NEEDS
from xlogmem.observe.history.files import History

__all__ = ["page"]

SCRIPTS = ("events.js", "model.js", "drawing.js", "picking.js", "hover.js", "story.js", "main.js")


def page(history: History, title: str = "xlogmem") -> str:
    """The page.

    Parameters
    ----------
    history : History
        What `xlogmem.history.read` or `Recording.history` gives.
    title : str
        Stands above it.

    Returns
    -------
    str
        HTML, with all that it needs.
    """
    title = encodable(title)
    parts = {
        "title": title.replace("&", "&amp;").replace("<", "&lt;"),
        "style": _part("style.css"),
        "facts": json.dumps(_facts(history, title)).replace("<", "\\u003c"),     # a tag may end the element
        "events": base64.b64encode(gzip.compress(history.packed, 5, mtime=0)).decode(),
        "script": "\n".join(_part(name) for name in SCRIPTS),
    }
    first, *rest = _part("page.html").split("{{")
    return first + "".join(parts[name] + text for name, _, text in (piece.partition("}}") for piece in rest))


def _part(name: str) -> str:
    return (files("xlogmem.observe.history") / "page" / name).read_text(encoding="utf-8")


def _facts(history: History, title: str) -> dict[str, Any]:
    """Definitions that the events refer to, for the page."""
    facts = history.facts
    return {"title": title, "kinds": KINDS, "accesses": ACCESSES, "needs": NEEDS, "tags": facts["tags"],
            "clock": [clock[:2] for clock in _from_first(facts["clock"])], "wanted": facts["wanted"],
            "dropped": history.dropped,
            "places": {number: _place(tuple(Frame(*frame) for frame in frames))
                       for number, frames in facts["stacks"].items()}}


def _from_first(clock: list[list[int]]) -> list[list[int]]:
    """Since the first reading: numbers of JavaScript have 53 bits."""
    first = clock[0]
    return [[value - start for value, start in zip(reading, first, strict=True)] for reading in clock]


def _place(stack: tuple[Frame, ...]) -> dict[str, Any]:
    return {"place": str(place_in(stack) or ""), "stack": [f"{frame} in {frame.function}" for frame in stack]}
