"""Single functions and classes of setup.py and compiling.py, which cannot be imported: that would build."""
from __future__ import annotations

import ast
from pathlib import Path

from places import ROOT

__all__ = ["COMPILING", "SETUP", "part"]

SETUP, COMPILING = ROOT / "setup.py", ROOT / "compiling.py"


def part(name: str, path: Path = COMPILING, **names: object) -> dict[str, object]:
    """The names of the file, of which one is this class or function; the others have stand-ins."""
    tree = ast.parse(path.read_text())
    (found,) = (node for node in tree.body if getattr(node, "name", "") == name)
    exec(compile(ast.Module([found], []), str(path), "exec"), names)
    return names
