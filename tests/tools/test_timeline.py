"""`xlogmem trace --html`: what a browser draws of a history, and what clicks, keys and the wheel do."""
from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import browser
import pytest
from c_table import ENVIRONMENT
from click.testing import CliRunner
from four_streams import READ, WRITE, FourStreams
from many_events import repeated

from xlogmem import PinnedMemoryResource, host, sim, use
from xlogmem.check.frames import shortened
from xlogmem.commands.cli import main
from xlogmem.observe.history import History, read, record_history, timeline

pytestmark = pytest.mark.simulator
COLOURS = ("#3b6fd4", "#d9822b", "#2f9e6e")             # of the tags with the largest peaks
INJECTED = '</script><img src="x" onerror="document.title = 1">'


def scene(path, rounds=3) -> SimpleNamespace:
    """A block that one stream writes and another reads, one that stays, and a wait that is longer than needed."""
    with record_history(path, stacks="all") as recording:
        x = FourStreams(sim.simulator())
        lines = SimpleNamespace(names=(x.S.id, x.T.id))
        kept = x.runtime.allocate(65536, x.S, tag="kept")
        for _ in range(rounds):
            step = x.runtime.allocate(16384, x.S, tag="step")
            lines.allocated = sys._getframe().f_lineno - 1
            with use(x.S, write=step):
                lines.written = sys._getframe().f_lineno - 1
            with use(x.T, read=step, write=kept):
                lines.read = sys._getframe().f_lineno - 1
            step.free(x.S)
            lines.freed = sys._getframe().f_lineno - 1
        early = x.runtime.allocate(4096, x.S, tag=INJECTED)
        x.use(x.S, (early, WRITE))
        for _ in range(2):                              # what U waits for too, and need not
            x.use(x.S, (kept, READ))
        x.use(x.U, (early, READ))
        early.free(x.S)
        kept.free(x.S)
        x.runtime.reap_pending()
        x.close()
    lines.history = recording.history()
    return lines


@pytest.fixture
def lines(tmp_path):
    return scene(tmp_path / "a.xlog")


@pytest.fixture(scope="module")
def window():
    browser.require()
    with browser.Browser() as opened:
        yield opened


@pytest.fixture
def page(window, lines, tmp_path):
    """The browser with the page of a scene; nothing that it has to report."""
    run = CliRunner().invoke(main, ["trace", str(tmp_path / "a.xlog"), "--html", str(tmp_path / "a.html")])
    assert run.exit_code == 0, run.output
    window.resize(1500, 900)
    window.open(tmp_path / "a.html")
    yield window
    assert window.errors() == []


def numbers(lines, *kinds, stream=None):
    return [number for number, event in enumerate(lines.history)
            if event.kind in kinds and (stream is None or event.stream == stream)]


def magnified(page, event):
    """The place of an event in the lanes, in a picture of the 400 ns around it."""
    x, y = page.run("""
        const [event] = arguments, {drawing, model, events} = timeline, time = events.times[event];
        drawing.show(time - 200, time + 200);
        timeline.draw();
        const lane = model.rows.indexOf(model.lane(events.runtime(event), events.stream(event)));
        return [drawing.x(time), lane * ROW + ROW / 2];""", event)
    page.drawn()
    return x, y


def magnified_block(page, block):
    """The middle of a block's rectangle, whose lifetime is the picture."""
    left, top, wide, tall = page.run("""
        const [block] = arguments, {drawing, model, events} = timeline, begin = events.times[model.begins[block]];
        drawing.show(begin - 100, model.end_of(block) + 100);
        timeline.draw();
        return drawing.place_of(block);""", block)
    page.drawn()
    return left + wide / 2, top + tall / 2


# ---------------------------------------------------------------------------------------------- without a browser
def test_the_page_is_utf_8_whatever_the_locale_is_and_the_file_is_called(lines, tmp_path):
    given = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.xlog")
    os.rename(tmp_path / "a.xlog", given)
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-m", "xlogmem", "trace", given, "--html", "a.html"], cwd=tmp_path, check=True,
                   timeout=100, env=os.environ | ENVIRONMENT | ascii_only)
    page = (tmp_path / "a.html").read_bytes().decode("utf-8")
    assert "µs" in page
    assert "<title>?.xlog</title>" in page


def test_the_page_needs_nothing_else(lines):
    page = timeline.page(lines.history, "A & <b>")
    assert "{{" not in page
    assert "http" not in page
    assert "src=" not in page.replace("\\u003cimg src=", "")
    assert "<title>A &amp; &lt;b></title>" in page
    assert page.count("</script>") == 3                 # those of the page itself
    assert page == timeline.page(lines.history, "A & <b>")


