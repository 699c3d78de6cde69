# ruff: noqa: RUF001 (the page writes minus signs and dashes as they are)
"""The page in a real Chromium, against a real `headrace serve`: what it shows is what a query says, a correction is
seen as one, a restart is survived, nothing in the data runs, and eyes, keyboards and screen readers can all use it.

No Spark: commits are made by hand (`tests.views.committing`). One browser and one home for all; every test that ends
with an error in the console, a dialog or a request to elsewhere fails."""

import contextlib
import csv
import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.views.contract import FlowSpec, LedgerRow, Result
from tests.serve.beside import make_capture, make_index
from tests.serve.browsing import Served, cells, check, expect, go, needs_browser
from tests.serve.joined import shop
from tests.views.committing import SPEC, VIEW, Committing, partials
from tests.views.test_windows import partials as stretches
from tests.views.test_windows import spec_of, us

PAGE = Path(hr.__file__).parent / "serve" / "page"
NASTY = """<img src=x onerror="fetch('/stolen');alert(1)"><script>alert(2)</script>"""
BEYOND_DOUBLES = 2**53 + 1
MANY = 1_500
ROUTES = {  # and what is there when all has come
    "": ".graph",
    "flows": "tbody tr",
    f"flows/{VIEW}": ".lane, .sentence",
    "topics": "tbody tr",
    "topics/clicks": "tbody tr",
    "views": "tbody tr",
    f"views/{VIEW}": ".chart canvas",
    "views/visits": ".timeline",
    "views/taxed": "tbody tr button",
    "tables": "tbody tr",
    "tables/rates": "tbody tr button",
    "captures": "tbody tr",
    "search": "#words",
    "search/nasty?q=img": ".hits mark",
    "readers": "tbody tr",
    "dead-letters": ".letters",
    "query": "textarea",
}
TRACE = 'Traceback (most recent call last):\n  File "mail.py", line {}\nConnectionRefusedError'


# -- a home, and who serves it ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("page") / "home"
    with hr.open_log(where) as log:
        clicks = log.create_topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
        at = datetime(2026, 1, 1, 9, tzinfo=UTC)
        clicks.append([{"user": f"u{n}", "page": "/", "at": at + timedelta(seconds=n)} for n in range(40)])
        with clicks.group("billing").join() as member:
            list(member.poll(timeout="1 second"))
            member.commit()
        queue = clicks.queue("mailer", max_deliveries=1)
        for number, message in enumerate(queue.receive(3, wait="5 seconds")):
            message.nack(error=NASTY) if number < 2 else message.ack()
        clicks.append({"user": NASTY, "page": NASTY, "at": datetime.now(UTC) + timedelta(days=1)})  # quarantined
        alerts = clicks.queue("alerts", max_deliveries=1)
        for number, message in enumerate(alerts.receive(3, wait="5 seconds")):
            message.nack(error=TRACE.format(number))
        long = "orders_of_all_shops_that_were_taken_over_last_year_or_before" * 2
        orders = log.create_topic(long, "a int", retention="40 days", cleanup="delete")
        orders.append([{"a": number} for number in range(1000)])
        orders.group("accounting").join().close()
        nasty = log.create_topic("nasty", f"who string, big bigint, `{NASTY}` string", key="who")
        nasty.append({"who": NASTY, "big": BEYOND_DOUBLES, NASTY: NASTY})
        people = log.create_topic("people", "_op string, id int, name string, about string", key="id")
        people.append([{"_op": "upsert", "id": id, "name": f"Ann {id}", "about": NASTY} for id in range(60)])
        people.append({"_op": "upsert", "id": 60, "name": "Zoë", "about": "sells heat pumps"})
        make_index(log, where, "people", "name", "about", name="people")
        make_index(log, where, "nasty", "who", NASTY, name="nasty")
        make_capture(log)
    return where


def named(spec: FlowSpec, name: str, **more: Any) -> FlowSpec:
    return dataclasses.replace(spec, name=name, view=dataclasses.replace(spec.view, name=name), **more)


