"""Stand-ins for libraries that need a GPU: a module that is built on one can be imported, and read."""
from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """Whatever a program takes from this module is a class without contents."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": self.__name__})


def stand_in(*modules: str) -> None:
    """For those whose package is not installed."""
    missing = [name for name in modules if name in modules and find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name] = StandIn(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
        sys.modules[name].__path__ = []  # type: ignore[attr-defined]