def test_a_million_events_are_a_page_of_few_bytes(lines):
    page = timeline.page(repeated(lines.history, 1_000_000))
    assert len(page) < 64_000_000                       # which the events are


def test_a_page_that_cannot_be_written_is_an_error(lines, tmp_path):
    run = CliRunner().invoke(main, ["trace", str(tmp_path / "a.xlog"), "--html", str(tmp_path / "none/a.html")])
    assert run.exit_code == 1
    assert "No such file" in run.output


# ---------------------------------------------------------------------------------------------- what is drawn
def test_lanes_waits_and_blocks_are_those_of_the_history(page, lines):
    counted = Counter(event.kind for event in lines.history)
    streams = {event.stream for event in lines.history if event.stream is not None}
    model = page.run("""
        const {model, events} = timeline;
        return {streams: model.rows.map((lane) => lane.stream).filter((stream) => stream !== NO_STREAM),
                bars: model.rows.reduce((sum, lane) => sum + lane.bars.length, 0), waits: model.wait_of.size,
                blocks: model.begins.length, peak: model.history_of_bytes.peak, total: model.addresses.total}""")
    launches = {(event.stream, event.position) for event in lines.history if event.kind == "use"}
    assert set(model["streams"]) == streams
    assert model["bars"] == len(launches)
    assert model["waits"] == counted["wait"] + counted["host wait"]
    assert model["blocks"] == counted["allocate"]
    assert model["peak"] == 65536 + 16384
    assert page.text("story").splitlines()[:3] == ["The whole history", "events", str(len(lines.history))]
    first, *_, last = lines.history
    assert page.run("return timeline.events.times[timeline.events.count - 1]") == pytest.approx(
        last.time_ns - first.time_ns, abs=2)


def test_each_access_by_the_host_is_a_bar(window, tmp_path):
    with record_history() as recording:
        x = FourStreams(sim.simulator())
        resource = PinnedMemoryResource()
        a, b = (x.runtime.allocate(512, x.S, tag=tag, resource=resource) for tag in "ab")
        x.use(x.T, (a, WRITE), (b, WRITE))              # neither is fresh any more: no further waits
        for memory in (a, [a, b], b, b):
            with use(host, read=memory):
                pass
        a.free()
        b.free()
        x.close()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    assert window.run("""
        const {model} = timeline;
        const bars = model.rows.find((lane) => lane.stream === NO_STREAM).bars;
        return bars.map((bar) => model.launch(bar).length)""") == [1, 2, 1, 1]
    assert window.errors() == []


def test_a_launch_has_the_colour_of_its_first_block(page, lines):
    for stream, colour in zip(lines.names, (COLOURS[1], COLOURS[1]), strict=True):
        x, y = magnified(page, numbers(lines, "use", stream=stream)[0])
        assert page.colour("lanes", x - 2, y - 3) == colour
        assert page.colour("lanes", x + 150, y - 3) != colour         # after it ended


def test_a_block_is_drawn_where_and_as_long_as_it_lived(page):
    for block, colour in ((0, COLOURS[0]), (1, COLOURS[1]), (4, COLOURS[2])):
        x, y = magnified_block(page, block)
        assert page.colour("memory", x, y) == colour
    free = page.run("return getComputedStyle(document.documentElement).getPropertyValue('--free')")
    page.run("timeline.fit()")
    page.drawn()
    left, top, *_ = page.run("return timeline.drawing.place_of(4)")
    assert page.colour("memory", left - 3, top + 2) == _whole(free)    # before it began


def _whole(colour):
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


def test_the_bytes_rise_and_fall(page):
    heights = page.run("""
        const {model, drawing, events} = timeline, {top, height} = drawing.areas.bytes, found = [];
        const pixels = document.getElementById("memory").getContext("2d");
        for (const block of [1, 4]) {
            const x = Math.round(drawing.x((events.times[model.begins[block]] + model.end_of(block)) / 2));
            let drawn = 0;
            for (let y = 0; y < top + height; ++y) drawn += pixels.getImageData(x, y, 1, 1).data[3] > 100;
            found.push(drawn / height);
        }
        return found""")
    assert heights[0] == pytest.approx(1, abs=.03)
    assert heights[1] == pytest.approx((65536 + 4096) / (65536 + 16384), abs=.03)


