"""Claims: memory that each launch may touch, so that the program itself never races; and the launches."""
from __future__ import annotations

import ctypes
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem import Stream
from xlogmem.sim.kernels import check
from xlogmem_selftest.libraries import Handed
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.blocks import Blocks
from xlogmem_selftest.world.calls import NothingToDo, sure, tools
from xlogmem_selftest.world.models import (
    PARTS,
    READ,
    READ_WRITE,
    WRITE,
    CapturedItem,
    Claim,
    GraphCapture,
    Item,
    ProgramStream,
)
from xlogmem_selftest.world.streams import WORDS

__all__ = ["SCRATCH", "Claims"]

SCRATCH = 1 << 20                           # bytes that readers in situations copy to, each its own


class Claims(Blocks):
    """The layer that launches.

    Work inside a window claims parts of its blocks first (`claim`), unrecorded work a block without windows
    (`claim_idle`); `launch` queues the kernels of claims.
    """

    def __init__(self, kind: Kind, simulator: Any, protect: bool, threads: int, devices: int = 1) -> None:
        super().__init__(kind, simulator, protect, threads, devices)
        self.values = 0                     # patterns so far
        self.words: list[int] = []          # by device: words for its streams, where surprises are counted
        self.scratch_area = 0
        self.scratched = 0

    def allocate_areas(self) -> None:
        for device in self.devices:
            with self.context(device):
                self.words.append(int(check(cuda.cuMemAlloc(4 * WORDS))))
                self.asides.append(int(check(cuda.cuStreamCreate(1))))
                tools(device)[1].fill(self.asides[device], self.words[device], 0, WORDS)
                check(cuda.cuStreamSynchronize(self.asides[device]))
        if self.kind.situations:
            self.scratch_area = int(check(cuda.cuMemAlloc(SCRATCH)))

    def free_areas(self) -> None:
        for words, aside in zip(self.words, self.asides, strict=True):
            check(cuda.cuMemFree(words))
            check(cuda.cuStreamDestroy(aside))
        if self.scratch_area:
            check(cuda.cuMemFree(self.scratch_area))

    # ------------------------------------------------------------------------------------------ claims
    def next_value(self, item: Item) -> int:
        """A pattern that no other generation of this world has."""
        self.values += 1
        return (item.id.generation * 2654435761 + self.values * 40503) & 0xFFFFFFFF

    def other_value(self) -> int:
        """The same for memory that the program has no block of."""
        self.values += 1
        return (0x85EBCA6B + self.values * 40503) & 0xFFFFFFFF

    def claim(self, rng: Random, stream: ProgramStream, how_many: int, except_device: int = -1) -> list[Claim]:
        claims: list[Claim] = []
        capture = stream.capture
        with self.lock:
            for _ in range(how_many):
                choice = [item for item in self.items
                          if not item.held and item.device != except_device
                          and (capture is None or item.device == stream.device)
                          and all(claim.item.id != item.id for claim in claims)]
                if not choice:
                    break
                item = rng.choice(choice)
                if capture is not None:
                    item = self.item_in(capture, item)
                access = rng.choice([READ, READ, WRITE, READ_WRITE])
                parts = self.free_parts(item, access)
                if parts and rng.random() < .5:
                    parts = rng.sample(parts, rng.randint(1, len(parts)))
                if not parts and access != WRITE:
                    access, parts = WRITE, self.free_parts(item, WRITE)
                if parts:
                    claims.append(self.open_claim(item, stream, access, parts))
            if not claims:
                raise NothingToDo
        return claims

    def open_claim(self, item: Item, stream: ProgramStream, access: str, parts: list[int],
                   values: list[int] | None = None) -> Claim:
        """Claim parts for a window."""
        claim = self.claim_parts(item, access, parts, values)
        item.open += 1
        item.elsewhere += stream is not item.stream
        return claim

    def item_in(self, capture: GraphCapture, item: Item) -> CapturedItem:
        """The item as the capture knows it."""
        if item not in capture.items:
            home = capture.first if capture.is_foreign else self.hiding_place(item)
            capture.items[item] = CapturedItem(item, home)
        return capture.items[item]

    def hiding_place(self, item: Item) -> ProgramStream | None:
        """The stream where work on a block need not be recorded, apart from where it was used last."""
        return item.stream if len(self.hiding_parts(item)) == PARTS else None

    def hiding_parts(self, item: Item) -> list[int]:
        """The parts of which this is true.  After uses elsewhere it is true of those that none of them has named, where
        the runtime knows that the stream is not destroyed."""
        stream = item.stream
        if (stream is None or stream.gone or item.quiet or item.awaits_handback or item.home is not stream
                or stream.registration != item.registration):
            return []
        if stream.discipline == "opaque" or (stream.discipline == "ordinary" and not item.elsewhere):
            return list(range(PARTS))
        if (stream.discipline == "ordinary" and item.elsewhere == item.ranges_elsewhere
                and isinstance(stream.argument, Stream)):
            return [i for i, part in enumerate(item.parts) if not part.elsewhere]
        return []

    def free_parts(self, item: Item, access: str) -> list[int]:
        """The parts that no other claim forbids; what was never written is not read."""
        return [i for i, part in enumerate(item.parts)
                if not part.writer and (access == READ or not part.readers)
                and (access == WRITE or part.value is not None)]

    def claim_parts(self, item: Item, access: str, parts: list[int], given: list[int] | None = None) -> Claim:
        values = given or []
        for i in parts:
            part = item.parts[i]
            if given is None:
                values.append(part.value or 0 if access == READ else self.next_value(item))
            if access == READ:
                part.readers += 1
            else:
                part.writer = True
        return Claim(item, access, parts, values)

    def unclaim(self, claim: Claim, launched: bool) -> None:
        for i, value in zip(claim.parts, claim.values, strict=True):
            part = claim.item.parts[i]
            if claim.access == READ:
                part.readers -= 1
            else:
                part.writer = False
            if launched:
                claim.item.launched(i, claim.access, value)

    def claim_idle(self, rng: Random, item: Item, among: list[int] | None = None) -> Claim:
        """For work without a window, on an idle block or these parts of one, which is not freed meanwhile.  Called with
        the lock held."""
        wanted = range(PARTS) if among is None else among
        access = rng.choice([READ, WRITE, READ_WRITE])
        parts = [i for i in self.free_parts(item, access) if i in wanted]
        if not parts:
            access, parts = WRITE, [i for i in self.free_parts(item, WRITE) if i in wanted]
        item.held += 1
        return self.claim_parts(item, access, parts)

    def unclaim_idle(self, claim: Claim) -> None:
        """The work was queued.  Called with the lock held."""
        self.unclaim(claim, launched=True)
        claim.item.held -= 1

    def end_claims(self, stream: ProgramStream, claims: list[Claim], launched: bool) -> None:
        with self.lock:
            for claim in claims:
                self.unclaim(claim, launched)
                claim.item.open -= 1
                if stream is claim.item.stream:
                    continue
                if not launched:
                    claim.item.elsewhere -= 1
                elif claim.in_ranges:
                    claim.item.ranges_elsewhere += 1
                    for i in claim.parts:
                        claim.item.parts[i].elsewhere = True
            stream.busy -= 1

    # ------------------------------------------------------------------------------------------ launches
    def launch(self, rng: Random, stream: ProgramStream, claims: list[Claim], handed: Handed | None = None) -> None:
        """Queue the kernels of the claims: readers count the words that are not what they have to be.  What was handed
        to a library it copies itself, to and from memory that the kernels work on."""
        if not (claims and isinstance(claims[0].item, CapturedItem)):
            self.ready_for_work(stream)
        with self.context(stream.device):
            self.delay_at_times(rng, stream)
            self.start_kernels(stream, claims, handed)

    def start_kernels(self, stream: ProgramStream, claims: list[Claim], handed: Handed | None) -> None:
        kernels = tools(stream.device)[1]
        surprises = self.word_of(stream)
        for claim in claims:
            if not self.protect:
                self.make_accessible(claim.item, stream)
            size = claim.item.nbytes // PARTS
            for i, value in zip(claim.parts, claim.values, strict=True):
                at, words = claim.item.ptr + i * size, size // 4
                if handed is not None:
                    at = handed.at
                    if claim.access != WRITE:
                        handed.read(i * size, size)
                if claim.access == READ:
                    kernels.count_unequal(stream.handle, surprises, at, value, words)
                elif claim.access == WRITE:
                    kernels.fill(stream.handle, at, value, words)
                else:
                    old = claim.item.parts[i].value or 0
                    kernels.count_unequal(stream.handle, surprises, at, old, words)
                    kernels.add(stream.handle, at, (value - old) & 0xFFFFFFFF, words)
                if handed is not None and claim.access != READ:
                    handed.write(i * size, size)

    def make_accessible(self, item: Item, stream: ProgramStream) -> None:
        """For work that no recorder knows of beforehand: the program itself opens the memory to another device."""
        if item.device == stream.device:
            return
        with self.context(item.device):
            pool = cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, item.ptr)
            if int(pool[0]) == 0 and int(pool[1]):
                access = cuda.CUmemAccessDesc()
                access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = stream.device
                access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                if sure(cuda.cuMemPoolGetAccess, pool[1], access.location) != access.flags:
                    sure(cuda.cuMemPoolSetAccess, pool[1], [access], 1)

    def delay_at_times(self, rng: Random, stream: ProgramStream) -> None:
        """Make what follows on the stream late, on a GPU."""
        if not self.simulator and rng.random() < .3:
            tools(stream.device)[1].delay(stream.handle, rng.choice([5_000, 20_000, 80_000]))

    def word_of(self, stream: ProgramStream) -> int:
        """The address where the kernels on a stream count surprises."""
        number = stream.number if stream.capture is None else stream.capture.words[stream]
        return self.words[stream.device] + 4 * number

    def scratch(self, nbytes: int) -> int:
        """Memory that no other kernel writes to."""
        self.scratched += nbytes
        return self.scratch_area + self.scratched - nbytes

    def surprises(self) -> int:
        """Words that were not what was written last, once everything queued is done."""
        count = min(WORDS, self.numbers["stream"] + 1)
        total = 0
        for device, (words, aside) in enumerate(zip(self.words, self.asides, strict=True)):
            seen = (ctypes.c_uint32 * count)()
            with self.context(device):
                sure(cuda.cuMemcpyDtoHAsync, ctypes.addressof(seen), words, ctypes.sizeof(seen), aside)
                sure(cuda.cuStreamSynchronize, aside)
            total += sum(seen)
        return total
