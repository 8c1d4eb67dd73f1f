"""Memory of one process that another uses, in order: the prototype of docs/sharing.md, in two processes on one device.

The exporter allocates from a driver pool that can be exported, through a resource of its own and xlogmem's pool.  For
each hand-over it sends a descriptor: where the block is, and an interprocess event that covers what its user comes
after.  A use of the block stays open on a stream that stands for the peer.  The importer's runtime allocates from a
resource that waits for that event, and whose free records a second event and says so to the exporter, which closes the
use behind it.  So nothing but xlogmem's own rules orders the next owner of the memory after the other process.

    right                   1,000 hand-overs; the importer compares every word
    right, seen by the host the same, and the exporter ends a export when it has seen the second event complete
    right, words            the same, with words in memory of both processes in place of interprocess events
    without the frontier    the importer does not wait: it reads what was there before
    without the release     the exporter does not wait for the importer: it reads what comes after
    killed, process         kill -9 of the importer while its kernel writes the block (odd rounds: after it has returned
                            the block); the memory is given out when the process has ended
    killed, connection      the same, given out when the connection is closed: whether that is too early
    killed, signal          the same, given out when the signal is sent
    left, connection        the importer closes the connection and goes on: too early
    pending                 whether a stream that waits for the event of a killed process goes on, else whether it does
                            when the exporter records that event
    pending, words          the same with a word, which the exporter writes
    cost                    microseconds of a hand-over, beside a copy through page-locked memory of both processes

Each part runs in processes of its own, with a limit of time.  Nothing runs on the simulated driver, which has no
handles for other processes: tests/tools/test_between_processes.py has both ends in one.

    python benchmarks/between_processes.py --json between_processes.json
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from between_channel import (
    READ,
    WRITE,
    Bye,
    Channel,
    Chunk,
    Closed,
    Events,
    Export,
    Exports,
    Failed,
    Hello,
    Malformed,
    Message,
    PeerState,
    Ready,
    Release,
    Report,
    Share,
    check_share,
    process_ended,
)
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import DeviceMemoryResource, DeviceRuntime, LaunchRecorder, PoolMemoryResource, use
from xlogmem.sim.kernels import Kernels, check

CHECK, SCRIBBLE, SCRIBBLE_AND_RETURN, LEAVE, COPY = range(5)        # tasks of the importer
ANSWER = 30                                                         # seconds until a peer that says nothing is given up
HANDLE = 64                                                         # bytes of both kinds of handle
AT_LEAST = int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
POSIX = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
PTX = """
.version 7.0
.target sm_70
.address_size 64

