"""CuPy, Numba-CUDA and cuda.core as far as their allocators go: for CI, where these libraries are not installed.

What a stand-in does is what the library does in the same place (CuPy 14.2, numba-cuda 0.30, cuda.core 1.2); that it
still does is looked at with the real ones in tests/check/test_allocators_checked.py.
"""
from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from types import ModuleType, SimpleNamespace

import numpy
from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check

__all__ = ["NullStream", "cuda_core", "cupy", "numba"]


class NullStream:
    """The legacy default stream, of any device."""

    def __cuda_stream__(self):
        return 0, 0


def module(name, **contents):
    made = ModuleType(name)
    vars(made).update(contents)
    return made


# ---------------------------------------------------------------------------------------------- CuPy
class BaseMemory:
    ptr = size = device_id = 0


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class CupyArray:
    """An array of bytes."""

    def __init__(self, pointer, nbytes):
        self.data, self.nbytes = pointer, nbytes
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer.ptr, False),
                                         "version": 3}


class MemoryPool:
    """CuPy's own, which hands out nothing here."""

    def __init__(self, current):
        self.current = current
        self.used = {}                                  # by device

    def malloc(self, nbytes):
        raise NotImplementedError

    def used_bytes(self):
        return self.used.get(self.current.device, 0)


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size} bytes (so far: {total}, limit: {limit})")


class PinnedMemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class PinnedMemory:
    """CuPy's own: from the driver."""

    def __init__(self, nbytes):
        self.size, self.ptr = nbytes, int(check(cuda.cuMemHostAlloc(nbytes, 0))) if nbytes else 0

    def __del__(self):
        if self.ptr:
            check(cuda.cuMemFreeHost(self.ptr))


class PinnedMemoryPool:
    def malloc(self, nbytes):
        return PinnedMemoryPointer(PinnedMemory(nbytes), 0)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


def cupy():
    """The modules of a new CuPy; `current` of the first has the stream and the device of all threads."""
    current = SimpleNamespace(stream=NullStream(), device=0, of_thread=None)
    pool, pinned_pool = MemoryPool(current), PinnedMemoryPool()
    current.allocator, current.pinned = pool.malloc, pinned_pool.malloc

    @contextlib.contextmanager
    def on_device(number):
        before, current.device = current.device, number
        yield
        current.device = before

    def set_allocator(allocator=None):
        if current.of_thread is not None:
            raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
        current.allocator = allocator

    def get_allocator():
        return current.of_thread or current.allocator

    def empty(nbytes):
        return CupyArray(get_allocator()(nbytes), nbytes)

    def set_pinned_memory_allocator(allocator):
        current.pinned = allocator

    def alloc_pinned_memory(nbytes):
        return current.pinned(nbytes)

    def empty_pinned(nbytes):
        """Of `cupyx`: an array of NumPy."""
        pointer = alloc_pinned_memory(nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(pointer.ptr)
        memory.pointer = pointer                        # a class of Python has no buffers before Python 3.12
        return numpy.frombuffer(memory, numpy.uint8)

    class BaseStream:
        """A stream of the stand-in, which begins and ends captures of any stream that it is made of."""

        def __init__(self, handle):
            self.handle = handle

        def begin_capture(self):
            check(cuda.cuStreamBeginCapture(self.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))

        def end_capture(self):
            return check(cuda.cuStreamEndCapture(self.handle))

    class Stream(BaseStream):
        null = current.stream

    class ExternalStream(BaseStream):
        pass

    memory = module("cupy.cuda.memory", BaseMemory=BaseMemory, MemoryPointer=MemoryPointer, MemoryPool=MemoryPool,
                    OutOfMemoryError=OutOfMemoryError, _get_thread_local_allocator=lambda: current.of_thread)
    of_cuda = module("cupy.cuda", memory=memory, get_allocator=get_allocator, set_allocator=set_allocator,
                     get_current_stream=lambda: current.stream, Device=on_device,
                     Stream=Stream, ExternalStream=ExternalStream, PinnedMemoryPointer=PinnedMemoryPointer,
                     alloc_pinned_memory=alloc_pinned_memory, set_pinned_memory_allocator=set_pinned_memory_allocator,
                     device=SimpleNamespace(get_device_id=lambda: current.device),
                     runtime=SimpleNamespace(getDeviceCount=lambda: 2, CUDARuntimeError=CUDARuntimeError))
    top = module("cupy", cuda=of_cuda, empty=empty, empty_pinned=empty_pinned, current=current, pool=pool,
                 get_default_pinned_memory_pool=lambda: pinned_pool)
    return {"cupy": top, "cupy.cuda": of_cuda, "cupy.cuda.memory": memory}


# ---------------------------------------------------------------------------------------------- Numba
class HostOnlyManager:
    def __init__(self, *, context):
        self.context = context
        self.allocations = {}
        self.deallocations = SimpleNamespace(clear=lambda: None)
        self.initialized = False

    def initialize(self):
        if not self.context.pushed:                     # it looks how much memory the device has
            raise CudaAPIError(201, "there is no context")
        self.initialized = True

    def _attempt_allocation(self, allocator):
        return allocator()

    def reset(self):
        self.allocations.clear()


class NumbaManager(HostOnlyManager):
    """Numba's own."""

    interface_version = 1

    def memalloc(self, size):
        self.allocations[len(self.allocations)] = size


class NumbaPointer:
    def __init__(self, context, pointer, size, finalizer=None):
        self.context, self.device_pointer_value, self.size = context, pointer.value, size
        self._finalizer = weakref.finalize(self, finalizer)


class CudaAPIError(Exception):
    def __init__(self, code, msg):
        super().__init__(code, msg)
        self.code, self.msg = code, msg


class NumbaContext:
    def __init__(self, device, kind):
        self.device = device
        self.memory_manager = kind(context=self)
        self.pushed = 0
        self.push()
        self.pop()

    def push(self):
        self.pushed += 1
        self.memory_manager.initialize()

    def pop(self):
        self.pushed -= 1


def numba(devices=2):
    """The modules of a new Numba, whose devices have no contexts; `make_context` of the driver's makes one."""
    found = [SimpleNamespace(id=number, primary_context=None) for number in range(devices)]
    calls = SimpleNamespace(list_devices=lambda: found, cuMemGetInfo=lambda: (1 << 20, 1 << 30))
    driver = module("numba.cuda.cudadrv.driver", driver=calls, CudaAPIError=CudaAPIError, _memory_manager=None,
                    find_driver=lambda: None,
                    config=SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=0))

    def ensure():
        driver._memory_manager = driver._memory_manager or NumbaManager

    def set_memory_manager(kind):
        if kind(context=None).interface_version != 1:
            raise RuntimeError("version 1 required")
        driver._memory_manager = kind

    def make_context(number=0):
        ensure()
        found[number].primary_context = NumbaContext(found[number], driver._memory_manager)
        return found[number].primary_context

    driver._ensure_memory_manager, driver.make_context = ensure, make_context
    of_cuda = module("numba.cuda", GetIpcHandleMixin=type("GetIpcHandleMixin", (), {}), MemoryPointer=NumbaPointer,
                     HostOnlyCUDAMemoryManager=HostOnlyManager, MemoryInfo=lambda free, total: (free, total),
                     set_memory_manager=set_memory_manager)
    drv = module("numba.cuda.cudadrv", driver=driver)
    top = module("numba", cuda=of_cuda)
    return {"numba": top, "numba.cuda": of_cuda, "numba.cuda.cudadrv": drv, "numba.cuda.cudadrv.driver": driver}


