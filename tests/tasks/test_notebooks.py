"""The notebooks of the libraries do what they say; `first-cudf` needs a GPU, see .ci/gpu-cudf."""
from __future__ import annotations

import json

import pytest
from checked_libraries import is_here
from notebooks import cells_of
from pasted import run
from places import ROOT

START = ROOT / "docs/start"


@pytest.mark.simulator
@pytest.mark.parametrize("library", ["cupy", "numba", "torch"])
def test_a_notebook_runs(library, tmp_path):
    if not is_here(library):
        pytest.skip(f"needs a checked library: {library}")
    name = {"torch": "pytorch"}.get(library, library)
    done = run(["python", str(ROOT / "tests/helpers/notebooks.py"), str(START / f"first-{name}.ipynb")], tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" 0 certain, 0 possible") == done.stdout.count(" 1 certain, 0 possible") >= 1


@pytest.mark.simulator
def test_a_notebook_fails_with_its_cells(tmp_path):
    cells = [{"cell_type": "markdown", "source": ["raise SystemExit(3)"]},
             {"cell_type": "code", "source": ["%%writefile five.py\n", "x = 5\n"]},
             {"cell_type": "code", "source": ["import five\n", "assert five.x == 6"]}]
    notebook = tmp_path / "first.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    assert cells_of(notebook) == ["%%writefile five.py\nx = 5\n", "import five\nassert five.x == 6"]
    done = run(["python", str(ROOT / "tests/helpers/notebooks.py"), str(notebook)], tmp_path)
    assert done.returncode == 1
    assert "assert five.x == 6" in done.stdout or "AssertionError" in done.stdout
