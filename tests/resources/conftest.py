from __future__ import annotations

import pytest
from guarded import MEMORIES, guarded


@pytest.fixture(params=MEMORIES)
def x(request):
    """A guard and its runtime, over each kind of memory."""
    x = guarded(request.param)
    yield x
    x.__dict__.clear()                                  # pytest keeps it