// Writes the time to each of `count` words, again and again, for `nanoseconds`.  One block of 256 threads.
.visible .entry scribble(.param .u64 target, .param .u32 count, .param .u64 nanoseconds)
{
    .reg .u32 %i, %n, %v;
    .reg .u64 %p, %q, %offset, %start, %now, %length;
    .reg .pred %more, %early;
    ld.param.u64 %p, [target];
    ld.param.u32 %n, [count];
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
pass:
    mov.u64 %now, %globaltimer;
    cvt.u32.u64 %v, %now;
    mov.u32 %i, %tid.x;
word:
    setp.ge.u32 %more, %i, %n;
    @%more bra next;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %q, %p, %offset;
    st.volatile.global.u32 [%q], %v;
    add.u32 %i, %i, 256;
    bra word;
next:
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %length;
    @%early bra pass;
    ret;
}
"""


def bytes_of(handle: Any) -> bytes:
    """Of a structure of cuda.bindings, which has to live meanwhile."""
    return ctypes.string_at(int(handle.getPtr()), HANDLE)


def filled(handle: Any, data: bytes) -> Any:
    ctypes.memmove(int(handle.getPtr()), data, HANDLE)
    return handle


class DriverCalls:
    """What CUDA has for two processes.  Every handle crosses the channel as bytes or as a file descriptor."""

    uses_words = False

    def make_pool(self) -> Any:
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = POSIX
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = 0
        return check(cuda.cuMemPoolCreate(properties))

    def export_pool(self, pool: Any) -> int:
        return int(check(cuda.cuMemPoolExportToShareableHandle(pool, POSIX, 0)))

    def import_pool(self, descriptor: int) -> Any:
        return check(cuda.cuMemPoolImportFromShareableHandle(descriptor, POSIX, 0))

    def destroy_pool(self, pool: Any) -> None:
        check(cuda.cuMemPoolDestroy(pool))

    def export_pointer(self, address: int) -> bytes:
        return bytes_of(check(cuda.cuMemPoolExportPointer(address)))

    def import_pointer(self, pool: Any, data: bytes) -> int:
        return int(check(cuda.cuMemPoolImportPointer(pool, filled(cuda.CUmemPoolPtrExportData(), data))))

    def free_imported(self, address: int) -> None:
        check(cuda.cuMemFree(address))

    def attach(self, memory: HostMemory) -> None:
        """The memory of the host that both processes can map."""

    def make_event(self) -> Any:
        flags = cuda.CUevent_flags.CU_EVENT_INTERPROCESS, cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return check(cuda.cuEventCreate(int(flags[0]) | int(flags[1])))

    def export_event(self, event: Any) -> bytes:
        return bytes_of(check(cuda.cuIpcGetEventHandle(event)))

    def open_event(self, data: bytes) -> Any:
        return check(cuda.cuIpcOpenEventHandle(filled(cuda.CUipcEventHandle(), data)))

    def destroy_event(self, event: Any) -> None:
        check(cuda.cuEventDestroy(event))

    def record(self, event: Any, stream: int, serial: int) -> None:
        check(cuda.cuEventRecord(event, stream))

    def record_in_place(self, event: Any, stream: int, serial: int) -> None:
        """What a process that has ended can record no more."""
        self.record(event, stream, serial)

    def wait(self, stream: int, event: Any, serial: int) -> None:
        check(cuda.cuStreamWaitEvent(stream, event, 0))

    def is_complete(self, event: Any, serial: int) -> bool:
        result, = cuda.cuEventQuery(event)
        if result != cuda.CUresult.CUDA_ERROR_NOT_READY:
            check((result,))
        return bool(result == cuda.CUresult.CUDA_SUCCESS)

    def end_of_process_ends_work(self) -> bool:
        """Not under MPS: the kernels of all clients run in contexts of a server, which goes on."""
        attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        return not check(cuda.cuDeviceGetAttribute(attribute, check(cuda.cuDeviceGet(0))))


class Words(DriverCalls):
    """In place of events: words of the host's memory that both processes map.  The record writes the number of the
    export there, in stream order, and the wait is for that number or a higher one.  The host sees it without a call,
    and can write it itself in place of a process that has ended."""

    uses_words = True

    def attach(self, memory: HostMemory) -> None:
        self.memory, self.made = memory, 0
        self.device = int(check(cuda.cuMemHostGetDevicePointer(memory.lock(), 0)))

    def word(self, event: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self.memory.address + event)

    def make_event(self) -> Any:
        event = self.made
        self.made += 8
        self.word(event).value = 0
        return event

    def export_event(self, event: Any) -> bytes:
        return int(event).to_bytes(HANDLE, "little")

    def open_event(self, data: bytes) -> Any:
        event = int.from_bytes(data, "little")
        if event % 8 or event + 8 > self.memory.nbytes:
            raise Malformed(f"a word at {event} of {self.memory.nbytes}")
        return event

    def destroy_event(self, event: Any) -> None:
        pass

    def record(self, event: Any, stream: int, serial: int) -> None:
        check(cuda.cuStreamWriteValue64(stream, self.device + event, serial, 0))

    def record_in_place(self, event: Any, stream: int, serial: int) -> None:
        self.word(event).value = serial

    def wait(self, stream: int, event: Any, serial: int) -> None:
        check(cuda.cuStreamWaitValue64(stream, self.device + event, serial, AT_LEAST))

    def is_complete(self, event: Any, serial: int) -> bool:
        return self.word(event).value >= serial


def make_current() -> None:
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))


class HostMemory:
    """A file in memory that both processes map and lock, for words and for copies through the host."""

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        self.descriptor = os.memfd_create("between_processes") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, nbytes)
        self.map: mmap.mmap | None = None

    def lock(self) -> int:
        self.map = mmap.mmap(self.descriptor, self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        check(cuda.cuMemHostRegister(self.address, self.nbytes, 3))     # portable, mapped
        return self.address

    def close(self) -> None:
        if self.map is not None:
            check(cuda.cuMemHostUnregister(self.address))
        os.close(self.descriptor)


# ---------------------------------------------------------------------------------------------- the exporter
class Exportable(DeviceMemoryResource):
    """Chunks of a driver pool that other processes can import.  Only `close` frees them: an importer may have them."""

    order = "stream"

    def __init__(self, calls: DriverCalls) -> None:
        super().__init__()
        self.calls = calls
        self.pool = calls.make_pool()
        self.chunks: list[tuple[int, int]] = []

    def allocate(self, nbytes: int, stream: int) -> int:
        address = int(check(cuda.cuMemAllocFromPoolAsync(nbytes, self.pool, stream)))
        check(cuda.cuStreamSynchronize(stream))         # no importer may touch it before
        self.chunks.append((address, nbytes))
        return address

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        pass

    def find(self, ptr: int) -> tuple[int, int]:
        """The number of the chunk, and the offset there."""
        return next((number, ptr - address) for number, (address, nbytes) in enumerate(self.chunks)
                    if address <= ptr < address + nbytes)

    def close(self) -> None:
        """After all importers have freed their chunks, or have ended."""
        for address, _ in self.chunks:
            check(cuda.cuMemFree(address))
        self.calls.destroy_pool(self.pool)


class Exporter:
    """The runtime whose blocks others use: room for so many of them at a time."""

    def __init__(self, calls: DriverCalls, nbytes: int, blocks: int) -> None:
        make_current()
        self.calls, self.nbytes = calls, nbytes
        self.resource = Exportable(calls)
        room = nbytes * blocks
        self.pool = PoolMemoryResource(self.resource, initial_pool_size=room, maximum_pool_size=room)
        self.runtime = DeviceRuntime(resource=self.pool)
        self.stream = self.runtime.acquire_stream()
        self.kernels = Kernels()

    @property
    def words(self) -> int:
        return self.nbytes // 4

    def block_with(self, value: int, delay: int = 0) -> xlogmem.DeviceBlock:
        """A new block whose words all are `value`, `delay` nanoseconds later."""
        block = self.runtime.allocate(self.nbytes, self.stream)
        with use(self.stream, write=block, runtime=self.runtime):
            if delay:
                self.kernels.delay(self.stream.handle, delay)
            self.kernels.fill(self.stream.handle, block.ptr, value, self.words)
        return block

    def close(self) -> None:
        self.runtime.synchronize()
        self.runtime.reap_pending()
        self.kernels.close()
        self.pool.trim()
        self.resource.close()


class Peer:
    """The importer, as the exporter sees it: its exports, and a stream on which its uses stand."""

    def __init__(self, exporter: Exporter, channel: Channel, task: int, *, slots: int, rounds: int = 1,
                 delay: int = 0, ordered: bool = True, held: bool = True, by_host: bool = False,
                 host: HostMemory | None = None) -> None:
        self.exporter, self.channel = exporter, channel
        self.held, self.by_host = held, by_host
        self.calls, self.runtime = exporter.calls, exporter.runtime
        self.stream = self.runtime.acquire_stream()
        self.exports: Exports[LaunchRecorder | None] = Exports(slots, self.calls.end_of_process_ends_work())
        self.memory = host or HostMemory(mmap.PAGESIZE)
        self.memory_is_own = host is None
        self.calls.attach(self.memory)
        self.events = [(self.calls.make_event(), self.calls.make_event()) for _ in range(slots)]
        self.announced: set[int] = set()
        self.report: Report | None = None
        self.ready = False
        descriptor = self.calls.export_pool(exporter.resource.pool)
        channel.send(Hello(task, slots, rounds, delay, ordered, self.memory.nbytes),
                     [descriptor, self.memory.descriptor])
        os.close(descriptor)
        for slot, pair in enumerate(self.events):
            channel.send(Events(slot, *map(self.calls.export_event, pair)))

    def wait_until(self, condition: Callable[[], bool], *, settles: bool = True) -> None:
        limit = time.monotonic() + ANSWER
        while not condition():
            self.pump(.0005 if settles and self.exports.returned else 1)
            if settles:
                self.settle()
            if self.exports.state is not PeerState.OPEN:
                raise Closed
            if time.monotonic() > limit:
                raise TimeoutError(f"the importer said nothing for {ANSWER} s")

    def until_ready(self) -> None:
        self.wait_until(lambda: self.ready)

    def until_returned(self) -> None:
        """Until an export is returned, though its work may go on."""
        self.wait_until(lambda: bool(self.exports.returned), settles=False)

    def export(self, block: xlogmem.DeviceBlock, access: int, value: int) -> None:
        """The peer may use the block.  The use stays open: a free of the block waits for its end."""
        if self.exports.state is not PeerState.OPEN or self.exports.full:
            raise RuntimeError(f"the peer is {self.exports.state.value}, or has every slot")
        number, offset = self.exporter.resource.find(block.ptr)
        if number not in self.announced:
            address, nbytes = self.exporter.resource.chunks[number]
            self.channel.send(Chunk(number, nbytes, self.calls.export_pointer(address)))
            self.announced.add(number)
        recorder = LaunchRecorder(self.stream, runtime=self.runtime)
        (recorder.read if access == READ else recorder.read_write)(block)
        recorder.preflight()                            # the stream comes after whatever the access comes after
        export = self.exports.export(block.generation, recorder if self.held else None)
        self.calls.record(self.events[export.slot][0], self.stream.handle, export.serial)
        if not self.held:
            recorder.commit()
        try:
            self.channel.send(Share(export.slot, export.serial, number, offset, block.nbytes, block.generation, access,
                                    value))
        except Closed:
            self.exports.lose()
            raise

    def pump(self, timeout: float) -> bool:
        """Takes one message; False if there is none.  A peer that is gone, or says what it cannot mean, is lost."""
        if self.exports.state is not PeerState.OPEN:
            return False
        try:
            message, _ = self.channel.receive(timeout)
            self.take(message)
        except TimeoutError:
            return False
        except (Closed, Malformed) as error:
            if isinstance(error, Malformed):
                print(f"the importer is given up: {error}", file=sys.stderr)
            self.exports.lose()
            return False
        return True

    def take(self, message: Message) -> None:
        match message:
            case Ready():
                self.ready = True
            case Release():
                export = self.exports.accept(message)
                if not self.held:
                    self.finish(export)
                elif not self.by_host:
                    self.calls.wait(self.stream.handle, self.events[export.slot][1], export.serial)
                    self.finish(export)
            case Report():
                self.report = message
            case Failed():
                raise RuntimeError(message.text.rstrip(b"\0").decode(errors="replace"))
            case _:
                raise Malformed(f"{type(message).__name__} from an importer")

    def finish(self, export: Export[LaunchRecorder | None]) -> None:
        if (recorder := self.exports.settle(export)) is not None:
            recorder.commit()                           # a free that waits goes on behind what the stream waits for

    def settle(self) -> None:
        """Ends the exports whose work the host sees complete, where no stream waits for it."""
        for export in self.exports.returned:
            if self.calls.is_complete(self.events[export.slot][1], export.serial):
                self.finish(export)

    def end(self) -> bool:
        """The work of a lost peer is over: its exports end.  False if that cannot be known."""
        for recorder in self.exports.end():
            if recorder is not None:
                recorder.commit()
        return self.exports.state is PeerState.ENDED

    def say_goodbye(self) -> Report:
        """The importer frees what it has imported, and reports."""
        self.wait_until(lambda: not len(self.exports))
        self.channel.send(Bye())
        self.wait_until(lambda: self.report is not None)
        assert self.report is not None
        return self.report

    def close(self) -> None:
        """After the importer has said goodbye, or has ended."""
        self.channel.close()
        for pair in self.events:
            for event in pair:
                self.calls.destroy_event(event)
        if self.memory_is_own:
            self.memory.close()


# ---------------------------------------------------------------------------------------------- the importer
class Imported(DeviceMemoryResource):
    """Blocks of the exporter.  An allocation waits for the block's frontier, a free ends the export."""

    order = "stream"

    def __init__(self, calls: DriverCalls, channel: Channel, hello: Hello, descriptor: int) -> None:
        super().__init__()
        self.calls, self.channel = calls, channel
        self.slots, self.ordered = hello.slots, bool(hello.ordered)
        self.pool = calls.import_pool(descriptor)
        self.events: dict[int, tuple[Any, Any]] = {}
        self.chunks: dict[int, tuple[int, int]] = {}
        self.taken: dict[int, Share] = {}
        self.addresses: dict[int, Share] = {}
        self.serial = 0
        self.next: Share | None = None

    def learn(self, message: Events | Chunk) -> None:
        if isinstance(message, Chunk):
            if message.number in self.chunks:
                raise Malformed(f"chunk {message.number} again")
            self.chunks[message.number] = self.calls.import_pointer(self.pool, message.pointer), message.nbytes
        else:
            if message.slot >= self.slots or message.slot in self.events:
                raise Malformed(f"the events of slot {message.slot}, of {self.slots}")
            self.events[message.slot] = self.calls.open_event(message.frontier), self.calls.open_event(message.release)

    def block(self, share: Share, runtime: DeviceRuntime, stream: xlogmem.Stream) -> xlogmem.DeviceBlock:
        sizes = {number: nbytes for number, (_, nbytes) in self.chunks.items()}
        check_share(share, sizes, len(self.events), self.taken, self.serial)
        self.serial = share.serial
        self.next = share
        return runtime.allocate(share.nbytes, stream, resource=self)

    def allocate(self, nbytes: int, stream: int) -> int:
        share, self.next = self.next, None
        if share is None:
            raise MemoryError("memory of another process comes with a descriptor alone")
        if self.ordered:
            self.calls.wait(stream, self.events[share.slot][0], share.serial)
        address = self.chunks[share.chunk][0] + share.offset
        self.taken[share.slot] = self.addresses[address] = share
        return address

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        share = self.addresses[ptr]
        self.calls.record(self.events[share.slot][1], stream, share.serial)
        del self.addresses[ptr], self.taken[share.slot]
        with contextlib.suppress(Closed):
            self.channel.send(Release(share.slot, share.serial, share.generation))

    def close(self) -> None:
        """After the work on all blocks is complete: the exporter may free its memory then."""
        for address, _ in self.chunks.values():
            self.calls.free_imported(address)
        for pair in self.events.values():
            for event in pair:
                self.calls.destroy_event(event)
        self.calls.destroy_pool(self.pool)


