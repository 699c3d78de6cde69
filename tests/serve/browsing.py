"""A real Chromium, and a real `headrace serve` as a process: for the tests of the page. Every test that ends with an
error in the console, a dialog or a request to elsewhere fails."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: scripts/setup dev")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: scripts/setup dev")
expect = sync_api.expect
expect.set_options(timeout=15_000)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: scripts/browser installs Debian's")
__all__ = ["Served", "cells", "check", "chromium", "expect", "go", "needs_browser", "opening"]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# -- who serves it ---------------------------------------------------------------------------------------


class Served:
    """`headrace serve` as a process, on one port and with one token, however often it starts."""

    def __init__(self, home: Path, token_file: Path | None) -> None:
        self.home, self.token_file = home, token_file
        self.port, self.link, self.process = 0, "", None

    def start(self) -> None:
        command = [sys.executable, "-m", "headrace", "serve", "--home", str(self.home), "--port", str(self.port)]
        if self.token_file is not None:
            command += ["--token-file", str(self.token_file)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"page: (http://127\.0\.0\.1:(\d+)/\S+)", line):
                self.link, self.port = found[1], int(found[2])
                return
        raise AssertionError(f"headrace serve ended with {self.process.wait()} and printed no link")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=20)
            self.process = None

    def url(self, route: str) -> str:
        return f"http://127.0.0.1:{self.port}/#/{route}"


# -- a browser ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opening(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; at the end nothing must have gone wrong in any, but what `but` allows."""
    wrong: list[str] = []
    contexts = []

    def open_(link: str, but: str = r"(?!)", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        origin = re.match(r"http://[^/]+", link)[0]

        def note(what: str) -> None:
            if not re.search(but, what):
                wrong.append(what)

        page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(f"page error: {error}"))
        page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(origin) or note(f"asked {asked.url}"))
        page.on("request", lambda asked: note("the data ran") if "/stolen" in asked.url else None)
        page.goto(link)
        expect(page.locator(".pulse")).to_have_text("live")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


# -- what is on it ------------------------------------------------------------------------------------------


def go(page: Any, route: str) -> None:
    page.evaluate("route => { location.hash = `#/${route}` }", route)
    expect(page.locator("main h1").first).to_be_visible()


def check(page: Any, where: str, *rules: str) -> None:
    """That axe finds no fault; with `rules`, by these alone."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = axe.Axe().run(page, options=options)
    assert found.violations_count == 0, f"{where}:\n{found.generate_report()}"


def cells(page: Any, caption: str) -> list[list[str]]:
    """The texts of a table's rows."""
    table = page.get_by_role("table", name=caption, exact=True)
    expect(table.locator("tbody tr").first).to_be_visible()
    return table.evaluate("table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText))")
