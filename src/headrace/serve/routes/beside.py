"""What stands beside the flows: captures of databases, and full-text indexes. Owns their facts in the overview, and
their routes. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from headrace.capture import Capture
from headrace.cdc.choice import state_topic
from headrace.cdc.journal import captures
from headrace.connect.index.searching import HITS_MAX, SECONDS_MAX, SKIP_MAX, Searching
from headrace.connect.index.standing import index_facts, index_file, index_names
from headrace.names import check_name
from headrace.serve.answers import Json
from headrace.serve.routes.captured import capture_facts
from headrace.sink import Sink
from headrace.views.owner import is_held

if TYPE_CHECKING:
    from headrace.log.contract import Log
    from headrace.serve.home import Home

__all__ = ["BesideRoutes", "beside_problems", "captures_now", "indexes_now"]

Facts = dict[str, Any]
LOSS_SECONDS = 86_400.0
"""A slot that is lost sooner than that needs attention."""
STATES = {True: "running", False: "stopped", None: "unknown"}
Counted = Callable[[object, object, Callable[[], Any]], Any]
"""Finds a value anew when its version is another, but not all the time."""


def captures_now(home: Home, log: Log, counted: Counted | None = None) -> list[Facts]:
    """`counted`: what is asked again and again is not read each time."""
    found = []
    here = home.beside()
    for name in captures(log):
        facts = _read(("capture", name), log, state_topic(name), counted, partial(capture_facts, log, name))
        found.append({**facts, **_state(home, Capture.lock_name(name), here)})
    return found


def indexes_now(home: Home, log: Log) -> list[Facts]:
    here = home.beside()
    out = []
    for name in index_names(log):
        facts = index_facts(log, home.path, name)
        state = _state(home, Sink.lock_name(name), here)
        out.append({**facts, "runs": state["state"], "problem": facts["problem"] or state["error"]})
    return out


def _read(key: object, log: Log, topic: str, counted: Counted | None, find: Callable[[], Any]) -> Any:
    if counted is None:
        return find()
    ends = log.topic(topic).ends()
    return counted(key, tuple(sorted((partition, end.next) for partition, end in ends.items())), find)


def _state(home: Home, lock: str, here: dict[str, tuple[str, str]]) -> Facts:
    """By the process that serves, if it is the one; else by the lock."""
    state, error = here.get(lock, ("stopped", ""))
    if state == "stopped":
        state = STATES[is_held(home.path, lock)]
    return {"state": state, "error": error or None}


def beside_problems(facts: Facts) -> Iterator[str]:
    for capture in facts["captures"]:
        name, left = capture["name"], capture["time_to_loss_seconds"]
        if capture["error"]:
            yield f"Capture {name} is {capture['state']}: {capture['error']}"
        if capture["wal_status"] in ("unreserved", "lost"):
            yield f"Capture {name}: its slot is {capture['wal_status']}. The database removes what it needs."
        elif left is not None and left < LOSS_SECONDS:
            yield f"Capture {name} loses its slot in {left / 3600:.1f} hours if nothing is read."
        for table in capture["tables"]:
            if table["command"]:
                yield f"Table {table['table']} of capture {name} is stopped: {table['why']}. {table['command']}"
    for index in facts["indexes"]:
        if index["problem"]:
            yield f"Index {index['name']}: {index['problem']}"
        elif index["runs"] == "stopped" and index["lag_records"]:
            yield f"Index {index['name']} is not kept up, and {index['lag_records']:,} records wait for it."


class BesideRoutes:
    def __init__(self, home: Home) -> None:
        self._home = home

    def routes(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield "/api/captures", self.captures
        yield "/api/indexes", self.indexes
        yield "/api/indexes/{index}/search", self.search

    async def captures(self) -> Json:
        """All captures: how far they are, their tables, and what the database keeps for them. `command`: by which a
        table that was stopped goes on."""
        return Json(await self._home.read(lambda: self._all(captures_now)))

    async def indexes(self) -> Json:
        """All full-text indexes: what they are over, and how far."""
        return Json(await self._home.read(lambda: self._all(indexes_now)))

    def _all(self, find: Callable[[Home, Log], list[Facts]]) -> list[Facts]:
        log = self._home.log_if_any()
        return [] if log is None else find(self._home, log)

    async def search(
        self,
        index: str,
        q: Annotated[str, Query(max_length=10_000)] = "",
        limit: Annotated[int, Query(ge=1, le=HITS_MAX)] = 20,
        skip: Annotated[int, Query(ge=0, le=SKIP_MAX)] = 0,
    ) -> Json:
        """Rows with these words, the best first. `q`: words that are all there; "one phrase"; begin*; -without; this OR
        that; column:word. No text is wrong. `marks`: words around those found, in pieces, each with whether it is one
        of those; `row` has the other columns."""

        def look() -> Facts:
            file = index_file(self._home.log(), self._home.path, check_name(index, argument="index"))
            with Searching(file) as opened:
                found = opened.search(q, limit=limit, skip=skip, seconds=SECONDS_MAX)
            return {
                "hits": [
                    {
                        "key": hit.key,
                        "row": {name: value for name, value in hit.row.items() if name not in hit.marks},
                        "marks": {
                            name: [{"text": text, "marked": marked} for text, marked in pieces]
                            for name, pieces in hit.marks.items()
                        },
                    }
                    for hit in found.hits
                ],
                "count": found.count,
                "more": found.more,
                "why": found.why or None,
            }

        return Json(await self._home.rows(look))