def make_others(home: Path) -> None:
    """Sessions, sliding windows, a flow over a view, and one behind a flow that takes out duplicates."""
    with Committing(home, named(spec_of("session"), "visits", window="session('4 seconds')")) as visits:
        rows = [(start, start + 2, user, "a") for user in ("ann", "bob") for start in (0, 10, 20, 30)]
        visits.commit(partials=stretches("session", [*rows, (100, 101, "cy", "b")]))
        visits.commit(closed_us=us(60), frontier_us=us(60))  # when all but cy's are final
    recent = spec_of("sliding")
    with Committing(home, named(recent, "recent", window="sliding('4 seconds')")) as sliding:
        at = [(number, number, "odd" if number % 2 else "even", "a") for number in range(300)]
        sliding.commit(partials=stretches("sliding", at), closed=0)
    with Committing(home, named(SPEC, "hours", sources=(f"__changes.{VIEW}",))) as hours:
        hours.commit([(0, "/", 5)], closed=60, ledger=[LedgerRow(0, 60_000_000, on_time=1, dropped=4)])
    helper = named(SPEC, "once.dedup", target="__changes.once.dedup", parent="once")
    helper = dataclasses.replace(helper, view=dataclasses.replace(helper.view, public=False))
    with Committing(home, helper), Committing(home, named(SPEC, "once", sources=("__changes.once.dedup",))):
        pass


@pytest.fixture(scope="module")
def flow(home: Path) -> Iterator[Committing]:
    make_others(home)
    with contextlib.closing(shop(home, NASTY)):
        pass
    view = dataclasses.replace(
        SPEC.view, name="nasty", results=(*SPEC.view.results, Result(NASTY, "bigint", ("clicks",)))
    )
    bad = dataclasses.replace(SPEC, name="nasty", app=NASTY, view=view, aggregates={"clicks": NASTY, NASTY: NASTY})
    with Committing(home, bad) as nasty:
        nasty.commit([(0, NASTY, 7)], ledger=[LedgerRow(None, None, on_time=1)])
    with Committing(home, named(SPEC, "many")) as large:
        large.commit([(0, f"/{number}", 7) for number in range(MANY)])
    with Committing(home) as committing:
        committing.commit([(0, "/", 120), (0, "/", 81), (0, "/cart", 33), (1, "/", 5), (1, None, 61)])
        ledger = [LedgerRow(0, 60_000_000, on_time=5)]
        committing.commit([(2, "/", 5)], closed=2, ledger=ledger)
        yield committing


