"""Steps with graphs: captures by xlogmem or by the driver, in which the steps of `windows` work too, and launches.

A capture has values of its own (`CapturedItem`): its kernels find at each launch what they found when it was captured.
So a launch comes after writes of the values that its graph needs, where the memory has others.
"""
from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from cuda.bindings import driver as cuda
from xlogmem_bench._loops import GraphLaunches

from xlogmem.launch import Graph, capturing
from xlogmem.launch import capture as capture_of_graph
from xlogmem_selftest.registry import step
from xlogmem_selftest.steps.windows import describe, finish_window, keep_owner, record_window
from xlogmem_selftest.world import (
    READ,
    WRITE,
    CapturedItem,
    Claim,
    GraphCapture,
    GraphUse,
    Item,
    NothingToDo,
    ProgramGraph,
    ProgramStream,
    Window,
    World,
    sure,
)

MOST = 6                                    # graphs that are ready
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class OnPurpose(Exception):
    """Ends a capture."""


# ---------------------------------------------------------------------------------------------- captures
@step
def begin_graph(world: World, rng: Random) -> None:
    """By xlogmem, or by the driver: then xlogmem knows what is named of the work there."""
    if world.depth or len(world.captures) > 1 or len(world.graphs) >= MOST:
        raise NothingToDo
    stream = enter_new_member(world, rng)
    capture = GraphCapture(stream, rng.random() < .3, world.next_number("graph"))
    capture.end = partial(end, world)
    runtime = world.runtime_of(stream)
    begun = False
    try:
        add_member(world, capture, stream)
        if capture.is_foreign:
            with world.context(stream.device):
                sure(cuda.cuStreamBeginCapture, stream.handle, RELAXED)
            named = name_some(world, rng, capture)
            world.say(f"begin a capture on {stream}; {capture} = capturing({stream}, {named})")
            capture.manager = capturing(world.argument(stream, rng), **named, runtime=runtime)
        else:
            world.say(f"{capture} = capture({stream})")
            capture.manager = capture_of_graph(world.argument(stream, rng), runtime=runtime)
        with world.no_refusal_in(capture):
            capture.graph = capture.manager.__enter__()
        begun = True
    finally:
        if not begun:
            abandon_capture(world, capture)
    capture.members.append(stream)


def name_some(world: World, rng: Random, capture: GraphCapture) -> dict[str, list[Any]]:
    """What the other library's work touches.  Items of the program, with their access."""
    named: dict[str, list[Any]] = {READ: [], WRITE: []}
    if not world.protect:
        return named
    with world.lock:
        choice = [item for item in world.items if not item.held and item.device == capture.first.device]
        for item in rng.sample(choice, min(len(choice), rng.randint(0, 3))):
            inside = world.item_in(capture, item)
            inside.named = rng.choice([READ, WRITE])
            named[inside.named].append(item.id)
    return named


def enter_new_member(world: World, rng: Random, device: int | None = None) -> ProgramStream:
    choice = [stream for stream in world.streams if stream.kind != "legacy" and stream not in world.capturing
              and device in (None, stream.device)]
    return world.enter_stream(rng, choice)


def add_member(world: World, capture: GraphCapture, stream: ProgramStream) -> None:
    """No other step works on the stream from now on, which was entered.  Its kernels in the graph have a word."""
    with world.lock:
        capture.words[stream] = world.next_number("stream")
        stream.capture = capture
        world.capturing.append(stream)
        if capture not in world.captures:
            world.captures.append(capture)


@step
def join_graph(world: World, rng: Random) -> None:
    """Another stream takes part, by `fork` or by an event of the program's."""
    if world.depth or not world.captures:
        raise NothingToDo
    capture = rng.choice(world.captures)
    by = rng.choice([None, None, None, *capture.members])
    stream = enter_new_member(world, rng, capture.first.device)
    argument = world.argument(stream, rng)
    add_member(world, capture, stream)
    joined = False
    try:
        if by is None:
            world.say(f"{capture}.fork({stream})")
            assert capture.graph is not None
            with world.no_refusal_in(capture):
                capture.graph.fork(argument)
        else:
            world.say(f"{stream} waits for an event of {by} in {capture}")
            order(world, by, stream)
            capture.unnamed.add(stream)
        joined = True
    finally:
        if joined:
            with world.lock:
                capture.members.append(stream)
        else:
            capture.failed = True                       # perhaps half of it was done: the capture is given up


