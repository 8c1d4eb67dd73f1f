"""The lock of a runtime by itself: one thread inside at a time, and none that sleeps is forgotten."""
from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from stress import PATIENCE
from xlogmem_bench._loops import LOCKS, contended


@pytest.mark.parametrize("threads", [2, 8, 16])
@pytest.mark.parametrize("inside", [1, 200])
def test_one_thread_at_a_time_and_none_is_forgotten(threads, inside):
    """A sleeper whose wake-up is lost sleeps for ever, since a wait has no limit: then the threads do not end."""
    results = []
    for _ in range(3):
        run = threading.Thread(target=lambda: results.append(contended("xlogmem", threads, 60, inside, 5)), daemon=True)
        run.start()
        run.join(PATIENCE)
        assert not run.is_alive(), "a thread waits for a lock that is free"
    for found in results:
        assert found["counted"] == found["sections"] > 0


@pytest.mark.parametrize("lock", LOCKS)
def test_each_lock_of_the_benchmark_locks(lock):
    found = contended(lock, 4, 20)
    assert found["counted"] == found["sections"] > 0
    assert found["median"] <= found["p99"] <= found["longest"]
    assert found["took"] > 0


def test_a_lock_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="none of"):
        contended("std::mutex", 1, 1)


# ---------------------------------------------------------------------------------------------- the favourite
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/helpers/mutex.cpp"
SCENES = ("waits", "tries", "tries late", "looks", "looks again", "fence", "refused", "stress")
PREPARED = {                                            # how the copy of the lock differs from the lock
    "STREAK = 2000": "STREAK = 5",
    "        mine->inside.store(1, std::memory_order_relaxed);":
        "        hesitate();\n        if (!keep_back(mine->inside)) mine->inside.store(1, std::memory_order_relaxed);",
    "if (favourite.load(std::memory_order_relaxed) != nullptr || !take()) return false;":
        "if (favourite.load(std::memory_order_relaxed) != nullptr) return false;\n        look_and_wait();\n"
        "        if (!take()) return false;",
    "    const bool done = !syscall(SYS_membarrier": "    deliver();\n    if (fence_is_refused) return false;\n"
                                                    "    const bool done = !syscall(SYS_membarrier",
}
DEFECTS = {                                             # what is left out, in place of what, and where it is noticed
    "the new holder does not wait for the favourite":
        ("while (other->inside.load(std::memory_order_acquire)) xlogmem_futex(other->inside, FUTEX_WAIT, 1);", "",
         "waits"),
    "the new holder leaves the favourite as it is": ("if (other != nullptr) revoke(other);", "", "waits"),
    "the favourite wakes no one": ("!= mine, 0)) wake_revoker(mine);", "!= mine, 0)) return;", "waits"),
    "a try does not look again for a favourite":
        ("if (favourite.load(std::memory_order_relaxed) != nullptr) {", "if (false) {", "tries late"),
    "there is no heavy fence": ("        xlogmem_fence_all_or_wait();\n", "", "fence"),
    "the favourite does not look again":
        ("favourite.load(std::memory_order_relaxed) != mine, 0)) {", "false, 0)) {", "looks"),
    "favourites share what says that they are inside":
        ("for (; mine != nullptr && mine->thread != self; mine = mine->next) ++passed;",
         "if (mine != nullptr) mine->thread = self;", "looks again"),
}


def compiled(folder, *edits):
    """The program with a copy of the lock."""
    text = (ROOT / "cpp/mutex.hpp").read_text()
    for old, new in (*PREPARED.items(), *edits):
        assert old in text, f"the lock has no {old!r} any more"
        text = text.replace(old, new)
    (folder / "mutex.hpp").write_text(text)
    (folder / "mutex.cpp").write_text(PROGRAM.read_text())      # its own include is looked for beside it first
    subprocess.run([os.environ.get("CXX", "g++"), "-O2", "-std=c++17", "-pthread", "mutex.cpp", "-o", "mutex"],
                   check=True, cwd=folder)
    return folder / "mutex"


def test_a_favourite_and_others_are_inside_in_turn(tmp_path):
    program = compiled(tmp_path)
    for scene in SCENES:
        run = subprocess.run([program, scene], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        assert (run.returncode, run.stdout) == (0, "one thread at a time\n"), scene


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_step_of_the_short_way_is_needed(defect, tmp_path):
    old, new, scene = DEFECTS[defect]
    program = compiled(tmp_path, (old, new))
    run = subprocess.run([program, scene], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert run.returncode in (1, 2), f"{scene}: {run.stdout}"