class Importer:
    """The other process: it does what the first message says with each block."""

    def __init__(self, calls: DriverCalls, channel: Channel) -> None:
        make_current()
        self.channel = channel
        hello, (pool, memory) = channel.receive(ANSWER)
        if not isinstance(hello, Hello):
            raise Malformed(f"{type(hello).__name__} in place of Hello")
        self.hello = hello
        self.imports = Imported(calls, channel, hello, pool)
        os.close(pool)
        self.host = HostMemory(hello.host_bytes, memory)
        calls.attach(self.host)
        self.runtime = DeviceRuntime()
        self.home, self.stream = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.kernels = Kernels()
        self.results = self.runtime.allocate(4 * max(hello.rounds, 64), self.stream)
        with use(self.stream, write=self.results, runtime=self.runtime):
            self.kernels.fill(self.stream.handle, self.results.ptr, 0, max(hello.rounds, 64))
        self.stream.synchronize()
        self.done = 0
        self.kept: list[xlogmem.DeviceBlock] = []
        self.target: xlogmem.DeviceBlock | None = None
        if hello.task == COPY:
            self.host.lock()
            self.target = self.runtime.allocate(hello.host_bytes, self.stream)

    def serve(self) -> None:
        """Until the exporter says goodbye, or nothing more."""
        while True:
            message, _ = self.channel.receive(ANSWER)
            match message:
                case Chunk():
                    self.imports.learn(message)
                case Events():
                    self.imports.learn(message)
                    if len(self.imports.events) == self.hello.slots:
                        self.channel.send(Ready())      # to open an event may wait for the device, so not later
                case Share():
                    self.work_on(message)
                case Bye():
                    break
                case _:
                    raise Malformed(f"{type(message).__name__} from an exporter")
        report = self.close()
        self.channel.send(report)

    def work_on(self, share: Share) -> None:
        if self.hello.task == COPY:
            self.copy(share)
            return
        block = self.imports.block(share, self.runtime, self.home)
        if self.hello.task == CHECK:
            self.compare(block, share.value)
            block.free()
            return
        with use(self.stream, read_write=block, runtime=self.runtime):
            scribble(self.stream.handle, block.ptr, share.nbytes // 4, self.hello.delay)
        if self.hello.task == SCRIBBLE_AND_RETURN:
            block.free()
            return
        self.kept.append(block)
        if self.hello.task == LEAVE:
            self.channel.socket.shutdown(socket.SHUT_RDWR)
            time.sleep(ANSWER)                          # until it is killed

    def compare(self, block: xlogmem.DeviceBlock, value: int) -> None:
        number = self.done % self.hello.rounds
        with use(self.stream, read=block, write=self.results, runtime=self.runtime):
            if self.hello.delay:
                self.kernels.delay(self.stream.handle, self.hello.delay)
            self.kernels.count_unequal(self.stream.handle, self.results.ptr + 4 * number, block.ptr, value,
                                       block.nbytes // 4)
        self.done += 1

    def copy(self, share: Share) -> None:
        """The block has come through the host; its memory is the exporter's again when it was read."""
        assert self.target is not None
        if share.offset or share.nbytes != self.host.nbytes:
            raise Malformed(f"{share.nbytes} bytes of the host at {share.offset}")
        with use(self.stream, write=self.target, runtime=self.runtime):
            check(cuda.cuMemcpyHtoDAsync(self.target.ptr, self.host.address, share.nbytes, self.stream.handle))
        self.compare(self.target, share.value)
        self.stream.synchronize()
        self.channel.send(Release(share.slot, share.serial, share.generation))

    def close(self) -> Report:
        self.runtime.synchronize()
        counts = (ctypes.c_uint32 * max(self.hello.rounds, 64))()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(counts), self.results.ptr, ctypes.sizeof(counts)))
        for block in (self.results, self.target):
            if block is not None:
                block.free()
        self.runtime.synchronize()
        self.runtime.reap_pending()
        self.kernels.close()
        self.imports.close()
        self.host.close()
        return Report(self.done, sum(1 for count in counts if count), sum(counts))


