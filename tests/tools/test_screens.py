"""What commands print: on a terminal of 80 columns the screens of screens.txt, into a pipe plain lines.

`PYTHONPATH=tests/helpers python tests/tools/test_screens.py` writes the file anew: look at the screens then.
"""
from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from bench_runs import document
from places import ROOT
from rich.console import Console
from rich.text import Text
from which_driver import SIMULATED
from xlogmem_bench import results

from xlogmem._base.screens import FirstThatFits, Table

FILE = Path(__file__).parent / "screens.txt"
HISTORY = """
import sys, xlogmem
with xlogmem.record_history(sys.argv[1]):
    runtime = xlogmem.get_runtime()
    block = runtime.allocate(1 << 20, tag="join keys")
    with xlogmem.use(runtime.acquire_stream(), read=block):
        pass
"""
HOLDS = """
import sys, time, xlogmem
runtime = xlogmem.get_runtime()
held = [runtime.allocate(1 << 20, tag="join keys"), runtime.allocate(100)]
sys.stdin.read()
"""
RACES = """
from cuda.bindings import driver as cuda

def produce(memory, stream):
    cuda.cuMemsetD8Async(memory, 7, 1 << 20, stream)

def consume(memory, copy, stream):
    cuda.cuMemcpyDtoDAsync(copy, memory, 1 << 20, stream)

cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
first, second = (cuda.cuStreamCreate(1)[1] for _ in range(2))
memory, copy = (cuda.cuMemAlloc(1 << 20)[1] for _ in range(2))
produce(memory, first)
consume(memory, copy, second)
"""
# The arguments, and the headings over figures that vary; ALL: each figure at the end of a line.
COMMANDS: dict[str, tuple[str, ...]] = {
    "demo --rounds 20": ("per use",),
    "info": ("ALL",),
    "trace run.xlog": (),
    "selftest --programs 2 --threads 1": ("ALL",),
    "replay --no-least benchmarks/logs/torch-2.11-h100.pickle.gz": ("ns a pair",),
    "bench --read run.json": (),
    "top --once holds.py": (),
    "check races.py": (),
}
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
pytestmark = pytest.mark.skipif(not SIMULATED, reason="the screens are of the simulated driver")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("screens"))


def made(folder: Path) -> Path:
    """A folder with the files that the commands read."""
    subprocess.run([sys.executable, "-c", HISTORY, folder / "run.xlog"], check=True, env=environment())
    (folder / "holds.py").write_text(HOLDS)
    (folder / "races.py").write_text(RACES)
    results.saved(document(**{"floor": [[100.] * 3], "ours": [[1500., 1600., 1700.]], "peer": [[3300.] * 3],
                              "snake": [[9000.] * 3]}), str(folder / "run.json"))
    return folder


def environment() -> dict[str, str]:
    """Without what the run of the tests has chosen."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("XLOGMEM_") and name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return kept | {"XLOGMEM_SIMULATE": "1", "XLOGMEM_SIM": "quiet", "TERM": "xterm-256color"}


def words(command: str, files: Path) -> list[str]:
    return [sys.executable, "-m", "xlogmem", *(str(ROOT / word) if word.startswith("benchmarks/") else word
                                               for word in command.split())]


def on_terminal(command: str, files: Path, columns: int = 80) -> str:
    """What the command leaves on a terminal: its standard output, of the check standard error."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    checks = command.startswith("check")
    with subprocess.Popen(words(command, files), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL if checks else its,
                          stderr=its if checks else subprocess.DEVNULL, env=environment(), cwd=files) as run:
        os.close(its)
        seen = read(ours, run)
    assert run.returncode == (1 if checks else 0), seen.decode()
    return seen.decode().replace("\r\n", "\n")


def read(terminal: int, run: subprocess.Popen[bytes]) -> bytes:
    """What is written there until the end; what the command runs may end when something is."""
    seen = b""
    try:
        while part := os.read(terminal, 1 << 16):
            seen += part
            run.stdin.close()
    except OSError:                                     # the end of a terminal
        pass
    os.close(terminal)
    return seen


