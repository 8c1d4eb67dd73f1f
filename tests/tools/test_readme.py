"""The programs of README.md and docs/using.md do what they say, and the README's two commands are those of CI."""
from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from cuda.bindings import driver as cuda
from places import ROOT
from which_driver import SIMULATED

from xlogmem import sim
from xlogmem.sim.kernels import check

README = (ROOT / "README.md").read_text()
PROGRAM = re.search(r"```python\n(import ctypes.*?)```", (ROOT / "docs/using.md").read_text(), re.DOTALL)[1]


def libraries() -> bool:
    return importlib.util.find_spec("cupy") is not None


def run(program: str) -> bool:
    """Run it a few times; whether every copy was right and nothing raced."""
    right = True
    for _ in range(5):
        names: dict[str, object] = {}
        exec(compile(program, "docs/using.md", "exec"), names)
        y = names["y"]
        seen = bytearray(y.nbytes)
        check(cuda.cuMemcpyDtoHAsync(seen, y.ptr, y.nbytes, names["worker"].handle))
        check(cuda.cuStreamSynchronize(names["worker"].handle))
        right = right and seen == b"\1" * y.nbytes
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFreeHost(names["host"]))
    if SIMULATED:
        right = right and not sim.simulator().races()
        sim.simulator().clear_races()
    return right


@pytest.fixture(autouse=True)
def _a_runtime_of_its_own(monkeypatch):
    """The process's own runtime would outlive the test."""
    import xlogmem

    monkeypatch.setattr(xlogmem, "get_runtime", xlogmem.DeviceRuntime)


def test_the_program_is_right():
    small = PROGRAM.replace("1 << 26", "1 << 20") if SIMULATED else PROGRAM
    assert run(small)


def test_it_is_wrong_without_its_two_lines():
    without = re.sub(r"with xlogmem\.use\(.*", "if True:", PROGRAM)
    assert without.count("if True:") == 2
    if SIMULATED:
        without = without.replace("1 << 26", "1 << 20")
        sim.simulator().set_policy("min")
    assert not run(without)


def test_the_commands_are_the_ones_that_ci_runs():
    commands = re.findall(r"```bash\n(pip install .*)\n```", README)
    assert commands == ['pip install ".[cu12]" && xlogmem demo',
                        'pip install -e ".[cu12,test]" -e ./benchmarks && pytest -n auto']
    script = (ROOT / ".ci" / "run").read_text()
    for command in commands:
        assert command.replace("pip install", "pip install -q") in script


def test_it_is_read_in_five_minutes():
    assert len(README.split()) <= 1100


@pytest.mark.skipif(not (libraries() and SIMULATED), reason="needs a checked library: cupy")
@pytest.mark.parametrize(("edit", "certain"), [(None, (1, 0)), (", xlogmem.use(None, read=x)", (1, 1))],
                         ids=["as it is", "without its use"])
def test_the_check_finds_the_wrong_program_and_not_the_right_one(tmp_path, edit, certain):
    """And the report is the one that the README shows."""
    wrong, right = re.findall(r"```python\n(import cupy.*?)```", README, re.DOTALL)
    shown = re.search(r"```console\n\$ xlogmem check program.py\n(.*?)```", README, re.DOTALL)[1]
    for program, number in zip((wrong, right.replace(edit or "no such line", "")), certain, strict=True):
        file = tmp_path / "program.py"
        file.write_text(program)
        done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", file.name],
                              capture_output=True, text=True, cwd=tmp_path, timeout=100)
        report = done.stdout + done.stderr
        assert f"xlogmem check: {number} certain, 0 possible" in report
        assert done.returncode == number
        assert program is not wrong or shown.strip() in report


@pytest.mark.skipif(not SIMULATED, reason="reads the races of the simulated driver")
@pytest.mark.parametrize("named", [re.search(r"`(read=\[x, y\])`", README)[1], "read=x"])
def test_a_list_names_several_arrays(named):
    import xlogmem

    runtime = xlogmem.get_runtime()
    streams = *_, upload, compute = [runtime.acquire_stream() for _ in range(3)]
    x, y, z = (runtime.allocate(1024, stream) for stream in streams)
    check(cuda.cuMemsetD8Async(y.ptr, 1, 1024, upload.handle))
    names = {"xlogmem": xlogmem, "compute": compute, "x": x, "y": y, "z": z}
    with eval(f"xlogmem.use(compute, {named}, write=z)", names):
        check(cuda.cuMemcpyDtoDAsync(z.ptr, y.ptr, 1024, compute.handle))
    check(cuda.cuCtxSynchronize())
    assert bool(sim.simulator().races()) == ("y" not in named)
    sim.simulator().clear_races()


def test_nothing_names_what_is_not_there():
    """Every file and test that README and CONTRIBUTING name exists."""
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        for name in re.findall(r"`((?:xlogmem|tests|benchmarks)/[\w/.]*)`", text):
            assert (ROOT / name).exists(), name


def test_the_index_has_every_page():
    index = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert [page for page in sorted(pages) if f"({page})" not in index] == []


def test_every_link_leads_to_a_file_and_a_heading():
    folders = [ROOT / name for name in ("docs", "cpp", "benchmarks", "examples", "tests")]
    wrong = []
    for page in [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            target = (page.parent / name) if name else page
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


def anchors(text: str) -> list[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
