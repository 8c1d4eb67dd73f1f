#!/usr/bin/env python3
"""The parts of .ci/full that speak of what has changed since all of it passed: a command a line.

.ci/full writes the commit that passed to .ci/full.passed.  A part that has passed by itself since has a line below,
with its name and that commit.  Where these are not known, as in a shallow clone, everything has to run.  A file that no
rule names is one that the suite, the linters and the documents speak of.
"""
from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = ROOT / ".ci/full.passed"
PARTS = ["packages", "conda", "asan", "defects", "tsan"]
BUILD = r"(benchmarks/)?setup\.py|compiling\.py"
COMPILED = re.compile(rf"(xlogmem|cpp|benchmarks/src)/.*\.(pyx|pxi|pxd|hpp|cpp|h|c)$|{BUILD}")
PACKAGED = re.compile(rf"{BUILD}|(benchmarks/)?pyproject\.toml|MANIFEST\.in|\.ci/(packages|contents\.py)")
CONDA = re.compile(rf"conda/|dependencies\.yaml|{BUILD}|(benchmarks/)?pyproject\.toml|\.ci/conda")
SEARCH = re.compile(rf"benchmarks/src/xlogmem_selftest/|tests/helpers/planted\.py|{BUILD}")
TABLE = "tests/defects.toml"
TESTS_OF_CPP = {"driver": "sim", "cudart": "sim", "curand": "check", "cublas": "check", "cublaslt": "check",
                "cufft": "check", "cusolver": "check", "cusparse": "check", "thrust": "check", "engine": "check",
                "nvml": "check", "host": "check", "preload": "check", "kernels": "check", "cupti": "check",
                "native": "check"}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed_since(commit: str) -> tuple[list[str], list[str]]:
    """The files that changed, and those of them that came or went."""
    lines = [line.split("\t") for line in git("diff", "--no-renames", "--name-status", commit, "HEAD").splitlines()]
    return [name for _, name in lines], [name for status, name in lines if status != "M"]


def table_at(commit: str | None) -> dict[str, dict]:
    text = git("show", f"{commit}:{TABLE}") if commit else (ROOT / TABLE).read_text()
    return {defect["name"]: defect for defect in tomllib.loads(text)["defect"]}


def defects(commit: str, changed: list[str]) -> str:
    """Those whose rule, whose place or whose test has changed."""
    if any(SEARCH.match(name) for name in changed):
        return "defects"
    table = table_at(None)
    before = table_at(commit) if TABLE in changed else table

    def files(defect: dict) -> set[str]:
        """Where it is planted, by its own edits or by those of others."""
        own = {f"xlogmem/{edit['file']}" for edit in defect.get("edit", ())}
        return own.union(*(files(table[other]) for other in defect.get("edited_with", ())))

    names = [name for name, defect in table.items()
             if before.get(name) != defect or defect.get("test") in changed or not files(defect).isdisjoint(changed)]
    return " ".join(["defects", *names]) if names else ""


def folders(changed: list[str]) -> list[str]:
    """The tests of the compiled parts that changed; of a part without a folder of its own, those of the core."""
    found = set()
    for name in changed:
        if COMPILED.match(name):
            top, _, rest = name.partition("/")
            part = rest.split("/")[0].split(".")[0]
            part = TESTS_OF_CPP.get(part, "core") if top == "cpp" else part
            found.add(f"tests/{part}" if part and (ROOT / "tests" / part).is_dir() else "tests/core")
    return sorted(found)


def passed() -> dict[str, str]:
    """The commit on which each part has passed."""
    first, *later = PASSED.read_text().splitlines()
    return dict.fromkeys(PARTS, first) | dict(line.split(maxsplit=1) for line in later)


def part_after(part: str, commit: str, changed: list[str], moved: list[str]) -> str:
    """What of a part speaks of the changes since it passed."""
    if part == "defects":
        return defects(commit, changed)
    if part in ("asan", "tsan"):
        compiled = folders(changed)
        return " ".join([part, *compiled]) if compiled else ""
    shipped = any(name.startswith(("xlogmem/", "cpp/", "benchmarks/src/", "examples/")) for name in moved)
    if shipped or any((PACKAGED if part == "packages" else CONDA).match(name) for name in changed):
        return part
    tests = [name for name in changed if re.match(r"tests/.*/test_\w+\.py$", name) and (ROOT / name).exists()]
    return f"packages {' '.join(tests)}" if part == "packages" and tests else ""


def parts() -> list[str]:
    try:
        commits = passed()
        since = {commit: changed_since(commit) for commit in set(commits.values())}
    except (OSError, ValueError, subprocess.CalledProcessError):
        return PARTS
    return [found for part in PARTS if (found := part_after(part, commits[part], *since[commits[part]]))]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{part}\n" for part in parts()))
