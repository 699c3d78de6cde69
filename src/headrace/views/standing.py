"""How far views are behind their topics, as plain values: what `headrace views show` prints and the HTTP API answers.
Owns the names of the facts; reads, and changes nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.durations import from_us
from headrace.errors import UnknownTopic

if TYPE_CHECKING:
    from headrace.log.embedded.log import EmbeddedLog
    from headrace.views.contract import FlowSpec, FlowState

__all__ = ["lag_of", "sources_of"]


def sources_of(log: EmbeddedLog | None, flow: FlowSpec, state: FlowState) -> list[dict[str, Any]]:
    """Each partition the view reads: how far it is, and how far the topic. Of a topic that is gone, or was made
    again, nothing is known."""
    out = []
    for name in flow.sources:
        places, topic = state.places.get(name, {}), None
        with contextlib.suppress(UnknownTopic):
            topic = None if log is None else log.topic(name)
        same = topic is not None and topic.describe().topic_id == state.topic_ids.get(name, topic.describe().topic_id)
        ends = topic.offsets() if topic is not None and same else {}
        for number in sorted(places.keys() | ends.keys()):
            place, end = places.get(number), ends.get(number)
            progress = None if place is None or place.progress_us is None else from_us(place.progress_us)
            unread_from = None if end is None else max(end.earliest, place.offset if place else 0)
            out.append(
                {
                    "topic": name,
                    "partition": number,
                    "offset": place.offset if place else None,
                    "next": end.next if end else None,
                    "lag_records": None if end is None or unread_from is None else max(0, end.next - unread_from),
                    "progress": progress,
                }
            )
    return out


def lag_of(sources: list[dict[str, Any]]) -> int | None:
    """Records that are there and not read; None when that cannot be known of all of them."""
    lags = [source["lag_records"] for source in sources]
    return None if not lags or None in lags else sum(lags)
