"""Programs of public collections (examples, tutorials and notebooks for CUDA in Python) under `xlogmem check --no-gpu`.

    python tests/helpers/collections_suite.py CHECKOUT... [--python PYTHON] [--seconds N] [--json FILE] [--only PART]...

runs, in a copy of each checkout, the .py files and notebooks that `programs` selects, and prints how each ended and
what was found.  A checkout's folder is named `owner__name`.  PYTHON, else the one that runs this, has the libraries
that the programs import, and IPython for notebooks.  A program that a failed assertion ends runs again by `python -O`,
as the check advises.
"""
from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
USES_CUDA = re.compile(r"^\s*(from|import)\s+(cupy|cupyx|cuda|nvmath|rmm|cusignal|glcm_cupy|cupy_xarray|qutip_cupy)\b"
                       r"|^\s*from numba import .*\bcuda\b|\bnumba\.cuda\b", re.MULTILINE)
NO_PROGRAM = re.compile(r"(^|/)(tests?|ci|\.\w+)/|(^|/)(conftest|conf|setup|versioneer|test_\w*)\.py$|-checkpoint\.")
# PYTHON has these libraries: of their checkouts the folders `examples` count alone, and the library there does not.
LIBRARIES = ("cupy", "cuda-python", "numba-cuda", "nvmath-python")
TAKEN = {"nvmath-python": 8}                            # every eighth, by name
LACKS = re.compile(r"\w*(ModuleNotFound|Import|FileNotFound|UnidentifiedImage|URL|HTTP|Usage)Error|not installed|"
                   "requires|pip install|cannot open source file|nvcc is required|library was found|"
                   "Failure finding .lib")
# Too old for the libraries, or an exercise that is not filled in.
IS_WRONG = re.compile(r"[\w.]*(Name|Syntax|Indentation|Typing|UnsupportedBytecode|Deprecation)Error|Array Interface v3|"
                      r"module '[\w.]+' has no attribute|no longer supported|No matching version|"
                      "Failed in cuda mode pipeline")


@dataclass
class Run:
    program: str
    command: list[str]
    ending: str = ""
    cause: str = ""
    certain: int = 0
    possible: int = 0
    optimized: bool = False


def programs(checkout: Path) -> list[Run]:
    """The files that import a CUDA library and do something when they are run; of npbench each benchmark for CuPy."""
    runner = checkout / "run_benchmark.py"
    if runner.exists():
        has_cupy = {file.name.removesuffix("_cupy.py") for file in checkout.rglob("*_cupy.py")}
        infos = [(json.loads(file.read_text())["benchmark"], file.stem) for file in checkout.glob("bench_info/*.json")]
        names = sorted(name for info, name in infos if info["module_name"] in has_cupy)
        return [Run(name, [runner.name, "-b", name, "-f", "cupy", "-v", "False", "-r", "1"]) for name in names]
    files = [file for file in sorted(checkout.rglob("*")) if file.suffix in {".py", ".ipynb"} and file.is_file()
             and not NO_PROGRAM.search(str(file.relative_to(checkout))) and is_program(file)]
    if is_library(checkout):
        files = [file for file in files if "examples" in file.parts]
    files = files[::TAKEN.get(name_of(checkout), 1)]
    return [Run(str(file.relative_to(checkout)), ["-m", "IPython", "--colors=NoColor", file.name]
                if file.suffix == ".ipynb" else [file.name]) for file in files]


def name_of(checkout: Path) -> str:
    return checkout.name.rpartition("__")[2]


def is_library(checkout: Path) -> bool:
    return name_of(checkout) in LIBRARIES


def is_program(file: Path) -> bool:
    text = file.read_text(errors="replace")
    if file.suffix == ".ipynb":
        cells = json.loads(text).get("cells", ())
        code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
        return bool(USES_CUDA.search(code))
    try:
        return bool(USES_CUDA.search(text)) and any(map(acts, ast.parse(text).body))
    except SyntaxError:
        return False                                    # Python 2


def acts(part: ast.stmt) -> bool:
    match part:
        case ast.If():
            return "__main__" in ast.dump(part.test)
        case ast.Expr():
            return isinstance(part.value, ast.Call)
    return isinstance(part, ast.For | ast.While | ast.With)


def execute(run: Run, copy: Path, python: str, seconds: int, *, optimize: bool = False) -> None:
    """Say how it ended: `ended` (with status 0), `exit` (with another one that it chose), `stopped`, `too long`, `lost`
    (without a report), `no driver` (without a call of it) or `cannot run`."""
    folder = copy if run.command[0] == "run_benchmark.py" else (copy / run.program).parent
    own = [] if is_library(copy) else [copy, copy / "src", copy / "python"]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, [ROOT, *own])), "MPLBACKEND": "Agg", "TERM": "dumb",
                   "PIP_NO_INDEX": "1", "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    run.optimized = optimize
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = ["timeout", "-k", "5", str(seconds), python, "-m", "xlogmem", "check", "--no-gpu", "--possible",
                   "--json", out.name, "--", python, *(["-O"] if optimize else []), *run.command]
        done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace")
        text = Path(out.name).read_text()
    if done.returncode in {124, 137}:
        run.ending = "too long"
    elif not text:
        run.ending, run.cause = "lost", done.stderr.strip().rpartition("\n")[2]
    else:
        judge(run, json.loads(text), re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr))
    if run.ending == "stopped" and "AssertionError" in run.cause and not optimize:
        execute(run, copy, python, seconds, optimize=True)


def judge(run: Run, report: dict, said: str) -> None:
    certain = [one["certain"] for one in report["findings"]]
    run.certain, run.possible = sum(certain), len(certain) - sum(certain)
    errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*|^Failed in cuda mode pipeline.*", said, re.MULTILINE)
    failures = re.findall(r"^Failed to \w+ the CuPy.*\n.*", said, re.MULTILINE)     # npbench goes on
    last = errors[-1] if errors else ""
    about = last or "\n".join(said.splitlines()[-6:])
    missing = sorted(note for note in report["notes"] if "not simulated" in note)
    if not report["status"] and not failures:
        run.ending, run.cause = "no driver" if "nothing was checked" in said else "ended", "; ".join(missing)
        return
    run.cause = "; ".join([*filter(None, [last[:160]]), *sorted(set(failures)), *missing]).replace("\n", ": ")
    if LACKS.search(about) or IS_WRONG.match(about) or IS_WRONG.search(last):
        run.ending = "cannot run"
    else:
        run.ending = "stopped" if errors or failures else "exit"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    endings: collections.Counter[str] = collections.Counter()
    results = []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        for checkout in options.checkouts:
            copy = Path(place, checkout.name)
            shutil.copytree(checkout, copy, symlinks=True)
            runs = [run for run in programs(copy)
                    if not options.only or any(part in run.program for part in options.only)]
            one = partial(execute, copy=copy, python=options.python, seconds=options.seconds)
            for run, _ in zip(runs, pool.map(one, runs), strict=True):
                endings[run.ending] += 1
                results.append({"collection": checkout.name, **asdict(run)})
                print(f"{checkout.name}/{run.program:60} {run.ending:10} {run.certain} certain, {run.possible} possible"
                      f"{' (-O)' if run.optimized else ''} {run.cause}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{sum(endings.values())} programs: {dict(endings)}")


if __name__ == "__main__":
    main()