def test_a_wait_that_covers_more_than_it_needs_is_red(page, lines):
    late, = page.run("""return [...timeline.model.wait_of.values()].filter((wait) => wait.excess)
                                                                   .map((wait) => wait.event)""")
    x, y = magnified(page, late)
    assert page.colour("lanes", x - 2, y) == "#dc2626"
    page.click("lanes", x, y)
    assert "Longer than needed: the fence covers 2 later launches of stream 1." in page.text("story")
    ordinary = next(wait for wait in numbers(lines, "wait") if wait != late)
    x, y = magnified(page, ordinary)
    assert page.colour("lanes", x - 2, y) == "#414b57"


# ---------------------------------------------------------------------------------------------- what clicks do
def test_a_click_on_a_launch_a_wait_and_a_block(page, lines):
    here = "test_timeline.py"
    x, y = magnified(page, numbers(lines, "use", stream=lines.names[1])[0])
    page.click("lanes", x - 1, y - 3)
    said = page.text("story")
    assert said.startswith(f"A launch on stream {lines.names[1]}")
    assert f"{here}:{lines.read}" in said
    assert "read step (block " in said
    assert "write kept (block " in said

    page.driver.find_elements("css selector", "#story li a")[0].click()
    page.drawn()
    said = page.text("story")
    assert said.startswith(("step (block ", "kept (block "))
    for done, line in (("allocated on", lines.allocated), ("used on", lines.written), ("freed on", lines.freed)):
        assert done in said
        assert f"{here}:{line}" in said or said.startswith("kept")

    wait = next(number for number in numbers(lines, "wait", stream=lines.names[1]))
    page.click("lanes", *magnified(page, wait))
    said = page.text("story")
    assert said.startswith(f"Stream {lines.names[1]} waits for stream {lines.names[0]}")
    assert f"was written there ({shortened(__file__)}:{lines.written})" in said

    page.click("memory", *magnified_block(page, 0))
    assert page.text("story").startswith("kept (block ")
    page.click("axis", 500, 5)
    assert page.text("story").startswith("The whole history")


def test_a_tag_is_a_text(page):
    assert INJECTED in page.text("legend")
    page.click("memory", *magnified_block(page, 4))
    assert page.text("story").startswith(INJECTED)
    assert page.run("return document.images.length") == 0
    assert page.driver.title == "a.xlog"


def test_a_search_fades_everything_else(page, lines):
    search = page.driver.find_element("id", "search")
    search.send_keys("STEP")
    page.drawn()
    assert page.text("found") == "3 blocks"
    x, y = magnified_block(page, 1)
    assert page.colour("memory", x, y) == COLOURS[1]
    x, y = magnified_block(page, 0)
    assert page.colour("memory", x, y) not in COLOURS
    search.send_keys("\n\n")
    page.drawn()
    assert page.text("story").startswith("step (block ")
    second = page.run("return timeline.drawing.chosen")
    search.send_keys("\n")
    page.drawn()
    assert page.run("return timeline.drawing.chosen") > second

    for text, found in (("stream 1", "5 blocks"), (f"block {second}", "1 block"), ("nothing", "0 blocks"), ("", "")):
        page.run("timeline.search(arguments[0])", text)
        page.drawn()
        assert page.text("found") == found
    x, y = magnified_block(page, 0)
    assert page.colour("memory", x, y) == COLOURS[0]


def test_blocks_without_a_tag_are_counted_under_their_lines(window, four, tmp_path):
    x = four()
    with record_history(stacks="alloc") as recording:
        for _ in range(3):
            x.runtime.allocate(4096, x.S).free()
            line = f"{shortened(__file__)}:{sys._getframe().f_lineno - 1}"
        x.runtime.allocate(8192, x.S, tag="tagged").free()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    assert window.text("legend").splitlines() == ["tagged, at most 8.0 KiB", f"{line}, at most 4.0 KiB"]
    window.driver.find_elements("css selector", "#legend button")[1].click()
    window.drawn()
    assert window.text("found") == "3 blocks"
    assert window.errors() == []