def scribble(stream: int, target: int, words: int, nanoseconds: int) -> None:
    module = check(cuda.cuModuleLoadData(PTX.encode() + b"\0"))
    function = check(cuda.cuModuleGetFunction(module, b"scribble"))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream,
                              ((target, words, nanoseconds), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)), 0))


def die_with(parent: int) -> None:
    """Where the parent ends, this process does."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def importer_main(descriptor: int, calls: DriverCalls) -> None:
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        Importer(calls, channel).serve()
    except Exception as error:
        with contextlib.suppress(OSError, Closed):
            channel.send(Failed(f"{type(error).__name__}: {error}".encode()[:400]))
        raise


# ---------------------------------------------------------------------------------------------- the parts
class Child:
    """The process of an importer."""

    def __init__(self, calls: DriverCalls) -> None:
        self.channel, theirs = Channel.pair()
        self.pidfd: int | None = None
        end = theirs.socket.fileno()
        command = [sys.executable, __file__, "--importer", str(end), "--parent", str(os.getpid())]
        command += ["--words"] * calls.uses_words
        self.process = subprocess.Popen(command, pass_fds=[end], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        theirs.close()
        with contextlib.suppress(OSError):              # some sandboxes have none
            self.pidfd = os.pidfd_open(self.process.pid)

    def ended(self, timeout: float = 0) -> bool:
        if self.pidfd is not None:
            return process_ended(self.pidfd, timeout)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait(30)
        if self.pidfd is not None:
            os.close(self.pidfd)


def hand_over(exporter: Exporter, peer: Peer, rounds: int, delay: int) -> None:
    """Each block is allocated, filled, exported and freed; the next takes its memory as soon as the order allows it."""
    for number in range(1, rounds + 1):
        peer.wait_until(lambda: not peer.exports.full)
        block = exporter.block_with(number, delay)
        peer.export(block, READ, number)
        block.free()                                    # when the importer has returned it
        while peer.pump(0):
            pass
        peer.settle()


def play_rounds(options: argparse.Namespace, *, rounds: int, delays: tuple[int, int], words: bool = False,
                **how: Any) -> dict[str, Any]:
    calls = Words() if words else DriverCalls()
    exporter, child = Exporter(calls, options.kib << 10, options.slots), Child(calls)
    peer = Peer(exporter, child.channel, CHECK, slots=options.slots, rounds=rounds, delay=delays[1], **how)
    peer.until_ready()
    began = time.perf_counter()
    hand_over(exporter, peer, rounds, delays[0])
    report = peer.say_goodbye()
    seconds = time.perf_counter() - began
    child.close()
    peer.close()
    exporter.close()
    return {"rounds": report.rounds, "wrong": report.wrong_rounds, "wrong_words": report.wrong_words,
            "seconds": seconds, "delays_ns": delays, "slots": options.slots, "bytes": options.kib << 10}


class Probe:
    """Looks at memory behind the back of the runtime: whether it is written, and whether it is what it was."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.stream = int(check(cuda.cuStreamCreate(1)))
        self.memory = int(check(cuda.cuMemAllocHost(4)))
        self.count = int(check(cuda.cuMemAlloc(4)))

    def read(self, address: int) -> int:
        check(cuda.cuMemcpyDtoHAsync(self.memory, address, 4, self.stream))
        check(cuda.cuStreamSynchronize(self.stream))
        return ctypes.c_uint32.from_address(self.memory).value

    def changes(self, address: int, seconds: float, value: int | None = None) -> bool:
        """Whether the first word becomes another than `value`, or than it is now."""
        limit, first = time.monotonic() + seconds, self.read(address) if value is None else value
        while time.monotonic() < limit:
            if self.read(address) != first:
                return True
        return False

    def unequal(self, address: int, value: int) -> int:
        check(cuda.cuMemsetD32Async(self.count, 0, 1, self.stream))
        self.exporter.kernels.count_unequal(self.stream, self.count, address, value, self.exporter.words)
        return self.read(self.count)

    def close(self) -> None:
        check(cuda.cuStreamDestroy(self.stream))
        check(cuda.cuMemFreeHost(self.memory))
        check(cuda.cuMemFree(self.count))


