"""What Perfetto's trace processor reads of `xlogmem trace --perfetto`."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from four_streams import READ, WRITE, FourStreams
from perfetto_ui import Perfetto

import xlogmem
from xlogmem import sim
from xlogmem.observe.history import perfetto, record_history

pytestmark = pytest.mark.simulator
LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@pytest.fixture(scope="module")
def processor() -> Iterator[Perfetto]:
    with Perfetto() as opened:
        yield opened


@pytest.fixture
def recorded() -> SimpleNamespace:
    """Streams that wait for each other, windows that overlap, adopted memory, a block that stays."""
    x = FourStreams(sim.simulator())
    other = xlogmem.DeviceRuntime()
    with record_history(stacks="alloc") as recording:
        kept = x.runtime.allocate(4096, x.S, tag="kept")
        adopted = other.adopt(kept.ptr, 4096, other.acquire_stream(), tag="theirs")
        for _ in range(3):
            step = x.runtime.allocate(512, x.S, tag="step")
            x.use(x.S, (step, WRITE))
            x.use(x.T, (step, READ), (kept, WRITE))
            step.free()
        held = x.runtime.allocate(1024, x.T, tag="held")
        first, second = (xlogmem.LaunchRecorder(x.S).read(block) for block in (kept, held))
        first.preflight()
        second.preflight()
        held.free()
        first.commit()
        second.commit()
        adopted.free()
    events = list(recording.events())
    names = SimpleNamespace(S=x.S.id, T=x.T.id)
    kept.free()
    x.close()
    return SimpleNamespace(events=events, trace=perfetto.trace(events), names=names)


def written(recorded: SimpleNamespace) -> bytes:
    return json.dumps(recorded.trace).encode()


def nothing_is_lost(processor, recorded):
    assert processor.query(LOST) == []
    kinds = Counter(event.kind for event in recorded.events)
    phases = Counter(entry["ph"] for entry in recorded.trace["traceEvents"])
    (slices,), = processor.query("select count() from slice s join thread_track t on s.track_id = t.id")
    assert slices == phases["X"] + phases["i"]
    assert processor.query("select count() from flow") == [[phases["s"]]]
    assert phases["s"] > 3
    assert processor.query("select count() from slice where name like 'wait for%'") == [
        [kinds["wait"] + kinds["host wait"]]]


def streams_are_threads_and_windows_that_overlap_have_their_own(processor, recorded):
    S, T = recorded.names.S, recorded.names.T
    uses = processor.query("select thread.name, s.name from slice s join thread_track t on s.track_id = t.id "
                           "join thread using (utid) where s.name not like 'wait%' and s.dur > 0 order by s.id")
    assert Counter(map(tuple, uses)) == {(f"stream {S}", "step"): 3, (f"stream {T}", "step, kept"): 3,
                                         (f"stream {S}", "kept"): 1, (f"stream {S} (2)", "held"): 1}


def arrows_go_from_what_is_waited_for_to_the_wait(processor, recorded):
    arrows = processor.query("select o.name, i.name, o.ts <= i.ts from flow join slice o on slice_out = o.id "
                             "join slice i on slice_in = i.id")
    assert {later for *_, later in arrows} == {1}
    assert {("step", f"wait for stream {recorded.names.S}"), ("step, kept", f"wait for stream {recorded.names.T}")} <= {
        (source, wait) for source, wait, _ in arrows}
    reasons = processor.query("select display_value from args join slice s using (arg_set_id) "
                              "where args.flat_key = 'args.because' and s.name like 'wait for%'")
    assert any("was written on stream" in reason for reason, in reasons)


def counters_end_with_what_is_live_and_adopted_memory_is_apart(processor, recorded):
    counters = processor.query("select t.name, c.value from counter c join counter_track t on c.track_id = t.id "
                               "order by c.ts, c.id")
    last = {name.removesuffix(" bytes"): value for name, value in counters}
    peaks = {name: max(value for other, value in counters if other.removesuffix(" bytes") == name) for name in last}
    assert last == {"bytes: kept": 4096, "bytes: step": 0, "bytes: held": 0, "adopted: theirs": 0}
    assert peaks == {"bytes: kept": 4096, "bytes: step": 512, "bytes: held": 1024, "adopted: theirs": 4096}


def lives_of_blocks_are_as_long_as_they_were(processor, recorded):
    lives = processor.query("select name, dur from slice where category = 'block' order by ts")
    began = {event.generation: event for event in recorded.events if event.kind in ("allocate", "adopt")}
    ended = {event.generation: event.time_ns for event in recorded.events if event.kind in ("free", "release")}
    last = max(event.time_ns for event in recorded.events)
    expected = [(event.tag, ended.get(block, last) - event.time_ns) for block, event in began.items()]
    expected = [(name, pytest.approx(length, abs=2)) for name, length in sorted(expected)]
    assert expected == sorted(map(tuple, lives))


def test_each_access_by_the_host_is_a_slice():
    x = FourStreams(sim.simulator())
    resource = xlogmem.PinnedMemoryResource()
    a, b = (x.runtime.allocate(512, x.S, tag=tag, resource=resource) for tag in "ab")
    with record_history() as recording:
        for memory in (a, [a, b], b, b):
            with xlogmem.use(xlogmem.host, read=memory):
                pass
    entries = perfetto.trace(recording.events())["traceEvents"]
    a.free()
    b.free()
    x.close()
    names = [entry["name"] for entry in entries if entry["ph"] == "X"]
    assert [name for name in names if not name.startswith("wait for")] == ["a", "a, b", "b", "b"]


def test_what_perfetto_reads_is_what_was_recorded(processor, recorded):
    """One test, because opening a trace takes seconds."""
    processor.open(written(recorded))
    for check in (nothing_is_lost, streams_are_threads_and_windows_that_overlap_have_their_own,
                  arrows_go_from_what_is_waited_for_to_the_wait,
                  counters_end_with_what_is_live_and_adopted_memory_is_apart, lives_of_blocks_are_as_long_as_they_were):
        check(processor, recorded)


# The twins: what is wrong is seen.
def test_slices_that_overlap_are_missed(processor, recorded):
    longest = max((entry for entry in recorded.trace["traceEvents"] if entry["ph"] == "X"),
                  key=lambda entry: entry["dur"])
    recorded.trace["traceEvents"].append(longest | {"ts": longest["ts"] + longest["dur"] / 2})
    processor.open(written(recorded))
    assert processor.query(LOST) != []


def test_an_arrow_of_no_slice_is_missed(processor, recorded):
    entries = recorded.trace["traceEvents"]
    next(entry for entry in entries if entry["ph"] == "s")["ts"] = 0
    processor.open(written(recorded))
    assert processor.query("select count() from flow") != [[Counter(entry["ph"] for entry in entries)["s"]]]