def test_wheel_drag_and_keys(page):
    begin, end = page.run("return [timeline.drawing.begin, timeline.drawing.end]")
    fixed = page.run("return timeline.drawing.time(400)")
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    lanes = page.driver.find_element("id", "lanes")
    origin = ScrollOrigin.from_element(lanes, round(400 - lanes.rect["width"] / 2), 0)
    page.point("lanes", 400, 20).scroll_from_origin(origin, 0, -300).perform()
    page.drawn()
    closer, until = page.run("return [timeline.drawing.begin, timeline.drawing.end]")
    assert until - closer < .5 * (end - begin)
    assert page.run("return timeline.drawing.time(400)") == pytest.approx(fixed, rel=.01)

    page.point("lanes", 400, 20).click_and_hold().move_by_offset(100, 0).release().perform()
    page.drawn()
    moved = page.run("return timeline.drawing.begin")
    width = page.run("return timeline.drawing.width")
    assert moved == pytest.approx(closer - 100 * (until - closer) / width, rel=.02, abs=1)
    assert page.text("story").startswith("The whole history")          # a drag is not a click

    page.driver.find_element("tag name", "body").send_keys("0")
    page.drawn()
    assert page.run("return [timeline.drawing.begin, timeline.drawing.end]") == [begin, end]
    page.driver.find_element("tag name", "body").send_keys("+")
    page.drawn()
    assert page.run("return timeline.drawing.end - timeline.drawing.begin") == pytest.approx((end - begin) / 2)


# ---------------------------------------------------------------------------------------------- under the pointer
def pointed_at(page, canvas, x, y):
    """What the page says of a place, without a click."""
    page.point(canvas, x, y).perform()
    page.drawn()
    page.drawn()
    return page.text("hover").splitlines()


def test_what_is_under_the_pointer_is_said(page, lines):
    wrote = numbers(lines, "use", stream=lines.names[1])[0]
    said = pointed_at(page, "lanes", *[place - by for place, by in zip(magnified(page, wrote), (1, 3), strict=True)])
    assert said[0] == f"a launch on stream {lines.names[1]}"
    assert said[1].startswith("at ")
    assert sorted(line.split(" (")[0] for line in said[2:]) == ["read step", "write kept"]

    wait = numbers(lines, "wait", stream=lines.names[1])[0]
    said = pointed_at(page, "lanes", *magnified(page, wait))
    assert said[0] == f"stream {lines.names[1]} waits for stream {lines.names[0]}"
    assert said[2].startswith("step (block ")

    said = pointed_at(page, "memory", *magnified_block(page, 1))
    assert said[0].startswith("step (block ")
    assert said[1].startswith("16.0 KiB at 0x")
    assert said[2].startswith("from ")
    assert said[3].endswith(f"test_timeline.py:{lines.allocated}")
    assert pointed_at(page, "memory", *magnified_block(page, 4))[0].startswith(INJECTED)
    assert page.run("return document.images.length") == 0

    x, _ = magnified_block(page, 1)
    said = pointed_at(page, "memory", x, page.run("return timeline.drawing.areas.bytes.top + 3"))
    assert said[1:] == ["80.0 KiB live", "kept: 64.0 KiB", "step: 16.0 KiB"]
    assert pointed_at(page, "axis", 300, 5) == [page.run("return time_text(timeline.drawing.time(300))")]
    assert pointed_at(page, "lanes", 20, 5) == []       # a name
    assert page.text("story").startswith("The whole history")


def test_bytes_have_a_scale(page):
    assert page.run("return timeline.drawing.ticks") == [32768, 65536]              # of 80 KiB
    found = page.run("""
        return [0, 1, 3, 4, 5, 1000, 5 * 2 ** 30].map((most) => {
            const context = timeline.drawing.memory.getContext("2d");
            timeline.drawing.draw_scale(context, most, 100, 0);
            return timeline.drawing.ticks.length;
        });""")
    assert found == [0, 0, 2, 3, 2, 3, 2]


def test_the_margins_are_no_part_of_the_time(page):
    end = page.run("return time_text(timeline.model.end)")
    assert page.text("range") == end
    page.run("timeline.move(-timeline.model.end)")      # as far as it goes
    page.drawn()
    at_left = page.run("return time_text(Math.min(timeline.drawing.end, timeline.model.end))")
    assert page.text("range") == f"{at_left} of {end}"
    page.driver.find_element("tag name", "body").send_keys("0+")
    page.drawn()
    seen = page.run("return timeline.drawing.end - timeline.drawing.begin")
    assert page.text("range") == f"{page.run('return time_text(arguments[0])', seen)} of {end}"
    assert seen < page.run("return timeline.model.end")


def test_keys_are_listed(page):
    body, keys = (page.driver.find_element(*what) for what in (("tag name", "body"), ("id", "keys")))
    for key, shown in (("?", True), ("?", False), ("?", True), ("\ue00c", False)):
        body.send_keys(key)
        page.drawn()
        assert keys.is_displayed() is shown
    page.driver.find_element("id", "help").click()
    page.drawn()
    assert "Enter: the next one" in page.text("keys")
    page.driver.find_element("id", "help").click()


