"""The drawings of concepts/drawings.toml as SVG, in the page itself: colours and letters are those of the theme."""
from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

UNIT, ROW, BOX, TOP = 54, 58, 28, 8
LETTER = 7.6                                            # the width of one, of 14 pixels
Drawing = dict[str, Any]


class Lanes:
    """Where things are, in pixels."""

    def __init__(self, drawing: Drawing) -> None:
        self.names = drawing["lanes"]
        self.left = max(len(name) for name in self.names) * LETTER + 16
        ends = [mark[2] for mark in drawing.get("marks", ())] + [point[1] for point in drawing.get("points", ())]
        self.right = self.left + (max(ends) + 0.8) * UNIT

    def x(self, at: float) -> float:
        return self.left + at * UNIT

    def y(self, name: str) -> float:
        """The middle of a lane."""
        return TOP + BOX / 2 + self.names.index(name) * ROW


def mark(lanes: Lanes, name: str, begin: float, end: float, kind: str, text: str) -> str:
    x, y, width = lanes.x(begin), lanes.y(name), (end - begin) * UNIT
    box = f'<rect x="{x:g}" y="{y - BOX / 2:g}" width="{width:g}" height="{BOX}" rx="4" class="{kind}"/>'
    return box + f'<text x="{x + width / 2:g}" y="{y + 5:g}" class="in-{kind}">{escape(text)}</text>'


def point(lanes: Lanes, name: str, at: float, text: str) -> str:
    x, y = lanes.x(at), lanes.y(name)
    kind = "fence" if text == "fence" else "point"
    line = f'<path d="M{x:g} {y - BOX / 2 - 3:g}V{y + BOX / 2 + 3:g}" class="{kind}"/>'
    return line + f'<text x="{x:g}" y="{y + BOX / 2 + 17:g}" class="small">{escape(text)}</text>'


def arrow(lanes: Lanes, source: str, begin: float, target: str, end: float, text: str) -> str:
    x, y, to_x, to_y = lanes.x(begin), lanes.y(source), lanes.x(end), lanes.y(target)
    middle = (x + to_x) / 2
    return (f'<path d="M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x - 9:g} {to_y:g}" class="arrow"/>'
            f'<path d="M{to_x:g} {to_y:g}l-10 -5v10z" class="head"/>')


def parts(drawing: Drawing, lanes: Lanes) -> Iterator[str]:
    for name in lanes.names:
        yield (f'<text x="0" y="{lanes.y(name) + 5:g}" class="lane">{escape(name)}</text>'
               f'<path d="M{lanes.left:g} {lanes.y(name):g}H{lanes.right:g}" class="line"/>')
    for kind, draw in (("marks", mark), ("arrows", arrow), ("points", point)):
        for row in drawing.get(kind, ()):
            yield draw(lanes, *row)


def svg(name: str, drawing: Drawing) -> str:
    lanes = Lanes(drawing)
    height = TOP + len(lanes.names) * ROW - (ROW - BOX) + (22 if drawing.get("points") else TOP)
    inside = "".join(parts(drawing, lanes))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {lanes.right:g} {height:g}" class="drawing" '
            f'style="max-width:{lanes.right:g}px" role="img" aria-label="{escape(drawing["says"])}">{inside}</svg>')
