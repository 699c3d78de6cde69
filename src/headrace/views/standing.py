"""How far views are behind their topics, as plain values: what `headrace views show` prints and the HTTP API answers.
Owns the names of the facts; reads, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.durations import from_us
from headrace.errors import KafkaFailed, TopicReplaced, UnknownTopic
from headrace.log.capabilities import OpenTransaction, Transactions
from headrace.views.contract import HISTORY
from headrace.views.origins import Branch, higher, lower

if TYPE_CHECKING:
    from headrace.log.contract import Log, Offsets
    from headrace.views.contract import FlowSpec, FlowState
    from headrace.views.reading import Views

__all__ = ["holds_up", "lag_of", "read_of", "reads_of", "sources_of", "table_facts"]


def reads_of(log: Log | None, flow: FlowSpec, state: FlowState) -> list[dict[str, Any]]:
    """Each partition the flow reads: how far it is, and how far the topic. Of a topic that is gone, or was made again,
    nothing is known."""
    out = []
    for name in flow.sources:
        offsets = {number: place.offset for number, place in state.places.get(name, {}).items()}
        out += _facts(name, offsets, {}, _ends(log, name, state.topic_ids.get(name)), state)
    return out


def sources_of(log: Log | None, branches: Iterable[Branch], state: FlowState) -> list[dict[str, Any]]:
    """Each partition the records of a view come from, through the flows before it: up to where the view has them, and
    how many wait, there or on their way. Of a topic that flows of the home write, only records of others count: its
    own are counted where those come from."""
    found: dict[str, Branch] = {}
    for branch in branches:
        if not branch.between:
            known = found.get(branch.topic)
            found[branch.topic] = branch if known is None else _both(known, branch)
    return [
        facts
        for name, branch in found.items()
        for facts in _facts(name, branch.offsets, branch.written or {}, _ends(log, name, branch.topic_id), state)
    ]


def _both(one: Branch, other: Branch) -> Branch:
    written = None if one.written is None or other.written is None else higher(one.written, other.written)
    return Branch(
        one.topic,
        one.topic_id or other.topic_id,
        lower(one.offsets, other.offsets),
        one.direct or other.direct,
        written,
    )


def _ends(log: Log | None, name: str, topic_id: str | None) -> Mapping[int, Offsets]:
    with contextlib.suppress(UnknownTopic):
        topic = None if log is None else log.topic(name)
        if topic is not None and topic_id in (None, topic.describe().topic_id):
            return topic.ends()
    return {}


def holds_up(log: Log | None, names: Iterable[str]) -> list[OpenTransaction]:
    """Open transactions by which these topics are not read on, where the log has such."""
    found = list[OpenTransaction]()
    for name in dict.fromkeys(names):
        with contextlib.suppress(UnknownTopic, TopicReplaced, KafkaFailed):  # whoever reads it says so
            topic = None if log is None else log.topic(name)
            if isinstance(topic, Transactions):
                found += topic.open_transactions()
    return found


def _facts(
    name: str, offsets: Mapping[int, int], written: Mapping[int, int], ends: Mapping[int, Offsets], state: FlowState
) -> list[dict[str, Any]]:
    out, places = [], state.places.get(name, {})
    for number in sorted(offsets.keys() | places.keys() | ends.keys()):
        place, end = places.get(number), ends.get(number)
        known = number in offsets or place is not None
        lag = None
        if end is not None:
            lag = max(0, end.next - max(end.earliest, offsets.get(number, 0), written.get(number, 0)))
        out.append(
            {
                "topic": name,
                "partition": number,
                "offset": offsets.get(number, 0) if known else None,
                "next": end.next if end else None,
                "lag_records": lag,
                "progress": None if place is None or place.progress_us is None else from_us(place.progress_us),
            }
        )
    return out


def table_facts(log: Log | None, views: Views, table: FlowSpec) -> dict[str, Any]:
    """A table: its key, its history, and how many rows and kept versions it has. Counts no rows."""
    assert table.view is not None
    status, counts = views.status(table.name), views.counts(table.name)
    return {
        "table": table.name,
        "app": table.app,
        "key": [column.name for column in table.view.groups],
        "history": table.history,
        "rows": status.rows,
        "versions": None if table.history == "latest" else counts.get(HISTORY, (0, 0))[0],
        "lag_records": lag_of(sources_of(log, views.branches(table.name), views.state(table.name))),
        "committed_at": status.committed_at,
    }


def lag_of(sources: list[dict[str, Any]]) -> int | None:
    """Records that are there and not read; None when that cannot be known of all of them."""
    lags = [source["lag_records"] for source in sources]
    return None if not lags or None in lags else sum(lags)


def read_of(sources: list[dict[str, Any]]) -> int:
    """Offsets that were read."""
    return sum(source["offset"] or 0 for source in sources)
