from typing import Never

from typing_extensions import disjoint_base

__all__ = [
    "BUILD",
    "active_devices",
    "device_count",
    "device_name",
    "driver_version",
    "forget_context",
    "initialize",
    "is_simulated",
    "live_events",
    "supports_memory_pools",
    "trim_events",
]

OLDEST_DRIVER: int
BUILD: str

@disjoint_base
class Context:
    def __init__(self, _: Never, /) -> None: ...  # always raises
    @property
    def ordinal(self) -> int: ...

def forget_context(ordinal: int) -> None: ...
def initialize() -> None: ...
def is_simulated() -> bool: ...
def driver_version() -> tuple[int, int]: ...
def active_devices() -> list[int]: ...
def device_count() -> int: ...
def device_name(ordinal: int) -> str: ...
def trim_events(ordinal: int = 0) -> None: ...
def live_events(ordinal: int = 0) -> tuple[int, int]: ...
def supports_memory_pools(ordinal: int) -> bool: ...
