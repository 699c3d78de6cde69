"""The page, of patterns and stored queries: what keys wait for, matches on a timeline, queries and hits. Data stays
text."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.browsing import Served, cells, check, expect, go, needs_browser
from tests.serve.matched import NASTY, make_alerts, make_frauds

ROUTES = {  # and what is there when all has come
    "views/frauds": ".timeline .session",
    "flows/frauds": "section[aria-label='What keys wait for'] tbody tr",
    "tables/alerts": "section[aria-label='Stored queries'] tbody tr",
    "topics/alerts": "section[aria-label='Stored queries'] tbody tr",
    "topics/hits": ".hits mark",
    "views/found": ".hits mark",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home: Path = tmp_path_factory.mktemp("patterns") / "home"
    make_frauds(home)
    make_alerts(home)
    served = Served(home, None)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def page(opened: Callable[..., Any], server: Served) -> Any:
    return opened(server.link)


@needs_browser
def test_what_keys_wait_for(page: Any) -> None:
    go(page, "views/frauds")
    waits = "What keys of frauds wait for"
    assert cells(page, waits) == [
        ["0815", "1 Jan 09:23:00", "1 Jan 09:24:00", "2", "small | big", "1 Jan 09:33:00"],
        [NASTY, "1 Jan 09:22:00", "1 Jan 09:22:00", "1", "small | big", "1 Jan 09:32:00"],
    ]
    only = page.get_by_label("only card")
    only.fill("0815")
    only.press("Enter")
    expect(page.get_by_role("table", name=waits).locator("tbody tr")).to_have_count(1)
    only.fill("4711")
    only.press("Enter")
    expect(page.get_by_text("This key waits for nothing")).to_be_visible()
    go(page, "views/nobody")
    expect(page.get_by_text("No key waits")).to_be_visible()
    expect(page.get_by_text("Every event is in a match, or can be in none any more.")).to_be_visible()


@needs_browser
def test_matches_on_the_timeline(page: Any) -> None:
    go(page, "views/frauds")
    bars = page.locator(".timeline .session")
    expect(bars).to_have_count(2)
    said = bars.evaluate_all("all => all.map(bar => bar.title)")
    assert [re.sub(" 2026", "", each) for each in said] == [
        "4711\n1 Jan 09:00–09:03\npayments 3, note 4711",  # noqa: RUF001
        "4711\n1 Jan 09:20–09:21:30\npayments 2, note 4711\nopen",  # noqa: RUF001
    ]
    widths = bars.evaluate_all("all => all.map(bar => bar.offsetWidth)")
    assert widths[0] > 1.5 * widths[1] > 20  # 180 and 90 seconds
    lines = page.locator(".timeline .sessions").first.bounding_box()
    page.mouse.move(lines["x"] + 2, lines["y"] + 4)
    page.mouse.down()
    page.mouse.move(lines["x"] + lines["width"] * 0.3, lines["y"] + 4, steps=4)
    page.mouse.up()
    expect(bars).to_have_count(1)
    assert "from=2026-01-01T" in page.url
    expect(page.get_by_role("table", name="Rows of frauds").locator("tbody tr")).to_have_count(2)
    page.get_by_role("combobox").select_option("newest")
    expect(bars).to_have_count(2)


@needs_browser
def test_stored_queries_are_found_and_explained(page: Any) -> None:
    for route in "tables/alerts", "topics/alerts":
        go(page, route)
        assert [row[:3] for row in cells(page, "Stored queries of alerts")] == [
            [NASTY, "img src", "0:2"],
            ["boilers", "boiler", "0:3"],
            ["heating", 'title:"heat pump" AND price < 500', "0:0"],
        ]
    page.get_by_label("Find a query").fill("PUMP")
    table = page.get_by_role("table", name="Stored queries of alerts")
    expect(table.locator("tbody tr")).to_have_count(1)
    table.get_by_role("button", name="heating").click()
    facts = page.get_by_role("region", name="How heating is understood")
    expect(facts).to_contain_text('title:"heat pump" AND price < 500.0')
    expect(facts).to_contain_text("of 2 records")
    expect(facts).to_contain_text("1 record")
    page.get_by_label("Find a query").fill("nobody")
    expect(page.get_by_text("No such query")).to_be_visible()


@needs_browser
def test_commands_put_explain_and_remove(page: Any) -> None:
    go(page, "tables/routes")
    page.get_by_role("button", name="urgent").click()
    codes = page.get_by_role("region", name="Put, remove, explain").locator("code")
    expect(codes.first).to_contain_text("urgent 'down OR outage'")
    said = [shlex.split(text) for text in codes.all_inner_texts()]
    for command in said[0], said[2]:
        subprocess.run([sys.executable, "-m", *command], capture_output=True, check=True)
    done = subprocess.run([sys.executable, "-m", *said[3]], capture_output=True, text=True, check=True)
    assert '"version":"0:1"' in done.stdout.replace(" ", "")


@needs_browser
def test_hits_have_their_words_marked(page: Any) -> None:
    for route in "topics/hits", "views/found":
        go(page, route)
        hits = page.get_by_role("region", name="Latest hits").locator("li")
        expect(hits).to_have_count(3 if route == "topics/hits" else 2)
        heating = hits.filter(has_text="for all")
        assert heating.locator("mark").all_text_contents() == ["heat pump"]  # behind a character of two units
        expect(heating).to_contain_text("🔥 A heat pump for all")
        nasty = hits.filter(has_text="Nothing")
        assert nasty.locator("mark").all_text_contents() == ["img", "src"]
        expect(nasty).to_contain_text(NASTY)
        assert page.locator("img, main script, [onerror]").count() == 0


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible_also_on_a_phone(opened: Callable[..., Any], server: Served, scheme: str) -> None:
    page = opened(server.link, color_scheme=scheme, reduced_motion="reduce")
    for route, there in ROUTES.items():
        go(page, route)
        expect(page.locator(there).first).to_be_visible()
        if route == "tables/alerts":
            page.get_by_role("button", name="heating").click()
            expect(page.locator(".facts").first).to_be_visible()
        check(page, f"{route}, {scheme}", *(["color-contrast"] if scheme == "dark" else []))
        assert "__" not in page.locator("main").inner_text(), f"{route} shows a name of headrace's own"
    page.set_viewport_size({"width": 390, "height": 844})
    for route, there in ROUTES.items():
        go(page, route)
        expect(page.locator(there).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, route
