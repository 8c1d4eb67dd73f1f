"""Runs the code of a notebook without Jupyter:  notebooks.py NOTEBOOK, in the folder where it writes its files."""
from __future__ import annotations

import json
import sys
from pathlib import Path


def cells_of(notebook: Path) -> list[str]:
    """The sources of its code cells."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(notebook: Path, folder: Path) -> None:
    """Raise what a cell raises.  The only magic that is known is `%%writefile`."""
    names = {"__name__": "__main__"}
    for source in cells_of(notebook):
        first, _, rest = source.partition("\n")
        if first.startswith("%%writefile "):
            (folder / first.split()[1]).write_text(rest)
        else:
            exec(compile(source, notebook.name, "exec"), names)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path.cwd())
