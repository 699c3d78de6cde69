"""What a join, or a pattern, keeps of each of its inputs, and which partition keeps it there. Owns these values; a
store has the numbers, and counts them with each commit. Pure.

A record of a stream-stream join goes when the *other* side's reach has passed it. The reach of an input is the least
progress of its partitions: so it is one partition that holds the state, the one that is furthest behind, or one without
any record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from headrace.durations import from_us
from headrace.views.contract import DUE, HISTORY, PARTIALS, FlowSpec, FlowState, Place

__all__ = ["Holder", "Kept", "kept_of"]

TITLES = {
    "enrich(": {"facts": "facts", "versions": "table", "windows": "table"},
    "join(": {"left": "left", "right": "right"},
    "table_join(": {"left": "left", "right": "right", HISTORY: ""},
    "table(": {HISTORY: "records"},
    "match(": {"events": "events", PARTIALS: "events"},
}
"""By operator: the tables that are shown, each with the input whose records it keeps; "": of all inputs."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A partition that holds state. `topic`: as the program calls it. `progress`: how far it is; None: it has none yet.
    `partition`: None: a flow writes the topic, and how far it is, is not known."""

    topic: str
    partition: int | None
    progress: datetime | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a join keeps of one input. `side`: "facts" and "versions" of an enrichment, or by a view "windows"; "left"
    and "right" of a join; "history" of a table, or of joined ones; "events" of a pattern, and "partials", the keys that
    wait. `topics`: whose records, by the program's names.
    `bytes`: about so many. `held_by`: until this partition moves on, nothing goes; None where rows go by another rule,
    or there are none."""

    side: str
    topics: tuple[str, ...]
    rows: int
    bytes: int
    held_by: Holder | None


def kept_of(
    spec: FlowSpec,
    state: FlowState,
    counts: Mapping[str, tuple[int, int]],
    *,
    goes_back: bool,
    called: Callable[[str], str] = str,
) -> list[Kept]:
    """`counts`: rows and bytes by table. `goes_back`: progress can go back in what the flow reads. `called(topic)`:
    what the program calls it."""
    operator = spec.operator.partition("(")[0] + "("
    out = []
    for side, role in TITLES.get(operator, {}).items():
        if side not in {table.name for table in spec.tables}:
            continue
        rows, _ = counts.get(side, (0, 0))
        own = (name for name in counts if side in (name, name.partition("/")[0]))  # its indexes, too
        size = sum(counts[name][1] for name in own)
        other = {"left": "right", "right": "left"}.get(side)
        held = None
        if operator == "join(" and rows and other is not None:
            held = _holder(_topics(spec, other), state.places, goes_back=goes_back)
            held = None if held is None else replace(held, topic=called(held.topic))
        topics = tuple(dict.fromkeys(map(called, _topics(spec, role))))
        out.append(Kept(side.removeprefix(DUE), topics, rows, size, held))
    return out


def _topics(spec: FlowSpec, role: str) -> tuple[str, ...]:
    return tuple(topic for side, topic in spec.sides if role in (side, ""))


def _holder(topics: Iterable[str], places: Mapping[str, Mapping[int, Place]], *, goes_back: bool) -> Holder | None:
    if goes_back:
        return Holder(next(iter(topics)), None, None)
    found = [(topic, number, place.progress_us) for topic in topics for number, place in places.get(topic, {}).items()]
    if not found:
        return None
    topic, number, least_us = min(found, key=lambda each: (each[2] is not None, each[2] or 0))
    return Holder(topic, number, None if least_us is None else from_us(least_us))
