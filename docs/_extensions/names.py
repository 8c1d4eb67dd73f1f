"""The role of `name` in docstrings: a link where there is such a name, and else code."""
from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.ext.autosummary import AutoLink


class Name(AutoLink):
    """As autosummary's, which emphasises what it does not know."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        found, messages = super().run()
        for place, one in enumerate(found):
            if any(True for _ in one.findall(nodes.emphasis)):
                found[place] = nodes.literal("", one.astext())
        return found, messages


def setup(app: Any) -> dict[str, bool]:
    app.add_role("name", Name())
    return {"parallel_read_safe": True}
