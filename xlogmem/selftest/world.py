"""One program's world: a runtime, streams, blocks, and the side of the bargain that the program itself has to keep.

The program promises what any user promises: no launch outside a window, no use after a free, data that two launches
both write is claimed by one of them, unrecorded work only where the rules allow it.  This room keeps that promise (the
*claims*), so that whatever goes wrong is xlogmem's: a race that the simulated driver reports, a word on the GPU that is
not what was written last, a byte, an event or an owner that is left over.  What programs do stands in `steps`.

Nothing here is for users.
"""
from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem import _driver
from xlogmem._kernels import Kernels, check
from xlogmem.blocks import BlockId, DeviceBlock
from xlogmem.devices import DeviceState
from xlogmem.errors import DriverError, OutOfDeviceMemoryError, StreamMisuseError, UseAfterFreeError, XlogmemError
from xlogmem.launch import LaunchRecorder
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource, DirectMemoryResource, PoolMemoryResource
from xlogmem.runtime import DeviceRuntime
from xlogmem.selftest.programs import Kind
from xlogmem.streams import StreamPool

__all__ = ["ForeignStream", "Item", "Loan", "NothingToDo", "Open", "Owner", "Place", "World", "refused", "sure"]

READ, WRITE, READ_WRITE = "read", "write", "read_write"
PARTS = 4                                   # of a block: windows that overlap may write different ones
WORDS = 1 << 14                             # places that a world may have: each counts its surprises in a word
CODES = (999, 2, 500)                       # of injected failures: unknown, out of memory, not found; none is sticky
SCRATCH = 1 << 20                           # bytes that readers in situations copy to, each its own
ROOM = 12                                   # blocks of one thread, before the oldest go


_loaded: list[tuple[Any, Kernels]] = []


def _tools() -> tuple[Any, Kernels]:
    """The primary context and the kernels, once for the process: compiling those takes longer than a program."""
    if not _loaded:
        primary = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
        check(cuda.cuCtxPushCurrent(primary))
        _loaded.append((primary, Kernels()))
        check(cuda.cuCtxPopCurrent())
    return _loaded[0]


class NothingToDo(Exception):
    """The step finds nothing to work on; it does not count."""


class Injected(Exception):
    """What a resource written in Python raises in a program with failures."""