def test_waits_without_a_time_are_listed_by_what_they_cover_without_need(page):
    assert "How long waits took was not recorded" in page.text("story")
    worst, = page.driver.find_elements("css selector", "ol.waits li")
    assert worst.text.splitlines()[0] == "2 launchesStream 3 waits for stream 1"
    worst.find_element("tag name", "a").click()
    page.drawn()
    assert "Longer than needed: the fence covers 2 later launches of stream 1." in page.text("story")


def test_the_longest_waits_are_listed(window, four, tmp_path):
    x = four()
    with record_history(timing=True) as recording:
        blocks = [x.runtime.allocate(512, x.S) for _ in range(14)]
        for block in blocks:
            x.use(x.S, (block, WRITE))
            x.use(x.T, (block, READ))
        for block in blocks:
            block.free()
        x.runtime.reap_pending()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    took = window.run("""
        const {model, events} = timeline;
        return [...model.wait_of.keys()].filter((event) => events.is(event, "wait") && events.size(event))
            .map((event) => events.size(event) - 1)""")
    assert len(took) >= 14
    lines = window.driver.find_elements("css selector", "ol.waits li time")
    wanted = window.run("return arguments[0].map(time_text)", sorted(took, reverse=True)[:10])
    assert [line.text for line in lines] == wanted
    window.driver.find_elements("css selector", "ol.waits li a")[0].click()
    window.drawn()
    assert f"held up the stream for\n{wanted[0]}" in window.text("story")
    assert window.errors() == []


def test_of_many_waits_the_arrows_of_a_block_are_drawn(window, four, tmp_path):
    x = four()
    with record_history() as recording:
        blocks = [x.runtime.allocate(4096, x.S, tag=f"tag {number}") for number in range(3)]
        for _ in range(30):
            for block in blocks:
                x.use(x.S, (block, WRITE))
                x.use(x.T, (block, READ))
        for block in blocks:
            block.free()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    assert "many waits" in window.text("range")
    assert window.run("return timeline.drawing.arrows") == 0
    said = pointed_at(window, "memory", *magnified_block(window, 1))
    assert said[0].startswith("tag 1 ")
    needed = window.run("""
        const {model, events, drawing} = timeline, [block] = drawing.pointed;
        return [...model.wait_of.values()].filter((wait) => wait.source !== NO_EVENT && wait.needs.some(
            (need) => events.block(need) === block)).length""")
    assert window.run("return timeline.drawing.arrows") == needed >= 30
    pointed_at(window, "axis", 300, 5)
    assert window.run("return timeline.drawing.arrows") == 0
    middle = window.run("return timeline.events.times[Math.floor(timeline.events.count / 2)]")
    window.run("timeline.drawing.show(arguments[0] - 500, arguments[0] + 500), timeline.draw()", middle)
    window.drawn()
    assert "many waits" not in window.text("range")     # and those that are left have their arrows
    assert window.errors() == []


def test_what_was_dropped_is_said(window, tmp_path):
    path = tmp_path / "a.xlog"
    lines = scene(path)
    short = History(lines.history.facts | {"count": len(lines.history) + 41}, lines.history.packed)
    (tmp_path / "a.html").write_text(timeline.page(short))
    window.open(tmp_path / "a.html")
    assert "The 41 oldest events are missing" in window.text("note")
    assert window.run("return timeline.events.number(0)") == 41


def test_a_block_from_before_the_recording_has_a_story_however_long(window, four, tmp_path):
    """More events than a function of JavaScript takes arguments."""
    x = four()
    block = x.runtime.allocate(512, x.S, tag="old")
    with record_history() as recording:
        x.use(x.S, (block, WRITE))
    short = recording.history()
    packed = short.packed * 200_000
    (tmp_path / "a.html").write_text(timeline.page(History(short.facts | {"count": 200_000}, packed)))
    window.open(tmp_path / "a.html")
    window.run("timeline.show(0)")
    window.driver.find_element("css selector", "#story a").click()
    window.drawn()
    assert window.text("story").startswith(f"old (block {block.generation})\nbytes\n512 bytes at")
    assert "and 199700 more" in window.text("story")
    assert window.errors() == []
    block.free()


