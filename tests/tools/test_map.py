"""The map of the package in docs/design.md, and the files."""
from __future__ import annotations

import re
from pathlib import Path

from places import ROOT

PACKAGE = ROOT / "xlogmem"
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
INCLUDE = re.compile(r'^include "([^"]+)" +# \S', re.MULTILINE)
MADE = {".so", ".pyc"}


def rooms() -> list[str]:
    text = (ROOT / "docs/design.md").read_text()
    rooms = text[text.index("\n## Rooms"):text.index("\n## The life of one block")]
    return [name for cell in ROW.findall(rooms) for name in re.findall(r"`([^`]+)`", cell)]


def place(room: str) -> Path:
    return (ROOT if room.startswith("cpp/") else PACKAGE) / room


def pages() -> dict[Path, Path]:
    """Each page that a head lists, with the head."""
    return {head.parent / page: head for head in PACKAGE.glob("**/*.pyx") for page in INCLUDE.findall(head.read_text())}


def is_on(file: Path, places: set[Path]) -> bool:
    """True if the map has the file, its module or a folder that it is in."""
    modules = {file.with_suffix(".pyx")} if file.suffix in (".pxd", ".pyi") else set()
    return bool({file, *modules, *file.parents} & places)


def test_every_room_exists_and_is_named_once():
    named = rooms()
    assert len(named) == len(set(named)) > 50
    assert [room for room in named if not place(room).exists()] == []


def test_every_file_is_on_the_map():
    places = {place(room) for room in rooms()}
    listed = pages()
    folders_of_pages = {page.parent for page in listed}
    files = [file for folder in (PACKAGE, ROOT / "cpp") for file in folder.glob("**/*")
             if file.is_file() and file.suffix not in MADE and file.name != "README.md"]
    assert len(files) > 400
    missing = [str(file.relative_to(ROOT)) for file in files
               if not is_on(file, places) and listed.get(file) not in places and file.parent not in folders_of_pages]
    assert missing == []


def test_every_page_has_one_head():
    """... which says in its list what the page is about; the page begins with a comment on that."""
    found = sorted(PACKAGE.glob("**/*.pxi"))
    included = sum(len(re.findall("^include ", head.read_text(), re.MULTILINE)) for head in PACKAGE.glob("**/*.pyx"))
    assert included == len(found) > 90
    assert sorted(pages()) == found
    assert [page for page in found if not page.read_text().startswith("# ")] == []
