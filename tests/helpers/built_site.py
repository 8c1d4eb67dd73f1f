"""What is wrong with the built site:  python tests/helpers/built_site.py docs/_build/html

Links that lead nowhere, public names without an entry, pages that no other page leads to.  Needs xlogmem and the
standard library.
"""
from __future__ import annotations

import ast
import inspect
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import xlogmem
from xlogmem._base.variables import VARIABLES

MADE_BY_SPHINX = {"genindex.html", "search.html", "py-modindex.html"}


class Page(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html") if "_static" not in path.parts}


def broken_links(site: Path) -> Iterator[str]:
    """Links within the site that lead nowhere, and pages to which none leads."""
    found = pages(site)
    reached = {site.resolve() / name for name in ("index.html", *MADE_BY_SPHINX)}
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target != path:
                reached.add(target)
            anchors = found[target].anchors if target in found else set()
            if not target.exists() or (target in found and parts.fragment
                                       and unquote(parts.fragment) not in anchors):
                yield f"{path.relative_to(site.resolve())}: {link} leads nowhere"
    for path in found.keys() - reached:
        yield f"{path.relative_to(site.resolve())}: no page leads there"


def inventory(file: Path) -> set[str]:
    """The names of objects.inv, of every language."""
    *_, packed = file.read_bytes().split(b"\n", 4)
    return {line.split(" ", 1)[0] for line in zlib.decompress(packed).decode().splitlines()}


@cache
def public_names() -> dict[str, set[str]]:
    """Module, as programs name it -> its public names.  Read, not imported: some need libraries."""
    found = {"xlogmem": set(xlogmem.__all__)}
    root = Path(xlogmem.__file__).parents[1]
    for name, module in xlogmem._MODULES.items():
        path = root / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[f"xlogmem.{name}"] = set(ast.literal_eval(node.value))
    return found


def members(name: str) -> Iterator[str]:
    """What has a docstring in a class of xlogmem's and was made there, with the class that documents it."""
    value = getattr(xlogmem, name)
    if inspect.isclass(value) and not issubclass(value, (Exception, Warning)):
        for member in vars(value):
            if not member.startswith("_") and getattr(inspect.getattr_static(value, member), "__doc__", None):
                yield f"xlogmem.{name}.{member}"


def missing(known: set[str]) -> Iterator[str]:
    """Public names, members of public classes and variables of the environment that are not in the inventory."""
    names = public_names()
    for module, public in names.items():
        for name in sorted(public):
            if f"{module}.{name}" not in known and (module == "xlogmem" or name not in names["xlogmem"]):
                yield f"{module}.{name} has no entry"
    for name in sorted(names["xlogmem"]):
        for member in members(name):
            if member not in known:
                yield f"{member} has no entry"
    for name in VARIABLES:
        if name not in known:
            yield f"{name} has no entry"


def main(site: Path) -> int:
    known = inventory(site / "objects.inv")
    wrong = [*broken_links(site), *missing(known)]
    print(*wrong, sep="\n")
    print(f"{len(pages(site))} pages, {len(known)} names: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
