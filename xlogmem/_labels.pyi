from types import CodeType

__all__ = ["Stack", "label_count"]

class Stack:
    def frames(self) -> list[tuple[CodeType, int]]: ...

def label_count() -> int: ...
