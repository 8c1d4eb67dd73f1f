"""Pages that are made before Sphinx looks for pages.

howto/tasks/: one for each task of tests/tasks/tasks.toml, with the program that the tests run.
reference/made/variables.txt: the variables of the environment that xlogmem reads.
"""
from __future__ import annotations

import re
import textwrap
import tomllib
from os.path import relpath
from pathlib import Path
from typing import Any

from outside import stand_ins

from xlogmem._base.variables import VARIABLES

LIBRARIES = {"cupy": "CuPy", "torch": "PyTorch", "numba.cuda": "Numba-CUDA", "rmm": "RMM", "distributed": "Dask",
             "mypy": "mypy"}
Task = dict[str, Any]


def slug(task: Task) -> str:
    return f"{task['number']:02}-" + "-".join(re.findall(r"[a-z0-9]+", task["task"].lower())[:7])


def code(language: str, text: str) -> str:
    return f".. code-block:: {language}\n\n{textwrap.indent(text.strip(), '   ')}\n"


def page_of(task: Task, folder: Path, programs: Path, pages: dict[Path, Path]) -> str:
    docs = folder.parents[1]
    root = docs.parent
    title = re.sub(r"^(?!xlogmem)\w", lambda first: first[0].upper(), task["task"])
    parts = [title, "=" * len(title), "", ".. currentmodule:: xlogmem", "", task["how"].strip(), ""]
    if "out" in task:
        parts += [".. note::", "", f"   {task['out']}.", ""]
    run = task.get("run", "")
    for name in dict.fromkeys(re.findall(r"\b\d\d_\w+\.py\b", run)):
        parts += [f".. literalinclude:: {relpath(programs / name, folder)}", "   :language: python",
                  f"   :caption: {name}", ""]
    if run and task.get("shown", True):
        parts += [code("bash", run)]
        if task["prints"]:
            ends = f"ends with status {task['status']}, and " if "status" in task else ""
            parts += [f"It {ends}prints, among other things:", "",
                      code("text", "\n".join(text.strip() for text in task["prints"]))]
    if names := [LIBRARIES[name] for name in task.get("needs", [])]:
        parts += [f"Needs {', '.join(names)}.", ""]
    target = root / task["page"]
    target = pages.get(target, target)
    parts += [f":doc:`/{target.relative_to(docs).with_suffix('')}` has more.", ""]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Only if it changes: else Sphinx reads it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def make_tasks(docs: Path) -> None:
    programs = docs.parent / "tests/tasks"
    tasks = tomllib.loads((programs / "tasks.toml").read_text())["task"]
    folder, pages = docs / "howto/tasks", stand_ins(docs)
    for task in tasks:
        write(folder / f"{slug(task)}.rst", page_of(task, folder, programs, pages))
    lists = []
    for group in dict.fromkeys(task["group"] for task in tasks):
        names = [f"   tasks/{slug(task)}" for task in tasks if task["group"] == group]
        lists += [".. toctree::", "   :maxdepth: 1", f"   :caption: {group}", "", *names, ""]
    write(folder / "lists.txt", "\n".join(lists))
    wanted = {f"{slug(task)}.rst" for task in tasks}
    for path in folder.glob("*.rst"):
        if path.name not in wanted:
            path.unlink()


def make_variables(docs: Path) -> None:
    text = "\n".join(f".. envvar:: {name}\n\n   {meaning[0].upper()}{meaning[1:]}.\n"
                     for name, meaning in VARIABLES.items())
    write(docs / "reference/made/variables.txt", re.sub(r"`([^`]+)`", r"``\1``", text))


def setup(app: Any) -> dict[str, bool]:
    make_tasks(Path(app.srcdir))
    make_variables(Path(app.srcdir))
    return {"parallel_read_safe": True}
