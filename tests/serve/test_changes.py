"""A view's changes over HTTP: none lost, none doubled, whoever listens, however slowly, whatever is restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

import headrace as hr
from headrace.serve import feeds, overview
from headrace.serve.feeds import Place
from headrace.serve.server import Server
from tests.serve.conftest import VIEW, Served
from tests.serve.listening import Copy, deaf, listening
from tests.views.committing import Committing, random_batch

CHANGES = f"/api/views/{VIEW}/changes"


def stored(served: Served) -> Counter[str]:
    """The view, as a copy of it should be."""
    answer = served.get(f"/api/views/{VIEW}/rows", params={"limit": 10_000})
    names = [column["name"] for column in answer["columns"]]
    return Counter(json.dumps(dict(zip(names, row, strict=True)), sort_keys=True) for row in answer["rows"])


def commit_some(served: Served, dice: random.Random, count: int, begin: int = 0) -> None:
    for number in range(count):
        now = begin + number // 5
        served.committing.commit([*random_batch(dice, now), (now, "/", number)], closed=max(0, now - 2))


async def caught_up(served: Served, copy: Copy, **asked: str) -> None:
    """Listens until the copy is at the view's last commit."""
    last = served.committing.flow.sequence
    headers = {} if copy.last_id is None else {"Last_Event_ID": copy.last_id}
    async with asyncio.timeout(30):
        path = CHANGES + ("?" + "&".join(f"{name}={value}" for name, value in asked.items()) if asked else "")
        async with listening(served.server, path, **headers) as found:
            if copy.last_id is not None and copy.last_id.startswith(f"{last}-"):
                return
            await copy.follow(found, lambda copy: (copy.last_id or "").startswith(f"{last}-"))


def test_rows_then_changes(served: Served, seed: int) -> None:
    dice = random.Random(seed)
    commit_some(served, dice, 5)

    async def listen() -> None:
        copy = Copy()
        await caught_up(served, copy)
        assert copy.rows == stored(served)
        commit_some(served, dice, 20, 1)
        before = copy.changes
        await caught_up(served, copy)  # Last-Event-ID
        assert copy.rows == stored(served)
        assert (copy.resets, copy.changes > before) == (0, True)

    asyncio.run(listen())


def test_from_the_rows_of_a_page(served: Served, seed: int) -> None:
    """`position` of rows that were read is where to listen from."""
    dice = random.Random(seed)
    commit_some(served, dice, 5)
    page = served.get(f"/api/views/{VIEW}/rows", params={"limit": 10_000})
    copy = Copy(rows=stored(served))

    async def listen() -> None:
        async with listening(served.server, f"{CHANGES}?from={page['position']}") as found:
            commit_some(served, dice, 5, 1)
            last = served.committing.flow.sequence
            await copy.follow(found, lambda copy: (copy.last_id or "").startswith(f"{last}-"))

    asyncio.run(asyncio.wait_for(listen(), 30))
    assert (copy.rows, copy.resets) == (stored(served), 0)


def test_final_results_only(served: Served) -> None:
    served.committing.commit([(0, "/", 1), (1, "/", 1)], closed=1)

    async def listen() -> list[tuple[str, str, int]]:
        found = []
        async with listening(served.server, f"{CHANGES}?emit=final") as events:
            async for event in events:
                if event.kind == "ready":
                    served.committing.commit([(1, "/b", 1), (0, "/", 2)], closed=1)
                if event.kind == "change":
                    row = event.data["row"]
                    found.append((event.data["op"], row["page"], row["clicks"]))
                    if len(found) == 3:
                        return found
        return found

    assert asyncio.run(asyncio.wait_for(listen(), 30)) == [("+", "/", 1), ("-", "/", 1), ("+", "/", 2)]


def test_a_commit_that_was_sent_in_part_goes_on_there(served: Served) -> None:
    served.committing.commit([(0, f"/{number}", 1) for number in range(10)])
    copy = Copy()
    asyncio.run(caught_up(served, copy))
    served.committing.commit([(0, f"/{number}", 1) for number in range(10)])

    async def some() -> None:
        async with listening(served.server, CHANGES, Last_Event_ID=copy.last_id or "") as found:
            before = copy.changes
            await copy.follow(found, lambda copy: copy.changes == before + 7)

    asyncio.run(asyncio.wait_for(some(), 30))
    assert Place.parse(copy.last_id or "").sent == 7
    asyncio.run(caught_up(served, copy))
    assert (copy.rows, copy.resets) == (stored(served), 0)


