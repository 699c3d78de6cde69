"""A view's changes for all of its listeners. Owns one watch per view and emit, in a thread. The latest changes are kept
in memory once, as the bytes that are sent, and every listener has its own offset in them. A listener whose offset is no
longer kept is too slow, and is closed.

The store keeps the same changes for the watch, and for a while after it ends, so that listeners continue where they
were when the server is started again soon. The id of a change, `17.2-a1b2c3`, has the number of its commit, how many of
the commit's changes were sent (nothing if all were), and the view's incarnation."""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

import anyio.to_thread
import pyarrow as pa

from headrace.errors import HeadraceError, InvalidArgument, WatchLost
from headrace.jsonrows import encode_row
from headrace.rows import to_rows
from headrace.serve.home import Busy, Home
from headrace.serve.streams import EventStream, event
from headrace.views.contract import Emit

__all__ = ["Feeds", "Place"]

logger = logging.getLogger("headrace.serve")

KEEP_BYTES = 16 << 20
"""Of changes as the store has them, and, apart from that, as they are sent."""
LEASE = "30 seconds"
LOOK_SECONDS = 0.5
PING_SECONDS = 15.0
FEEDS_MAX = 64
SNAPSHOT_ROWS_MAX, SNAPSHOT_BYTES_MAX = 100_000, 64 << 20
SNAPSHOT_SECONDS = 2.0
"""So old a snapshot may be that is sent to the next who comes: what has changed since then follows it."""