def masked(text: str, headings: tuple[str, ...]) -> str:
    lines = ANSI.sub("", text).splitlines()
    for heading in headings:
        if heading == "ALL":
            lines = [re.sub(r"^(\S+(?: \S+)*) +([\d,.]+|release|debug|asan|tsan)$", r"\1  #", line) for line in lines]
            continue
        at, end = next((number, line.index(heading) + len(heading)) for number, line in enumerate(lines)
                       if heading in line)
        start = end - len(heading)
        lines[at + 1:] = [line if line[start:end].strip(" 0123456789,") or not line[start:end].strip()
                          else line[:start] + "#".rjust(end - start) + line[end:] for line in lines[at + 1:]]
    text = "\n".join(line.rstrip() for line in lines)
    for figure in (r"(?<=process )\d+", r"(?<=at 0x)[0-9a-f]+"):
        text = re.sub(figure, "#", text)
    return text.strip("\n")


def expected() -> dict[str, str]:
    parts = re.split(r"^\$ xlogmem (.*)\n", FILE.read_text(), flags=re.MULTILINE)[1:]
    return {command: screen.strip("\n") for command, screen in zip(parts[::2], parts[1::2], strict=True)}


def test_the_file_has_a_screen_of_each_command():
    assert list(expected()) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_screen_of_80_columns(command, files):
    screen = masked(on_terminal(command, files), COMMANDS[command])
    assert screen == expected()[command]
    assert max(map(len, screen.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_plain_lines(command, files):
    with subprocess.Popen(words(command, files), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(), cwd=files) as run:
        if not command.startswith("check"):
            first = run.stdout.readline()
            run.stdin.close()
        rest, errors = run.stdout.read(), run.stderr.read()
    for text in ((b"" if command.startswith("check") else first + rest).decode(), errors.decode()):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2500-\u259f]", text)
        assert not [line for line in text.splitlines() if line != line.rstrip()]
        assert "%" not in text                          # of a bar


@pytest.mark.parametrize("command", ["demo --rounds 20", "selftest --programs 2 --threads 1",
                                     "replay --no-least benchmarks/logs/torch-2.11-h100.pickle.gz"])
def test_a_command_that_takes_long_has_a_bar_on_a_terminal_alone(command, files):
    its, ours = pty.openpty()
    with subprocess.Popen(words(command, files), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=ours,
                          env=environment(), cwd=files) as run:
        os.close(ours)
        assert b"%" in read(its, run)
    assert run.returncode == 0


# -------------------------------------------------------------------------------------------------------- tables
def table(style: str = "") -> Table:
    made = Table("", "rounds corrupted", "best peer", title="the title of the table", left=(0, 2))
    made.add("a case")
    made.add("  without xlogmem.use", "1,234 (1,200–1,300)", "per-use-event scheme", style=style)
    made.add("  with it", Text("0", style="green"), "")
    return made


def lines_of(shown: object, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", range(28, 100))
def test_no_word_is_cut_at_any_width(width):
    lines = lines_of(table("red"), width)
    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    found = set(" ".join(lines).replace(":", "").split())
    wanted = ("the title of table a case without xlogmem.use with it 0 1,234 (1,200–1,300) rounds corrupted best peer "
              "per-use-event scheme")
    assert found == set(wanted.split())


@pytest.mark.parametrize(("width", "said"), [(90, "from"), (40, "few"), (12, "few")])
def test_the_first_table_that_fits_is_shown(width, said):
    few = Table("few", "words")
    few.add("these", "12")
    many = Table("many", "words", "and", "headings", "from", "here", "and", "on")
    many.add(*["figures"] * 8)
    assert said in " ".join(lines_of(FirstThatFits(many, few), width))


def write() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        files = made(Path(name))
        FILE.write_text("\n".join(f"$ xlogmem {command}\n{masked(on_terminal(command, files), headings)}\n"
                                  for command, headings in COMMANDS.items()))
    print(FILE.read_text())


if __name__ == "__main__":
    write()
