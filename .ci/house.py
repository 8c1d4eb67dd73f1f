#!/usr/bin/env python3
"""Figures of the house:  .ci/house.py [CHECKOUT]

Lengths of files and functions, the most parameters, circles of imports, words that tests/words.toml forbids, and habits
of the prose.  Nothing is judged here.  Needs the standard library alone, and reads text: a checkout does not have to be
built, or to be the one that this file is in.
"""
from __future__ import annotations

import re
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests/helpers"))
import words  # noqa: E402

FILE_LINES, FUNCTION_LINES, WIDEST = 400, 40, 5
PRODUCT = ("py", "pyx", "pxi", "pxd", "hpp", "cpp")
DEFINED = re.compile(r"^(?P<indent> *)(?:async )?(?:def|cdef|cpdef)\b(?! (?:class|extern|enum|cppclass|struct)\b)"
                     r"[^=(\n]*?\b(?P<name>\w+)(?:\[[^\]]*\])?\(", re.MULTILINE)
IN_C = re.compile(r"\b(?P<name>~?\w+)\s*\((?P<parameters>[^{};]*)\)"
                  r"(?:\s*(?:const|noexcept|override|->[\w:<>*& ]+|:[^{};]*))*\s*$")
NO_FUNCTION = {"if", "for", "while", "switch", "catch", "return", "extern", "sizeof", "defined"}
IMPORTED = re.compile(r"^(?P<indent> *)(?:from (?P<module>xlogmem[\w.]*) c?import (?P<names>\([^)]*\)|[^\n]*)"
                      r"|c?import (?P<whole>xlogmem[\w.]*))", re.MULTILINE)
AREAS = {"product": ("xlogmem", "cpp"), "benchmarks": ("benchmarks",), "tests": ("tests",)}
OPENED, CLOSED = "([{", ")]}"
CLAUSE = r"\bwhat (?:a|the|is|has|other|was|may|it|they|there)\b"
PRONOUN = r"\b(?:it|its|that|those|these|which|them|one|ones|others?)\b"


@dataclass(frozen=True)
class Function:
    """A function, the lines of code of its body, and its number of parameters, `self` not counted."""

    file: str
    line: int
    name: str
    lines: int
    parameters: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


# ---------------------------------------------------------------------------------------------- text


def code_of(file: str, text: str) -> str:
    """The text without comments and docstrings; other strings become S on each of their lines."""
    pieces: list[str] = []
    depth = at = 0
    for match in words.STRINGS[Path(file).suffix].finditer(text):
        between = text[at:match.start()]
        depth += sum(map(between.count, OPENED)) - sum(map(between.count, CLOSED))
        pieces.append(between)
        at = match.end()
        newlines = match[0].count("\n")
        before = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
        if match["text"] is None or (not before.strip() and depth == 0 and text[at:at + 1] in ("\n", "")):
            pieces.append("\n" * newlines)
        else:
            pieces.append("S" + newlines * f"\n{' ' * len(before)}S")
    return "".join(pieces) + text[at:]


