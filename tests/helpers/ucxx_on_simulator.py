"""UCXX itself on memory of the simulated driver: it reads and writes when it gets to it, as on a GPU.

    python tests/helpers/ucxx_on_simulator.py PROGRAM ARGUMENT...

The simulated device memory has an address of its own for the host, and UCXX is given that one.
"""
from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def patch() -> None:
    import numpy
    import ucxx._lib.arr

    from xlogmem import sim

    of_ucxx = ucxx._lib.arr.Array

    def array(memory: Any) -> Any:
        simulator = sim.simulator()
        interface = memory.__cuda_array_interface__
        view = simulator.view(interface["data"][0])[:memory.nbytes]
        return of_ucxx(numpy.frombuffer(view, dtype=numpy.uint8))

    ucxx._lib.arr.Array = array


if __name__ == "__main__":
    patch()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
