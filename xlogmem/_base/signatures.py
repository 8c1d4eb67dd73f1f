"""Signatures of compiled classes, for `inspect.signature`, editors and `help`: Cython gives them to functions alone.
And messages for arguments that a function does not have, or that are of another type."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from xlogmem._base.units import shortened

if TYPE_CHECKING:
    import inspect

__all__ = ["Signed", "names_nearest", "nearest", "refuse_keyword", "refuse_type", "refuse_unknown"]

P = ParamSpec("P")
R = TypeVar("R")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that looks most like this one; empty if none does."""
    from difflib import get_close_matches  # not before it is needed

    return next(iter(get_close_matches(name, list(known), 1, cutoff)), "")


def refuse_unknown(function: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a call with these names of arguments if one is unknown.

    Raises
    ------
    TypeError
        The text has the nearest name.
    """
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise TypeError(f"{function} has no argument {name!r}" + (
                f"; did you mean {near!r}?" if near else f". It has {', '.join(known)}")) from None


def refuse_keyword(function: str, name: str, known: Sequence[str]) -> None:
    """Refuse a call of a compiled function with an argument that it does not have: keywords.hpp calls this."""
    made = function in ("__init__", "__cinit__")
    refuse_unknown("the constructor" if made else f"{function}()", [name], [one for one in known if one != "self"])


def refuse_type(name: str, given: object, expected: type) -> NoReturn:
    """Refuse an argument that is of another type than this, by the name of the class that users know: keywords.hpp
    calls this too."""
    known = "DeviceRuntime" if expected.__name__ in ("Core", "Runtime") else expected.__name__
    kind = f" (of type {type(given).__name__})" if given is not None else ""
    raise TypeError(f"{name} must be a {known}, not {shortened(given)}{kind}")


def names_nearest(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of Python's name the nearest argument where a call misspells one.  A call that is right costs one
    call more, so this is for functions that programs call once."""
    code = function.__code__
    name = function.__qualname__.removesuffix(".__new__")
    known = code.co_varnames[name != function.__qualname__:code.co_argcount + code.co_kwonlyargcount]    # without `cls`

    @functools.wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(f"{name}()", kwargs, known)
        return function(*args, **kwargs)

    return named


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
