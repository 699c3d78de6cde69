"""How indexes stand, as plain values: what `headrace index list` prints, and the page and the metrics show. Owns the
names of the facts; reads, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.index.searching import Searching
from headrace.connect.index.spec import KIND, SearchIndex
from headrace.connect.journal import recorded, sinks
from headrace.connect.reading import ends_of
from headrace.errors import StorageError, UnknownSink, UnknownTopic

if TYPE_CHECKING:
    from headrace.log.contract import Log

__all__ = ["index_facts", "index_file", "index_names"]


def index_names(log: Log) -> list[str]:
    return [name for name, facts in sinks(log).items() if facts.get("kind") == KIND]


def index_file(log: Log, home: Path, name: str) -> Path:
    """UnknownSink if there is no such index."""
    try:
        return SearchIndex.of(name, recorded(log, name).get("spec", {})).file(home)
    except UnknownSink:
        raise UnknownSink(name, index_names(log), KIND) from None


def index_facts(log: Log, home: Path, name: str) -> dict[str, Any]:
    """`problem`: why nothing is known of its file, if that is so."""
    facts = recorded(log, name)["spec"]
    index = SearchIndex.of(name, facts)
    out: dict[str, Any] = {
        "name": name,
        "topic": facts["topic"],
        "text": [*index.text],
        "key": [*(index.key or ())],
        "tokenizer": index.tokenizer,
        "state": "waiting",
        "rows": 0,
        "rebuilding": None,
        "lag_records": None,
        "bytes": 0,
        "problem": None,
    }
    try:
        with Searching(index.file(home)) as found:
            status = found.status()
        ends = ends_of(log.topic(facts["topic"]))
    except (StorageError, UnknownTopic) as error:
        return {**out, "problem": str(error)}
    lag = sum(max(0, end - status.place.get(partition, 0)) for partition, end in ends.items())
    return {
        **out,
        "key": status.key or out["key"],
        "state": status.state,
        "rows": status.rows,
        "rebuilding": status.rebuilding,
        "lag_records": lag,
        "bytes": status.bytes,
    }