COSTS = {64: 300, 1 << 10: 300, 64 << 10: 60}                       # KiB of a block, and hand-overs of such blocks
ENDS = {"process": "process ended", "connection": "connection closed"}


def given_out_early(exporter: Exporter) -> int:
    """1 if the pool, whose one block is exported, gives memory out."""
    try:
        exporter.runtime.allocate(exporter.nbytes, exporter.stream).free()
    except MemoryError:
        return 0
    return 1


def next_owner(exporter: Exporter, probe: Probe, address: int) -> dict[str, Any]:
    """The memory is given out: what its new owner writes has to stay."""
    owner = exporter.block_with(7)
    exporter.stream.synchronize()
    wrong = probe.unequal(owner.ptr, 7)
    deadline = time.monotonic() + .3
    while time.monotonic() < deadline:
        time.sleep(.01)
        wrong = max(wrong, probe.unequal(owner.ptr, 7))
    same = owner.ptr == address
    owner.free()
    exporter.runtime.synchronize()
    return {"wrong_words": wrong, "same_memory": same}


def kill_once(exporter: Exporter, probe: Probe, number: int, taken_for_the_end: str, leaves: bool) -> dict[str, Any]:
    child = Child(exporter.calls)
    returns = not leaves and number % 2 == 1
    task = LEAVE if leaves else SCRIBBLE_AND_RETURN if returns else SCRIBBLE
    peer = Peer(exporter, child.channel, task, slots=1, delay=3_000_000_000, by_host=True)
    peer.until_ready()
    block = exporter.block_with(1)
    address = block.ptr
    exporter.stream.synchronize()                       # another word than 1 is the importer's from now on
    peer.export(block, WRITE, 1)
    block.free()                                        # waits for the end of the export
    if not probe.changes(address, 10, 1):
        raise RuntimeError("the importer's kernel does not write")
    if returns:
        peer.until_returned()
    row: dict[str, Any] = {"returned": returns, "early": given_out_early(exporter), "late_writes": False}
    times: dict[str, float] = {}
    began = time.monotonic()
    if not leaves:
        child.kill()
    last = probe.read(address)
    while taken_for_the_end != "signal":
        peer.pump(0)
        now = round((time.monotonic() - began) * 1000, 3)
        if peer.exports.state is not PeerState.OPEN:
            times.setdefault("connection closed", now)
        if child.ended():
            times.setdefault("process ended", now)
        if ENDS[taken_for_the_end] in times:
            break
        if now > ANSWER * 1000:
            raise TimeoutError(f"no end of the {taken_for_the_end} within {ANSWER} s")
        if (value := probe.read(address)) != last:
            times["last write seen"], last = now, value
    peer.exports.lose()
    if taken_for_the_end == "process":
        row["early"] += given_out_early(exporter)
        row["late_writes"] = probe.changes(address, .05)
    row["known"] = peer.end()
    if row["known"]:
        row |= next_owner(exporter, probe, address)
    child.kill()
    child.close()
    peer.close()
    return row | {"milliseconds": times}


