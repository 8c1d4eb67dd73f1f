"""The suites of `neighbours_on_xlogmem.py`: their files, what is replaced for them, and why a test may fail with us.

Where a suite brings a source of device memory of its own, that is replaced before its modules are imported, as
`rmm_on_xlogmem.py` does: so its pools stand on us, and its copies, views and exports are of our memory.  Managed,
pinned, shared and virtual memory, and features of the library's own resources, are left as they are.
"""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from tempfile import mkdtemp
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

import xlogmem
from xlogmem.runtime import existing_runtime

__all__ = ["SUITES", "Suite", "counted"]

DEVICES = range(16)
# By library and a part of the test's name: why it passes without xlogmem and fails with it.
REASONS: dict[str, dict[str, str]] = {
    "cupy": {"TestMallocAsync::test_stream2": "it looks at a member of CuPy's own class of memory, stream_ref"},
    "numba": {"test_cudapy_ipc": "memory of the driver's pool has no IPC handles: XLOGMEM_RESOURCE=direct"},
    "cuda.core": {},
    "torch": {},
}


def counted(name: str) -> int:
    """A counter of the process's own runtimes, all together."""
    runtimes = [runtime for runtime in map(existing_runtime, DEVICES) if runtime is not None]
    return sum(runtime.counters()[name] for runtime in runtimes)


class Suite:
    """The tests of one library."""

    name = ""
    module = ""                             # what is imported
    files: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})   # of the run with xlogmem

    def version(self) -> str:
        return str(import_module(self.module).__version__)

    def find(self, folder: Path, made: Path) -> Path:
        """Where the files are, after what they import was made importable; or in a folder for what is made here."""
        return folder.resolve()

    def prepare(self) -> None:
        """Replace the sources of memory, before a test module is imported."""

    def collected(self, items: list[pytest.Item], ours: bool) -> None:
        """Replace what is in the test modules."""

    def before(self, item: pytest.Item) -> None:
        xlogmem.enable(self.name)

    def reason(self, test: str) -> str:
        return next((reason for part, reason in REASONS[self.name].items() if part in test), "")


class CuPy(Suite):
    """Its functions that allocate device memory, and what its pools stand on if nothing is said."""

    name = module = "cupy"
    files = ("cupy_tests/cuda_tests/test_memory.py", "cupy_tests/cuda_tests/test_memory_hook.py",
             "cupy_tests/cuda_tests/memory_hooks_tests", "cupy_tests/core_tests/test_ndarray_owndata.py",
             "cupy_tests/core_tests/test_ndarray_cuda_array_interface.py", "cupy_tests/core_tests/test_dlpack.py")

    def prepare(self) -> None:
        import cupy
        from cupy.cuda import memory

        from xlogmem.allocators.cupy import allocate

        class Pool(memory.MemoryPool):  # type: ignore[misc]
            def __init__(self, allocator: Any = None) -> None:
                super().__init__(allocator or allocate)

        def malloc_async(nbytes: int) -> Any:               # their names are parts of the tests' names
            return allocate(nbytes)

        def _malloc(nbytes: int) -> Any:
            return allocate(nbytes)

        memory._malloc, memory.malloc_async, cupy.cuda.malloc_async = _malloc, malloc_async, malloc_async
        memory.MemoryPool = cupy.cuda.MemoryPool = Pool


class Numba(Suite):
    """Nothing but the memory manager, named in Numba's own variable, by which it leaves out tests of its own one."""

    name = "numba"
    module = "numba_cuda"
    parts = ("array_attr", "context_stack", "cuda_array_slicing", "cuda_auto_context", "cuda_devicerecord",
             "cuda_memory", "cuda_ndarray", "deallocations", "emm_plugins", "events", "host_alloc", "managed_alloc",
             "pinned", "reset_device", "select_device", "streams")
    files = (*(f"test_cudadrv_{part}.py" for part in parts), "test_cudapy_cuda_array_interface.py",
             "test_cudapy_ipc.py")
    environment = MappingProxyType({"NUMBA_CUDA_MEMORY_MANAGER": "xlogmem.allocators.numba"})

    def find(self, folder: Path, made: Path) -> Path:
        """pytest does not find Numba's modules, whose folder has another name: files that import them stand in."""
        for part in ("cudadrv", "cudapy"):
            package = import_module(f"numba.cuda.tests.{part}")
            for _, module, _ in iter_modules(package.__path__):
                if module.startswith("test_"):
                    stand_in = made / f"test_{part}_{module.removeprefix('test_')}.py"
                    stand_in.write_text(f"from {package.__name__}.{module} import *\n", encoding="utf-8")
        return made


