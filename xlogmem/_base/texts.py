"""Texts of programs and of files, for people and for other programs.

A tag, a name of a file, a function or a kernel, a line of source: programs and files choose these.  Terminals obey
escape sequences in a text, and CI services obey commands (`##[error]`, `::error`, at the beginning of a line or
anywhere in it).  So every line with such a text that xlogmem prints or logs passes `printable`.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["as_html", "encodable", "json_line", "parsed_json", "printable", "shown"]


def printable(text: str) -> str:
    """One line without commands to a terminal or a CI service: Python's escape sequences replace characters that are
    not printable, line breaks too, and the one character that makes a command of a text."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    if "##" in text:
        text = re.sub(r"##(?=[^\s\[]*\[)", r"#\\x23", text)         # ##[error], ##vso[…], ##teamcity[…
    return re.sub(r"^(\s*):(?=:)", r"\1\\x3a", text)                # ::error::


def shown(tag: str | None) -> str:
    """The text of a tag in messages and tables; None: there is no tag."""
    return printable(repr(tag)) if tag is not None else "without a tag"


def as_html(title: str, *tables: tuple[Sequence[str], Iterable[Iterable[object]]]) -> str:
    """A title, and tables of headings and rows, for a notebook."""
    import html

    def row(cells: Iterable[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    return f"<p>{html.escape(title)}</p>" + "".join(
        f"<table>{row(names, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>" for names, rows in tables)


def encodable(text: str) -> str:
    """The text of a tag or a file name; characters that UTF-8 cannot encode are replaced."""
    return text.encode(errors="replace").decode()


def json_line(value: Any) -> str:
    """A value as JSON on a line that may be printed: it has ASCII alone, and no command of a CI service."""
    import json

    return json.dumps(value).replace("##", "#\\u0023")


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text of unknown origin.

    Raises
    ------
    ValueError
        It is none, is nested too deeply, or has a number that is not finite.
    """
    import json

    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text} is not a finite number")
    return number