def play_killed(options: argparse.Namespace, taken_for_the_end: str, rounds: int, *,
                leaves: bool = False) -> dict[str, Any]:
    exporter = Exporter(DriverCalls(), 256 << 10, 1)
    probe, rows = Probe(exporter), []
    for number in range(rounds):
        rows.append(kill_once(exporter, probe, number, taken_for_the_end, leaves))
        if not rows[-1]["known"]:
            break                                       # the memory stays in quarantine
    result = {"rounds": len(rows), "wrong": sum(1 for row in rows if row.get("wrong_words")),
              "early": sum(row["early"] for row in rows), "late_writes": sum(row["late_writes"] for row in rows),
              "known": all(row["known"] for row in rows), "each": rows}
    if result["known"]:
        probe.close()
        exporter.close()
    return result


def goes_on(stream: int, seconds: float) -> float | str | None:
    """Milliseconds until the stream is idle, or the error that it has; None if it waits all that time."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        result, = cuda.cuStreamQuery(stream)
        if result == cuda.CUresult.CUDA_SUCCESS:
            return round((time.monotonic() - began) * 1000, 3)
        if result != cuda.CUresult.CUDA_ERROR_NOT_READY:
            return str(result.name)
        time.sleep(.001)
    return None


def play_pending(options: argparse.Namespace, *, words: bool = False) -> dict[str, Any]:
    """The importer has returned the block, a stream waits for its event, and it is killed before its kernel ends."""
    calls = Words() if words else DriverCalls()
    exporter, child = Exporter(calls, 256 << 10, 1), Child(calls)
    probe = Probe(exporter)
    peer = Peer(exporter, child.channel, SCRIBBLE_AND_RETURN, slots=1, delay=3_000_000_000)
    peer.until_ready()
    block = exporter.block_with(1)
    exporter.stream.synchronize()
    peer.export(block, WRITE, 1)
    if not probe.changes(block.ptr, 10, 1):
        raise RuntimeError("the importer's kernel does not write")
    peer.wait_until(lambda: not len(peer.exports))      # the stream waits for the event from now on
    waits = cuda.cuStreamQuery(peer.stream.handle)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    child.kill()
    row: dict[str, Any] = {"waits_before": waits, "process_ended": child.ended(ANSWER),
                           "goes_on_after_ms": goes_on(peer.stream.handle, 1 if words else 6)}
    if row["goes_on_after_ms"] is None:
        calls.record_in_place(peer.events[0][1], probe.stream, 1)
        row["goes_on_after_a_record_here_ms"] = goes_on(peer.stream.handle, 3)
    if any(isinstance(row.get(f"goes_on_after_{what}ms"), float) for what in ("", "a_record_here_")):
        block.free()
        child.close()
        peer.close()
        probe.close()
        exporter.close()
    return row


def ping_pong(exporter: Exporter, peer: Peer, rounds: int) -> dict[str, float]:
    exporting = []
    began = time.perf_counter_ns()
    for number in range(1, rounds + 1):
        peer.wait_until(lambda: not peer.exports.full)
        block = exporter.block_with(number)
        before = time.perf_counter_ns()
        peer.export(block, READ, number)
        exporting.append(time.perf_counter_ns() - before)
        block.free()
    peer.wait_until(lambda: not len(peer.exports))
    exporter.runtime.synchronize()
    return {"us": (time.perf_counter_ns() - began) / rounds / 1000, "export_us": statistics.median(exporting) / 1000}


def through_the_host(exporter: Exporter, peer: Peer, host: HostMemory, rounds: int) -> dict[str, float]:
    began = time.perf_counter_ns()
    for number in range(1, rounds + 1):
        block = exporter.block_with(number)
        with use(exporter.stream, read=block, runtime=exporter.runtime):
            check(cuda.cuMemcpyDtoHAsync(host.address, block.ptr, host.nbytes, exporter.stream.handle))
        exporter.stream.synchronize()
        export = peer.exports.export(block.generation, None)
        peer.channel.send(Share(export.slot, export.serial, 0, 0, host.nbytes, block.generation, READ, number))
        block.free()
        peer.wait_until(lambda: not len(peer.exports))
    return {"us": (time.perf_counter_ns() - began) / rounds / 1000}


def play_cost(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for kib, rounds in COSTS.items():
        for way, slots in (("event", 1), ("event", 8), ("word", 1), ("word", 8), ("host", 1)):
            calls = Words() if way == "word" else DriverCalls()
            row: dict[str, Any] = {"way": way, "slots": slots, "bytes": kib << 10, "rounds": rounds, "wrong": 0}
            rows.append(row)
            child = Child(calls)
            try:
                row |= cost_of(calls, child, kib << 10, rounds, way, slots)
            except (xlogmem.DriverError, RuntimeError, TimeoutError, Closed) as error:
                row["failed"] = f"{type(error).__name__}: {error}"
                child.kill()
            child.close()
    return {"wrong": sum(row["wrong"] for row in rows), "each": rows}


def cost_of(calls: DriverCalls, child: Child, nbytes: int, rounds: int, way: str, slots: int) -> dict[str, Any]:
    exporter = Exporter(calls, nbytes, slots + 1)
    host = HostMemory(nbytes) if way == "host" else None
    if host is not None:
        host.lock()
    peer = Peer(exporter, child.channel, COPY if host else CHECK, slots=slots, rounds=2 * rounds, host=host)
    peer.until_ready()
    figures: dict[str, float] = {}
    for _ in range(2):                                  # the first warms up
        figures = through_the_host(exporter, peer, host, rounds) if host else ping_pong(exporter, peer, rounds)
    report = peer.say_goodbye()
    peer.close()
    if host is not None:
        host.close()
    exporter.close()
    return {"wrong": report.wrong_rounds, **figures}


MS = 1_000_000
Part = Callable[[argparse.Namespace], dict[str, Any]]
PARTS: dict[str, Part] = {
    "right": lambda given: play_rounds(given, rounds=given.rounds, delays=(MS // 5, MS // 2)),
    "right, seen by the host": lambda given: play_rounds(given, rounds=given.rounds, delays=(MS // 5, MS // 2),
                                                         by_host=True),
    "right, words": lambda given: play_rounds(given, rounds=given.rounds, delays=(MS // 5, MS // 2), words=True),
    "without the frontier": lambda given: play_rounds(given, rounds=min(given.rounds, 200), delays=(3 * MS, 0),
                                                      ordered=False),
    "without the release": lambda given: play_rounds(given, rounds=min(given.rounds, 200), delays=(0, 3 * MS),
                                                     held=False),
    "killed, process": lambda given: play_killed(given, "process", given.kills),
    "killed, connection": lambda given: play_killed(given, "connection", min(given.kills, 4)),
    "killed, signal": lambda given: play_killed(given, "signal", min(given.kills, 4)),
    "left, connection": lambda given: play_killed(given, "connection", min(given.kills, 2), leaves=True),
    "pending": play_pending,
    "pending, words": lambda given: play_pending(given, words=True),
    "cost": play_cost}
RIGHT = {"right", "right, seen by the host", "right, words", "killed, process", "cost"}
WRONG = {"without the frontier", "without the release", "left, connection"}


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A part that fails, or takes too long, is a row too."""
    command = [sys.executable, __file__, "--part", name, "--parent", str(os.getpid()), "--rounds", str(options.rounds),
               "--kills", str(options.kills), "--kib", str(options.kib), "--slots", str(options.slots)]
    began, failed = time.monotonic(), None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=options.limit)
        if process.returncode:
            failed = f"status {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = "", ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=20)
        if process.poll() != 0:                         # if it is, an importer kept the pipe open
            failed = f"not done after {options.limit} s"
    if errors:
        print(errors, end="", file=sys.stderr, flush=True)
    if failed and (lines := errors.strip().splitlines()):
        failed += ": " + next((line for line in reversed(lines) if "Error" in line), lines[-1])
    if not failed and not output.strip():
        failed = "no result"
    row = {} if failed else json.loads(output.splitlines()[-1])
    return {"part": name, "failed": failed, "took_s": round(time.monotonic() - began, 2), **row}


