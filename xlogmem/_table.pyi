from typing import Any

__all__ = ["name_memory", "table"]

table: Any  # the capsule that outsiders import: see include/xlogmem.h

def name_memory(runtime: int, tag: str) -> None: ...
