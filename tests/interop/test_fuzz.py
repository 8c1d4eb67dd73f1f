"""Random tokens, capsules and interface dictionaries; see fuzz.py, which runs as many as one likes."""
from __future__ import annotations

import pytest
from fuzz import Fuzz


@pytest.mark.simulator
@pytest.mark.promise(124, 193)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_from_outside_gives_documented_errors_only(seed, driver):
    fuzz = Fuzz(seed)
    seen = fuzz.run(3000)
    for kind in ("token", "capsule", "interface"):
        assert seen[f"{kind}: taken"] > 10              # what is right is accepted
        assert sum(times for what, times in seen.items() if what.startswith(kind)) == 1000
    assert not driver.races()
    fuzz.close()
    fuzz.__dict__.clear()
