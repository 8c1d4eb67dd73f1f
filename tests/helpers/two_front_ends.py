"""One list of driver calls for both front ends of the check: the simulated driver makes each call, and the front end
on a GPU gets the callbacks of the same call.  What they find has to be the same.

    python tests/helpers/two_front_ends.py LIBRARY SEED COUNT [CALL]

runs programs in this process, and prints each on which they differ, in its fewest steps.  CALL is kept from the front
end on a GPU.  No program has the known difference: the device of a pool that the program has made is known without a
GPU alone, which matters to copies in the null stream.  Streams that the null stream waits for do not wait for values:
where the null stream copies from pageable memory, the host learns before the copy without a GPU alone.
"""
from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time
from collections import Counter
from typing import Any

from copy_shapes import HOST, planes, rows, words
from fabricated import BYTES, Data, Program, fresh, numbers, out, parameters_of, u32, u64

from xlogmem import sim

Step = tuple[str, int, int, int]
Found = tuple[bool, str, str, tuple[int, int], tuple[int, int]]
POLICIES = ("eager", "min", "max", "seeded")
DEVICES = 2
ROOM = ctypes.create_string_buffer(BYTES)
ILLEGAL_ADDRESS = 700           # a graph has used managed memory that was freed
PAGEABLE = ctypes.addressof(ROOM)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
WEIGHTS = {"create_stream": 4, "create_event": 4, "allocate": 8, "free": 6, "fill": 22, "copy": 18,
           "download": 8, "upload": 8, "on_host": 2, "record": 14, "wait": 14, "learn": 5,
           "synchronize_context": 1, "destroy_stream": 2, "destroy_event": 2, "call_host": 1, "begin": 2,
           "end": 3, "launch": 4, "choose_device": 2, "refuse": 6, "run_kernel": 14, "fill_rows": 5, "copy_rows": 6,
           "fill_on_host": 1, "create_pool": 1, "allocate_from_pool": 3, "update": 2, "copy_planes": 4, "copy_batch": 4,
           "prefetch": 3, "write_value": 3,
           "wait_for_value": 1, "use_values": 2}