class CudaCore(Suite):
    """`Device.memory_resource`, and the tests' own resource of plain device memory."""

    name = module = "cuda.core"
    files = ("test_memory.py", "test_device.py", "test_utils.py", "test_tensor_map.py", "test_object_protocols.py",
             "test_utils_dlpack.py", "test_launcher.py")

    def find(self, folder: Path, made: Path) -> Path:
        folder = folder.resolve()
        sys.path[:0] = [str(folder), str(folder.parents[1] / "cuda_python_test_helpers")]
        memory: Any = import_module("cuda.core._memory")
        if not hasattr(memory, "IPCBufferDescriptor"):      # the tests of one release look for it there
            memory.IPCBufferDescriptor = import_module("cuda.core._memory._ipc").IPCBufferDescriptor
        return folder

    def prepare(self) -> None:
        from cuda.core import Device

        from xlogmem.allocators.cuda_core import BlockMemoryResource

        class DummyDeviceMemoryResource(BlockMemoryResource):   # a part of the tests' names
            def __init__(self, device: Any) -> None:
                super().__init__(device.device_id)
                self.device = device

            def allocate(self, size: int, *, stream: Any = None) -> Any:
                return super().allocate(size, stream=stream or Device(self.device_id).default_stream)

        buffers: Any = import_module("helpers.buffers")
        buffers.DummyDeviceMemoryResource = DummyDeviceMemoryResource


ALLOCATOR = """
#include <stddef.h>
int cudaMallocManaged(void** ptr, size_t size, unsigned flags);
int cudaFree(void* ptr);
int called_dummy_alloc, called_dummy_free;
void* dummy_alloc(size_t size, int device, void* stream) {
    void* ptr = NULL;
    called_dummy_alloc = 123;
    return cudaMallocManaged(&ptr, size, 1) ? NULL : ptr;
}
void dummy_free(void* ptr, size_t size, int device, void* stream) {
    called_dummy_free = 321;
    cudaFree(ptr);
}
"""


class Torch(Suite):
    """`MemPool` without an allocator, and the allocator that the tests compile: both are ours.

    Without xlogmem the latter is compiled from the same functions by any C compiler: no headers of CUDA are needed.
    """

    name = module = "torch"
    files = ("test_cuda.py",)
    looks_at_none = False                   # the test that is running looks at a pool without an allocator

    def prepare(self) -> None:
        import torch

        real = torch.cuda.MemPool

        def pool(allocator: Any = None, **options: Any) -> Any:
            return real(allocator or (None if self.looks_at_none else self.allocator()), **options)

        torch.cuda.MemPool = pool  # type: ignore[assignment,misc]

    def allocator(self) -> Any:
        """What a `MemPool` takes."""
        return import_module("xlogmem.allocators.torch").segment_allocator().allocator()

    def collected(self, items: list[pytest.Item], ours: bool) -> None:
        items[:] = [item for item in items if "TestMemPool" in item.nodeid]
        for module in {item.module for item in items}:  # type: ignore[attr-defined]
            module.TestMemPool.get_dummy_allocator = self.ours if ours else self.compiled
            if ours:
                module.ctypes = SimpleNamespace(CDLL=lambda start: start, c_int=SimpleNamespace(in_dll=Called))

    def ours(self, check_vars: bool) -> tuple[Any, Any]:
        """The object whose method returns the allocator, and what the tests read its variables from."""
        return SimpleNamespace(allocator=self.allocator), {name: counted(name) for name in ("allocations", "frees")}

    def compiled(self, check_vars: bool) -> tuple[Any, Any]:
        """The same of the tests' own one, and its library: a new one for each test, in which nothing was called."""
        import torch

        torch.cuda.init()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        runtime = next(line.split()[-1] for line in maps if "libcudart" in line)
        library = Path(mkdtemp(), "allocator.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-", "-x", "none", runtime],
                       input=ALLOCATOR.encode(), check=True)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "dummy_alloc", "dummy_free")
        return allocator, str(library)

    def before(self, item: pytest.Item) -> None:
        self.looks_at_none = "test_mempool_with_allocator" in item.nodeid


class Called:
    """A variable of the compiled allocator: what it stores when it is called."""

    def __init__(self, start: dict[str, int], name: str) -> None:
        self.counter, self.stored = ("frees", 321) if "free" in name else ("allocations", 123)
        self.start = start[self.counter]

    @property
    def value(self) -> int:
        return self.stored if counted(self.counter) > self.start else 0


SUITES = {suite.name: suite for suite in (CuPy, Numba, CudaCore, Torch)}
