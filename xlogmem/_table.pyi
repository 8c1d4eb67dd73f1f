from typing import Any

__all__ = ["table"]

table: Any  # the capsule that outsiders import: see include/xlogmem.h