# One writes, one copies, one keeps its pointer, of which the check cannot know the use.
KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry writes(.param .u64 writes_param_0)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [writes_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r1;
    ret;
}
.visible .entry copies(.param .u64 copies_param_0, .param .u64 copies_param_1)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [copies_param_0];
    ld.param.u64 %rd2, [copies_param_1];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    ld.global.u32 %r1, [%rd4+256];
    st.global.u32 [%rd3], %r1;
    ret;
}
.visible .entry keeps(.param .u64 keeps_param_0, .param .u64 keeps_param_1)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [keeps_param_0];
    ld.param.u64 %rd2, [keeps_param_1];
    cvta.to.global.u64 %rd3, %rd1;
    st.global.u64 [%rd3], %rd2;
    ret;
}
"""
NAMES = {b"writes": 1, b"copies": 2, b"keeps": 2}           # with the number of their pointers


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("rest", ctypes.c_byte * 72)]


class UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = [("result", ctypes.c_int), ("node", u64), ("dependency", u64)]


def steps_of(seed: int) -> list[Step]:
    draws = random.Random(seed)
    names = draws.choices(list(WEIGHTS), list(WEIGHTS.values()), k=draws.choice((20, 40, 80)))
    begin = ["create_stream", "create_stream", "create_event", "allocate", "allocate"]
    return [(name, *(draws.randrange(1 << 16) for _ in range(3))) for name in [*begin, *names]]


class World(Program):
    """A program that both see.  The call that `deaf` names is kept from the front end on a GPU."""

    def __init__(self, library: str, seed: int, deaf: str = "") -> None:
        self.library, self.simulator, self.deaf = fresh(library), sim.install(), deaf
        self.driver = self.simulator._library
        self.site = 0
        self._find_site = ctypes.CFUNCTYPE(u32)(lambda: self.site)
        where = ctypes.cast(self._find_site, ctypes.c_void_p)
        self.library.xcheck_find_sites(where)
        self.simulator.reset(POLICIES[seed % len(POLICIES)], seed)
        self.simulator.find_sites(where.value)
        self.lines: list[str] = []
        self.refused: Counter[str] = Counter()
        self.streams: list[tuple[int, int, int]] = [(0, 0, 0), (0, 1, 0), (2, 0, 0)]      # handle, device, flags
        self.events: list[tuple[int, int]] = []
        self.blocks: list[tuple[int, int, bool]] = []       # address, device, stream-ordered
        self.graphs: list[tuple[int, int, int]] = []        # executable, device, graph
        self.pools: list[tuple[int, int]] = []
        self.of_pools: set[int] = set()                     # memory of these
        self.managed: set[int] = set()
        self.capture: tuple[int, int, int] | None = None
        self.members: set[int] = set()                      # streams that take part in the capture
        self.captures = 0
        self.has_failed = False                             # every further call is refused
        self.recorded: dict[int, int] = {}                  # in which capture, by event; 0 is none
        self.device = 0
        self.contexts = contexts()
        self.pinned = self.make("cuMemHostAlloc", "pp", bytesize=BYTES)
        self.simulator.launch_unknown()
        self.modules = [self.make("cuModuleLoadData", "module", device, image=ctypes.c_char_p(KERNELS))
                        for device in range(DEVICES)]
        self.kernels = [{name: self.kernel(device, name) for name in NAMES} for device in range(DEVICES)]
        self.lines.clear()                                  # these calls are the same in all programs

    def kernel(self, device: int, name: bytes) -> int:
        return self.make("cuModuleGetFunction", "hfunc", device, hmod=self.modules[device], name=ctypes.c_char_p(name))

    def make(self, entry: str, result: str, device: int | None = None, **fields: Any) -> int:
        """The handle or the address that a call makes; 0 if the driver refuses."""
        made = out(0)
        return made.value if self.do(entry, device, **{result: made}, **fields) else 0

    def do(self, entry: str, device: int | None = None, symbol: bytes = b"", **fields: Any) -> bool:
        parameters = parameters_of(entry)()
        for name, value in fields.items():
            assert hasattr(parameters, name), f"{entry} has no {name}"
            if isinstance(value, ctypes.c_char_p):
                value = ctypes.cast(value, ctypes.c_void_p).value
            elif isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
                value = ctypes.addressof(value)
            setattr(parameters, name, value)
        self.site += 1
        device = self.device if device is None else device
        self.driver.cuCtxSetCurrent(ctypes.c_void_p(self.contexts[device]))
        status = ctypes.c_int(0)

        def call_back(after: bool) -> None:
            data = Data(int(after), entry.encode(), ctypes.addressof(parameters), ctypes.addressof(status), symbol,
                        self.contexts[device], device + 1, None, 0)
            if entry != self.deaf:
                self.library.xcheck_call(numbers()[entry], ctypes.byref(data))

        call_back(False)
        status.value = getattr(self.driver, entry)(*(kind(getattr(parameters, name))
                                                     for name, kind in parameters._fields_))
        call_back(True)
        shown = {name: hex(value) if isinstance(value, int) else hex(value.value) if isinstance(value, u64) else "…"
                 for name, value in fields.items()}
        self.lines.append(f"{self.site}: {entry}({', '.join(f'{n}={v}' for n, v in shown.items())}), device {device}"
                          + (f": refused, {status.value}" if status.value else ""))
        self.refused[entry] += status.value != 0
        self.has_failed |= status.value == ILLEGAL_ADDRESS
        return not status.value

    def both(self) -> tuple[set[Found], set[Found]]:
        found = compared(self.simulator.findings()), compared(self.report()["findings"])
        # A call that is refused for a fault before is judged by one of the two.
        simulated, on_gpu = ({one for one in side if not (self.has_failed and one[4][0] == self.site)}
                             for side in found)
        return simulated, on_gpu

    def end(self) -> None:
        if self.capture:
            self.end_capture(0, 0, 0)
        self.simulator.reset("eager")
        for address, device, _ in self.blocks:
            self.do("cuMemFree_v2", device, dptr=address)
        for pool, device in self.pools:
            self.do("cuMemPoolDestroy", device, pool=pool)
        for executable, device, _ in self.graphs:
            self.do("cuGraphExecDestroy", device, hGraphExec=executable)
        for device, module in enumerate(self.modules):
            self.do("cuModuleUnload", device, hmod=module)
        for event, device in self.events:
            self.do("cuEventDestroy_v2", device, hEvent=event)
        for handle, device, _ in self.streams[3:]:
            self.do("cuStreamDestroy_v2", device, hStream=handle)
        self.do("cuMemFreeHost", p=self.pinned)
        self.simulator.find_sites(None)

    # -- steps: each takes three numbers, and chooses by them among what there is ------------------------------------

    def stream(self, number: int) -> tuple[int, int, int]:
        # While a stream captures, the default streams and those that wait for them would end the capture.
        there = [s for s in self.streams if s[2]] if self.capture else self.streams
        return there[number % len(there)]

    def create_stream(self, a: int, b: int, c: int) -> None:
        flags, device = int(a % 3 > 0), b % DEVICES if c % 4 == 0 else 0
        if made := self.make("cuStreamCreate", "phStream", device, Flags=flags):
            self.streams.append((made, device, flags))

    def create_event(self, a: int, b: int, c: int) -> None:
        device = b % DEVICES if c % 4 == 0 else 0
        if made := self.make("cuEventCreate", "phEvent", device, Flags=2 * (a % 2)):
            self.events.append((made, device))

    def allocate(self, a: int, b: int, c: int) -> None:
        if self.capture:
            return
        handle, device, _ = self.stream(a)
        ordered = b % 3 > 0
        if ordered:
            made = self.make("cuMemAllocAsync", "dptr", device, bytesize=BYTES, hStream=handle)
        else:
            managed = c % 3 == 0
            made = (self.make("cuMemAllocManaged", "dptr", device, bytesize=BYTES, flags=1) if managed
                    else self.make("cuMemAlloc_v2", "dptr", device, bytesize=BYTES))
        if made:
            self.blocks.append((made, device, ordered))
            self.of_pools.discard(made)
            if not ordered and managed:
                self.managed.add(made)

    def free(self, a: int, b: int, c: int) -> None:
        if self.capture or not self.blocks:
            return
        block = self.blocks[a % len(self.blocks)]
        near = [s for s in self.streams if s[1] == block[1]]
        done = (self.do("cuMemFreeAsync", block[1], dptr=block[0], hStream=near[b % len(near)][0])
                if block[2] and c % 4 else self.do("cuMemFree_v2", self.device, dptr=block[0]))
        if done:
            self.blocks.remove(block)

    def place(self, number: int) -> int:
        block = self.blocks[number % len(self.blocks)][0]
        return block + (number >> 8) % 4 * (BYTES // 4)

    def is_null(self, handle: int, *places: int) -> bool:
        """True if a copy there would be in the null stream, with memory of a pool that the program has made."""
        return not handle and any(place - place % BYTES in self.of_pools for place in places)

    def fill(self, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        size = {"dstDevice": self.place(b), "N": BYTES // (2, 4)[c % 2]}
        size["N"] = min(size["N"], BYTES // 4)
        if c % 8 or self.capture:
            self.do("cuMemsetD8Async", device, **size, hStream=handle)
        else:
            self.do("cuMemsetD8_v2", device, **size)

    def copy(self, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        target, source = self.place(b), self.place(c)
        if target == source or self.is_null(handle and a % 7, target, source):
            return
        if a % 7 == 0 and not self.capture:
            self.do("cuMemcpyDtoD_v2", device, dstDevice=target, srcDevice=source, ByteCount=BYTES // 4)
        elif a % 7 == 1 and not self.capture:
            devices = [next(block[1] for block in self.blocks if block[0] <= at < block[0] + BYTES)
                       for at in (target, source)]
            self.do("cuMemcpyPeerAsync", device, dstDevice=target, dstContext=self.contexts[devices[0]],
                    srcDevice=source, srcContext=self.contexts[devices[1]], ByteCount=BYTES // 4, hStream=handle)
        elif a % 7 < 4:
            self.do("cuMemcpyAsync", device, dst=target, src=source, ByteCount=BYTES // 4, hStream=handle)
        else:
            self.do("cuMemcpyDtoDAsync_v2", device, dstDevice=target, srcDevice=source, ByteCount=BYTES // 4,
                    hStream=handle)

    def host(self, number: int) -> int:
        return self.pinned if number % 2 or self.capture else PAGEABLE

    def download(self, a: int, b: int, c: int) -> None:
        self.transfer("cuMemcpyDtoH", "dstHost", "srcDevice", a, b, c)

    def upload(self, a: int, b: int, c: int) -> None:
        self.transfer("cuMemcpyHtoD", "srcHost", "dstDevice", a, b, c)

    def transfer(self, call: str, on_host: str, on_device: str, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        if self.is_null(handle and c % 3, self.place(b)):
            return
        fields = {on_host: self.host(c), on_device: self.place(b), "ByteCount": BYTES // 4}
        if c % 3 or self.capture:
            self.do(f"{call}Async_v2", device, **fields, hStream=handle)
        else:
            self.do(f"{call}_v2", device, **fields)

    def on_host(self, a: int, b: int, c: int) -> None:
        if self.capture:
            return
        handle, device, _ = self.stream(a)
        fields = {"dst": (PAGEABLE, self.pinned)[b % 2], "src": (PAGEABLE, self.pinned)[c % 2] + 512, "ByteCount": 256}
        if a % 2:
            self.do("cuMemcpyAsync", device, **fields, hStream=handle)
        else:
            self.do("cuMemcpy", device, **fields)

    def record(self, a: int, b: int, c: int) -> None:
        handle, device, _ = self.stream(a)
        near = [event for event, of in self.events if of == device]
        if near:
            event = near[b % len(near)]
            if self.do("cuEventRecord", device, hEvent=event, hStream=handle):
                self.recorded[event] = self.captures if handle in self.members else 0

    def wait(self, a: int, b: int, c: int) -> None:
        handle, device, _ = self.stream(a)
        # A capture takes no event from outside; with one of its own a stream joins it.
        events = [event for event, _ in self.events if (self.capture and self.recorded.get(event) == self.captures)
                  or (handle not in self.members and not self.recorded.get(event))]
        if events:
            event = events[b % len(events)]
            if self.do("cuStreamWaitEvent", device, hStream=handle, hEvent=event) and self.recorded.get(event):
                self.members.add(handle)

    def learn(self, a: int, b: int, c: int) -> None:
        if self.capture:
            return
        handle, device, _ = self.stream(a)
        events = [(event, of) for event, of in self.events if not self.recorded.get(event)]
        if b % 2 and events:
            event, of = events[a % len(events)]
            self.do(("cuEventSynchronize", "cuEventQuery")[c % 2], of, hEvent=event)
        else:
            self.do(("cuStreamSynchronize", "cuStreamQuery")[c % 2], device, hStream=handle)

    def synchronize_context(self, a: int, b: int, c: int) -> None:
        if not self.capture:
            self.do("cuCtxSynchronize")

    def destroy_stream(self, a: int, b: int, c: int) -> None:
        made = self.streams[3:]
        if not self.capture and made:
            stream = made[a % len(made)]
            if self.do("cuStreamDestroy_v2", stream[1], hStream=stream[0]):
                self.streams.remove(stream)

    def destroy_event(self, a: int, b: int, c: int) -> None:
        if not self.capture and self.events:
            event = self.events[a % len(self.events)]
            if self.do("cuEventDestroy_v2", event[1], hEvent=event[0]):
                self.events.remove(event)

    def call_host(self, a: int, b: int, c: int) -> None:
        handle, device, _ = self.stream(a)
        self.do("cuLaunchHostFunc", device, hStream=handle, fn=ctypes.cast(HOST_FUNCTION, ctypes.c_void_p).value)

    def begin(self, a: int, b: int, c: int) -> None:
        free = [s for s in self.streams if s[2]]
        if not self.capture and free and self.blocks:
            stream = free[a % len(free)]
            if self.do("cuStreamBeginCapture_v2", stream[1], hStream=stream[0], mode=2):
                self.capture, self.members = stream, {stream[0]}
                self.captures += 1

    def end_capture(self, a: int, b: int, c: int) -> None:
        if not self.capture:
            return
        handle, device, _ = self.capture
        for branch in sorted(self.members - {handle}):
            of = next(stream[1] for stream in self.streams if stream[0] == branch)
            if event := self.make("cuEventCreate", "phEvent", of):
                self.events.append((event, of))
                self.recorded[event] = self.captures
                self.do("cuEventRecord", of, hEvent=event, hStream=branch)
                self.do("cuStreamWaitEvent", device, hStream=handle, hEvent=event)
        graph = self.make("cuStreamEndCapture", "phGraph", device, hStream=handle)
        self.capture, self.members = None, set()
        if graph and (made := self.make("cuGraphInstantiateWithFlags", "phGraphExec", device, hGraph=graph)):
            self.graphs.append((made, device, graph))

    def launch(self, a: int, b: int, c: int) -> None:
        if self.graphs and not self.capture:
            graph, device, _ = self.graphs[a % len(self.graphs)]
            near = [s for s in self.streams if s[1] == device]
            self.do("cuGraphLaunch", device, hGraph=graph, hStream=near[b % len(near)][0])

    def update(self, a: int, b: int, c: int) -> None:
        """The driver refuses a graph of other nodes."""
        if self.graphs and not self.capture:
            executable, device, _ = self.graphs[a % len(self.graphs)]
            self.do("cuGraphExecUpdate_v2", device, hGraphExec=executable, hGraph=self.graphs[b % len(self.graphs)][2],
                    resultInfo=UpdateResult())

    def run_kernel(self, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        name = list(NAMES)[(a >> 8) % len(NAMES)]
        pointers = [u64(self.place(number)) for number in (b, c)[:NAMES[name]]]
        arguments = (ctypes.c_void_p * len(pointers))(*map(ctypes.addressof, pointers))
        self.do("cuLaunchKernel", device, name, f=self.kernels[device][name], gridDimX=1, gridDimY=1, gridDimZ=1,
                blockDimX=32, blockDimY=1, blockDimZ=1, hStream=handle, kernelParams=arguments)

    def fill_rows(self, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        fields = {"dstDevice": self.place(b), "dstPitch": 256, "Width": (16, 64)[c % 2], "Height": 1 + (c >> 1) % 4}
        if c % 8 or self.capture:
            self.do("cuMemsetD2D32Async", device, **fields, hStream=handle)
        else:
            self.do("cuMemsetD2D32_v2", device, **fields)

    def copy_rows(self, a: int, b: int, c: int) -> None:
        """Between two blocks, or from and to the host."""
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        target, source = self.place(b), self.place(c)
        if target == source or self.is_null(handle and c % 3, target, source):
            return
        width, height = (16, 64)[b % 2], 1 + (c >> 3) % 4
        copy = rows(target, source, dstPitch=(64, 256)[a % 2], srcPitch=256, WidthInBytes=width, Height=height)
        if a % 5 == 0:
            copy.dstMemoryType, copy.dstHost, copy.dstPitch = HOST, self.host(c), 64
        elif a % 5 == 1:
            copy.srcMemoryType, copy.srcHost, copy.srcPitch = HOST, self.host(c), 64
        if c % 3 or self.capture:
            self.do("cuMemcpy2DAsync_v2", device, pCopy=copy, hStream=handle)
        else:
            self.do("cuMemcpy2D_v2", device, pCopy=copy)

    def copy_planes(self, a: int, b: int, c: int) -> None:
        """Planes with gaps between them, or none."""
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        target, source = self.place(b), self.place(c)
        if target == source or self.is_null(handle and c % 3, target, source):
            return
        copy = planes(target, source, dstHeight=4, srcHeight=2, WidthInBytes=(16, 64)[b % 2], Height=2, Depth=2,
                      dstY=2 * (a % 2))
        call = ("cuMemcpy3D", "cuMemcpy3DPeer")[a % 3 == 0]
        if a % 5 == 0:
            copy.dstMemoryType, copy.dstHost = HOST, self.host(c)
        elif a % 5 == 1:
            copy.srcMemoryType, copy.srcHost = HOST, self.host(c)
        suffix = "" if "Peer" in call else "_v2"
        if c % 3 or self.capture:
            self.do(f"{call}Async{suffix}", device, pCopy=copy, hStream=handle)
        else:
            self.do(f"{call}{suffix}", device, pCopy=copy)

    def copy_batch(self, a: int, b: int, c: int) -> None:
        """A capture refuses it; it is not for the null stream."""
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        target, source = self.place(b), self.place(c)
        if target == source or not handle:
            return
        targets = (target + 512, PAGEABLE + 512) if a % 2 else (target + 512, self.pinned + 512)
        sources = (source, (PAGEABLE, self.pinned, source)[c % 3])
        attributes = (u32 * 12)(1 + b % 3, 0, 0, 0, 0, 0, 1 + a // 6 % 3)
        lists = {"dsts": words(target, targets[b % 2]), "srcs": words(*sources), "sizes": words(256, 256), "count": 2,
                 "attrs": attributes, "attrsIdxs": words(0, 1), "numAttrs": 2}
        if a % 3 == 0:
            self.do("cuMemcpyBatchAsync_v2", device, **lists, hStream=handle)
        else:
            self.do("cuMemcpyBatchAsync", device, **lists, failIdx=out(0), hStream=handle)

    def write_value(self, a: int, b: int, c: int) -> None:
        if not self.blocks:
            return
        handle, device, _ = self.stream(a)
        entry = ("cuStreamWriteValue32_v2", "cuStreamWriteValue64_v2")[c % 2]
        at = self.pinned if b % 5 == 0 else self.place(b)
        self.do(entry, device, stream=handle, addr=at, value=c)

    def wait_for_value(self, a: int, b: int, c: int) -> None:
        """Some bit of the memory is 0, so the stream goes on at once."""
        if not self.blocks:
            return
        handle, device, alone = self.stream(a)
        if not alone:
            return
        self.do("cuStreamWaitValue32_v2", device, stream=handle, addr=self.place(b), value=0, flags=3)

    def use_values(self, a: int, b: int, c: int) -> None:
        """A batch of writes, and a wait for what is there."""
        if not self.blocks:
            return
        handle, device, alone = self.stream(a)
        operations = [(2, self.place(b), c, 0), (5, self.pinned if b % 3 == 0 else self.place(c), a, 0), (6, 0, 0, 0)]
        if alone and c % 3 == 0:
            operations.insert(c % 2, (1, self.place(a), 0, 3))
        self.do("cuStreamBatchMemOp_v2", device, stream=handle, count=len(operations),
                paramArray=words(*[word for one in operations for word in (*one, 0, 0)]))

    def prefetch(self, a: int, b: int, c: int) -> None:
        """The driver refuses memory that is not managed."""
        if self.capture or not self.blocks:
            return
        handle, device, _ = self.stream(a)
        managed = [block[0] for block in self.blocks if block[0] in self.managed] or [self.place(b)]
        at = managed[b % len(managed)]
        if c % 2:
            self.do("cuMemPrefetchAsync", device, devPtr=at, count=BYTES, dstDevice=device, hStream=handle)
        else:
            self.do("cuStreamAttachMemAsync", device, hStream=handle, dptr=at, length=0, flags=1)

    def fill_on_host(self, a: int, b: int, c: int) -> None:
        """Page-locked memory: the form without a stream waits."""
        handle, device, _ = self.stream(a)
        if a % 2 and not self.capture:
            self.do("cuMemsetD8_v2", device, dstDevice=self.pinned, N=256)
        else:
            self.do("cuMemsetD8Async", device, dstDevice=self.pinned, N=256, hStream=handle)

    def create_pool(self, a: int, b: int, c: int) -> None:
        device = b % DEVICES if c % 2 else 0
        properties = PoolProperties(kind=1, place=1, device=device)
        if pool := self.make("cuMemPoolCreate", "pool", device, poolProps=properties):
            share(pool, device)
            self.pools.append((pool, device))

    def allocate_from_pool(self, a: int, b: int, c: int) -> None:
        if self.capture or not self.pools:
            return
        handle, device, _ = self.stream(a)
        pool, at = self.pools[b % len(self.pools)]
        if made := self.make("cuMemAllocFromPoolAsync", "dptr", device, bytesize=BYTES, pool=pool, hStream=handle):
            self.blocks.append((made, at, True))
            self.of_pools.add(made)

    def refuse(self, a: int, b: int, c: int) -> None:
        """A call that the driver refuses."""
        if not self.blocks or self.capture:
            return
        handle, device, _ = self.stream(a)
        far = [event for event, of in self.events if of != device]
        at, beyond = self.place(b), BYTES + 512
        calls: list[tuple[str, dict[str, int]]] = [
            ("cuMemsetD8Async", {"dstDevice": at, "N": beyond, "hStream": handle}),
            ("cuMemsetD32_v2", {"dstDevice": at + 1, "N": 16}),
            ("cuMemcpyDtoDAsync_v2", {"dstDevice": at, "srcDevice": self.place(c), "ByteCount": beyond,
                                      "hStream": handle}),
            ("cuMemcpyDtoH_v2", {"dstHost": PAGEABLE, "srcDevice": at, "ByteCount": beyond}),
            ("cuMemFree_v2", {"dptr": at - at % BYTES + 256}),
            ("cuMemFreeAsync", {"dptr": at - at % BYTES + 256, "hStream": handle})]
        calls += [("cuEventRecord", {"hEvent": event, "hStream": handle}) for event in far[:1]]
        entry, fields = calls[c % len(calls)]
        assert not self.do(entry, device, **fields), f"{entry} was not refused"

    def choose_device(self, a: int, b: int, c: int) -> None:
        self.device = a % DEVICES


def compared(findings: list[dict[str, Any]]) -> set[Found]:
    def access(one: dict[str, Any]) -> tuple[int, int]:
        return (one["site"], one["captured"])

    return {(one["certain"], one["kind"], one["pair"], access(one["first"]), access(one["second"])) for one in findings}


def share(pool: int, device: int) -> None:
    """The other device may use the memory of the pool."""
    from cuda.bindings import driver

    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 1 - device
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    driver.cuMemPoolSetAccess(pool, [access], 1)


_contexts: list[int] = []


def contexts() -> list[int]:
    """Of the devices, which may use each other's memory, of the pools too."""
    if not _contexts:
        from cuda.bindings import driver

        driver.cuInit(0)
        made = [driver.cuDevicePrimaryCtxRetain(device)[1] for device in range(DEVICES)]
        for device, context in enumerate(made):
            driver.cuCtxSetCurrent(context)
            driver.cuCtxEnablePeerAccess(made[1 - device], 0)
            share(int(driver.cuDeviceGetDefaultMemPool(device)[1]), device)
        _contexts.extend(int(context) for context in made)
    return _contexts


