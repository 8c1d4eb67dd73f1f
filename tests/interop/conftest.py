"""Fixtures of the round trips with other libraries."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from round_trips import Program


@pytest.fixture
def program(_context: Any) -> Iterator[Program]:
    program = Program()
    yield program
    program.close()