@pytest.fixture(scope="module")
def server(home: Path, flow: Committing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    del flow
    served = Served(home, tmp_path_factory.mktemp("token") / "token")
    served.start()
    yield served
    served.stop()


# -- a browser ---------------------------------------------------------------------------------------------


@pytest.fixture
def page(opened: Callable[..., Any], server: Served) -> Any:
    return opened(server.link)


def watch(page: Any, view: str) -> None:
    """Opens a view; its changes are listened to from here on."""
    with page.expect_response(re.compile(rf"/api/views/{view}/changes")):
        go(page, f"views/{view}")


def row_of(page: Any, text: str) -> Any:
    """The row of a view's table that begins with the text."""
    return page.locator("tbody tr").filter(has_text=re.compile(rf"^{text}"))


# -- what it shows -------------------------------------------------------------------------------------------


@needs_browser
def test_numbers_are_those_of_the_query(
    opened: Callable[..., Any], server: Served, flow: Committing, home: Path
) -> None:
    page = opened(server.link, but="status of 400")
    go(page, f"views/{VIEW}")
    numbers = ["clicks", "ms", "slowest"]
    asked = f"select window_start, page, {', '.join(numbers)}, _status from {VIEW} order by window_start desc"

    def written(number: float) -> str:
        return f"{number:,.2f}".rstrip("0").rstrip(".")

    expected = [
        [
            f"{row['window_start']:%H:%M}",
            row["page"] or "null",
            *(written(row[name]) for name in numbers),
            row["_status"],
        ]
        for row in flow.views.query(asked).to_pylist()
    ]
    shown = [
        [re.search(r"\d\d:\d\d", row[0])[0], *row[1:5], row[5].split()[0]] for row in cells(page, f"Rows of {VIEW}")
    ]
    assert sorted(shown) == sorted(expected) and [row[0] for row in shown] == [row[0] for row in expected]

    go(page, "query")
    page.get_by_label("SQL").fill(f"select page, sum(clicks) as clicks from {VIEW} group by page order by 2 desc, 1")
    page.get_by_role("button", name="Run").click()
    answer = flow.views.query(f"select page, sum(clicks) as clicks from {VIEW} group by page order by 2 desc, 1")
    assert cells(page, "Result of the query") == [[r["page"] or "null", str(r["clicks"])] for r in answer.to_pylist()]
    page.get_by_label("SQL").fill("delete from _flows")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outcome .error")).to_contain_text("only reading")

    go(page, "topics")
    records = {topic.name: topic.describe().records for topic in hr.open_log(home).topics()}
    assert {row[0]: row[3] for row in cells(page, "All topics")} == {
        name: f"{number:,}" for name, number in records.items() if not name.startswith("__")
    }


@needs_browser
def test_a_correction_is_seen_as_one(page: Any, flow: Committing) -> None:
    watch(page, VIEW)
    expect(page.get_by_text("No result was corrected")).to_be_visible()
    (before,) = [row["clicks"] for row in flow.rows() if row["page"] == "/cart"]
    flow.commit([(9, "/new", 5)])  # a window that fills is none
    flow.commit(partials=partials([(0, "/cart", 44)], corrections=1))
    listed = page.locator(".corrections li")
    expect(listed).to_have_count(1)
    expect(listed.locator(".which")).to_have_text(re.compile(r"^1 Jan( 2026)? 09:00 /cart$"))
    expect(listed.locator(".minus")).to_have_text(f"− old clicks {before}")
    expect(listed.locator(".plus")).to_have_text(f"+ new clicks {before + 1}")
    expect(page.locator(".chart")).to_have_attribute("aria-label", re.compile(r"1 correction since"))
    row = row_of(page, r"1 Jan( 2026)? 09:00–09:01/cart\d")
    expect(row).to_contain_text("corrected")
    expect(row.locator("td").nth(1)).to_have_text(str(before + 1))
    expect(page.locator(".changes li").first).to_contain_text("correction")
    assert page.locator(".chart canvas").count() == 1


@needs_browser
def test_a_restart_is_survived(opened: Callable[..., Any], server: Served, flow: Committing) -> None:
    page = opened(server.link, but="ERR_|Failed to load")
    watch(page, VIEW)
    before = cells(page, f"Rows of {VIEW}")
    server.stop()
    expect(page.locator("#notice")).to_contain_text("The server does not answer")
    expect(page.locator("main")).to_have_class("stale")
    assert cells(page, f"Rows of {VIEW}") == before, "what was known stays"
    flow.commit(partials=partials([(0, "/", 44)], corrections=1))
    (now,) = [row["clicks"] for row in flow.rows() if row["page"] == "/" and row["window_start"].minute == 0]
    server.start()
    page.get_by_role("button", name="Try now").click()
    expect(page.locator(".pulse")).to_have_text("live")
    expect(page.locator("main")).not_to_have_class("stale")
    row = row_of(page, r"1 Jan( 2026)? 09:00–09:01/\d")
    expect(row.locator("td").nth(1)).to_have_text(str(now))


@needs_browser
def test_nothing_in_the_data_runs(page: Any, server: Served) -> None:
    for route in [*ROUTES, "topics/nasty", "views/nasty", "flows/nasty", f"topics/{NASTY}", f"{NASTY}/x"]:
        page.goto(server.url(re.sub(r"[^\w/-]", lambda found: f"%{ord(found[0]):02x}", route)))
        expect(page.locator("main h1").first).to_be_visible()
        if route in ("topics/nasty", "views/nasty", "flows/nasty", "dead-letters"):
            expect(page.locator("main").get_by_text(NASTY).locator("visible=true").first).to_be_visible()
    go(page, "tables/countries")
    page.get_by_role("button", name="de", exact=True).click()
    expect(page.locator(".origin").get_by_text(NASTY)).to_be_visible()
    go(page, "query")
    page.get_by_label("SQL").fill("select * from nasty")
    page.get_by_role("button", name="Run").click()
    assert NASTY in cells(page, "Result of the query")[0]
    go(page, "topics/nasty")
    expect(page.get_by_text(str(BEYOND_DOUBLES))).to_be_visible()  # digit for digit
    assert page.locator("img, main script, [onerror]").count() == 0


@needs_browser
def test_much_is_bounded(page: Any) -> None:
    go(page, "views/many")
    expect(page.get_by_text(f"Showing 200 of {MANY:,} rows.")).to_be_visible()
    assert len(cells(page, "Rows of many")) == 200


@needs_browser
def test_dead_letters_are_replayed_and_dropped(opened: Callable[..., Any], server: Served, home: Path) -> None:
    page = opened(server.link, but="status of 400")
    go(page, "dead-letters")
    groups = page.locator(".letters")
    expect(groups).to_have_count(3)
    alerts = groups.filter(has_text="3 letters for clicks")
    expect(alerts.locator(".letter-error").first).to_have_text(re.compile(r"Traceback.*\n  File .*\nConn"))  # as it was
    alerts.get_by_role("button", name="Drop all 3").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop them").click()
    expect(page.locator(".done")).to_have_text("3 letters were dropped.")
    expect(groups).to_have_count(2)

    mail = groups.filter(has_text="2 letters")
    mail.get_by_text("One by one").click()
    expect(mail.locator(".letter")).to_have_count(2)
    mail.locator(".letter").first.get_by_role("button", name="Replay").click()
    expect(page.locator(".done")).to_contain_text("was replayed")
    ahead = groups.filter(has_text="max_ahead")
    ahead.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("alert")).to_contain_text("quarantined again")
    drop = ahead.get_by_role("button", name="Drop")
    drop.click()
    page.keyboard.press("Escape")
    expect(drop).to_be_focused()
    drop.click()
    page.get_by_role("dialog").get_by_role("button", name="Drop it").click()
    expect(groups).to_have_count(1)
    with hr.open_log(home) as log:
        assert [letter.reason for letter in log.dead_letters()] == ["deliveries"]