def closing(code: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed."""
    depth = 0
    for match in re.compile(r"[()\[\]{}]").finditer(code, start):
        depth += 1 if match[0] in OPENED else -1
        if depth == 0:
            return match.start()
    return len(code)


def count_parameters(text: str) -> int:
    """Of what stands between the parentheses."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in OPENED) - (letter in CLOSED)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return sum(bool(name) and not re.fullmatch(r"self|cls|\*|/|void|\.\.\.", name) for name in map(str.strip, parts))


def code_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


# ---------------------------------------------------------------------------------------------- functions


def python_functions(file: str, code: str) -> Iterator[Function]:
    """Those of Python and Cython.  A function ends before the next line that is not indented further."""
    for match in DEFINED.finditer(code):
        inside = closing(code, match.end() - 1)
        header = re.compile(r"[^\n:]*:(?!\w)").match(code, inside + 1)
        if header is None:
            continue                                    # a declaration
        rest = code[header.end():]
        body = re.match(rf"[^\n]*\n(?:(?:{match['indent']} +[^\n]*|[ ]*)(?:\n|$))*", rest)
        yield Function(file, code.count("\n", 0, match.start()) + 1, match["name"],
                       code_lines(body[0] if body else rest), count_parameters(code[match.end():inside]))


def c_functions(file: str, code: str) -> Iterator[Function]:
    """Those of C++: a block whose head ends like a function's."""
    for match in re.finditer(r"\{", code):
        begin = max(code.rfind(letter, 0, match.start()) for letter in ";{}") + 1
        head = re.sub(r"^[ \t]*#.*$", lambda line: " " * len(line[0]), code[begin:match.start()], flags=re.MULTILINE)
        found = IN_C.search(head)
        if found is None or found["name"] in NO_FUNCTION or re.search(r"=|\breturn\b", head[:found.start()]):
            continue
        body = code[match.end():closing(code, match.start())]
        yield Function(file, code.count("\n", 0, begin + found.start()) + 1, found["name"], code_lines(body),
                       count_parameters(re.sub(r"<[^<>]*>", "", found["parameters"])))


def functions(files: dict[str, str]) -> Iterator[Function]:
    for file, text in files.items():
        found = c_functions if file.endswith(("pp", ".h")) else python_functions
        yield from found(file, code_of(file, text))


# ---------------------------------------------------------------------------------------------- imports


def modules(files: dict[str, str]) -> dict[str, str]:
    """File -> the module that it belongs to; a page belongs to the one that includes it."""
    owners = {file: file.rpartition(".")[0].removesuffix("/__init__").replace("/", ".")
              for file in files if file.endswith((".py", ".pyx", ".pxd"))}
    included = {(Path(file).parent / page).as_posix(): file
                for file, text in files.items() for page in words.INCLUDE.findall(text)}
    for page, file in included.items():
        while file in included:
            file = included[file]
        owners[page] = owners[file]
    return owners


def blocks_around(code: str, start: int) -> Iterator[str]:
    """The lines that open the blocks around a line."""
    line = code[start:].partition("\n")[0]
    indent = len(line) - len(line.lstrip())
    for line in reversed(code[:start].splitlines()):
        if line.strip() and (depth := len(line) - len(line.lstrip())) < indent:
            indent = depth
            yield line.strip()


def imports(files: dict[str, str]) -> dict[tuple[str, str], bool]:
    """(module, module that it imports) -> only late, in a function.  Imports for types alone do not count."""
    owners = modules(files)
    known, seen = set(owners.values()), dict[tuple[str, str], bool]()
    for file, module in owners.items():
        code = code_of(file, files[file])
        for match in IMPORTED.finditer(code):
            around = list(blocks_around(code, match.start()))
            if any("TYPE_CHECKING" in line for line in around):
                continue
            late = any(re.match(r"(async )?(def|cdef|cpdef)\b(?! class)", line) for line in around)
            source = match["module"] or match["whole"]
            names = re.findall(r"(\w+)(?: as \w+)?", match["names"] or "")
            for other in sorted({f"{source}.{name}" for name in names} & known) or [source]:
                if other != module:
                    seen[module, other] = late and seen.get((module, other), True)
    return seen


def way(edges: Iterable[tuple[str, str]], start: str, end: str) -> list[str]:
    """The shortest way along the edges; empty if there is none."""
    edges, ways = list(edges), [[start]]
    for path in ways:                                   # grows meanwhile
        if path[-1] == end:
            return path
        met = {step for other in ways for step in other}
        ways += [[*path, target] for source, target in edges if source == path[-1] and target not in met]
    return []


def circles(edges: dict[tuple[str, str], bool]) -> Iterator[tuple[bool, list[str]]]:
    """Each circle once: whether no import of it is late, and its modules, the first one again at the end."""
    seen: set[frozenset[str]] = set()
    eager = [edge for edge, late in edges.items() if not late]
    for late, some in ((False, eager), (True, list(edges))):
        for source, target in some:
            back = way(some, target, source)
            if back and frozenset(back) not in seen:
                seen.add(frozenset(back))
                yield not late, [source, *back]


# ---------------------------------------------------------------------------------------------- figures


def show(title: str, rows: Iterable[str]) -> None:
    rows = list(rows)
    print(f"\n{title}: {len(rows)}")
    for row in rows:
        print(f"  {row}")


def show_sizes(area: str, files: dict[str, str]) -> None:
    counts = {file: text.count("\n") for file, text in files.items()}
    print(f"\n== {area}: {len(files)} files, {sum(counts.values()):,} lines")
    long = sorted(((count, file) for file, count in counts.items() if count > FILE_LINES), reverse=True)
    show(f"files over {FILE_LINES} lines", (f"{count:6,}  {file}" for count, file in long))
    found = sorted(functions(files), key=lambda function: -function.lines)
    lengths = sorted(function.lines for function in found)
    print(f"\n{len(found):,} functions, median {lengths[len(lengths) // 2]} lines of code, longest {lengths[-1]}")
    longest = found[:len(found) - bisect(lengths, FUNCTION_LINES)]
    show(f"functions over {FUNCTION_LINES} lines of code", (f"{each.lines:6}  {each}" for each in longest))
    widest = sorted(found, key=lambda function: -function.parameters)[:WIDEST]
    show("most parameters", (f"{each.parameters:6}  {each}" for each in widest))


def show_circles(files: dict[str, str]) -> None:
    edges = imports(files)
    print(f"\n== imports: {len(edges)} of {len({module for edge in edges for module in edge})} modules, "
          f"{sum(edges.values())} of them late")
    found = list(circles(edges))
    show("circles of eager imports", (" -> ".join(path) for eager, path in found if eager))
    show("circles with late imports", (
        path[0] + "".join(f" {'(late) ' if edges[step] else ''}-> {step[1]}" for step in pairwise(path))
        for eager, path in found if not eager))


def show_words(root: Path) -> None:
    left = [finding for finding, allowed in words.find_all(root) if not allowed]
    print(f"\n== words of tests/words.toml, '... no X' and numbers of rules: {len(left)}")
    for title, kinds in (("by word", Counter(re.sub(r"\d+", "N", finding.word) for finding in left)),
                         ("by file", Counter(finding.file for finding in left))):
        show(title, (f"{count:6,}  {kind}" for kind, count in kinds.most_common()))


def prose_of(file: str, text: str) -> Iterator[str]:
    """Docstrings and comments."""
    for match in words.STRINGS[Path(file).suffix].finditer(text):
        if match[0].startswith(("#", "//", "/*", '"""')):
            yield match[0]


def show_prose(files: dict[str, str]) -> None:
    """Habits that make sentences hard to read; other libraries have 0 to 3 clauses and 2 pronouns."""
    text = "\n".join(prose for file, code in files.items() for prose in prose_of(file, code))
    count = len(re.findall(r"\w+", text)) or 1
    print(f"\n== prose: {count:,} words in comments and docstrings")
    clauses = len(re.findall(CLAUSE, text, re.IGNORECASE)) * 10_000 / count
    pronouns = len(re.findall(PRONOUN, text, re.IGNORECASE)) * 100 / count
    print(f"{clauses:.1f} clauses such as 'what a …' in 10,000 words, {pronouns:.1f} pronouns in 100")


def main(root: Path) -> None:
    read = {path.relative_to(root).as_posix(): path.read_text()
            for folder, endings in (("xlogmem", PRODUCT), ("cpp", PRODUCT), ("benchmarks", PRODUCT), ("tests", ("py",)))
            for ending in endings for path in sorted(root.glob(f"{folder}/**/*.{ending}")) if "build" not in path.parts}
    areas = {area: {file: text for file, text in read.items() if file.split("/")[0] in folders}
             for area, folders in AREAS.items()}
    product = areas["product"]
    for area, files in areas.items():
        if files:
            show_sizes(area, files)
    show_circles(product)
    show_words(root)
    show_prose(product)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE).resolve())
