"""Other libraries under a check: each is prepared when the program imports it, and not before.

`SIMULATED`, `DRIVER_POOLS` and `REAL_POOLS` have the module whose import counts, and the module here for it:
``prepare(module)`` is called when it has been imported, and ``before()``, where there is one, before that.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from xlogmem import sim
from xlogmem.check import cudart

__all__ = ["DRIVER_POOLS", "REAL_POOLS", "prepare", "prepare_simulated"]

SIMULATED = {
    "cuda.bindings._bindings.cyruntime": "cyruntime",
    "cuda.bindings._internal.runtime": "cyruntime",
    "cupy": "cupy",
    "cupy.cuda.pinned_memory": "cupy_watched",
    "cupy.cuda.thrust": "cupy_thrust",
    "cupy.random._bit_generator": "cupy_generators",
    "cupy_backends.cuda.api.runtime": "cupy_runtime",
    "numba.cuda.codegen": "numba",
    "numba_cuda.numba.cuda.codegen": "numba",
    "numpy.testing": "numpy_testing",
    "torch": "torch_operators",
}
DRIVER_POOLS = {"cupy": "cupy_pool", "cupy.cuda.pinned_memory": "cupy_watched", "rmm.mr": "rmm_pools",
                "torch": "torch_pieces"}                # on a GPU, like the next
REAL_POOLS = {"cupy": "cupy_pieces", "cupy.cuda.pinned_memory": "cupy_watched", "rmm.mr": "rmm_pieces",
              "torch": "torch_pieces"}


class _Then(Loader):
    """Loads a module as another loader does, and then prepares it."""

    def __init__(self, loader: Loader, hook: str) -> None:
        self._loader = loader
        self._hook = import_module(f"{__name__}.{hook}")

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        getattr(self._hook, "before", lambda: None)()
        self._loader.exec_module(module)
        self._hook.prepare(module)

    def __getattr__(self, name: str) -> object:         # get_source and the like
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    """Finds a module by way of all other finders, if there is a hook for it."""

    def __init__(self, hooks: dict[str, str]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        if name not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Then(spec.loader, self._hooks[name])
                return spec
        return None


def _searches() -> bool:
    """True if cuda.pathfinder looks for NVIDIA's own libraries in this process, and for headers beside them."""
    return any(argument.startswith("cuda.pathfinder.") for argument in sys.orig_argv)


def prepare(hooks: dict[str, str]) -> None:
    """Prepare libraries from here on, and those that are imported already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(hooks))
    for name, hook in hooks.items():
        if name in sys.modules:
            import_module(f"{__name__}.{hook}").prepare(sys.modules[name])


def prepare_simulated() -> None:
    """From here on launch kernels that the simulated driver does not know, and prepare libraries."""
    sim.simulator().launch_unknown()
    if not _searches():
        cudart.prepare()
    prepare(SIMULATED)
