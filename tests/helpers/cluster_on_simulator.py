"""The programs of `examples/cluster` on memory of the simulated driver.

    python tests/helpers/cluster_on_simulator.py ucxx|stand-ins PROGRAM ARGUMENT...

UCXX itself works without a GPU: simulated device memory has a second address, for the host, and UCXX is given that.
"""
from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def give_ucxx_the_host_side() -> None:
    import numpy
    import ucxx._lib.arr

    from xlogmem import sim

    of_ucxx = ucxx._lib.arr.Array

    def array(memory: Any) -> Any:
        view = sim.simulator().view(memory.__cuda_array_interface__["data"][0])[:memory.nbytes]
        return of_ucxx(numpy.frombuffer(view, dtype=numpy.uint8))

    ucxx._lib.arr.Array = array


if __name__ == "__main__":
    kind, program = sys.argv[1:3]
    if kind == "ucxx":
        give_ucxx_the_host_side()
    else:
        import rapidsmpf_stand_in
        import ucxx_stand_in

        rapidsmpf_stand_in.install()
        ucxx_stand_in.install()
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")
