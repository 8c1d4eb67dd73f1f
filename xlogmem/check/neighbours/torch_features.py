"""What PyTorch does not have on the driver's pool, its backend cudaMallocAsync: the program is started again.

The functions here are those through which Python comes to what that backend refuses (CUDAMallocAsyncAllocator.cpp and
the base class in CUDACachingAllocator.h, from 2.6 to 2.14), and they say so before they do anything.  What comes there
in another way fails with a text that is known, and is recognised by that if the program does not catch it.
"""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from xlogmem.check import again

__all__ = ["prepare"]

# Of torch._C, some of which torch.cuda.memory has imported.
FUNCTIONS = {
    "_cuda_attach_out_of_memory_observer": "an observer of memory that runs out",
    "_cuda_beginAllocateCurrentStreamToPool": "a private memory pool",
    "_cuda_beginAllocateCurrentThreadToPool": "a private memory pool (CUDA graphs of torch.compile)",
    "_cuda_beginAllocateToPool": "a private memory pool",
    "_cuda_changeCurrentAllocator": "another allocator (torch.cuda.memory.change_current_allocator)",
    "_cuda_checkPoolLiveAllocations": "CUDA graphs of torch.compile",
    "_cuda_getCheckpointState": "CUDA graphs of torch.compile",
    "_cuda_isHistoryEnabled": "the history of its memory (torch.cuda.memory._record_memory_history)",
    "_cuda_memorySnapshot": "a snapshot of its memory (torch.cuda.memory_snapshot)",
    "_cuda_record_memory_history": "the history of its memory (torch.cuda.memory._record_memory_history)",
    "_cuda_record_memory_history_legacy": "the history of its memory (torch.cuda.memory._record_memory_history)",
    "_cuda_setCheckpointPoolState": "CUDA graphs of torch.compile",
}
LIBRARY = "PyTorch"
GRAPHED = "torch.cuda.make_graphed_callables"           # frees in the end what the driver does not take, and aborts
SHARED = "CUDA tensors that processes share (torch.multiprocessing)"
REFUSALS = ("cudaMallocAsync does not yet support", "CUDAMallocAsyncAllocator does not yet support",
            "with backend:cudaMallocAsync is not meaningful", "Only one capture at a time is allowed in a process",
            "!= allocator backend parsed at load time")


def prepare(torch: ModuleType) -> None:
    """PyTorch has the driver's pool because the check has put that in the place of its own."""
    memory, graphs = torch.cuda.memory, torch.cuda.graphs
    for name, feature in FUNCTIONS.items():
        for module in (torch._C, memory):
            if hasattr(module, name):
                setattr(module, name, again.announced(getattr(module, name), feature, LIBRARY))
    if hasattr(memory, "MemPool"):
        memory.MemPool.__init__ = again.announced(memory.MemPool.__init__, "torch.cuda.MemPool", LIBRARY)
    graphs.make_graphed_callables = again.announced(graphs.make_graphed_callables, GRAPHED, LIBRARY)
    torch.cuda.make_graphed_callables = graphs.make_graphed_callables
    for name in ("_share_cuda_", "_new_shared_cuda"):
        setattr(torch.UntypedStorage, name, method(torch.UntypedStorage, name))
    sys.excepthook = recognising(sys.excepthook, lambda kind, error, trace: error)
    threading.excepthook = recognising(threading.excepthook, lambda arguments: arguments.exc_value)


def method(owner: type, name: str) -> Any:
    """What takes its place: of instances, or of the class."""
    function = getattr(owner, name)
    wrapped = again.announced(function, SHARED, LIBRARY)
    return staticmethod(wrapped) if getattr(function, "__self__", None) is owner else wrapped


def recognising(hook: Callable[..., Any], error_of: Callable[..., object]) -> Callable[..., Any]:
    """What prints exceptions that the program did not catch."""
    def call(*arguments: Any) -> Any:
        text = str(error_of(*arguments))
        if any(refusal in text for refusal in REFUSALS):
            again.needs_own_pools(f"a feature ({text.splitlines()[0]})", LIBRARY)
        return hook(*arguments)

    return call
