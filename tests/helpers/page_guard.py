"""Where the guard of the host's memory (cpp/host) works, for tests of it."""
from __future__ import annotations

import os
import platform

import pytest

NEEDED = [pytest.mark.skipif(platform.machine() != "x86_64", reason="the guard is for x86-64"),
          pytest.mark.skipif(bool(os.environ.get("LD_PRELOAD")), reason="a sanitizer has the signals")]
