"""Tags as text for people and for other programs."""
from __future__ import annotations

__all__ = ["encodable", "shown"]


def shown(tag: str | None) -> str:
    """The text of a tag in messages and tables; None: there is no tag."""
    return repr(tag) if tag is not None else "without a tag"


def encodable(text: str) -> str:
    """The text of a tag or a file name; characters that UTF-8 cannot encode are replaced."""
    return text.encode(errors="replace").decode()