@needs_browser
def test_letters_that_cannot_be_replayed_are_counted(opened: Callable[..., Any], server: Served, home: Path) -> None:
    with hr.open_log(home) as log:
        far = datetime.now(UTC) + timedelta(days=1)
        log.topic("clicks").append([{"user": "u", "page": "/", "at": far + timedelta(days=n)} for n in range(3)])
    page = opened(server.link, but="status of 400")
    go(page, "dead-letters")
    group = page.locator(".letters").filter(has_text="3 letters")
    group.get_by_role("button", name="Replay all 3").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay them").click()
    expect(group.get_by_role("alert")).to_contain_text("3 letters could not be replayed.")
    with hr.open_log(home) as log:
        for letter in log.dead_letters():
            if letter.reason == "max_ahead":
                letter.drop()


@needs_browser
def test_sessions_and_sliding_windows_are_drawn(page: Any) -> None:
    go(page, "views/visits")
    bars = page.locator(".timeline .session")
    expect(bars).to_have_count(9)
    expect(page.locator(".timeline .session.open")).to_have_count(1)  # cy's
    assert page.locator(".timeline .lane-name").all_inner_texts()[:3] == ["ann", "bob", "cy"]
    expect(bars.first).to_have_attribute("title", re.compile(r"^ann\n1 Jan( 2026)? 00:00–00:00:02\nn 1$"))
    boxes = page.locator(".session-lane").first.locator(".session").evaluate_all("all => all.map(e => e.offsetLeft)")
    assert boxes == sorted(boxes) and boxes[-1] - boxes[0] > 200
    lines = page.locator(".timeline .sessions").first.bounding_box()
    page.mouse.move(lines["x"] + 2, lines["y"] + 4)
    page.mouse.down()
    page.mouse.move(lines["x"] + lines["width"] * 0.16, lines["y"] + 4, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"views/visits\?from=2025-12-31T23%3A59%3A59.*&to=2026-01-01T00%3A00%3A1[56]"))
    expect(bars).to_have_count(4)  # those that start in the first 15 of 101 seconds

    go(page, "views/recent")
    expect(page.locator(".chart canvas")).to_be_visible()
    drawn = """colour => {
        const canvas = document.querySelector(".chart canvas");
        document.body.style.setProperty("color", `var(--${colour})`);
        const wanted = getComputedStyle(document.body).color.match(/\\d+/g).map(Number);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let at = 0; at < data.length; at += 4) if (wanted.every((part, of) => data[at + of] === part)) found += 1;
        return found;
    }"""
    assert page.evaluate(drawn, "series-1") > 60, "a line across the chart"


@needs_browser
def test_axes_have_dates_and_years(page: Any) -> None:
    said = page.evaluate(
        """async () => {
            const { timeTicks, tickLabels } = await import("/page/axis.js");
            const of = (low, high, most) => tickLabels(timeTicks(Date.parse(low), Date.parse(high), most));
            return [
                of("2023-12-31T23:40:00Z", "2024-01-01T00:25:00Z", 5),
                of("2023-12-30T00:00:00Z", "2024-01-02T12:00:00Z", 5),
                of("2023-11-20T00:00:00Z", "2024-03-01T00:00:00Z", 4),
                of("1995-06-01T00:00:00Z", "2024-01-01T00:00:00Z", 4),
                of("0001-01-01T00:00:00Z", "0001-01-01T00:00:02Z", 2),
            ];
        }"""
    )
    assert said == [
        [["23:40", "31 Dec 2023"], ["23:50", ""], ["00:00", "1 Jan 2024"], ["00:10", ""], ["00:20", ""]],
        [["30 Dec", "2023"], ["31 Dec", ""], ["1 Jan", "2024"], ["2 Jan", ""]],
        [["1 Dec", "2023"], ["1 Jan", "2024"], ["1 Feb", ""], ["1 Mar", ""]],
        [["2000", ""], ["2010", ""], ["2020", ""]],
        [["00:00", "1 Jan 1"], ["00:00:01", ""], ["00:00:02", ""]],
    ]
    go(page, f"views/{VIEW}")
    expect(page.locator(".figures").get_by_text("1 Jan 2026")).to_be_visible()  # complete up to
    inked = """() => {
        const canvas = document.querySelector(".chart canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, 16 * devicePixelRatio, canvas.height);
        return data.some((part) => part > 0);
    }"""
    expect(page.locator(".chart canvas")).to_be_visible()
    assert page.evaluate(inked), "the name of what is counted, beside its axis"


