"""The directive of a drawing of concepts/drawings.toml, and its notes.

    .. drawing:: fence
"""
from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from drawings import Drawing, svg


class Draw(Directive):
    """Draws it."""

    required_arguments = 1
    drawings: ClassVar[dict[str, Drawing]] = {}

    def run(self) -> list[nodes.Node]:
        name, = self.arguments
        drawing = self.drawings[name]
        notes = [nodes.paragraph("", "", nodes.Text(" ".join(drawing["notes"])))] if "notes" in drawing else []
        return [nodes.raw("", f'<div class="drawing-frame">{svg(name, drawing)}</div>', format="html"), *notes]


def setup(app: Any) -> dict[str, bool]:
    Draw.drawings = tomllib.loads((Path(app.srcdir) / "concepts/drawings.toml").read_text())
    app.add_directive("drawing", Draw)
    return {"parallel_read_safe": True}