def test_streams_of_two_runtimes_have_different_names(window, four, tmp_path):
    x, y = four(), four()
    with record_history() as recording:
        for runtime, stream in ((x.runtime, x.S), (y.runtime, y.S)):
            runtime.allocate(512, stream).free()
    assert x.S.id == y.S.id
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    names = window.run("return timeline.model.rows.map((lane) => timeline.model.lane_name(lane))")
    assert names == [f"stream {x.S.id}, runtime {runtime.stream_pool.ordering.number >> 4}"
                     for runtime in (x.runtime, y.runtime)]


def test_the_number_of_a_runtime_is_in_two_places(window, four, tmp_path):
    x = four()
    block = x.runtime.allocate(512, x.S)
    with record_history() as recording:
        x.use(x.S, (block, WRITE))
    block.free()
    history = recording.history()
    packed = bytearray(history.packed)
    packed[17] = packed[17] & 3 | 5 << 2                # whatever was there: a long process has made many runtimes
    later = History(history.facts, bytes(packed))
    (tmp_path / "a.html").write_text(timeline.page(later))
    window.open(tmp_path / "a.html")
    number = window.run("return timeline.events.runtime(0)")
    assert number == next(iter(later)).runtime == (next(iter(history)).runtime & 0xFFFF) + (5 << 16)
    assert window.run("return timeline.events.access(0)") == "write"


def test_adopted_memory_is_apart(window, four, tmp_path):
    """A line over the bytes, which do not have it, with the scale of whichever is more."""
    x = four()
    kept = x.runtime.allocate(4096, x.S, tag="theirs")
    other = four()
    with record_history() as recording:
        own = other.runtime.allocate(1024, other.S, tag="own")
        adopted = other.runtime.adopt(kept.ptr, 4096, other.S, tag="theirs")
        adopted.free()
        own.free()
        other.runtime.allocate(512, other.S).free()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    kept.free()
    peaks = window.run("return [timeline.model.history_of_bytes.peak, timeline.model.adopted_bytes.peak]")
    assert peaks == [1024, 4096]
    assert list(window.run("return [...timeline.model.history_of_bytes.totals]")) == [1024, 0, 512, 0]
    assert list(window.run("return [...timeline.model.adopted_bytes.totals]")) == [4096, 0]
    # In the middle of its life the line is at the top, and the bytes are a quarter as high.
    middle, top, height = window.run("""
        const {drawing, model, events} = timeline;
        const block = [...model.begins].findIndex((event) => events.is(event, "adopt"));
        drawing.show(0, model.end);
        timeline.draw();
        const middle = (events.times[model.begins[block]] + model.end_of(block)) / 2;
        return [drawing.x(middle), drawing.areas.bytes.top, drawing.areas.bytes.height];""")
    window.drawn()
    colours = [window.colour("memory", middle, y) for y in (top + 1, top + height / 2, top + height - height / 8)]
    assert colours[0] == "#8b3fb0"
    assert colours[1] not in (colours[0], colours[2])
    assert colours[2] != colours[0]
    assert window.errors() == []


def test_a_long_tag_is_shortened_and_an_empty_one_is_seen(window, four, tmp_path):
    x = four()
    with record_history() as recording:
        for tag in ("long" * 10_000, ""):
            x.runtime.allocate(512, x.S, tag=tag).free()
    (tmp_path / "a.html").write_text(timeline.page(recording.history()))
    window.open(tmp_path / "a.html")
    assert sorted(window.text("legend").splitlines()) == ['"", at most 512 bytes', f"{'long' * 20}…, at most 512 bytes"]
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")


def test_an_empty_history_is_shown(window, tmp_path):
    with record_history(tmp_path / "a.xlog"):
        pass
    (tmp_path / "a.html").write_text(timeline.page(read(tmp_path / "a.xlog")))
    window.open(tmp_path / "a.html")
    assert window.errors() == []
    assert window.text("story").splitlines()[:3] == ["The whole history", "events", "0"]


def test_a_million_events_in_a_browser(window, lines, tmp_path):
    window.driver.get("about:blank")
    alone = window.page_bytes()
    (tmp_path / "a.html").write_text(timeline.page(repeated(lines.history, 1_000_000)))
    window.open(tmp_path / "a.html")
    assert window.page_bytes() - alone < 200_000_000
    block = window.run("return timeline.events.block(timeline.model.begins[30000])")
    window.run("timeline.choose(arguments[0])", block)
    window.drawn()
    assert f"(block {block})" in window.text("story")
    window.run("timeline.search('step')")
    window.drawn()
    assert int(window.text("found").split()[0].replace(",", "")) > 10_000
    assert window.errors() == []