# ---------------------------------------------------------------------------------------------- cuda.core
class MemoryResource:
    pass


class CoreResource(MemoryResource):
    """cuda.core's own: plain memory."""

    def allocate(self, size, *, stream):
        return CoreBuffer(int(check(cuda.cuMemAlloc(size))), size, self, stream)

    def deallocate(self, ptr, size, *, stream):
        check(cuda.cuMemFree(ptr))


class CoreBuffer:
    def __init__(self, handle, size, resource, stream):
        self.handle, self.size, self.memory_resource, self._stream = handle, size, resource, stream

    @classmethod
    def from_handle(cls, ptr, size, mr, *, stream):
        return cls(ptr, size, mr, stream)

    def set_deallocation_stream(self, stream):
        self._stream = stream

    @property
    def ipc_descriptor(self):
        if not self.memory_resource.is_ipc_enabled:
            raise RuntimeError("Memory resource is not IPC-enabled")
        raise NotImplementedError

    def __reduce__(self):
        return CoreBuffer, (self.memory_resource, self.ipc_descriptor)

    def close(self, stream=None):
        resource, self.memory_resource = self.memory_resource, None
        if resource is not None:
            resource.deallocate(self.handle, self.size, stream=stream or self._stream)

    def __del__(self):
        self.close()


def cuda_core(devices=2):
    """The modules of a new cuda.core, whose devices are each thread's own."""
    local = threading.local()

    class Device:
        def __new__(cls, number=0):
            if not hasattr(local, "devices"):
                local.devices = []
                for of in range(devices):
                    made = super().__new__(cls)
                    made.device_id, made.memory_resource = of, CoreResource()
                    local.devices.append(made)
            return local.devices[number]

        @classmethod
        def get_all_devices(cls):
            return tuple(cls(number) for number in range(devices))

        def allocate(self, size, *, stream):
            return self.memory_resource.allocate(size, stream=stream)

    return {"cuda.core": module("cuda.core", Buffer=CoreBuffer, Device=Device, MemoryResource=MemoryResource)}