@needs_browser
def test_a_range_is_chosen_and_kept_in_the_address(page: Any) -> None:
    go(page, "views/recent")
    expect(page.get_by_text("Showing 200 of 300 rows.")).to_be_visible()
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"views/recent\?from=2026-01-01T00%3A01%3A.*&to=2026-01-01T00%3A03"))
    expect(page.get_by_text("Showing 200 of 300 rows.")).to_have_count(0)  # 152 seconds of 304
    chosen = page.url
    first = cells(page, "Rows of recent")[0]
    canvas = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(canvas["x"] + canvas["width"] / 2, canvas["y"] + 60)
    page.mouse.down()
    page.mouse.move(canvas["x"] + canvas["width"] / 2 + 100, canvas["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).not_to_have_url(chosen)
    page.goto("about:blank")
    page.goto(chosen)  # as who was sent it
    assert cells(page, "Rows of recent")[0] == first
    expect(page.locator(".copyable code").first).to_contain_text("where window_start >= ? and window_start < ?")
    page.get_by_role("button", name="Later").click()
    page.get_by_role("button", name="Later").click()
    page.get_by_role("button", name="Later").click()
    expect(page.get_by_text("No window starts in this range")).to_be_visible()
    page.get_by_label("Range").locator("select").select_option("last 10 minutes")
    expect(page).to_have_url(re.compile(r"views/recent\?last=600$"))
    expect(page.get_by_text("Showing 200 of 300 rows.")).to_be_visible()
    page.get_by_label("only page").fill("odd")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"views/recent\?last=600&only.page=odd$"))
    expect(page.locator("tbody tr")).to_have_count(150)
    assert {row[1] for row in cells(page, "Rows of recent")} == {"odd"}


@needs_browser
def test_names_are_those_that_users_chose(page: Any) -> None:
    for route in ("", "flows", "flows/once", "flows/hours", "views/once", "views/hours", "topics", "topics/clicks"):
        go(page, route)
        expect(page.locator("#foot p")).to_be_visible()
        text = page.locator("main").inner_text()
        assert "__" not in text and ".dedup" not in text, f"{route}: {text}"
    go(page, "flows")
    rows = {row[0]: row[2] for row in cells(page, "All flows")}
    assert (rows["once"], rows["hours"]) == ("clicks", f"view {VIEW}")
    go(page, "flows/once.dedup")
    expect(page.get_by_text("No such flow")).to_be_visible()


@needs_browser
def test_a_loss_is_louder_than_a_correction(page: Any) -> None:
    go(page, "views/hours")
    loud = page.locator(".figures .tone-bad")
    expect(loud).to_have_count(1)
    expect(loud).to_contain_text("Dropped")
    expect(page.locator(".ledger .some-dropped")).to_have_text("dropped: lost4")
    expect(page.get_by_text("Why is this window still open?")).to_have_count(0)  # none is
    go(page, f"views/{VIEW}")
    expect(page.get_by_text("Why is this window still open?")).to_be_visible()
    expect(page.locator(".figures .tone-bad")).to_have_count(0)


@needs_browser
def test_a_joined_row_says_where_it_comes_from(page: Any) -> None:
    go(page, "views/taxed")
    assert cells(page, "Rows of taxed")[0][:5] == ["sales/0/0", "ch", "100", "2026-01-01 12:00:00", "9"]
    expect(row_of(page, "sales/0/0")).to_contain_text("corrected")
    page.get_by_role("button", name="sales/0/0").press("Enter")
    panel = page.get_by_role("region", name="Where it comes from")
    expect(panel.locator(".sentence")).to_have_text("It is made of 2 records. It is final.")
    assert [text.split(" ·")[0] for text in panel.locator(".origin p").all_inner_texts()] == [
        "sales partition 0, offset 0",
        "rates partition 0, offset 1",
    ]
    expect(panel.locator(".origin").nth(1)).to_contain_text("percent\n9", use_inner_text=True)
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_have_count(0)
    go(page, "views/paid")
    row_of(page, "sales/0/0").get_by_text("visa").click()
    waits = "It is open, and waits for both streams to be past 2026-01-01 12:30:10."
    expect(panel.locator(".sentence")).to_contain_text(waits)
    assert [row[:3] + row[4:] for row in cells(page, "What paid keeps")] == [
        ["left", "sales", "2", "payments 0 makes progress: it has none yet"],
        ["right", "payments", "1", "sales 0 moves on: it is at 1 Jan 12:01:00"],
    ]
    go(page, "views/priced")
    assert sorted(row[0] for row in cells(page, "Rows of priced")) == ["ch + 8", "de"]  # which has found no price