def test_a_restart_of_the_server_loses_and_doubles_nothing(served: Served, seed: int) -> None:
    """Commits go on meanwhile; the listener comes back by itself, with the last id it has."""
    dice, copy, over = random.Random(seed), Copy(), threading.Event()

    async def listen() -> None:
        while not over.is_set() or not (copy.last_id or "").startswith(f"{served.committing.flow.sequence}-"):
            headers = {} if copy.last_id is None else {"Last_Event_ID": copy.last_id}
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(1), listening(served.server, CHANGES, **headers) as found:
                    await copy.follow(found, lambda _: False)
            await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    for restart in range(3):
        commit_some(served, dice, 30, restart)
        served.restart()
    commit_some(served, dice, 10, 4)
    over.set()
    thread.join(30)
    assert not thread.is_alive()
    assert (copy.rows, copy.resets) == (stored(served), 0)


def test_what_is_not_kept_any_more_begins_anew(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "KEEP_BYTES", 1)
    served.committing.commit([(0, "/", 1)])
    copy = Copy()
    asyncio.run(caught_up(served, copy))
    for _ in range(5):
        served.committing.commit([(0, "/", 1)])
    first = copy.last_id
    asyncio.run(caught_up(served, copy))
    assert (copy.resets, copy.rows) == (1, stored(served))
    copy.last_id = f"{Place.parse(first or '').sequence}-abcdef"  # of a view that was dropped and made again
    asyncio.run(caught_up(served, copy))
    assert (copy.resets, copy.rows) == (2, stored(served))
    copy.last_id = "999999"
    asyncio.run(caught_up(served, copy))
    assert (copy.resets, copy.rows) == (3, stored(served))


def test_what_is_asked_wrongly_is_told_before_the_stream(shared: Served) -> None:
    assert shared.get("/api/views/nothing/changes", 404)["error"]["type"] == "UnknownView"
    assert shared.get(CHANGES, 400, params={"from": "yesterday"})["error"]["type"] == "InvalidArgument"
    shared.get(CHANGES, 422, params={"emit": "sometimes"})


def test_a_large_view_is_not_sent_whole(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SNAPSHOT_ROWS_MAX", 10)
    served.committing.commit([(0, str(number), 1) for number in range(11)])
    assert "page by page" in served.get(CHANGES, 400)["error"]["message"]
    copy = Copy()

    async def listen() -> None:
        async with listening(served.server, f"{CHANGES}?snapshot=false") as found:
            served.committing.commit([(0, "new", 1)])
            await copy.follow(found, lambda copy: copy.changes == 1)

    asyncio.run(asyncio.wait_for(listen(), 30))


def test_one_who_is_too_slow_is_told_and_holds_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "KEEP_BYTES", 200_000)
    served.committing.commit([(0, "/", 1)])
    with contextlib.closing(deaf(served.server, CHANGES)) as slow:

        async def others() -> float:
            copy, longest = Copy(), 0.0
            async with listening(served.server, CHANGES) as found:
                await copy.follow(found, lambda copy: copy.last_id is not None)
                for number in range(80):  # 16 MB, more than all buffers between here and there
                    began = time.monotonic()
                    wanted = served.committing.commit([(0, f"{number}".ljust(200_000, "x"), 1)])
                    await copy.follow(found, lambda copy, wanted=wanted: copy.position == wanted)
                    longest = max(longest, time.monotonic() - began)
            return longest

        assert asyncio.run(asyncio.wait_for(others(), 60)) < 5
        slow.settimeout(30)
        heard = b""
        while b"event: end" not in heard[-2000:]:
            some = slow.recv(1 << 20)
            assert some, "it ends with a word"
            heard += some
        assert b'"reason":"slow"' in heard


@pytest.mark.timeout(180)
def test_two_hundred_listeners(served: Served, seed: int) -> None:
    """All are served while commits go on, one of them deaf; each gets every change once, in time."""
    listeners, commits = 200, 40
    served.committing.commit([(0, "/", 1)])
    copies = [Copy() for _ in range(listeners - 1)]
    ready = threading.Barrier(2)
    done_at: list[float] = []
    last = served.committing.flow.sequence + commits

    async def one(copy: Copy, begun: asyncio.Semaphore) -> None:
        async with listening(served.server, CHANGES) as found:
            await copy.follow(found, lambda copy: copy.last_id is not None)
            begun.release()
            await copy.follow(found, lambda copy: (copy.last_id or "").startswith(f"{last}-"))
            done_at.append(time.monotonic())

    async def all_of_them() -> None:
        begun = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(one(copy, begun)) for copy in copies]
        for _ in copies:
            await begun.acquire()
        await asyncio.to_thread(ready.wait)
        await asyncio.gather(*tasks)

    thread = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(all_of_them(), 120)))
    with contextlib.closing(deaf(served.server, CHANGES)):
        thread.start()
        ready.wait(60)
        began = time.monotonic()
        commit_some(served, random.Random(seed), commits)
        committed_at = time.monotonic()
        assert served.get("/api/overview")["views"][0]["name"] == VIEW  # beside them
        thread.join(120)
        assert len(done_at) == len(copies)
        lateness = max(done_at) - committed_at
        print(f"{commits} commits in {committed_at - began:.2f} s, all heard {lateness:.2f} s after the last")
        watchers = served.query("select count(*) from _watchers")["rows"]
    assert watchers == [[1]], "one watch for all of them"
    wanted = stored(served)
    assert all(copy.rows == wanted and not copy.resets for copy in copies)
    assert lateness < 30


