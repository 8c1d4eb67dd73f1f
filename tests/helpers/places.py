"""Where tests find what lies beside them."""
from __future__ import annotations

from pathlib import Path

HELPERS = Path(__file__).parent
ROOT = HELPERS.parents[1]
