"""What the programs do with others: blocks are lent, worked on untold, given back, offered and taken over.

The borrower is the program itself.  It keeps his side of the rules: he works on what he has on the stream that he
named, as long as he has it, and what he finds there has to be complete; that is the library's duty right after an
export, and waited for on the host later.
"""
from __future__ import annotations

from random import Random
from typing import Any

from xlogmem._dtypes import DTYPES
from xlogmem.buffers import Buffer, make_buffer
from xlogmem.devices import DeviceState
from xlogmem.interchange import from_dlpack
from xlogmem.launch import use
from xlogmem.selftest.world import ROOM, Item, Loan, NothingToDo, Place, World

__all__ = ["EXCHANGES"]

WORD = DTYPES["uint32"]


def buffer_of(world: World, item: Item) -> Buffer:
    """A buffer over the whole of a block of the program."""
    if world.state is None:
        world.state = DeviceState(world.runtime)
    assert item.block is not None
    return make_buffer(world.state._standing, world.runtime, 0, item.block, (item.nbytes // 4,), WORD)


def choose(world: World, rng: Random, place: Place) -> Item:
    """A block that nobody uses now, for a use on `place`; nobody else chooses it meanwhile."""
    if not world.protect:
        raise NothingToDo
    with world.lock:
        choice = [item for item in world.items if not item.held and item.idle]
        if not choice:
            raise NothingToDo
        item = rng.choice(choice)
        item.held += 1
        item.uses += 1
        item.last_opaque = None
        item.elsewhere += place is not item.place
    return item


def work(world: World, rng: Random, item: Item, place: Place, what: str) -> None:
    """Untold, on a block that nobody uses."""
    with world.lock:
        claim = world.claim_idle(rng, item)
        item.quiet = True
    try:
        world.say(f"launch on {place} without a word, {what}: {claim.access}={item}{claim.parts}")
        world.launch(rng, place, [claim])
    finally:
        with world.lock:
            world.unclaim_idle(claim)


def lent(world: World, item: Item, loan: Loan) -> None:
    with world.lock:
        if not item.loans:
            world.lent.append(item)                     # it may be freed meanwhile
        item.loans.append(loan)


def export(world: World, rng: Random) -> None:
    """Somebody gets a block by DLPack, and may go to work on his stream at once."""
    with world.on(rng) as place:
        item = choose(world, rng, place)
        try:
            name: Any = {"legacy": 1, "thread": 2}.get(place.kind, place.what)
            versioned = (1, 0) if rng.random() < .5 else None
            world.say(f"{item}.__dlpack__(stream={place})")
            item.quiet = True
            capsule = buffer_of(world, item).__dlpack__(stream=name, max_version=versioned)
            loan = Loan(capsule, place, place.registration, place.kind != "raw")
            del capsule
            lent(world, item, loan)
            if loan.kept and rng.random() < .5:
                work(world, rng, item, place, "right after the export")
        finally:
            with world.lock:
                item.held -= 1


def export_unordered(world: World, rng: Random) -> None:
    """-1: the consumer has taken care of the order, and says nothing of what he does."""
    if world.depth or world.capturing:
        raise NothingToDo
    with world.on(rng) as place:
        item = choose(world, rng, place)
        try:
            world.say(f"synchronize; {item}.__dlpack__(stream=-1); launch on {place}; synchronize")
            world.synchronize()
            item.quiet = True
            capsule = buffer_of(world, item).__dlpack__(stream=-1)
            loan = Loan(capsule, place, place.registration, False)
            del capsule
            lent(world, item, loan)
            work(world, rng, item, place, "ordered by hand")
            world.synchronize()
        finally:
            with world.lock:
                item.held -= 1


def borrow(world: World, rng: Random) -> None:
    """Who was lent a block works on it, also when its owner has freed it; who read its interface, until then."""
    if world.depth or world.capturing:
        raise NothingToDo
    with world.lock:
        told = [(item, loan) for item in world.lent for loan in item.loans]
        told += [(item, loan) for item in world.items for loan in item.offers]
        choice = [(item, loan) for item, loan in told if not item.held and item.idle
                  and loan.kept and loan.registration == loan.place.registration and not loan.place.gone
                  and world.usable(loan.place)]
        if not choice:
            raise NothingToDo
        item, loan = rng.choice(choice)
        loan.place.busy += 1
        item.held += 1
        item.last_opaque = None
    try:
        world.say("synchronize")
        world.synchronize()
        work(world, rng, item, loan.place, "on what was lent")
        if loan.capsule is not None and rng.random() < .5:
            hand_in(world, item, loan)
    finally:
        with world.lock:
            item.held -= 1
            loan.place.busy -= 1


def give_back(world: World, rng: Random) -> None:
    with world.lock:
        choice = [(item, loan) for item in world.lent if not item.held for loan in item.loans]
        if not choice:
            raise NothingToDo
        item, loan = rng.choice(choice)
        item.held += 1
    try:
        hand_in(world, item, loan)
    finally:
        with world.lock:
            item.held -= 1


def hand_in(world: World, item: Item, loan: Loan) -> None:
    """The deleter of a capsule that nobody took."""
    world.say(f"the deleter of {item}, lent on {loan.place}")
    with world.lock:
        item.loans.remove(loan)
        if not item.loans:
            world.lent.remove(item)
    loan.capsule = None


def offer(world: World, rng: Random) -> None:
    """Somebody reads the interface, and goes to work on the stream that it names."""
    with world.on(rng) as anywhere:
        item = choose(world, rng, anywhere)
        try:
            world.say(f"{item}.__cuda_array_interface__")
            item.quiet = True
            with world.lock:                            # who is unregistered meanwhile is not whom it names
                before = {place: place.registration for place in (*world.places, world.default)}
            handle = buffer_of(world, item).__cuda_array_interface__["stream"]
            with world.lock:
                named = [place for place, registration in before.items() if registration == place.registration
                         and place.handle in (handle, handle - 1 if handle == 1 else handle) and world.usable(place)]
                if not named:
                    return
                place = named[0]
                place.busy += 1
                item.offers.append(Loan(None, place, place.registration, True))
            try:
                work(world, rng, item, place, "where the interface says")
            finally:
                world.leave_place(place)
        finally:
            with world.lock:
                item.held -= 1


def take(world: World, rng: Random) -> None:
    """A buffer of another runtime is taken over by DLPack, and given back once it is let go here."""
    if world.neighbour is None or world.depth or len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    if not world.protect:
        raise NothingToDo
    if world.state is None:
        world.state = DeviceState(world.runtime)
    lender = world.lending_place()
    world.end_captures()
    with world.lock:
        if world.neighbour_state is None:
            world.neighbour_state = DeviceState(world.neighbour)
    theirs = world.neighbour_state.empty(256, "uint32", lender.keep)
    with use(lender.keep, write=theirs):
        block = theirs.access()
        assert block is not None
        world.kernels.fill(lender.handle, block.ptr, 7, 256)
    with world.on(rng) as place:
        world.say(f"from_dlpack(a buffer of another runtime, stream={place})")
        ours = from_dlpack(theirs, stream=world.name(place, rng), state=world.state).access()
        assert ours is not None
        item = world.add_item(ours, None, 7)
        world.say(f"{item} is that buffer  # {item.ptr:#x}")


EXCHANGES = {function.__name__: function
             for function in (export, export_unordered, borrow, give_back, offer, take)}