@needs_browser
def test_a_table_as_it_was(page: Any) -> None:
    go(page, "tables")
    assert [[row[0], *row[2:6]] for row in cells(page, "All tables")] == [
        ["countries", "code", "latest", "2", "–"],
        ["prices", "sku", "versions", "1", "4"],
        ["rates", "country", "bitemporal", "1", "4"],
    ]
    go(page, "tables/prices")
    assert [row[:2] for row in cells(page, "Rows of prices")] == [["8", "5"]]
    page.get_by_label("valid at (UTC)").fill("2026-02-15T00:00:00")
    expect(page.locator("tbody tr")).to_have_count(2)
    assert page.url.endswith("#/tables/prices?as_of=2026-02-15T00%3A00")
    page.get_by_role("button", name="7", exact=True).click()
    assert [[row[1], row[3][:10], row[4][:10]] for row in cells(page, "Versions of 7")] == [
        ["1", "2026-01-01", "2026-02-01"],
        ["2", "2026-02-01", "2026-03-01"],
        ["3", "2026-03-01", "2026-06-01"],
    ]
    assert page.locator(".versions .lane-name").all_inner_texts()[:3] == ["euros 1", "euros 2", "euros 3"]
    page.get_by_role("button", name="Latest").click()
    expect(page.locator("section[aria-label=Rows] tbody tr")).to_have_count(1)
    go(page, "tables/rates")
    page.get_by_role("button", name="ch").click()
    expect(page.locator(".session.forgotten")).to_have_count(2)
    expect(page.locator(".session:not(.forgotten)")).to_have_count(2)


@needs_browser
def test_a_search_as_it_is_typed(page: Any) -> None:
    """By keyboard alone: '/' to the box, arrows through what is found, and the text is in the address."""
    page.goto(f"{page.url.split('#')[0]}#/search/people")
    expect(page.locator(".outcome")).to_contain_text("Type what to look for")
    page.locator("body").press("/")
    expect(page.locator("#words")).to_be_focused()
    page.keyboard.type("zoe heat")
    expect(page.locator(".hits > li")).to_have_count(1)
    expect(page.locator(".hits mark")).to_have_text(["Zoë", "heat"])  # not only those of what was typed first
    assert "q=zoe+heat" in page.url
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hits > li").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#words")).to_be_focused()
    page.locator("#words").fill("img")
    expect(page.locator(".hits > li")).to_have_count(20)
    expect(page.locator(".outcome")).to_contain_text("60 rows")
    page.get_by_role("button", name="More").click()
    expect(page.locator(".hits > li")).to_have_count(40)
    assert page.locator(".hits img, .hits script").count() == 0
    page.locator("#words").fill("nobody")
    expect(page.locator(".outcome")).to_contain_text("No row has “nobody”.")
    page.locator("#words").fill('"(')
    expect(page.locator(".outcome")).to_contain_text("there is no word in it")
    page.locator("#words").fill("")
    expect(page.locator(".outcome")).to_contain_text("Type what to look for")


@needs_browser
def test_a_capture_says_how_a_stopped_table_goes_on(page: Any) -> None:
    page.goto(f"{page.url.split('#')[0]}#/captures")
    shop = page.locator("section.panel", has_text="postgresql://db/shop")
    expect(shop).to_contain_text("column 'name' is gone")
    expect(shop.locator("code", has_text="headrace capture snapshot shop billing.invoices")).to_be_visible()
    expect(shop.locator(".figures")).to_contain_text("Time to loss")


@needs_browser
def test_the_graph_draws_a_join_with_its_inputs(page: Any) -> None:
    go(page, "")
    names = page.locator(".node").evaluate_all("nodes => nodes.map(node => node.getAttribute('aria-label'))")
    said = {name.split(":")[0]: name.partition(": ")[2] for name in names}
    assert said["flow taxed"].endswith("enrich") and said["flow paid"].endswith("join in an interval")
    assert said["table rates"].endswith("1 row, 4 versions".replace(", 4", " · 4"))
    assert not {"flow rates", "topic rates", "view rates"} & said.keys(), "a table is one"
    assert not [name for name in names if "__" in name]