def as_expected(row: dict[str, Any]) -> bool:
    if row["failed"] is not None:
        return False
    if row["part"] in RIGHT:
        return not (row["wrong"] or row.get("early") or row.get("late_writes"))
    return row["part"] not in WRONG or row["wrong"] > 0


def line_of(row: dict[str, Any]) -> str:
    if row["failed"] is not None:
        return f"{row['part']:26} FAILED: {row['failed']}"
    text = f"{row['part']:26} "
    if "rounds" in row:
        text += f"{row['wrong']:6,} of {row['rounds']:,} wrong"
    if "early" in row:
        text += f", {row['early']} given out early, {row['late_writes']} with writes after the end"
    if "goes_on_after_ms" in row:
        text += f"goes on after {row['goes_on_after_ms']} ms, " + \
            f"after a record here {row.get('goes_on_after_a_record_here_ms', '-')}"
    for each in row["each"] if row["part"] == "cost" else ():
        figure = f"{each['us']:10.1f} us" if "us" in each else each["failed"]
        text += f"\n    {each['bytes'] >> 10:8,} KiB, {each['way']:5} {each['slots']} in flight: {figure}"
    return text + ("" if as_expected(row) else "   NOT AS EXPECTED") + f"   ({row['took_s']} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kib", type=int, default=1024, help="of one block")
    parser.add_argument("--slots", type=int, default=4, help="blocks that the importer may have at a time")
    parser.add_argument("--limit", type=float, default=100, help="seconds of one part")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--importer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--words", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parent is not None:
        die_with(options.parent)
    if options.importer is not None:
        importer_main(options.importer, Words() if options.words else DriverCalls())
        return 0
    if options.part is not None:
        print(json.dumps(PARTS[options.part](options)), flush=True)
        os._exit(0)                                     # a stream may wait for ever
    if xlogmem.is_simulated():
        print("needs a GPU: the simulated driver has no handles for other processes", file=sys.stderr)
        return 1
    rows = []
    for name in options.only or PARTS:
        rows.append(in_a_process(name, options))
        print(line_of(rows[-1]), flush=True)
        if options.json:
            write(options, rows)                        # what there is, should the rest take too long
    return 0 if all(map(as_expected, rows)) else 1


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from prefetcher import facts

    options.json.write_text(json.dumps({"facts": facts(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
