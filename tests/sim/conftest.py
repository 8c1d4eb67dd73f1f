"""The simulator, installed once for the process and reset around every test."""

import pytest
import sim_support as cu


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
