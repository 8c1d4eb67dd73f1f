"""The simulator, installed once for the process and reset around every test."""
from __future__ import annotations

from pathlib import Path

import pytest
import sim_support as cu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests run first: a runtime keeps the contexts that it retained, and here some have to be destroyed."""
    items.sort(key=lambda item: HERE not in item.path.parents)


@pytest.fixture
def simulator():
    try:
        simulator = cu.install()
    except RuntimeError as reason:
        pytest.skip(str(reason))
    simulator.reset()
    cu.retain()
    yield simulator
    simulator.reset()
    cu.clean_up()
    simulator.reset()
    cu.release()


@pytest.fixture(params=cu.SCHEDULES, ids=lambda schedule: f"{schedule[0]}{schedule[1] or ''}")
def scheduled(request, simulator):
    """The simulator under each policy in turn."""
    simulator.reset(*request.param)
    return simulator
