"""Tables and bars of commands: on a terminal as wide as it is, elsewhere plain lines.

What goes to a pipe or a file has no control sequences and no width.  Only commands import this: it needs rich.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["FirstThatFits", "Table", "console", "progress"]

ENDLESS = 1 << 16                           # columns of output to no terminal
GAP = 2                                     # between two columns


def console(stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=ENDLESS, color_system=None)


def progress(field: str, disable: bool = False) -> Progress:
    """A bar on standard error, with a field of its tasks at its end; on a terminal alone, and gone when it ends."""
    terminal = console(stderr=True)
    return Progress(TextColumn("{task.description}"), BarColumn(12), TaskProgressColumn(), TimeRemainingColumn(),
                    TextColumn(f"{{task.fields[{field}]}}", markup=False), console=terminal, transient=True,
                    disable=disable or not terminal.is_terminal)


class Table:
    """Rows in columns, in which no word is cut.

    Headings and texts are broken between words where the terminal is narrow, and figures are not broken.  Where that is
    not enough each cell has a line of its own, with its heading.  A row of one cell is a line over the rows below it.

    Parameters
    ----------
    *headings : str
        Of the columns; without any text in them there is no line of headings.
    title : str
        A line above the table.
    left : sequence of int
        The columns of texts, which are aligned at the left; the others are figures.
    """

    def __init__(self, *headings: str, title: str = "", left: Sequence[int] = (0,)) -> None:
        self.title = title
        self.headings = [Text(heading, style="bold") for heading in headings]
        self.sides: list[JustifyMethod] = ["left" if at in left else "right" for at in range(len(headings))]
        self.rows: list[list[Text]] = []

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Add a row; markup in a `str` is text."""
        row = [cell.copy() if isinstance(cell, Text) else Text(cell) for cell in cells]
        for cell in row:
            cell.stylize_before(style)
        self.rows.append(row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, style="bold")
        headed = any(heading.plain for heading in self.headings)
        widths = self.widths(console, options)
        for row in [self.headings, *self.rows] if headed and widths else self.rows:
            if len(row) == 1:
                yield row[0]
            elif widths:
                yield from beside(console, row, widths, self.sides)
            else:
                yield from below(console, row, self.headings, options.max_width)

    def widths(self, console: Console, options: ConsoleOptions) -> list[int]:
        """Of the columns; empty where they do not fit: the spare width goes to those that need the least first."""
        wide = options.update(width=ENDLESS)
        ranges = []
        for at, heading in enumerate(self.headings):
            cells = [row[at] for row in self.rows if len(row) > 1]
            most = max((cell.cell_len for cell in [heading, *cells]), default=0)
            least = max((indent_of(cell) + Measurement.get(console, wide, cell).minimum if self.sides[at] == "left"
                         else cell.cell_len for cell in cells), default=0)
            ranges.append(Measurement(max(least, Measurement.get(console, wide, heading).minimum), most))
        spare = options.max_width - GAP * (len(ranges) - 1) - sum(one.minimum for one in ranges)
        widths = [one.minimum for one in ranges]
        if spare < 0:
            return []
        for left, at in enumerate(sorted(range(len(ranges)), key=lambda at: ranges[at].span)):
            more = min(ranges[at].span, spare // (len(ranges) - left))
            widths[at] += more
            spare -= more
        return widths


class FirstThatFits:
    """Of tables that say less and less, the first one whose columns fit beside one another; else the last one."""

    def __init__(self, *tables: Table) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield next((table for table in self.tables if table.widths(console, options)), self.tables[-1])


def beside(console: Console, row: list[Text], widths: list[int], sides: list[JustifyMethod]) -> Iterator[Text]:
    cells = []
    for cell, width in zip(row, widths, strict=True):
        indent = indent_of(cell)                        # of the lines below the first, too
        parts = cell[indent:].wrap(console, max(width - indent, 1))
        for part in parts:
            part.pad_left(indent)
        cells.append(parts)
    for number in range(max(map(len, cells))):
        line = Text()
        for at, (parts, width, side) in enumerate(zip(cells, widths, sides, strict=True)):
            piece = parts[number].copy() if number < len(parts) else Text()
            piece.rstrip()
            piece.align("right" if side == "right" else "left", width)
            line.append_text(piece)
            line.append(" " * GAP if at < len(cells) - 1 else "")
        line.rstrip()
        yield line


def indent_of(cell: Text) -> int:
    return len(cell.plain) - len(cell.plain.lstrip())


def below(console: Console, row: list[Text], headings: list[Text], width: int) -> Iterator[Text]:
    yield row[0]
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        if cell.plain:
            line = Text("    ").append_text(heading)
            if not heading.plain or line.cell_len + 2 + cell.cell_len <= width:
                yield line.append(": " if heading.plain else "").append_text(cell)
            else:
                yield line.append(":")
                yield from Text("      ").append_text(cell).wrap(console, width)
