from types import CodeType

from typing_extensions import disjoint_base

__all__ = ["Stack", "label_count"]

@disjoint_base
class Stack:
    def frames(self) -> list[tuple[CodeType, int]]: ...

def label_count() -> int: ...