def sure(call: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """A driver call of the program's own: an injected failure is not meant for it, and is used up."""
    for _ in range(20):
        result = call(*arguments)
        if int(result[0]) == 0:
            break
    return check(result)


def refused(world: World, error: type[XlogmemError], call: Callable[[], Any], what: str) -> None:
    """The call must raise this error; a driver that fails meanwhile is the only excuse."""
    try:
        call()
    except error:
        return
    except DriverError:
        if not world.kind.failures:
            raise
        return
    world.violation(f"{what} was not refused")


class Place:
    """A stream as the program knows it.

    `kind` is own (of the runtime's pool), object (somebody's stream object), raw (a bare handle), legacy or thread (the
    default streams).  `busy` counts the program's calls and windows there: it does not close a stream meanwhile.
    """

    def __init__(self, number: int, kind: str, what: Any, handle: int, discipline: str) -> None:
        self.number = number
        self.kind = kind
        self.what = what
        self.handle = handle
        self.discipline = discipline
        self.registration = 0
        self.busy = 0
        self.closing = False
        self.gone = False
        self.keep: Any = None               # the Stream that a registration of a raw handle returned
        self.thread = threading.get_ident() if kind == "thread" else None

    def __repr__(self) -> str:
        return f"S{self.number}"


class Part:
    """A quarter of a block: the value that every word of it has once the work queued so far is done."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.readers = 0
        self.writer = False


class Item:
    """A block as the program knows it."""

    def __init__(self, number: int, block: DeviceBlock, place: Place | None) -> None:
        self.number = number
        self.block: DeviceBlock | None = block
        self.id: BlockId = block.id
        self.ptr = block.ptr
        self.nbytes = block.nbytes
        self.place = self.home = place
        self.registration = place.registration if place else 0
        self.parts = [Part() for _ in range(PARTS)]
        self.open = 0                       # windows of the program
        self.uses = 0                       # begun so far
        self.elsewhere = 0                  # uses on other streams that were begun and not cancelled
        self.gone = False
        self.held = 0                       # steps that need it to stay
        self.adopted = False
        self.lent = False                   # adopted from another runtime: has to be let go on its own stream
        self.unsure = False                 # a failure left open where it will be freed
        self.quiet = False                  # no unrecorded work any more: nobody promised to wait for it
        self.unheard = False                # ... until its home was made to wait for all who used it elsewhere
        self.last_opaque: tuple[Place, int] | None = None   # the newest use was there, and wrote
        self.loans: list[Loan] = []         # who has it
        self.offers: list[Loan] = []        # who read its interface: may work there until it is freed

    @property
    def idle(self) -> bool:
        return not self.open and not any(part.readers or part.writer for part in self.parts)

    def __repr__(self) -> str:
        return f"B{self.number}"


class Loan:
    """Somebody was told of a block, and works on `place`.

    `capsule` is what he has of it, until he gives that back; None, if he read the interface.  `kept`: the library knows
    that his stream lives, which is so while the stream has this registration.
    """

    def __init__(self, capsule: Any, place: Place, registration: int, kept: bool) -> None:
        self.capsule = capsule
        self.place = place
        self.registration = registration
        self.kept = kept


class Claim:
    """What one use may touch of one block, from before its prepare until after its finish."""

    def __init__(self, item: Item, access: str, parts: list[int], values: list[int]) -> None:
        self.item = item
        self.alone = not item.open          # no other window is open on the block
        self.use = item.uses = item.uses + 1
        self.access = access
        self.parts = parts
        self.values = values                # what it will write, for each part


class Open:
    """A window of the program: a launch that is prepared and not filed yet."""

    def __init__(self, recorder: LaunchRecorder | None, place: Place, claims: list[Claim], handback: str) -> None:
        self.recorder = recorder
        self.place = place
        self.claims = claims
        self.handback = handback


class ForeignStream:
    """A stream object of some other library, which destroys its stream with itself."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __del__(self) -> None:
        cuda.cuStreamDestroy(self.handle)


class Owner:
    """Holds memory that the runtime adopted, and gives it back in stream order when it is let go."""

    def __init__(self, world: World, ptr: int) -> None:
        self.world = world
        self.ptr = ptr
        self.item: Item | None = None
        with world.lock:
            world.owners += 1

    def __del__(self) -> None:
        world = self.world
        try:
            with world.context(), world.lock:           # nobody closes the stream meanwhile
                world.owners -= 1
                item = self.item
                home = item.home if item else None
                if item is None or item.unsure or (home is not None and (home.gone or home.closing)):
                    world.synchronize()                 # it is open where the runtime ordered this free
                    home = None
                world.end_captures()
                sure(cuda.cuMemFreeAsync, self.ptr, home.handle if home else world.aside)
            world.in_gap("owner")
        except BaseException as error:
            world.surprise(error)


class Scripted(DeviceMemoryResource):
    """A resource written in Python, which calls back into the program and fails now and then."""

    def __init__(self, world: World, order: str) -> None:
        self.order = order
        super().__init__(0)
        self.upstream = AsyncMemoryResource() if order == "stream" else DirectMemoryResource()
        self.world = weakref.ref(world)

    def _play(self) -> None:
        world = self.world()
        if world is None:
            return
        world.in_gap("resource")
        if world.resource_fails > 0:
            world.resource_fails -= 1
            raise Injected("a resource that fails")

    def allocate(self, nbytes: int, stream: Any) -> int:
        self._play()
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self._play()
        self.upstream.deallocate(ptr, nbytes, stream)


class World:
    """Everything that one program works on.

    Parameters
    ----------
    kind : Kind
        What the program may contain.
    seed : int
        Of the choices made here.
    simulator : xlogmem.sim.Simulator or None
        The simulated driver, if that is what is loaded.
    protect : bool
        Whether launches are recorded; without, the oracle has to find something.
    threads : int
        That will run steps at once.
    policy : str or None
        See `DeviceRuntime`; None chooses one.
    """

    def __init__(self, kind: Kind, seed: int, simulator: Any, *, protect: bool = True, threads: int = 1,
                 policy: str | None = None) -> None:
        rng = Random(f"world {seed}")
        self.kind, self.simulator, self.protect, self.threads = kind, simulator, protect, threads
        self.policy = policy or rng.choice(["adaptive", "lazy", "precise"])
        self.lock = threading.RLock()
        self.primary, self.kernels = _tools()
        self.armed: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self.resource_fails = 0
        self.owners = 0
        self.depth = 0
        self.limited = False                # there may be no memory for what the program wants
        self.over = False                   # the end has begun: nothing runs in gaps any more
        self.violations: list[str] = []
        self.happened: Counter[str] = Counter()
        self.script: list[str] | None = None
        self.values = 0
        self.numbers: Counter[str] = Counter()
        self.places: list[Place] = []
        self.items: list[Item] = []
        self.all_items: weakref.WeakSet[Item] = weakref.WeakSet()
        self.lent: list[Item] = []          # what somebody has, freed or not
        self.windows: list[Open] = []
        self.stale: deque[tuple[BlockId, DeviceBlock]] = deque(maxlen=8)
        self.freed_at: dict[int, int] = {}
        self.to_destroy: list[Place] = []
        self.capturing: list[Place] = []
        self.sizes = (256, 512, 1024, 4096) if simulator else (4096, 16384, 65536, 1 << 18)
        with self.context():
            if simulator:
                simulator.reset(rng.choice(["eager", "min", "max", "seeded"]), seed % 1000)
            self.before = self._alive()
            self.words = int(check(cuda.cuMemAlloc(4 * WORDS)))
            self.scratched = 0
            self.scratch_area = int(check(cuda.cuMemAlloc(SCRATCH))) if kind.situations else 0
            self.aside = int(check(cuda.cuStreamCreate(1)))
            self.kernels.fill(self.aside, self.words, 0, WORDS)
            check(cuda.cuStreamSynchronize(self.aside))
            self.runtime = self._runtime(kind, rng)
            self.neighbour = DeviceRuntime(stream_pool=StreamPool(max_streams=4)) if kind.neighbour else None
            self.lender: Place | None = None            # a stream of the neighbour
            self.state: DeviceState | None = None       # of buffers
            self.neighbour_state: DeviceState | None = None
            default = self.runtime.default_stream
            self.default = Place(0, "own", default, default.handle, "ordinary")
            for _ in range(3 if simulator else 6):
                self.add_own(rng)
            if kind.foreign and rng.random() < .4:
                self._place("legacy", rng.choice([0, 1]), 0, "opaque")
            if kind.foreign and rng.random() < .4 and threads == 1:
                self._place("thread", 2, 2, "opaque")

    def _runtime(self, kind: Kind, rng: Random) -> DeviceRuntime:
        resource = self._resource(rng.choice(kind.resources), rng)
        return DeviceRuntime(policy=self.policy, stream_pool=StreamPool(max_streams=32), resource=resource)

    def _resource(self, name: str, rng: Random) -> DeviceMemoryResource:
        if name == "pool":
            return self._pool(rng)
        if name == "async":
            return AsyncMemoryResource()
        return DirectMemoryResource() if name == "direct" else Scripted(self, name)

    def _pool(self, rng: Random) -> PoolMemoryResource:
        """Over anything; small chunks, so that it splits, joins and grows; some may not have what the program wants."""
        upstream = self._resource(rng.choice(["async", "async", "direct", *self.kind.upstreams]), rng)
        largest = max(self.sizes)
        self.limited = rng.random() < .3
        most = (6 if self.threads == 1 else 24) * largest if self.limited else None
        return PoolMemoryResource(upstream, rng.choice([None, 2 * largest]), most,
                                  chunk_size=rng.choice([largest, 2 * largest, 8 * largest]))

    # ------------------------------------------------------------------------------------------ bookkeeping
    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        sure(cuda.cuCtxPushCurrent, self.primary)
        try:
            yield
        finally:
            sure(cuda.cuCtxPopCurrent)

    def say(self, text: str) -> None:
        """A line of the script."""
        if self.script is not None:
            self.script.append("    " * self.depth + text)

    def violation(self, text: str) -> None:
        self.violations.append(text)
        if not self.over:
            self.say(f"# {text}")

    def surprise(self, error: BaseException) -> None:
        """An error that the program did not ask for."""
        trace, frames = error.__traceback__, []
        while trace is not None:
            frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
            trace = trace.tb_next
        self.violation(f"{type(error).__name__}: {error} ({' > '.join(frames[-6:])})")

    @contextlib.contextmanager
    def surprises_told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.surprise(error)

    def excuses(self, error: BaseException) -> bool:
        """May this error come out of a call of a program that keeps its side?"""
        if isinstance(error, Injected):
            return self.kind.failures
        if isinstance(error, OutOfDeviceMemoryError) and self.limited:
            return True
        if isinstance(error, DriverError):
            return self.kind.failures and error.code in CODES
        crowded = self.threads > 1 or self.kind.gaps
        if isinstance(error, UseAfterFreeError):
            return crowded
        if isinstance(error, StreamMisuseError):
            return (crowded or self.kind.captures or self.kind.foreign or self.kind.failures
                    or "a conflicting use" in str(error))
        return False

    def in_gap(self, where: str) -> None:
        """Run what was armed for this place in somebody else's call."""
        if self.threads == 1 and self.armed[where]:
            self.armed[where].pop()()

    def next_number(self, of: str) -> int:
        with self.lock:
            self.numbers[of] += 1
            return self.numbers[of]

    def next_value(self, item: Item) -> int:
        """A pattern that no other generation of this world has."""
        self.values += 1
        return (item.id.generation * 2654435761 + self.values * 40503) & 0xFFFFFFFF

    # ------------------------------------------------------------------------------------------ streams
    def _place(self, kind: str, what: Any, handle: int, discipline: str, closing: bool = False) -> Place:
        place = Place(self.next_number("place"), kind, what, handle, discipline)
        if place.number >= WORDS:
            raise NothingToDo
        place.closing = closing
        with self.lock:
            self.places.append(place)
        return place

    def add_own(self, rng: Random) -> None:
        discipline = rng.choice(self.kind.disciplines)
        stream = self.runtime.acquire_stream(discipline=discipline, priority=rng.choice([0, 0, -1]))
        place = self._place("own", stream, stream.handle, discipline)
        self.say(f"{place} = runtime.acquire_stream(discipline={discipline!r})")

    def add_foreign(self, rng: Random) -> None:
        """A stream that somebody else made, registered with a discipline or at first sight."""
        self.end_captures()                 # a handle that came back is buried: that synchronizes the context
        handle = int(sure(cuda.cuStreamCreate, 1 if rng.random() < .8 else 0))
        raw = rng.random() < .5
        place = self._place("raw" if raw else "object", handle if raw else ForeignStream(handle), handle, "ordinary",
                            closing=True)
        discipline = rng.choice([None, None, "ordinary", "opaque", "sealed"])
        self.say(f"{place} = {place.kind} stream; runtime.register_stream({place}, discipline={discipline!r})")
        try:
            for attempt in range(5):        # a failure, or the old registration of a handle that came back is busy
                try:
                    stream = self.runtime.register_stream(place.what, discipline=discipline)
                    break
                except XlogmemError as error:
                    if attempt == 4 or not self.excuses(error):
                        raise
            place.discipline = stream.discipline
            if raw:
                place.keep = stream
            if stream.discipline != (discipline or "ordinary"):
                self.violation(f"{place} was registered as {discipline}, and is {stream.discipline}")
            place.closing = False
        finally:
            if place.closing:               # never registered, never used
                self.forget(place)
                self.destroy(place)

    def lending_place(self) -> Place:
        """A stream of the other runtime, which is nobody's to choose here."""
        assert self.neighbour is not None
        with self.lock:
            if self.lender is None:
                stream = self.neighbour.acquire_stream()
                self.lender = Place(self.next_number("place"), "own", stream.handle, stream.handle, "ordinary")
                self.lender.keep = stream
            return self.lender

    def forget(self, place: Place) -> None:
        with self.lock:
            place.closing = True
            if place in self.places:
                self.places.remove(place)

    def destroy(self, place: Place) -> None:
        self.end_capture(place)
        place.gone = True
        if place.kind == "raw":
            sure(cuda.cuStreamDestroy, place.handle)
        place.what = None

    def new_registration(self, place: Place, heir: Place | None) -> None:
        """What the rules say about blocks of a stream that is registered no longer."""
        with self.lock:
            for item in list(self.all_items):
                if item.place is place:
                    item.quiet = True
                if item.last_opaque and item.last_opaque[0] is place:
                    item.last_opaque = None
                if item.home is place and heir is not None:
                    item.home = heir
                    item.unsure |= item.gone            # freed before or after?
            place.registration += 1

    def usable(self, place: Place) -> bool:
        return not place.closing and (place.thread is None or place.thread == threading.get_ident())

    def close_place(self, rng: Random, *kinds: str) -> Place:
        """Choose a stream of others, one of these kinds, that nobody uses now, and keep everybody from it."""
        with self.lock:
            choice = [place for place in self.places
                      if place.kind in kinds and self.usable(place) and not place.busy and place not in self.capturing]
            if not choice:
                raise NothingToDo
            place = rng.choice(choice)
            place.closing = True
        return place

    @contextlib.contextmanager
    def on(self, rng: Random, among: list[Place] | None = None) -> Iterator[Place]:
        """A stream that nobody closes meanwhile."""
        place = self.enter_place(rng, among)
        try:
            yield place
        finally:
            self.leave_place(place)

    def enter_place(self, rng: Random, among: list[Place] | None = None) -> Place:
        with self.lock:
            choice = [place for place in (self.places if among is None else among) if self.usable(place)]
            if not choice:
                raise NothingToDo
            place = rng.choice(choice)
            place.busy += 1
        return place

    def leave_place(self, place: Place) -> None:
        with self.lock:
            place.busy -= 1

    def name(self, place: Place, rng: Random) -> Any:
        """One of the things that the program may call the stream by."""
        return place.keep if place.keep is not None and rng.random() < .3 else place.what

    # ------------------------------------------------------------------------------------------ captures
    def begin_capture(self, place: Place) -> None:
        sure(cuda.cuStreamBeginCapture, place.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        self.capturing.append(place)

    def end_capture(self, place: Place) -> None:
        if place not in self.capturing:
            return
        self.capturing.remove(place)
        result = cuda.cuStreamEndCapture(place.handle)
        if int(result[0]):
            self.violation(f"the capture on {place} was spoiled: {result[0].name}")
        else:
            check(cuda.cuGraphDestroy(result[1]))

    def end_captures(self) -> None:
        for place in list(self.capturing):
            self.end_capture(place)

    def synchronize(self) -> None:
        self.end_captures()
        sure(cuda.cuCtxSynchronize)

    # ------------------------------------------------------------------------------------------ blocks
    def add_item(self, block: DeviceBlock, place: Place | None, value: int | None = None,
                 owner: Owner | None = None) -> Item:
        """A new block; `value` is in every word of an adopted one, `owner` holds it (None: it is another runtime's)."""
        item = Item(self.next_number("item"), block, place)
        if value is not None:
            item.adopted = True
            item.lent = owner is None
            for part in item.parts:
                part.value = value
        if owner is not None:
            owner.item = item
        with self.lock:
            freed_at = self.freed_at.pop(item.ptr, None)
            if freed_at is not None and place is not None and freed_at != place.handle:
                self.happened["cross_stream_reuses"] += 1
            self.items.append(item)
            self.all_items.add(item)
        return item

    def take_item(self, rng: Random) -> Item:
        """Choose a block that is about to be freed: nobody else chooses it any more."""
        with self.lock:
            choice = [item for item in self.items if not item.held]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            self.items.remove(item)
            item.gone = True
        return item

    @contextlib.contextmanager
    def holding(self, rng: Random) -> Iterator[Item]:
        """Choose a block that nobody frees meanwhile."""
        with self.lock:
            choice = [item for item in self.items if not item.held]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            item.held += 1
        try:
            yield item
        finally:
            with self.lock:
                item.held -= 1

    def put_back(self, item: Item) -> None:
        """It could not be freed."""
        with self.lock:
            item.gone = False
            item.quiet = True
            item.unsure = True
            self.items.append(item)

    def freed(self, item: Item) -> None:
        if item.home is not None and not item.adopted:
            with self.lock:
                self.freed_at[item.ptr] = item.home.handle

    # ------------------------------------------------------------------------------------------ claims
    def claim(self, rng: Random, place: Place, how_many: int) -> list[Claim]:
        claims: list[Claim] = []
        with self.lock:
            for _ in range(how_many):
                choice = [item for item in self.items
                          if not item.held and all(claim.item is not item for claim in claims)]
                if not choice:
                    break
                item = rng.choice(choice)
                access = rng.choice([READ, READ, WRITE, READ_WRITE])
                parts = self.free_parts(item, access)
                if parts and rng.random() < .5:
                    parts = rng.sample(parts, rng.randint(1, len(parts)))
                if not parts and access != WRITE:
                    access, parts = WRITE, self.free_parts(item, WRITE)
                if parts:
                    claims.append(self.claim_parts(item, access, parts))
                    item.open += 1
                    item.elsewhere += place is not item.place
            if not claims:
                raise NothingToDo
        return claims

    def free_parts(self, item: Item, access: str) -> list[int]:
        """What nobody's claim forbids; what was never written is not read."""
        return [i for i, part in enumerate(item.parts)
                if not part.writer and (access == READ or not part.readers)
                and (access == WRITE or part.value is not None)]

    def claim_parts(self, item: Item, access: str, parts: list[int]) -> Claim:
        values = []
        for i in parts:
            part = item.parts[i]
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
                    part.value = value

    def claim_idle(self, rng: Random, item: Item) -> Claim:
        """For work without a window, on a block that nobody uses; it stays meanwhile.  Called with the lock."""
        access = rng.choice([READ, WRITE, READ_WRITE])
        parts = self.free_parts(item, access)
        if not parts:
            access, parts = WRITE, self.free_parts(item, WRITE)
        item.held += 1
        return self.claim_parts(item, access, parts)

    def unclaim_idle(self, claim: Claim) -> None:
        """The work was queued.  Called with the lock."""
        self.unclaim(claim, launched=True)
        claim.item.held -= 1

    def release(self, place: Place, claims: list[Claim], launched: bool) -> None:
        with self.lock:
            for claim in claims:
                self.unclaim(claim, launched)
                claim.item.open -= 1
                if not launched:
                    claim.item.elsewhere -= place is not claim.item.place
            place.busy -= 1

    # ------------------------------------------------------------------------------------------ work
    def launch(self, rng: Random, place: Place, claims: list[Claim]) -> None:
        """Queue the kernels of the claims: readers count the words that are not what they have to be."""
        self.end_capture(place)
        if place.kind == "legacy":          # not allowed while a blocking stream captures
            self.end_captures()
        if not self.simulator and rng.random() < .3:
            self.kernels.delay(place.handle, rng.choice([5_000, 20_000, 80_000]))
        for claim in claims:
            size = claim.item.nbytes // PARTS
            for i, value in zip(claim.parts, claim.values, strict=True):
                at, words = claim.item.ptr + i * size, size // 4
                if claim.access == READ:
                    self.kernels.count_unequal(place.handle, self.words + 4 * place.number, at, value, words)
                elif claim.access == WRITE:
                    self.kernels.fill(place.handle, at, value, words)
                else:
                    old = claim.item.parts[i].value or 0
                    self.kernels.count_unequal(place.handle, self.words + 4 * place.number, at, old, words)
                    self.kernels.add(place.handle, at, (value - old) & 0xFFFFFFFF, words)

    def scratch(self, nbytes: int) -> int:
        """Memory that nobody else writes to."""
        self.scratched += nbytes
        return self.scratch_area + self.scratched - nbytes

    def surprises(self) -> int:
        """Words that were not what was written last, once everything queued is done."""
        count = min(WORDS, self.numbers["place"] + 1)
        seen = (ctypes.c_uint32 * count)()
        sure(cuda.cuMemcpyDtoHAsync, ctypes.addressof(seen), self.words, ctypes.sizeof(seen), self.aside)
        sure(cuda.cuStreamSynchronize, self.aside)
        return sum(seen)

    # ------------------------------------------------------------------------------------------ the end
    def _alive(self) -> dict[str, int]:
        gc.collect()
        alive = {"events": _driver.live_events()[0]}
        if self.simulator:
            alive |= {"bytes of device memory": self.simulator.live_bytes(), "streams": self.simulator.live_streams()}
        return alive

    def end(self, leave: Callable[[World, Open, str], None]) -> None:
        """Close and free everything, and look for what is left."""
        with self.context():
            with self.surprises_told():
                self._end(leave)
            with self.surprises_told():
                self._look_for_leaks()

    def _end(self, leave: Callable[[World, Open, str], None]) -> None:
        self.over = True
        self.armed.clear()
        self.resource_fails = 0
        self.depth = 0
        self.end_captures()
        races: list[str] = []
        if self.simulator:
            races = self.simulator.races()
            self.simulator.reset("seeded", 1)           # no failures and no gaps any more
            # Where giving the thread's capture mode back was made to fail.
            check(cuda.cuThreadExchangeStreamCaptureMode(cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        while self.windows:
            leave(self, self.windows.pop(), "commit")
        while self.to_destroy:
            self.destroy(self.to_destroy.pop())
        for item in self.items:
            item.block = None
        for item in self.lent:
            item.loans.clear()
        self.lent.clear()
        self.items.clear()
        self.stale.clear()
        gc.collect()
        self._reap()
        if self.runtime.lost:
            self.violation("the device was given up")
        counters = self.runtime.counters()
        self.happened.update(deferred_frees=counters["deferred_frees"], waits=counters["waits"],
                             elided_waits=counters["known"] + counters["covered"], records=counters["records"])
        if (self.runtime.bytes_outstanding or counters["live_blocks"] or self.owners
                or counters["allocations"] != counters["frees"]):
            self.violation(f"left at the end: {self.runtime.live_bytes} bytes live, {self.runtime.pending_bytes} "
                           f"pending, {counters['live_blocks']} blocks, {self.owners} owners; "
                           f"{counters['allocations']} allocations, {counters['frees']} frees")
        for place in [place for place in self.places if place.kind in ("raw", "object")]:
            self.runtime.register_stream(place.what)    # the program may have unregistered it, and used it no more
            self.runtime.unregister_stream(place.what)
            self.destroy(place)
            place.keep = None
        self.places.clear()
        sure(cuda.cuCtxSynchronize)
        if wrong := self.surprises():
            self.violation(f"{wrong} words were not what was written there last")
        if self.simulator:
            races += self.simulator.races()
            self.simulator.clear_races()
        for race in races[:20]:
            self.violation(race)

    def _reap(self) -> None:
        """Frees that failed are tried again; then nothing may be in the way."""
        for attempt in range(6):
            try:
                self.runtime.reap_pending()
                break
            except (XlogmemError, Injected) as error:
                if attempt == 5 or not self.excuses(error):
                    raise
        self.runtime.reap_pending()

    def _look_for_leaks(self) -> None:
        check(cuda.cuMemFree(self.words))
        if self.scratch_area:
            check(cuda.cuMemFree(self.scratch_area))
        check(cuda.cuStreamDestroy(self.aside))
        for name in ("state", "neighbour_state", "runtime", "neighbour", "lender", "default", "all_items", "armed"):
            delattr(self, name)
        gc.collect()
        check(cuda.cuCtxSynchronize())
        for _ in range(20):                             # threads that just ended let go of their parts late
            after = self._alive()
            if after == self.before:
                break
            time.sleep(.01)
        for name, count in after.items():
            if count != self.before[name]:
                self.violation(f"{count - self.before[name]} {name} leaked")