@needs_browser
def test_the_menu_says_the_addresses(page: Any) -> None:
    parts = page.locator("nav a").evaluate_all("all => all.map(a => [a.firstChild.data, a.getAttribute('href')])")
    assert len(parts) == 10 and parts[0] == ["Overview", "#/"]
    assert [[title, f"#/{title.lower().replace(' ', '-')}"] for title, _ in parts[1:]] == parts[1:]


@needs_browser
def test_tables_fit_a_small_laptop(page: Any) -> None:
    for route in ("topics", "views", "flows", "readers", "topics/clicks"):
        go(page, route)
        expect(page.locator("tbody tr").first).to_be_visible()
        wide = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label'))"
        assert page.locator(".scroll").evaluate_all(wide) == [], route


TYPE_AND_COPY = """(area, text) => {
    area.value = text;
    area.dispatchEvent(new Event("input", { bubbles: true }));
    document.querySelector('[aria-label^="Copy the command"]').click();
}"""


@needs_browser
def test_commands_are_copied_and_run(opened: Callable[..., Any], server: Served, flow: Committing) -> None:
    page = opened(server.link, permissions=["clipboard-read", "clipboard-write"])
    sql = f"select page, 'it''s' as it from {VIEW} where clicks > 1 order by 1"
    go(page, "query")
    page.get_by_label("SQL").evaluate(TYPE_AND_COPY, sql)  # at once, before the page is drawn by itself
    expect(page.locator("[data-said=Copied]")).to_be_visible()
    command = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert command[:3] == ["headrace", "query", sql]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--format", "csv"], capture_output=True, text=True, check=True
    )
    assert [row["it"] for row in csv.DictReader(done.stdout.splitlines())] == ["it's"] * flow.views.query(sql).num_rows


@needs_browser
def test_queries_are_kept_and_given_as_csv(page: Any) -> None:
    go(page, "query")
    tables = page.get_by_role("region", name="Tables")
    expect(tables.locator("summary code")).to_contain_text([VIEW])
    page.get_by_label("SQL").fill("select null as a, '' as b, 'x,\"y\"\n' as c, 1.23456789012 as d, * from ")
    tables.locator("summary").filter(has_text="visits").click()
    tables.get_by_role("button", name="Insert visits").click()
    page.keyboard.type(" order by page desc limit 1")
    with page.expect_download() as made:
        page.get_by_role("button", name="Run").click()
        page.get_by_role("button", name="Download CSV").click()
    with Path(made.value.path()).open(encoding="utf-8", newline="") as found:
        text = found.read()
    assert text.startswith("a,b,c,d,window_start,window_end,page,")
    assert text.splitlines(keepends=True)[1:] == [
        ',"","x,""y""\n',
        '",1.23456789012,2026-01-01T00:01:40Z,2026-01-01T00:01:41Z,cy,1,1,open,0,2026-01-01T00:00:00Z\r\n',
    ]
    page.reload()
    expect(page.locator(".past code")).to_contain_text(["from visits order by page desc"])
    page.get_by_label("SQL").fill("")
    page.locator(".past button").click()
    expect(page.get_by_label("SQL")).to_have_value(re.compile("from visits"))
    page.get_by_role("button", name="Forget them").click()
    expect(page.locator(".past")).to_have_count(0)


@needs_browser
def test_an_empty_home_and_a_link_that_is_over(opened: Callable[..., Any], tmp_path: Path) -> None:
    served = Served(tmp_path / "home", None)
    served.start()
    try:
        page = opened(served.link, but="401|ERR_|Failed to load")
        expect(page.locator(".commands")).to_contain_text("headrace topics create clicks")
        expect(page.locator(".commands")).to_contain_text(f"produce clicks --home {tmp_path / 'home'}")
        check(page, "an empty home")
        with hr.open_log(tmp_path / "home") as log:
            log.create_topic("first", "a int").append({"a": 1})
        expect(page.locator(".graph").get_by_role("link", name="topic first")).to_be_visible()
        go(page, "topics/first")
        stranger = page.context.browser.new_context().new_page()
        stranger.goto(f"http://127.0.0.1:{served.port}/")
        expect(stranger.locator(".banner.bad")).to_contain_text("look for the line")
        served.stop()
        served.start()  # with a token of its own
        expect(page.locator(".banner.bad")).to_contain_text("look for the line")
        check(page, "a link that is over")
        page.get_by_label("Link or token").fill(served.link)
        page.keyboard.press("Enter")
        expect(page.locator(".pulse")).to_have_text("live")
        expect(page.locator("h1")).to_have_text("first")  # where one was
    finally:
        served.stop()


# -- who uses it -----------------------------------------------------------------------------------------------


