"""cython-lint, for modules that are a head and pages:  .ci/lint_cython.py FILE...

A head (`_core.pyx`) includes its pages (`core/*.pxi`), and imports for them: each alone looks as if it imported too
much or too little.  Here a module is checked as the compiler sees it, with its pages in place; findings name the page.
"""
from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

INCLUDE = re.compile(r'^include "([^"]+)"')
LENGTH = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["cython-lint"]["max-line-length"]
FINDING = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<rest>\d+: .*)$")


def joined(head: Path) -> tuple[str, list[tuple[Path, int]]]:
    """The text of a module with its pages, and where each line is from."""
    lines, origins = [], []
    for number, line in enumerate(head.read_text().splitlines(keepends=True), 1):
        found = INCLUDE.match(line)
        if not found:
            lines.append(line)
            origins.append((head, number))
            continue
        page = head.parent / found[1]
        while lines and not lines[-1].strip():          # two blank lines, as between functions
            lines.pop()
            origins.pop()
        lines += ["\n", "\n"]
        origins += 2 * [(head, number)]
        for below, text in enumerate(page.read_text().splitlines(keepends=True), 1):
            lines.append(text)
            origins.append((page, below))
    return "".join(lines), origins


def heads_of(files: list[Path]) -> list[Path]:
    """The modules and declarations that these files belong to."""
    found: dict[Path, None] = {}
    modules = {module: {module.parent / page for page in re.findall(INCLUDE.pattern, module.read_text(), re.MULTILINE)}
               for module in Path("xlogmem").glob("**/*.pyx")}
    for file in files:
        if file.suffix == ".pxi":
            found |= {module: None for module, pages in modules.items() if file in pages}
        else:
            found[file] = None
    return list(found)


def main(names: list[str]) -> int:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for head in heads_of([Path(name) for name in names]):
            text, origins = joined(head)
            copy = Path(folder, head.name)
            copy.write_text(text)
            command = ["cython-lint", f"--max-line-length={LENGTH}", str(copy)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            for line in run.stdout.splitlines():
                finding = FINDING.match(line)
                if finding is None:
                    print(f"{head}: {line}")
                else:
                    file, number = origins[int(finding["line"]) - 1]
                    print(f"{file}:{number}:{finding['rest']}")
            sys.stderr.write(run.stderr)
            failed |= run.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