END = b"\n\n"
"""Of an event."""
AT_ONCE_BYTES = 256 << 10
_PLACE = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:-([0-9a-f]{1,64}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """`sent`: of the commit's changes; None: all. `born`: None if it was not said."""

    sequence: int
    sent: int | None = None
    born: str | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        found = _PLACE.fullmatch(text)
        if found is None:
            raise InvalidArgument("from", text[:80], "is not a position of a view's changes, such as 17.2-a1b2c3")
        sequence, sent, born = found.groups()
        return cls(int(sequence), None if sent is None else int(sent), born)

    def __str__(self) -> str:
        sent = "" if self.sent is None else f".{self.sent}"
        return f"{self.sequence}{sent}{'' if self.born is None else f'-{self.born}'}"


@dataclass(frozen=True, slots=True)
class _Commit:
    """All changes of a commit, as they are sent."""

    sequence: int
    events: bytes

    def after(self, sent: int) -> bytes:
        return END.join(self.events.split(END)[sent:])


class Feeds:
    """All feeds of a home: begun with their first listener, ended with their last."""

    def __init__(self, home: Home) -> None:
        self._home, self._feeds = home, dict[tuple[str, Emit], _Feed]()
        self._ended: set[_Feed] = set()

    async def changes(self, view: str, emit: Emit, place: Place | None, *, snapshot: bool) -> EventStream:
        """Checks now, and begins to listen: from the place on, or from the rows as they are."""
        feed = await self._listened(view, emit)
        try:
            if place is None and not snapshot:
                place = Place(feed.sequence)
            first = await feed.snapshot() if place is None else None
        except BaseException:
            self._leave(feed)
            raise
        return EventStream(feed.events(place, first), lambda: self._leave(feed))

    async def _listened(self, view: str, emit: Emit) -> _Feed:
        feed = self._feeds.get((view, emit))
        if feed is None or feed.over:
            if len(self._feeds) >= FEEDS_MAX:
                raise Busy("views that are listened to", FEEDS_MAX)
            feed = self._feeds[view, emit] = _Feed(self._home, view, emit)
            feed.start()
        feed.listeners += 1
        try:
            await feed.begun()
        except BaseException:
            self._leave(feed)
            raise
        return feed

    def _leave(self, feed: _Feed) -> None:
        feed.listeners -= 1
        if not feed.listeners:
            feed.stop()
            self._ended = {each for each in self._ended if each.alive} | {feed}
            if self._feeds.get((feed.view, feed.emit)) is feed:
                del self._feeds[feed.view, feed.emit]

    def wake(self) -> None:
        """Whoever listens looks whether the server ends."""
        for feed in self._feeds.values():
            feed.wake()

    def close(self) -> None:
        """Ends all; what they kept lingers in the store."""
        ended = [*self._feeds.values(), *self._ended]
        for feed in ended:
            feed.stop()
        for feed in ended:
            feed.join()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    sequence: int
    taken_at: float
    pieces: list[bytes]


class _Feed:
    """`sequence`: of the last commit that is known here; `_base`: all changes behind that one are here."""

    def __init__(self, home: Home, view: str, emit: Emit) -> None:
        self.view, self.emit, self.listeners = view, emit, 0
        self.sequence, self.born = -1, ""
        self.error: HeadraceError | None = None
        self._home, self._loop = home, asyncio.get_running_loop()
        self._news, self._begun, self._stop = asyncio.Event(), asyncio.Event(), threading.Event()
        self._commits: collections.deque[_Commit] = collections.deque()
        self._bytes, self._base = 0, -1
        self._snapshot: _Snapshot | None = None
        self._snapshotting = asyncio.Lock()
        self._thread = threading.Thread(target=self._watch, name=f"headrace-feed-{view}", daemon=True)

    # -- the thread ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(10.0)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def over(self) -> bool:
        return self.error is not None or self._stop.is_set()

    def _watch(self) -> None:
        try:
            views = self._home.views
            file = views.identity()
            with views.watch(self.view, snapshot=False, emit=self.emit, lease=LEASE, keep_bytes=KEEP_BYTES) as watch:
                state = views.state(self.view)
                self._tell(self._begin, watch.position, state.line)
                while not self._stop.is_set() and (found := watch.next_commit(0)) is not None:
                    self._tell(self._add, self._encoded(found, state.line))
                self._tell(self._is_there, state.sequence)
                while not self._stop.is_set():
                    if (found := watch.next_commit(LOOK_SECONDS)) is not None:
                        self._tell(self._add, self._encoded(found, state.line))
                    elif views.identity() != file:  # what is open goes on, and nobody writes to it
                        raise WatchLost(view=self.view, why="the home was removed, or is another one")
                watch.close(linger=True)
        except HeadraceError as error:
            self._tell(self._fail, error)
        except Exception:
            logger.exception("the changes of view %s cannot be read", self.view)
            self._tell(self._fail, WatchLost(view=self.view, why="the server failed to read them; its log says why"))

    def _encoded(self, found: pa.Table, born: str) -> _Commit:
        rows = to_rows(found.combine_chunks().to_batches()[0])
        sequence = rows[0]["_position"]
        places = [*(Place(sequence, number, born) for number in range(1, len(rows))), Place(sequence, None, born)]
        changes = (event("change", _change(row), id=str(place)) for row, place in zip(rows, places, strict=True))
        return _Commit(sequence, b"".join(changes))

    def _tell(self, act: Any, *values: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *values)

    # -- the loop ------------------------------------------------------------------------------------

    def _begin(self, sequence: int, born: str) -> None:
        self.sequence = self._base = sequence
        self.born = born

    def _is_there(self, sequence: int) -> None:
        """All that is kept was read. The last commits may have changed nothing."""
        self.sequence = max(self.sequence, sequence)
        self._begun.set()

    def _add(self, commit: _Commit) -> None:
        self.sequence = max(self.sequence, commit.sequence)
        self._commits.append(commit)
        self._bytes += len(commit.events)
        while self._bytes > KEEP_BYTES and len(self._commits) > 1:
            gone = self._commits.popleft()
            self._bytes -= len(gone.events)
            self._base = gone.sequence
        self.wake()

    def _fail(self, error: HeadraceError) -> None:
        self.error = error
        self._begun.set()
        self.wake()

    def wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def begun(self) -> None:
        await self._begun.wait()
        if self.error is not None:
            raise self.error

    # -- listening -----------------------------------------------------------------------------------

    async def events(self, place: Place | None, first: _Snapshot | None) -> AsyncGenerator[bytes]:
        """From a place; from the rows as they are where that is not possible, and without one."""
        if first is None:
            assert place is not None, "one of them"
            if place.sequence > self.sequence:  # commits that change nothing are not heard of
                state = await self._home.read(lambda: self._home.views.state(self.view))
                self.sequence = max(self.sequence, state.sequence)
            why = self._gone(place)
            if why is not None:
                try:
                    first = await self.snapshot()
                except HeadraceError as error:
                    yield event("end", {"reason": "lost", "message": f"{why} {error}"})
                    return
                yield event("reset", {"view": self.view, "message": why})
        if first is not None:
            for piece in first.pieces:
                yield piece
            place = Place(first.sequence)
        assert place is not None
        while True:
            news = self._news  # before looking: what comes meanwhile wakes
            if self._behind(place):
                why = "too slow: changes come faster than they are read here. Continue from the last id."
                yield event("end", {"reason": "slow", "message": why})
                return
            if (some := self._following(place)) is not None:
                yield some[1]
                place = some[0]
                continue
            if self.error is not None:
                yield event("end", {"reason": type(self.error).__name__, "message": str(self.error)})
                return
            if self._home.closing.is_set():
                return
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield event("ping", {})

    def _gone(self, place: Place) -> str | None:
        """Why it cannot go on from there; None: it can."""
        if place.born is not None and place.born != self.born:
            return "the view was created again since."
        if place.sequence > self.sequence:
            return "the view has not read that far: it was created again, or its file is an older one."
        if self._behind(place):
            return "the changes since then are no longer kept."
        return None

    def _behind(self, place: Place) -> bool:
        """Whether a change that follows it is gone: of a commit that was sent in part, the rest."""
        return place.sequence < self._base or (place.sequence == self._base and place.sent is not None)

    def _following(self, place: Place) -> tuple[Place, bytes] | None:
        """What comes next, not too much at once, and the place behind it."""
        waiting: list[_Commit] = []
        for commit in reversed(self._commits):
            if commit.sequence < place.sequence or (commit.sequence == place.sequence and place.sent is None):
                break
            waiting.append(commit)
        some: list[bytes] = []
        while waiting and sum(map(len, some)) < AT_ONCE_BYTES:
            commit = waiting.pop()
            some.append(commit.after(place.sent or 0) if commit.sequence == place.sequence else commit.events)
            place = Place(commit.sequence)
        return None if not some else (place, some[0] if len(some) == 1 else b"".join(some))

    async def snapshot(self) -> _Snapshot:
        """The rows as they are, or were a moment ago; read once for all who come at the same time."""
        async with self._snapshotting:
            known = self._snapshot
            fresh = known is not None and time.monotonic() - known.taken_at < SNAPSHOT_SECONDS
            if known is None or not fresh or known.sequence < self._base:
                known = await anyio.to_thread.run_sync(self._take, limiter=self._home.snapshots)
                self._snapshot = known
                self._loop.call_later(SNAPSHOT_SECONDS, self._forget, known)
            return known

    def _forget(self, snapshot: _Snapshot) -> None:
        if self._snapshot is snapshot:
            self._snapshot = None

    def _take(self) -> _Snapshot:
        bounds = self._home.bounds(rows=SNAPSHOT_ROWS_MAX, seconds=30.0, result_bytes=SNAPSHOT_BYTES_MAX)
        page = self._home.views.page(self.view, bounds=bounds, stored=True)
        if page.after is not None:
            why = "the view is too large to be sent whole: read /rows page by page, and listen with snapshot=false"
            raise InvalidArgument("snapshot", True, why)
        at = time.monotonic()
        rows = [row for batch in page.rows.to_batches() for row in to_rows(batch)]
        if self.emit == "final":
            rows = [row for row in rows if row["_status"] == "final"]
        if "window_start" in page.rows.column_names:
            rows.reverse()  # the oldest first
        head = event("snapshot", {"view": self.view, "rows": len(rows), "_position": page.sequence})
        changes = [event("change", encode_row({"op": "+", "row": row, "_position": page.sequence})) for row in rows]
        tail = event("ready", {"_position": page.sequence}, id=str(Place(page.sequence, None, page.born)))
        return _Snapshot(page.sequence, at, [head, *_joined(changes), tail])


def _change(row: dict[str, Any]) -> bytes:
    op: Literal["+", "-"] = row.pop("op")
    position = row.pop("_position")
    return encode_row({"op": op, "row": row, "_position": position})


def _joined(events: list[bytes], count: int = 500) -> list[bytes]:
    return [b"".join(events[begin : begin + count]) for begin in range(0, len(events), count)]