def test_the_server_ends_in_time_with_listeners(served: Served) -> None:
    served.committing.commit([(0, "/", 1)])
    ended: list[bool] = []

    async def listen(path: str) -> None:
        async with listening(served.server, path) as found:
            async for _ in found:
                ended.append(False)
        ended.append(True)

    threads = [
        threading.Thread(target=lambda path=path: asyncio.run(listen(path)))
        for path in (CHANGES, CHANGES, "/api/overview/events")
    ]
    with contextlib.closing(deaf(served.server, CHANGES)):
        for thread in threads:
            thread.start()
        while len(ended) < 7:  # snapshot, row, ready; twice; and an overview
            time.sleep(0.01)
        began = time.monotonic()
        served.stop()
        assert time.monotonic() - began < 6
    for thread in threads:
        thread.join(10)
    assert ended.count(True) == 3


def test_the_overview_comes_when_it_changed(served: Served) -> None:
    async def listen() -> None:
        async with listening(served.server, "/api/overview/events") as found:
            first = await anext(aiter(found))
            assert (first.kind, first.data["topics"][0]["records"]) == ("overview", 0)
            served.clicks.append({"user": "ann"})
            async for event in found:
                if event.data["topics"][0]["records"] == 1:
                    return

    asyncio.run(asyncio.wait_for(listen(), 20))


def test_the_overview_is_gathered_once_for_all(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many listen; and not at all when nobody does."""
    monkeypatch.setattr(overview, "SECONDS", 0.2)
    gathered: list[float] = []
    gather = overview._Gatherer.gather
    monkeypatch.setattr(
        overview._Gatherer,
        "gather",
        lambda self: gathered.append(time.monotonic()) or gather(self),  # type: ignore[func-returns-value]
    )

    async def listen() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(20):
                found = await stack.enter_async_context(listening(served.server, "/api/overview/events"))
                assert (await anext(aiter(found))).kind == "overview"
            await asyncio.sleep(1)

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(listen(), 30))
    lasted = time.monotonic() - began
    assert 4 <= len(gathered) <= lasted / 0.2 + 2
    time.sleep(0.5)  # the one that was under way
    before = len(gathered)
    time.sleep(0.5)
    assert len(gathered) == before


def test_a_home_that_is_made_anew_is_another(tmp_path: Path) -> None:
    def make(topic: str) -> None:
        with hr.open_log(home) as log, Committing(home, topic_id=log.create_topic(topic, "a int").topic_id) as made:
            made.commit([(0, "/", 5)])

    async def ended(server: Server) -> str:
        async with listening(server, CHANGES) as found:
            async for event in found:
                if event.kind == "ready":
                    shutil.rmtree(home)
                if event.kind == "end":
                    return str(event.data["reason"])
        raise AssertionError("it ends with a word")

    home = tmp_path / "home"
    make("before")
    with Server(home, port=0) as server:
        client = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"})
        assert [topic["name"] for topic in client.get("/api/topics").json()] == ["before"]
        assert asyncio.run(asyncio.wait_for(ended(server), 20)) == "WatchLost"
        assert client.get("/api/topics").json() == client.get("/api/views").json() == []
        make("after")
        assert [topic["name"] for topic in client.get("/api/topics").json()] == ["after"]
        assert client.get(f"/api/views/{VIEW}/rows").json()["rows"]


def test_a_listener_that_goes_leaves_nothing_behind(served: Served) -> None:
    served.committing.commit([(0, "/", 1)])
    with httpx.stream("GET", served.server.url + CHANGES, headers=dict(served.client.headers)) as answer:
        assert next(answer.iter_lines()) == "event: snapshot"
    limit = time.monotonic() + 10
    while any(thread.name.startswith("headrace-feed") for thread in threading.enumerate()):
        assert time.monotonic() < limit
        time.sleep(0.05)