def play(library: str, seed: int, steps: list[Step], deaf: str = "") -> tuple[set[Found], set[Found], World]:
    world = World(library, seed, deaf)
    for name, *draws in steps:
        if world.has_failed:
            break
        getattr(world, "end_capture" if name == "end" else name)(*draws)
    simulated, on_gpu = world.both()
    lines = list(world.lines)
    world.end()
    world.lines = lines
    return simulated, on_gpu, world


def shrink(library: str, seed: int, steps: list[Step], deaf: str = "") -> list[Step]:
    """Steps of which none can be left out while the two differ."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size:]
            simulated, on_gpu, _ = play(library, seed, fewer, deaf)
            if simulated != on_gpu:
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def explain(library: str, seed: int, deaf: str = "") -> str:
    """The calls of the shortest program on which the two differ, and what each finds alone."""
    simulated, on_gpu, world = play(library, seed, shrink(library, seed, steps_of(seed), deaf), deaf)
    return "\n".join([f"program {seed}:", *world.lines,
                      *(f"the simulated driver alone: {one}" for one in sorted(simulated - on_gpu)),
                      *(f"the front end on a GPU alone: {one}" for one in sorted(on_gpu - simulated))])


def main(library: str, first: int, count: int, deaf: str = "") -> int:
    began, calls, found, wrong, refused = time.monotonic(), 0, Counter[bool](), 0, Counter[str]()
    for seed in range(first, first + count):
        simulated, on_gpu, world = play(library, seed, steps_of(seed), deaf)
        calls += len(world.lines)
        found.update(one[0] for one in simulated)
        refused += world.refused
        if simulated != on_gpu:
            wrong += 1
            if wrong <= int(os.environ.get("SHOWN", "3")):
                print(explain(library, seed, deaf), flush=True)
    print(json.dumps({"programs": count, "calls": calls, "certain": found[True], "possible": found[False],
                      "differ": wrong, "refused": +refused, "seconds": round(time.monotonic() - began, 1)}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
