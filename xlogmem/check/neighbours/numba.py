"""Numba's kernels: keeps their PTX, because the cubins that Numba loads do not show accesses through pointers."""
from __future__ import annotations

import sys
from types import ModuleType

from xlogmem import sim

__all__ = ["prepare"]


def prepare(module: ModuleType) -> None:
    """`module` is numba.cuda.codegen."""
    library = getattr(module, "CUDACodeLibrary", None)
    if library is None or not all(hasattr(library, name) for name in ("get_cufunc", "get_asm_strs", "get_lto_ptx")):
        print("xlogmem check: this release of Numba is not known: what its kernels read and write is not known, either",
              file=sys.stderr)
        return
    load = library.get_cufunc

    def get_cufunc(self):  # type: ignore[no-untyped-def]
        if not self._cufunc_cache:                      # with link-time optimisation the PTX is made for this alone
            for text in [self.get_lto_ptx()] if self._lto else self.get_asm_strs():
                sim.simulator().learn_kernels(text.encode())
        return load(self)

    library.get_cufunc = get_cufunc
