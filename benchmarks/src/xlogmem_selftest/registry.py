"""The registries of steps and situations: a decorator adds a function."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import TypeVar

from xlogmem_selftest.world import World

__all__ = ["Action", "Registry", "situation", "step"]

Action = Callable[[World, Random], None]
_Action = TypeVar("_Action", bound=Action)


class Registry:
    """Collects functions, module by module: a seed chooses by order, and the order of imports must not matter."""

    def __init__(self) -> None:
        self.by_module: defaultdict[str, list[Action]] = defaultdict(list)

    def __call__(self, action: _Action) -> _Action:
        self.by_module[action.__module__].append(action)
        return action

    def of(self, *modules: ModuleType) -> list[Action]:
        return [action for module in modules for action in self.by_module[module.__name__]]


step = Registry()
situation = Registry()
