"""Programs and commands as a reader types them: in a folder, in processes of their own, on the simulated driver."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from children import variables
from places import ROOT

import xlogmem

COMMAND = "import sys; sys.argv[0] = 'xlogmem'; from xlogmem.commands.cli import main; main()"
IN_CHECKOUT = Path(xlogmem.__file__).is_relative_to(ROOT)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """With two devices; a warning is an error; `python` and `xlogmem` are these.  Standard error is in the output.

    CHECKOUT is the folder of the sources, and SOURCE as well where xlogmem is imported from there.
    """
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, start in (("python", sys.executable), ("xlogmem", f'{sys.executable} -c "{COMMAND}"')):
        file = commands / name
        file.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        file.chmod(0o755)
    here = variables(devices=2, XLOGMEM_SIMULATE=1, PYTHONWARNINGS="error", CHECKOUT=ROOT,
                     SOURCE=ROOT if IN_CHECKOUT else "")
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
                          env=here | {"PATH": f"{commands}:{here['PATH']}"})


def script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Lines of a shell; the first that fails ends it."""
    return run(["bash", "-euo", "pipefail", "-c", text], folder)
