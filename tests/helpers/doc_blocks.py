"""The code blocks of the project's pages, as Sybil finds them, and how each language is run.

A block of `python`, `bash` or `console` runs as a reader would paste it, one of `cpp` is compiled, one of `toml` is
read, `text` is output or a drawing.  `<!-- fragment: reason -->` on the line before a block says why it does not run.
"""
from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pasted import run, script
from places import ROOT
from sybil import Document, Region
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

import xlogmem

FOLDERS = ("benchmarks", "cpp", "docs", "examples", "tests")
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
COMMANDS = re.compile(r"^ *(\$ |XLOGMEM_\w+=|(pip|python|xlogmem|pytest|conda|g\+\+|git|import|from \w+ import) [\w-])",
                      re.MULTILINE)
# What runs a program that imports one of these, without a GPU.
CHECKED = {"cupy", "numba", "torch"}
# The program of a command whose page shows none before it.
PROGRAM = """
import xlogmem

runtime = xlogmem.get_runtime()
with xlogmem.scope("join"):
    left, right = runtime.allocate("1MiB"), runtime.allocate("2MiB")
"""


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    fragment: str | None                                # why it does not run
    program: str = PROGRAM                              # for commands: the Python before them on the page
    session: Block | None = None                        # for a program: the `console` behind it, which runs it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def libraries(self) -> set[str]:
        """What the block, or the program of its commands, imports or enables."""
        found: set[str] = set()
        for node in ast.walk(ast.parse(self.text if self.language == "python" else self.program)):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "xlogmem.enable":
                found |= {str(ast.literal_eval(argument)) for argument in node.args}
        return {".".join(name.split(".")[:2]) if name.startswith("cuda.") else name.split(".")[0] for name in found}


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def indented(document: Document) -> Iterator[Region]:
    """Code without a fence: behind an empty line, and not in an item of a list."""
    for found in INDENTED.finditer(document.text):
        above = [line for line in document.text[:found.start()].splitlines() if line and not line.startswith(" ")]
        if not (above and re.match(r"[*-] |\d+\. ", above[-1])):
            yield Region(found.start(), found.end(), lexemes={"language": "", "source": found[0]})


def blocks(path: Path, name: str) -> list[Block]:
    """Those of a page, in order; ValueError for a block that neither runs nor is marked, and for a mark of nothing."""
    document = Document.parse(str(path))
    marks = {}
    for mark in DirectiveInHTMLCommentLexer("fragment")(document):
        end = document.text.index("\n", mark.end) + 1
        marks[document.text.count("\n", 0, end) + 1] = mark.lexemes["arguments"].strip()
    fences = [*RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))(document), *indented(document)]
    found: list[Block] = []
    for region in sorted(fences, key=lambda region: region.start):
        line = document.text.count("\n", 0, region.start) + 1
        block = Block(name, line, region.lexemes["language"].strip(), str(region.lexemes["source"]),
                      marks.pop(line, None))
        if block.language not in RUN:
            raise ValueError(f"{block}: a block is one of {', '.join(RUN)}, and not {block.language!r}")
        if block.language == "text" and COMMANDS.search(block.text):
            raise ValueError(f"{block}: `text` is output; this looks like a program")
        if block.fragment == "":
            raise ValueError(f"{block}: a fragment needs its reason")
        programs = [one for one in found if one.language == "python" and one.fragment is None]
        if programs:
            block.program = programs[-1].text
        if block.language == "console" and found and found[-1] is (programs or [None])[-1]:
            found[-1].session = block
        found.append(block)
    if marks:
        raise ValueError(f"{name}: no block follows the mark in line {min(marks) - 1}")
    return found


def run_python(block: Block, folder: Path) -> None:
    if block.session is None:
        file = write(folder, block.text)
        check = ["xlogmem", "check", "--no-gpu"] if block.libraries() & CHECKED else ["python"]
        done = run([*check, file.name], folder)
        assert done.returncode == 0, done.stdout


def run_bash(block: Block, folder: Path) -> None:
    """The commands find the program before them as program.py; what they read otherwise, that program has written."""
    file = write(folder, block.program)
    if file.name not in block.text:
        assert run(["python", file.name], folder).returncode == 0
    done = script(block.text, folder)
    assert done.returncode == 0, done.stdout


def run_console(block: Block, folder: Path) -> None:
    """Commands behind `$ `, and what they print."""
    write(folder, block.program)
    for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        done = run(["bash", "-c", command], folder)
        assert printed.strip() in done.stdout, done.stdout


def compile_cpp(block: Block, folder: Path) -> None:
    """With names of CUDA's, and functions launch_... that stand for launches."""
    launches = "".join(f"template <class... T> void {name}(T const&...);\n"
                       for name in sorted(set(re.findall(r"\blaunch_\w+", block.text))))
    file = folder / "block.cpp"
    file.write_text(f"using cudaStream_t = struct CUstream_st*;\n{launches}{block.text}")
    done = run(["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{xlogmem.get_include()}",
                file.name], folder)
    assert done.returncode == 0, done.stdout


def read_toml(block: Block, folder: Path) -> None:
    assert tomllib.loads(block.text)


def nothing(block: Block, folder: Path) -> None:
    pass


RUN: dict[str, Callable[[Block, Path], None]] = {
    "python": run_python, "bash": run_bash, "console": run_console, "cpp": compile_cpp, "toml": read_toml,
    "text": nothing}


def write(folder: Path, text: str) -> Path:
    file = folder / "program.py"
    file.write_text(text.replace("9090", "0"))          # a port that is free
    return file