def order(world: World, first: ProgramStream, then: ProgramStream) -> None:
    """The program orders a stream after another."""
    with world.context(first.device):
        event = sure(cuda.cuEventCreate, 2)
        sure(cuda.cuEventRecord, event, first.handle)
        sure(cuda.cuStreamWaitEvent, then.handle, event, 0)
        sure(cuda.cuEventDestroy, event)


@step
def hide_in_graph(world: World, rng: Random) -> None:
    """Work in a capture that is not recorded, where the rules allow it, on memory that is named in the capture before,
    or right afterwards."""
    if not world.captures:
        raise NothingToDo
    capture = rng.choice(world.captures)
    with world.lock:
        known = list(capture.items.values())
        known += [CapturedItem(item, world.hiding_place(item)) for item in world.items
                  if item not in capture.items and not capture.is_foreign]
        choice = [(item, stream) for item in known for stream in capture.members
                  if not item.held and not item.gone and item.idle and may_hide(world, capture, item, stream)]
        if not choice:
            raise NothingToDo
        item, stream = rng.choice(choice)
        capture.items.setdefault(item.of, item)
        claim = world.claim_idle(rng, item)
        if claim.access != READ and item.named == READ:
            world.unclaim(claim, launched=False)
            item.held -= 1
            raise NothingToDo
        stream.busy += 1
        if stream is not item.stream and all(export.stream is not stream for export in item.consumers):
            item.quiet = True
        elif item.last_opaque and item.last_opaque[0] is not stream:
            item.last_opaque = None
    try:
        world.say(f"launch on {stream} in {capture}, unrecorded: {describe([claim])}")
        world.launch(rng, stream, [claim])
        with world.lock:
            world.unclaim_idle(claim)
            item.held += 1
        by = rng.choice(capture.members)
        by.busy += 1
        with world.lock:
            reads = world.open_claim(item, by, READ, [])
        world.say(f"with use({by}, {describe([reads])}): pass")
        finish_window(world, record_window(world, rng, by, [reads]), "commit")
    except BaseException:
        capture.failed = True                           # perhaps it is not named
        raise
    finally:
        with world.lock:
            item.held -= 1
            stream.busy -= 1


def may_hide(world: World, capture: GraphCapture, item: CapturedItem, stream: ProgramStream) -> bool:
    if item.last_opaque and item.last_opaque == (stream, stream.registration) and stream.discipline == "opaque":
        return True
    if item.quiet or item.awaits_handback or stream in capture.unnamed:
        return False
    if any(export.stream is stream and export.is_there and export in (*item.of.exports, *item.of.interfaces)
           for export in item.consumers):
        return True
    if item.stream is not stream:
        return False
    if capture.is_foreign:
        return stream is capture.first
    return world.hiding_place(item.of) is stream and (stream.discipline == "opaque" or not item.elsewhere)


@step
def end_graph(world: World, rng: Random) -> None:
    if world.depth or not world.captures:
        raise NothingToDo
    capture = rng.choice(world.captures)
    if rng.random() < .1:
        capture.failed = True
    capture.end(capture)


def end(world: World, capture: GraphCapture) -> None:
    """End a capture: its uses first, and by the driver last, if the driver began it."""
    executable, graph = 0, None
    capture.members.clear()                             # no step works there any more
    try:
        while window := next((window for window in world.windows if window.capture is capture), None):
            world.windows.remove(window)
            try:
                finish_window(world, window, "commit")
            except Exception as error:
                if not world.excuses(error):
                    raise
        for stream in sorted(capture.unnamed, key=lambda stream: stream.number):
            order(world, stream, capture.first)         # of which xlogmem does not know
        world.say(f"the end of {capture}" + (", by an exception" if capture.failed else ""))
        purpose = OnPurpose() if capture.failed else None
        assert capture.manager is not None
        with world.no_refusal_in(capture):
            capture.manager.__exit__(type(purpose) if purpose else None, purpose, None)
        if capture.is_foreign and purpose is None:
            executable = end_by_driver(world, capture)
        graph = None if purpose else capture.graph
    except Exception as error:
        if not world.excuses(error):
            raise
        world.say(f"# refused: {error}")
    finally:
        abandon_capture(world, capture)
    if graph is not None:
        held = graph.reads + graph.writes
        uses = [GraphUse(of, item.needs, item.gives) for of, item in capture.items.items()
                if item.needs or item.gives or item.id in held]
        check_uses(world, capture, graph, uses)
        world.graphs.append(ProgramGraph(capture, graph, executable, uses))


