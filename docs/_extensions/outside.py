"""Pages of the project that lie outside of docs/ are pages of the site, too, and links lead from page to page.

A file of docs/ whose one line is "[NAME](PATH)" stands for the file of that path.  The links of every page are those of
the code host: relative to the file.  Here they become links to pages of the site, or to files to download.
"""
from __future__ import annotations

import re
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])"
                  r"\((?P<path>(?!https?:|#|mailto:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
NAMED = re.compile(r"\[[\w./-]+\.md\]")
STANDS_FOR = re.compile(r"\A\[[^\]]+\]\((?P<path>[^)]+)\)\n\Z")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def stand_ins(docs: Path) -> dict[Path, Path]:
    """File outside of docs/ -> the file that stands for it."""
    found = {}
    for page in docs.rglob("*.md"):
        if "_build" not in page.parts and (match := STANDS_FOR.match(page.read_text())):
            found[Path(normpath(page.parent / match["path"]))] = page
    return found


def rewritten(text: str, original: Path, page: Path, docs: Path, others: dict[Path, Path]) -> str:
    """The text of `original` with links as `page` needs them."""

    def link(match: re.Match[str]) -> str:
        target = Path(normpath(original.parent / match["path"]))
        anchor = match["anchor"] or ""
        if target == docs / "README.md":
            return f"[All pages]({relpath(docs / 'index.rst', page.parent)})"
        if target.is_dir():
            target = target / "README.md"
        target = others.get(target, target)
        if not target.exists():
            return match["text"][1:-1]                  # a folder without a page
        # A page that is named by its file gets its title.
        text = "[]" if target.suffix == ".md" and NAMED.fullmatch(match["text"]) else match["text"]
        return f"{text}({relpath(target, page.parent)}{anchor})"

    pieces, at = [], 0
    for fence in FENCE.finditer(text):
        pieces += [LINK.sub(link, text[at:fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, LINK.sub(link, text[at:])])


def read(app: Any, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    docs, others = Path(app.srcdir), app.outside
    original = next((one for one, other in others.items() if other == page), page)
    if original != page:
        app.env.note_dependency(str(original))
    source[0] = rewritten(original.read_text(), original, page, docs, others)


def setup(app: Any) -> dict[str, bool]:
    app.outside = stand_ins(Path(app.srcdir))
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
