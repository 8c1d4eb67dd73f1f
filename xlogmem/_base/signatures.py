"""Signatures of compiled classes, for `inspect.signature`, editors and `help`: Cython gives them to functions alone."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import inspect

__all__ = ["Signed"]


class Signed:
    """The `__signature__` of a class whose ``__init__`` takes these parameters.

    A subclass has it too, unless it has an ``__init__`` or a ``__new__`` of its own.
    """

    def __init__(self, parameters: str) -> None:
        self.parameters = parameters

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        import inspect

        for base in owner.__mro__:
            if vars(base).get("__signature__") is self:
                return inspect.signature(eval(f"lambda {self.parameters}: None", {}))   # the text of the class itself
            if "__init__" in vars(base) or isinstance(vars(base).get("__new__"), staticmethod):
                break
        raise AttributeError("__signature__")
