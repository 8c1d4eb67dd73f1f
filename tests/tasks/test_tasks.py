"""What newcomers want to do can be done from the documentation alone: `tasks.toml`, a process or more for each."""
from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from checked_libraries import is_here
from pasted import script
from places import ROOT

HERE = Path(__file__).parent
TASKS = tomllib.loads((HERE / "tasks.toml").read_text())["task"]
NEEDS = {"distributed": "needs distributed", "rmm": "needs RMM"}


def do(task, folder, edit=lambda program: program):
    """What the task's commands have done, with each program as `edit` leaves it."""
    for library in task.get("needs", []):
        if not is_here(library):
            pytest.skip(NEEDS.get(library, f"needs a checked library: {library}"))
    for program in HERE.glob("[0-9]*.py"):
        (folder / program.name).write_text(edit(program.read_text()))
    return script(task["run"], folder)


@pytest.mark.simulator
@pytest.mark.parametrize("task", [task for task in TASKS if "run" in task], ids=lambda task: str(task["number"]))
def test_a_task_is_done(task, tmp_path):
    done = do(task, tmp_path)
    assert done.returncode == task.get("status", 0), done.stdout
    rest = done.stdout
    for text in task["prints"]:
        assert text in rest, done.stdout
        rest = rest[rest.index(text) + len(text):]


@pytest.mark.simulator
@pytest.mark.parametrize("number", [1, 2, 4, 8, 10, 15, 18, 19])
def test_it_is_wrong_without_its_last_use(number, tmp_path):
    def edit(program):
        used = r"xlogmem\.use\((work|stream|xlogmem\.host|None), .*?\)"
        return re.sub(used, "__import__('contextlib').nullcontext()", program)

    done = do(TASKS[number - 1], tmp_path, edit)
    assert done.returncode == 1, done.stdout
    assert "CERTAIN" in done.stdout


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task["number"]))
def test_the_page_says_how(task):
    assert task["says"] in (ROOT / task["page"]).read_text()


def test_each_task_is_done_or_has_the_reason_why_not():
    assert [task["number"] for task in TASKS] == list(range(1, 1 + len(TASKS)))
    assert all(("run" in task) != ("out" in task) for task in TASKS)
    assert [task["number"] for task in TASKS if "out" in task] == [6, 20, 27, 29]


def test_each_program_belongs_to_a_task():
    for program in HERE.glob("[0-9]*.py"):
        task, = (task for task in TASKS if task["number"] == int(program.name[:2]))
        assert program.name in task["run"]
