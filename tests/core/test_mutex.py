"""The lock of a runtime by itself: one thread inside at a time, and none that sleeps is forgotten."""
from __future__ import annotations

import threading

import pytest
from stress import PATIENCE

from xlogmem.bench._loops import LOCKS, contended


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
        assert found["counted"] == found["sections"] > threads
        assert found["fewest"] > 0


@pytest.mark.parametrize("lock", LOCKS)
def test_each_lock_of_the_benchmark_locks(lock):
    found = contended(lock, 4, 20)
    assert found["counted"] == found["sections"] > 0
    assert found["median"] <= found["p99"] <= found["longest"]
    assert found["took"] > 0


def test_a_lock_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="none of"):
        contended("std::mutex", 1, 1)
