"""Random tokens, capsules and interface dictionaries; see garbage.py, which runs as many as one likes."""
from __future__ import annotations

import pytest
from garbage import Garbage


@pytest.mark.simulator
@pytest.mark.contract(124, 193)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_from_outside_gives_documented_errors_only(seed, driver):
    garbage = Garbage(seed)
    seen = garbage.run(3000)
    for kind in ("token", "capsule", "interface"):
        assert seen[f"{kind}: taken"] > 10              # what is right is told from what is wrong
        assert sum(times for what, times in seen.items() if what.startswith(kind)) == 1000
    assert not driver.races()
    garbage.close()
    garbage.__dict__.clear()