def end_by_driver(world: World, capture: GraphCapture) -> int:
    """The executable graph."""
    with world.context(capture.first.device):
        graph = sure(cuda.cuStreamEndCapture, capture.first.handle)
        executable = int(sure(cuda.cuGraphInstantiate, graph, 0))
        sure(cuda.cuGraphDestroy, graph)
    return executable


def abandon_capture(world: World, capture: GraphCapture) -> None:
    """The streams are as others again, also after a failure."""
    first = capture.first
    with world.context(first.device):
        if int(sure(cuda.cuStreamIsCapturing, first.handle)):
            if capture.graph is not None and not capture.is_foreign and not world.fails:
                world.violation(f"{capture} has ended, and its stream captures")
            status, graph = cuda.cuStreamEndCapture(first.handle)
            if int(status) == 0:
                sure(cuda.cuGraphDestroy, graph)
    with world.lock:
        capture.members.clear()
        world.captures.remove(capture)
        for stream in capture.words:
            stream.capture = None
            stream.busy -= 1
            world.capturing.remove(stream)
    capture.manager = capture.graph = None
    if not world.captures:
        while world.after_captures:
            world.after_captures.pop()()


def check_uses(world: World, capture: GraphCapture, graph: Graph, uses: list[GraphUse]) -> None:
    """The graph has what the program declared, and reads what is only read."""
    if not world.protect:
        return
    reads = {block.generation for block in graph.reads}
    writes = {block.generation for block in graph.writes}
    declared = {use.item.id.generation for use in uses} | {
        of.id.generation for of, item in capture.items.items() if item.named}
    written = {use.item.id.generation for use in uses if use.gives}
    if not written <= writes or not declared <= reads | writes:
        world.violation(f"{capture} reads {reads} and writes {writes}, but {declared} were declared, {written} written")
    if capture.is_foreign or any(stream.discipline == "opaque" for stream in capture.words):
        return
    only_read = {use.item.id.generation for use in uses
                 if not use.gives and not may_be_written(capture, capture.items[use.item])}
    if only_read & writes:
        world.violation(f"{capture} writes {writes}, although {only_read} are only read")


def may_be_written(capture: GraphCapture, item: CapturedItem) -> bool:
    """By work that is not recorded."""
    return (bool(item.consumers) or item.of.quiet
            or any(stream in capture.words for stream in (item.of.home, item.of.stream, *item.homes)))


# ---------------------------------------------------------------------------------------------- launches
@step
def launch_graph(world: World, rng: Random) -> None:
    """On any stream that takes part in no capture.  By the program's own call, or by xlogmem."""
    graph = choose_graph(world, rng)
    stream = world.enter_stream(rng)
    graph.busy = True
    claims: list[Claim] = []
    try:
        if graph.device != stream.device:
            raise NothingToDo
        bring_needs(world, rng, graph)
        claims = claim_launch(world, graph, stream)
        window = launch(world, rng, graph, stream, claims)
    except BaseException as error:
        world.end_claims(stream, claims, launched=False)
        if claims and not isinstance(error, NothingToDo):
            forget_values(world, claims)
        raise
    finally:
        graph.busy = False
    if window.recorder is not None and len(world.windows) < 7 and rng.random() < .3:
        with world.lock:
            world.windows.append(window)
    else:
        finish_window(world, window, "commit")


