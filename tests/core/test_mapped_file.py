"""Mappings of files that are truncated, by themselves: what is repaired, and what is passed on; the ring in one."""
from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from engine_traces import compiler

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/helpers/mapped_file.cpp"
HEADERS = ROOT / "cpp/mapped_file.hpp", ROOT / "xlogmem/observe/history/ring.hpp"
PATIENCE = 100
SCENES = {                                              # and how they end
    "cuts": 0, "no room": 0, "several": 0, "gives up": 0, "other descriptor": 0, "threads": 0, "threads, raised": 0,
    "forks": 0, "passes": 0, "passes at once": 0, "passes signals": 0, "once": -signal.SIGBUS, "ignored": 0,
    "fault is not ignored": -signal.SIGBUS, "default of a fault": -signal.SIGBUS,
    "default of a signal": -signal.SIGBUS, "raised": 0, "raised twice": 0, "raised later": 0,
    "raised late": 0,
    "raised for another": -signal.SIGBUS, "taken away": 0, "keeps errno": 0,
    "ring is cut": 0, "ring has other content": 0, "ring looks at times": 0, "ring of another recording": 0,
    "ring appends": 0, "ring in memory": 0}
DEFECTS = {                                             # what becomes of what, and the scene that notices
    "there is no handler":
        ("        sigaction(SIGBUS, &ours, nullptr);\n", "", "cuts"),
    "a page that the file has is replaced, too":
        ("replace_from(here < end ? here : end)", "replace_from(0)", "cuts"),
    "a page that the disk has no room for is not":
        ("replace_from(here < end ? here : end)", "replace_from(end)", "no room"),
    "a file that has grown again is whole":
        ("(kept() < size_ || bytes() < size_)", "bytes() < size_", "cuts"),
    "a cut is one after a store":
        ("(kept() < size_ || bytes() < size_)", "kept() < size_", "cuts"),
    "a cut in the last page is none":
        ("(kept() < size_ || bytes() < size_)", "(kept() < size_ || whole() < size_)", "cuts"),
    "an ended mapping stays in the list":
        ("        *place = next_;\n", "", "several"),
    "what is given up stays":
        ("        replace_from(0);\n", "", "gives up"),
    "the size of any file counts":
        ("|| found.st_dev != device_ || found.st_ino != inode_", "", "other descriptor"),
    "what another thread has repaired is passed on":
        ("if (at >= kept_.load(std::memory_order_relaxed)) return true;",
         "if (at >= kept_.load(std::memory_order_relaxed)) return false;", "no room"),
    "a second thread's signal is passed on":
        ("repaired = all().raised |= repaired;", "all().raised |= repaired;", "raised twice"),
    "signals have no effect for ever":
        ("        if (!all().first) all().raised = false;\n", "", "raised later"),
    "a signal for a page that is there again is passed on":
        ("return repaired || (info->si_code == SI_TKILL && all().first && !is_handler(all().before));",
         "return repaired;", "raised late"),
    "a signal has no effect though there is a handler for it":
        ("all().first && !is_handler(all().before));", "all().first);", "passes signals"),
    "a signal that was raised again is passed on":
        ("info->si_code != BUS_ADRERR && (info->si_code != SI_TKILL || info->si_pid != getpid())",
         "info->si_code != BUS_ADRERR", "raised"),
    "each signal is a truncation":
        ("repaired = all().raised |= repaired;", "repaired = true;", "passes signals"),
    "each fault is a truncation":
        ("        if (at >= size_) return false;\n", "        if (at >= size_) return true;\n", "passes"),
    "a forked child waits for its parent's thread":
        ("if (free == self) {", "if (free) {", "forks"),
    "all signals are blocked while a handler runs":
        ("        pthread_sigmask(SIG_SETMASK, &mask, nullptr);\n", "", "passes signals"),
    "a handler for one signal is called twice":
        ("        if (before.sa_flags & SA_RESETHAND) before = {};\n", "", "once"),
    "a handler is not passed where the fault was":
        ("with_info ? handler_of_info(number, info, context) : handler(number);", "handler(number);", "passes"),
    "a fault that is ignored comes again for ever":
        ("if (before.sa_handler == SIG_IGN && info->si_code <= 0) return;",
         "if (before.sa_handler == SIG_IGN) return;", "fault is not ignored"),
    "a signal that is ignored ends the process":
        ("            if (before.sa_handler == SIG_IGN && info->si_code <= 0) return;\n", "", "ignored"),
    "a signal has no effect by default":
        ("            if (info->si_code <= 0) raise(number);  // else the fault comes again\n", "",
         "default of a signal"),
    "a handler that was taken away stays away":
        ("if (installed && is_handler(now)) return;", "if (installed) return;", "taken away"),
    "a handler that does not handle is one":
        ("action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN", "action.sa_handler != SIG_DFL", "taken away"),
    "a program's own handler is replaced":
        ("if (installed && is_handler(now)) return;", "", "taken away"),
    "events are read from another's file":
        ("return begins_as_it_did() || ", "return true || ", "ring has other content"),
    "a reader does not look":
        ("        look_for_others();\n        return mapped_.is_cut();", "        return mapped_.is_cut();",
         "ring has other content"),
    "nothing looks at the file":
        ("        look_for_others();\n        word(AT_COUNT)", "        word(AT_COUNT)", "ring looks at times"),
    "what was noticed is not given up":
        ("if (mapped_.kept() && !begins_as_it_did()) mapped_.give_up();", "", "ring has other content"),
    "all recordings have one mark":
        ("word(AT_MARK)->store(xlogmem_ticks());", "", "ring of another recording"),
    "lines are appended to another's file":
        ("!is_spoiled() && ::write", "::write", "ring appends"),
    "errno changes":
        ("        errno = error;\n        if (!repaired)", "        errno = 5;\n        if (!repaired)", "keeps errno"),
}

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


def compiled(folder: Path, *edits: tuple[str, str]) -> Path:
    """The program with copies of the headers."""
    texts = {path.name: path.read_text() for path in HEADERS}
    for old, new in edits:
        assert sum(text.count(old) for text in texts.values()) == 1, f"{old!r} is not in the headers, or more than once"
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "program.cpp").write_text(PROGRAM.read_text())    # its own include is looked for beside it first
    subprocess.run([compiler() or "g++", "-O0", "-std=c++17", "-Wall", "-Wextra", "-Wno-unused-function", "-pthread",
                    "program.cpp", "-o", "program"], check=True, cwd=folder)
    return folder / "program"


def end_of(program: Path, scene: str) -> tuple[int, str]:
    """Its status and output. A sanitizer that is preloaded into the tests has handlers of its own: not here."""
    done = subprocess.run(["sh", "-c", 'ulimit -c 0; unset LD_PRELOAD; exec "$@"', "sh", program, scene],
                          stdout=subprocess.PIPE, text=True, timeout=PATIENCE, cwd=program.parent)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_ends_as_it_has_to(program, scene):
    assert end_of(program, scene) == (SCENES[scene], "" if SCENES[scene] else "went on\n")


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_noticed(defect, tmp_path):
    old, new, scene = DEFECTS[defect]
    assert end_of(compiled(tmp_path, (old, new)), scene)[0] != SCENES[scene]
