# C functions only, but for the class behind `Stream.ordering` and what a history calls the calling thread.
from typing import Self, final

from xlogmem._driver import Context

__all__ = ["Ordering", "thread_number"]

def thread_number() -> int: ...

@final
class Ordering:
    def __new__(cls, context: Context) -> Self: ...
    @property
    def context(self) -> Context: ...
    @property
    def number(self) -> int: ...
    def end_core(self, reference: object = None) -> None: ...
