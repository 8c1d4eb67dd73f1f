from typing import NamedTuple

__all__ = ["DEFECTS", "PlantedDefect", "plant", "reached"]

class PlantedDefect(NamedTuple):
    number: int
    rule: str
    what: str

DEFECTS: dict[str, PlantedDefect]

def plant(name: str | None) -> None: ...
def reached() -> int: ...
