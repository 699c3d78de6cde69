"""The shop goes on: more visitors, and the view as it changes, until Ctrl-C. Owns the picture: a table that is drawn
anew on a terminal, a line for each change elsewhere; and the page in a browser. Starts no Spark."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.demo.process import every
from headrace.demo.rows import VIEW, line, recent
from headrace.demo.telling import Teller
from headrace.demo.traffic import Traffic
from headrace.errors import ServeMissing

if TYPE_CHECKING:
    from headrace.log.contract import Topic
    from headrace.views.reading import Views

SPEED = 20
"""The shop's clock runs so many times as fast as ours: a minute closes every three seconds."""
PER_SECOND = 3
STEP_SECONDS = 0.5
STRAGGLER_STEPS = 10
"""In every so many steps a phone comes out of a tunnel and tells of a minute that is closed."""
STRAGGLER_LATE_S = 100


def go_on(
    teller: Teller,
    visits: Topic,
    messages: Topic,
    views: Views,
    traffic: Traffic,
    begin_s: float,
    check: Callable[[], None],
) -> None:
    """Sends visits and messages from second `begin_s` of the shop's clock on, and shows what they change. `check`
    raises when there is no worker any more."""
    teller.step(f"The shop goes on, {SPEED} times as fast as life, until Ctrl-C")
    try:
        with _more(visits, messages, traffic, begin_s):
            (_drawn if teller.terminal else _tell_changes)(teller, views, check)
    except KeyboardInterrupt:
        teller.say("Closed.")


@contextmanager
def page(teller: Teller, home: Path) -> Iterator[None]:
    """The same in a browser; only a word about it where its libraries are not installed."""
    from headrace.serve import open_server

    try:
        server = open_server(home)
    except ServeMissing as error:
        teller.say(f"No page: {error}")
        yield
        return
    with server:
        teller.say("The same in a browser, as long as this runs:")
        teller.show(f"page: {server.link}")
        yield


def _more(visits: Topic, messages: Topic, traffic: Traffic, begin_s: float) -> AbstractContextManager[None]:
    """Visitors keep coming, now and then a straggler among them."""
    times = itertools.count(1)

    def send() -> None:
        step = next(times)
        end_s = begin_s + step * STEP_SECONDS * SPEED
        rows = traffic.visits(end_s - STEP_SECONDS * SPEED, end_s, PER_SECOND)
        if step % STRAGGLER_STEPS == 0:
            rows.append(traffic.view("berlin", "berlin-07", "/kettle", end_s - STRAGGLER_LATE_S, arrives_s=end_s))
        visits.append(rows)
        messages.append(traffic.messages(end_s - STEP_SECONDS * SPEED, end_s))

    return every(STEP_SECONDS, send)


def _tell_changes(teller: Teller, views: Views, check: Callable[[], None]) -> None:
    while True:
        with views.watch(VIEW, snapshot=False, timeout="5 seconds") as changes:
            for change in changes:
                teller.change(change["op"], line(change))
        check()


def _drawn(teller: Teller, views: Views, check: Callable[[], None]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(no_color=not teller.colour, highlight=False), auto_refresh=False) as picture:
        while True:
            check()
            picture.update(Text("\n".join(f"     {line(row)}" for row in recent(views))), refresh=True)
            time.sleep(STEP_SECONDS)
