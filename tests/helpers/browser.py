"""Debian's Chromium without a screen, and what a test of the timeline does with it."""
from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

REQUIRED = bool(os.environ.get("XLOGMEM_REQUIRE_BROWSER"))
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1", "--window-size=1500,900")


def require() -> None:
    """Skip the test where a page cannot be looked at; with XLOGMEM_REQUIRE_BROWSER=1 that is a failure."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if importlib.util.find_spec("selenium") is None:
        lacking.append("Selenium")
    if lacking and REQUIRED:
        pytest.fail(f"needs a browser, and XLOGMEM_REQUIRE_BROWSER is set: {', '.join(lacking)}", pytrace=False)
    if lacking:
        pytest.skip(f"needs a browser: {', '.join(lacking)}")


class Browser:
    """One window.  As a context manager it is closed at the end."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for option in QUIET:
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, page: Path) -> None:
        """Show a timeline, until its first picture."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver.get(page.resolve().as_uri())
        WebDriverWait(self.driver, 60, .05).until(lambda _: self.run("return window.timeline?.drawn > 0"))

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script's `return`."""
        return self.driver.execute_script(script, *arguments)

    def drawn(self) -> None:
        """Until what was done to the page is in the picture."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")

    def text(self, name: str) -> str:
        """What an element says."""
        return self.driver.find_element("id", name).text

    def colour(self, canvas: str, x: float, y: float) -> str:
        """Of a pixel, as #rrggbb."""
        red, green, blue = self.run(
            "return [...document.getElementById(arguments[0]).getContext('2d')"
            ".getImageData(arguments[1], arguments[2], 1, 1).data].slice(0, 3)", canvas, round(x), round(y))
        return f"#{red:02x}{green:02x}{blue:02x}"

    def point(self, canvas: str, x: float, y: float) -> Any:
        """Actions that begin with the pointer at a place of a canvas."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.driver.find_element("id", canvas)
        return ActionChains(self.driver).move_to_element_with_offset(
            element, round(x - element.rect["width"] / 2), round(y - element.rect["height"] / 2))

    def click(self, canvas: str, x: float, y: float) -> None:
        self.point(canvas, x, y).click().perform()
        self.drawn()

    def resize(self, width: int, height: int) -> None:
        self.driver.set_window_size(width, height)
        self.drawn()

    def picture(self, path: Path) -> None:
        """A screenshot, as PNG."""
        self.drawn()
        self.driver.save_screenshot(str(path))

    def errors(self) -> list[str]:
        """Errors that the page has written to the console."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def page_bytes(self, collected: bool = True) -> int:
        """Memory of the process that shows the page, after garbage has been `collected`."""
        if collected:
            self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        renderers = [pid for pid in _descendants(self.driver.service.process.pid)
                     if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        pages = max(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in renderers)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self.driver.quit()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    return children + [lower for child in children for lower in _descendants(child)]