@needs_browser
def test_by_keyboard(page: Any, flow: Committing) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    page.get_by_role("link", name="Views", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Views")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name=VIEW, exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(VIEW)
    page.go_back()
    expect(page.locator("h1")).to_have_text("Views")
    expect(page).to_have_title("Views · headrace")

    watch(page, VIEW)  # what changes takes neither focus nor selected text away
    summary = page.locator("summary")
    summary.focus()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    flow.commit([(7, "/later", 5)])
    expect(row_of(page, r"1 Jan( 2026)? 09:07–09:08/later")).to_be_visible()
    expect(summary).to_be_focused()
    assert page.evaluate("String(getSelection())") == VIEW


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(opened: Callable[..., Any], server: Served, scheme: str) -> None:
    page = opened(server.link, color_scheme=scheme, reduced_motion="reduce")
    for route, there in ROUTES.items():
        go(page, route)
        expect(page.locator(there).first).to_be_visible()
        check(page, f"{route or 'overview'}, {scheme}", *(["color-contrast"] if scheme == "dark" else []))


@needs_browser
def test_on_a_phone(opened: Callable[..., Any], server: Served) -> None:
    page = opened(server.link, viewport={"width": 390, "height": 844})
    for route in [*ROUTES, "views/nasty", "topics/nasty"]:
        go(page, route)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, route
    go(page, "")
    graph = page.locator(".graph").bounding_box()
    assert graph["x"] >= 0 and graph["x"] + graph["width"] <= 390, "no part of the graph is out of sight"
    expect(page.get_by_role("link", name="Topics", exact=True)).not_to_be_visible()
    page.get_by_role("button", name="Overview").click()
    page.get_by_role("link", name="Topics", exact=True).click()
    expect(page.locator("h1")).to_have_text("Topics")
    expect(page.get_by_role("link", name="Query", exact=True)).not_to_be_visible()  # the menu is closed again


@needs_browser
def test_why_a_window_is_open(page: Any) -> None:
    said = page.evaluate(
        """async () => {
            const { waiting } = await import("/page/progress.js");
            const at = (time) => `2026-01-01T${time}Z`;
            const flow = (places, more) => waiting({
                window: "tumbling('1 minute')", grace_seconds: 10, closes_at: at("09:02:10"), frontier: at("09:01:40"),
                state: "running", places: { clicks: places }, ...more,
            }).sentence;
            return [
                flow({ 0: { progress: at("09:02:30") }, 2: { progress: at("09:01:40") } }),
                flow({ 0: { progress: at("09:01:50") }, 1: { progress: null } }, { grace_seconds: 0 }),
                flow({ 0: { progress: at("09:02:30") } }),
                flow({ 0: { progress: at("09:01:40"), idle: true } }),
                flow({}, { state: "stopped" }),
                flow({ 0: { progress: at("09:02:00") } }, { window: "session('1 minute')" }),
            ];
        }"""
    )
    until = "stays open until every partition has passed 09:02:10"
    assert said == [
        f"Window 09:01–09:02 {until} (its end and 10 s of grace); partition 2 is at 09:01:40.",
        f"Window 09:01:10–09:02:10 {until}; partition 1 has no event with a time yet, and 1 other is not there either.",
        f"Window 09:01–09:02 {until} (its end and 10 s of grace); all have, so it closes with the next commit.",
        f"Window 09:01–09:02 {until} (its end and 10 s of grace); "
        "1 quiet partition moves on with the clock, so it closes in about 30 s.",
        f"Window 09:01–09:02 {until} (its end and 10 s of grace); its app does not run, so nothing moves.",
        f"The session up to 09:01 {until} (1 min without a record and 10 s of grace); partition 0 is at 09:02:00.",
    ]


# -- what it is made of ------------------------------------------------------------------------------------------


def test_no_markup_is_made_of_data() -> None:
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|eval\("
    )
    own = [path for path in PAGE.rglob("*.*") if path.suffix in (".js", ".html") and "vendor" not in path.parts]
    assert len(own) > 10
    assert [f"{path.name}: {found[0]}" for path in own if (found := ways.search(path.read_text("utf-8")))] == []
    text = (PAGE / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*src=)|\sstyle=|\son\w+=|https?://", text) == []


def test_what_it_carries_is_small_and_licensed() -> None:
    carried = {path.name for path in (PAGE / "vendor").iterdir()}
    assert carried == {
        "README.md",
        "LICENSE.uplot",
        "LICENSE.dagre",
        "uplot.iife.min.js",
        "uplot.min.css",
        "dagre.esm.js",
    }
    assert (
        sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < 345_000
    )  # captures and search are pages of their own, patterns and stored queries panels
