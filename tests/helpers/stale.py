"""Buffers that must be refused."""
from __future__ import annotations

import pytest

from xlogmem import (
    StaleBufferError,
)


def reason(call) -> str:
    with pytest.raises(StaleBufferError) as error:
        call()
    assert str(error.value).startswith(f"the buffer cannot be used any more ({error.value.reason}): ")
    return error.value.reason
