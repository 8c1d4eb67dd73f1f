"""PyTorch as far as the check puts it on the driver's pool: a package that a program of a test imports.

Its functions say that they were called.  `check_again` runs a program as `xlogmem check` does on a GPU, where the
driver's pools come first, on the simulated driver.
"""
from __future__ import annotations

import sys
from pathlib import Path

from xlogmem.check import again, command, gpu

__all__ = ["SOURCES", "check_again", "install"]

SOURCES = {
    "torch/_C.py": """
import os

def _cuda_getAllocatorBackend():
    settings = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    return "cudaMallocAsync" if "backend:cudaMallocAsync" in settings else "native"

def made(name):
    def function(*arguments, **keywords):
        print("called", name, flush=True)
    return function

for name in ("attach_out_of_memory_observer", "beginAllocateCurrentStreamToPool", "beginAllocateCurrentThreadToPool",
             "beginAllocateToPool", "changeCurrentAllocator", "checkPoolLiveAllocations", "getCheckpointState",
             "isHistoryEnabled", "memorySnapshot", "record_memory_history", "setCheckpointPoolState"):
    globals()[f"_cuda_{name}"] = made(name)
""",
    "torch/__init__.py": """
from torch import _C, cuda

__version__ = "2.11.0"

class UntypedStorage:
    def _share_cuda_(self):
        print("called _share_cuda_", flush=True)

    @classmethod
    def _new_shared_cuda(cls):
        print("called _new_shared_cuda", cls.__name__, flush=True)
""",
    "torch/cuda/__init__.py": """
from torch.cuda import graphs, memory
from torch.cuda.graphs import make_graphed_callables
from torch.cuda.memory import MemPool
""",
    "torch/cuda/memory.py": """
from torch._C import _cuda_beginAllocateCurrentThreadToPool

class MemPool:
    def __init__(self, allocator=None):
        print("called MemPool", flush=True)

def use_mem_pool():
    _cuda_beginAllocateCurrentThreadToPool(0)
""",
    "torch/cuda/graphs.py": """
def make_graphed_callables():
    print("called make_graphed_callables", flush=True)
""",
}


def install(folder: Path) -> None:
    """As programs find it that run in this folder."""
    for name, source in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)


def check_again(program: list[str]) -> None:
    """Run it, and print what came of it."""
    variables = {"XLOGMEM_SIM_QUIET": "1", "XLOGMEM_CHECK_GPU": "0"}
    environments = [variables | gpu.pools(pools) for pools in ("driver", "real")]
    outcome = command.run_again(program, environments, say=lambda text: print(f"xlogmem check: {text}", flush=True))
    print("outcome", outcome.status, bool(outcome.needs), len(outcome.findings), flush=True)


if __name__ == "__main__":
    again.GRACE = 0.5
    check_again(sys.argv[1:])
