"""The timeline's page in a browser: pictures of it, and what a million events cost there.

    python benchmarks/timeline.py demo FOLDER           # demo-without.png and demo-with.png, of four rounds
    python benchmarks/timeline.py record FILE PROGRAM [ARGUMENT...]
    python benchmarks/timeline.py picture FILE OUT      # of a history that was recorded elsewhere
    python benchmarks/timeline.py million [--json FILE]

All but `record` needs Debian's packages chromium and chromium-driver, and Selenium.  Memory is that of the process that
shows the page, less that of an empty page; the highest is while it is being unpacked.
"""
from __future__ import annotations

import json
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from xlogmem.commands.start import start_driver
from xlogmem.observe.history import read, record_history, timeline

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from browser import Browser

EVENTS, DRAWS = 1_000_000, 20


@click.group()
def main() -> None:
    """Pictures of the timeline, and what it costs."""


@contextmanager
def shown(history: Path, size: tuple[int, int] = (1500, 900)) -> Iterator[Browser]:
    """A browser with the page of a history."""
    page = history.with_suffix(".html")
    page.write_text(timeline.page(read(history), history.stem))
    with Browser() as browser:
        browser.resize(*size)
        browser.open(page)
        yield browser


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def demo(folder: Path) -> None:
    """The runs of `xlogmem demo` as pictures."""
    start_driver()
    from xlogmem.commands.pipeline import Demo

    folder.mkdir(parents=True, exist_ok=True)
    pipeline = Demo(rounds=4)
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("without", "with"):
            history = Path(scratch) / f"xlogmem demo, {name} use.xlog"
            with record_history(history, stacks="all"):
                pipeline.run(protected=name == "with")
            with shown(history, (1200, 560)) as browser:
                browser.run("const {drawing, model} = timeline;"
                            "const ends = [...model.begins.keys()].slice(1).map((begin) => model.end_of(begin));"
                            "drawing.show(-5000, Math.max(...ends) + 20000); timeline.draw();")
                browser.picture(folder / f"demo-{name}.png")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("history", type=click.Path(path_type=Path))
@click.argument("program", type=click.Path(exists=True))
@click.argument("arguments", nargs=-1)
def record(history: Path, program: str, arguments: tuple[str, ...]) -> None:
    """The history of a Python program, with all stacks."""
    sys.argv[:] = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))       # as Python itself would
    with record_history(history, stacks="all"):
        runpy.run_path(program, run_name="__main__")


@main.command()
@click.argument("history", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--part", type=(float, float), help="Milliseconds to be shown, from and to.")
@click.option("--story", help="The tag of a block whose story is shown.")
def picture(history: Path, out: Path, part: tuple[float, float] | None, story: str | None) -> None:
    """A picture of a history."""
    with shown(history) as browser:
        if part:
            browser.run("timeline.drawing.show(arguments[0] * 1e6, arguments[1] * 1e6); timeline.draw()", *part)
        if story:
            browser.run("timeline.search(arguments[0]); timeline.next_found(); timeline.search('')", story)
        browser.picture(out)


@main.command()
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures to a file.")
def million(file: Path | None) -> None:
    """A million events: the demo's, again and again."""
    start_driver()
    from many_events import repeated

    from xlogmem.commands.pipeline import Demo

    pipeline = Demo(rounds=100)
    with record_history(stacks="all") as recording:
        pipeline.run(protected=True)
    history = repeated(recording.history(), EVENTS)
    began = time.perf_counter()
    text = timeline.page(history)
    figures = {"events": len(history), "history_mb": len(history.packed) / 1e6, "page_mb": len(text) / 1e6,
               "written_s": time.perf_counter() - began}
    with tempfile.TemporaryDirectory() as scratch, Browser() as browser:
        page = Path(scratch) / "million.html"
        page.write_text(text)
        browser.driver.get("about:blank")
        alone = browser.page_bytes()
        began = time.perf_counter()
        browser.open(page)
        figures["first_picture_s"] = time.perf_counter() - began
        figures["memory_at_first_mb"] = (browser.page_bytes(collected=False) - alone) / 1e6
        figures["memory_mb"] = (browser.page_bytes() - alone) / 1e6
        for name, script in (("draw_ms", "timeline.drawing.draw()"), ("search_ms", "timeline.search('following')"),
                             ("story_ms", "timeline.choose(timeline.events.block(timeline.model.begins[30000]))")):
            figures[name] = statistics.median(browser.run(
                f"const began = performance.now(); {script}; return performance.now() - began") for _ in range(DRAWS))
    for name, value in figures.items():
        click.echo(f"{name:20} {value:,.2f}" if isinstance(value, float) else f"{name:20} {value:,}")
    if file:
        file.write_text(json.dumps({name: round(value, 2) for name, value in figures.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