def choose_graph(world: World, rng: Random) -> ProgramGraph:
    choice = [graph for graph in world.graphs if not graph.busy]
    if not choice:
        raise NothingToDo
    return rng.choice(choice)


def bring_needs(world: World, rng: Random, graph: ProgramGraph) -> None:
    """Write what the graph needs, where it is not."""
    writes: list[tuple[Item, dict[int, int]]] = []
    with world.lock:
        for use in graph.uses:
            item = use.item
            if is_taken(use):
                raise NothingToDo
            missing = {i: value for i, value in use.needs.items() if item.parts[i].value != value}
            if missing:
                if item.gone or item.held or any(item.parts[i].readers for i in missing):
                    raise NothingToDo
                writes.append((item, missing))
        if not writes:
            return
        stream = world.enter_stream(rng)
        claims = [world.open_claim(item, stream, WRITE, list(values), list(values.values()))
                  for item, values in writes]
    window = record_window(world, rng, stream, claims)
    world.say(f"with use({stream}, {describe(claims)}): launch  # what {graph} needs")
    world.launch(rng, stream, claims)
    finish_window(world, window, "commit")


def is_taken(use: GraphUse) -> bool:
    """True if another use forbids the launch."""
    parts = use.item.parts
    return (any(parts[i].writer for i in use.needs)
            or any(parts[i].writer or parts[i].readers for i in use.gives))


def claim_launch(world: World, graph: ProgramGraph, stream: ProgramStream) -> list[Claim]:
    claims = []
    with world.lock:
        if any(is_taken(use) or any(use.item.parts[i].value != value for i, value in use.needs.items())
               for use in graph.uses):
            raise NothingToDo                           # another step came between
        for use in graph.uses:
            item = use.item
            for access, parts in use.accesses():
                if parts or access == READ:             # it is a use in any case
                    claims.append(world.open_claim(item, stream, access, list(parts), list(parts.values())))
                    item.last_opaque = None
    return claims


def launch(world: World, rng: Random, graph: ProgramGraph, stream: ProgramStream, claims: list[Claim]) -> Window:
    executable = graph.executable or (graph.graph.handle if rng.random() < .4 else 0)
    argument = world.argument(stream, rng)
    world.ready_for_work(stream)
    recorder = None
    with world.context(stream.device):
        world.say((f"with {graph}.launching({stream}): " if executable else f"{graph}.launch({stream})  # ")
                  + describe(claims))
        if not executable and rng.random() < .4:
            runtime = world.runtime_of(stream)
            keep_owner(runtime, argument)
            GraphLaunches(runtime, graph.graph, stream.handle).run(1)
        elif not executable:
            graph.graph.launch(argument)
        elif world.protect:
            recorder = graph.graph.launching(argument)
            recorder.preflight()
        if executable:
            sure(cuda.cuGraphLaunch, executable, stream.handle)
    return Window(recorder, stream, claims, "all")


def forget_values(world: World, claims: list[Claim]) -> None:
    """Perhaps the graph was launched, and the failure came later."""
    with world.lock:
        for claim in claims:
            claim.item.quiet = True
            for i in claim.parts if claim.access != READ else ():
                claim.item.parts[i].value = None


# ---------------------------------------------------------------------------------------------- the end of graphs
@step
def close_graph(world: World, rng: Random) -> None:
    graph = take_graph(world, rng)
    world.say(f"{graph}.close()")
    try:
        graph.graph.close()
    finally:
        destroy(graph)


@step
def drop_graph(world: World, rng: Random) -> None:
    graph = take_graph(world, rng)
    world.say(f"del {graph}")
    if rng.random() < .3:
        cycle: list[Any] = [graph.graph]
        cycle.append(cycle)
    del graph.graph
    destroy(graph)


def take_graph(world: World, rng: Random) -> ProgramGraph:
    with world.lock:
        choice = [graph for graph in world.graphs if not graph.busy]
        if not choice:
            raise NothingToDo
        graph = rng.choice(choice)
        world.graphs.remove(graph)
    return graph


def destroy(graph: ProgramGraph) -> None:
    """Destroy what the other library has."""
    if graph.executable:
        sure(cuda.cuGraphExecDestroy, graph.executable)
